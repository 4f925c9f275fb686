// SPDX-License-Identifier: Apache-2.0
using System;
using System.Runtime.InteropServices;

namespace Dt
{
    /// A function that native code calls, until this is disposed of. It takes and gives what its kind
    /// says, and throws nothing. Threads of C# that are inside a call of libdt call it themselves; for
    /// those of libdt a thread of this class does.
    internal sealed class Upcall : IDisposable
    {
        [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
        delegate int Entry(long id, long first, long second, long third);

        static readonly Entry entry = Enter;  // native code has its address
        static readonly object gate = new object();
        static long queue;  // this domain's, native code's
        static LibraryThread thread;

        readonly Func<long, long, long, int> function;
        GCHandle self;

        /// `weak`: this is not kept for native code. Once it is garbage, calls give ABORTED.
        internal Upcall(Func<long, long, long, int> function, bool weak = false)
        {
            lock (gate) Start();
            this.function = function;
            self = GCHandle.Alloc(this, weak ? GCHandleType.Weak : GCHandleType.Normal);
            try
            {
                Number = Raw.Native.upcall_create(queue, GCHandle.ToIntPtr(self).ToInt64());
            }
            catch
            {
                self.Free();
                throw;
            }
        }

        /// For the native layer.
        internal long Number { get; private set; }

        /// Native code calls it no more.
        public void Dispose()
        {
            if (Number == 0) return;
            Raw.Native.upcall_destroy(Number);
            Number = 0;
            self.Free();
        }

        static int Enter(long id, long first, long second, long third)
        {
            Upcall one = (Upcall)GCHandle.FromIntPtr(new IntPtr(id)).Target;
            return one == null ? (int)Status.Aborted : one.function(first, second, third);
        }

        static void Start()
        {
            if (thread != null) return;
            if (queue == 0)
                queue = Raw.Native.call_queue_create(Marshal.GetFunctionPointerForDelegate(entry).ToInt64());
            thread = new LibraryThread("dt calls", () => Raw.Native.call_queue_run(queue),
                () => Raw.Native.call_queue_stop(queue), Completions.CheckUnload);
        }
    }
}
