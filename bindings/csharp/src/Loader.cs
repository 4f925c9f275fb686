// SPDX-License-Identifier: Apache-2.0
using System;
using System.Runtime.InteropServices;

namespace Dt
{
    /// Loads the native library, once, and says why where that is not possible.
    internal static class Loader
    {
        [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
        delegate void ErrorCallback(int status, int rank, IntPtr host, long pid, IntPtr operation,
            long sequence, IntPtr message);

        [DllImport("dtcs")]
        static extern void DtRegisterErrorCallback(ErrorCallback callback);

        // Native code keeps its address.
        static readonly ErrorCallback callback = SetPending;
        static readonly object gate = new object();
        static volatile bool loaded;

        /// What makes the first object of a program calls this.
        internal static void Ensure()
        {
            if (loaded) return;
            lock (gate)
            {
                if (loaded) return;
                Load();
                loaded = true;
            }
        }

        static void Load()
        {
            try
            {
                DtRegisterErrorCallback(callback);
            }
            catch (Exception error)
            {
                if (!(error is DllNotFoundException || error is EntryPointNotFoundException ||
                      error is BadImageFormatException))
                {
                    throw;
                }
                ErrorParts parts = new ErrorParts(Status.System, "dt: libdtcs.so cannot be loaded: " +
                    error.Message + "; libdtcs.so, libdt.so.0 and libuv.so.1 for linux-x64 belong " +
                    "beside Dt.dll or into runtimes/linux-x64/native");
                parts.Inner = error;
                throw DtException.Make(parts);
            }
            int built = Raw.Native.built_abi_version();
            int found = Raw.Native.abi_version();
            if (built != found)
            {
                throw DtException.Make(new ErrorParts(Status.Version,
                    "dt: libdtcs.so was built for ABI " + built + ", but libdt has ABI " + found +
                    "; take both from one package"));
            }
        }

        static void SetPending(int status, int rank, IntPtr host, long pid, IntPtr operation,
            long sequence, IntPtr message)
        {
            // Nothing may be thrown through native frames.
            try
            {
                ErrorParts parts = new ErrorParts((Status)status, Text.From(message));
                parts.Rank = rank;
                parts.Host = Text.From(host);
                parts.Pid = pid;
                parts.Operation = Text.From(operation);
                parts.Sequence = sequence;
                Raw.NativePINVOKE.SWIGPendingException.Set(DtException.Make(parts));
            }
            catch (Exception error)
            {
                Raw.NativePINVOKE.SWIGPendingException.Set(error);
            }
        }
    }

    /// <summary>The loaded libdt.</summary>
    public static class Library
    {
        /// <summary>Release of the library: "0.1.0".</summary>
        public static string Version
        {
            get
            {
                Loader.Ensure();
                return Raw.Native.version();
            }
        }

        /// <summary>The ABI that the library implements.</summary>
        public static int AbiVersion
        {
            get
            {
                Loader.Ensure();
                return Raw.Native.abi_version();
            }
        }

        /// <summary>How the library was built, one "name: value" line each.</summary>
        public static string BuildInfo
        {
            get
            {
                Loader.Ensure();
                return Raw.Native.build_info();
            }
        }

        /// <summary>libdt's name of a status: "DT_ERR_PEER_LOST".</summary>
        public static string NameOf(Status status)
        {
            Loader.Ensure();
            return Raw.Native.status_name((int)status);
        }
    }
}
