// SPDX-License-Identifier: Apache-2.0
using System;

namespace Dt
{
    /// Loads the native library, once, and says why where that is not possible.
    internal static class Loader
    {
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

        /// Calls what makes such an object.
        internal static long Ready<T>(Func<T, long> make, T argument)
        {
            Ensure();
            return make(argument);
        }

        static void Load()
        {
            try
            {
                PendingError.Connect();
            }
            catch (Exception error)
            {
                if (!(error is DllNotFoundException || error is EntryPointNotFoundException ||
                      error is BadImageFormatException))
                {
                    throw;
                }
                ErrorParts parts = new ErrorParts(Status.System, "dt: libdtcs.so cannot be loaded: " +
                    error.Message + "; libdtcs.so and libdt.so.0 for linux-x64 " +
                    "belong beside Dt.dll or into runtimes/linux-x64/native");
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
