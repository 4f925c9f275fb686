// SPDX-License-Identifier: Apache-2.0
using System;
using System.Runtime.InteropServices;
using System.Threading;

namespace Dt
{
    /// What the calling thread's last call of native code failed with. Fetched by call, so that native
    /// code knows no delegate, which would outlive the domain that it belongs to.
    internal static unsafe class PendingError
    {
        [DllImport("dtcs")]
        static extern int* DtErrorCount();

        [DllImport("dtcs")]
        static extern int DtHasError();

        [DllImport("dtcs")]
        static extern IntPtr DtTakeError();

        static int* count;  // how many threads have an error; native code's

        /// Throws where the library cannot be loaded.
        internal static void Connect()
        {
            count = DtErrorCount();
        }

        internal static bool IsThere => Volatile.Read(ref *count) != 0 && DtHasError() != 0;

        internal static Exception Take()
        {
            IntPtr given = DtTakeError();
            if (given == IntPtr.Zero) return DtException.Make(new ErrorParts(Status.OutOfMemory, "out of memory"));
            Unpacker packed = new Unpacker(Text.TakeBytes(given));
            ErrorParts parts = new ErrorParts((Status)packed.Number(), "");
            parts.Rank = (int)packed.Number();
            parts.Pid = packed.Number();
            parts.Sequence = packed.Number();
            parts.Host = packed.Text();
            parts.Operation = packed.Text();
            parts.Message = Words.InCSharp(parts.Status, packed.Text());
            return DtException.Make(parts);
        }
    }
}
