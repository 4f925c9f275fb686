// SPDX-License-Identifier: Apache-2.0
using System;
using System.Collections.Generic;
using System.Runtime.InteropServices;

namespace Dt
{
    /// A handle of libdt: a number in a table, so one that is closed while others use it is an
    /// error that libdt reports. The number stays readable after the handle is closed.
    internal abstract class Handle : SafeHandle
    {
        internal Handle(long number) : base(IntPtr.Zero, true)
        {
            SetHandle(new IntPtr(number));
        }

        public override bool IsInvalid
        {
            get { return handle == IntPtr.Zero; }
        }

        /// Callers keep this object reachable until their call returns.
        internal long Number
        {
            get { return DangerousGetHandle().ToInt64(); }
        }

        /// For an object that was closed while its handle is still needed: the handle of its slot
        /// that never was, which libdt calls closed.
        internal long ClosedNumber
        {
            get { return Number & unchecked((long)0xff00000000ffffffUL); }
        }
    }

    internal sealed class ConfigHandle : Handle
    {
        internal ConfigHandle(long number) : base(number) { }

        protected override bool ReleaseHandle()
        {
            Raw.Native.config_destroy(handle.ToInt64());
            return true;
        }
    }

    internal sealed class JobHandle : Handle
    {
        internal JobHandle(long number) : base(number) { }

        protected override bool ReleaseHandle()
        {
            Raw.Native.job_destroy(handle.ToInt64());
            return true;
        }
    }

    internal sealed class CommHandle : Handle
    {
        internal CommHandle(long number) : base(number) { }

        protected override bool ReleaseHandle()
        {
            Raw.Native.comm_destroy(handle.ToInt64());
            return true;
        }
    }

    internal sealed class WorkHandle : Handle
    {
        internal WorkHandle(long number) : base(number) { }

        protected override bool ReleaseHandle()
        {
            Raw.Native.work_destroy(handle.ToInt64());
            return true;
        }
    }

    internal sealed class StoreServerHandle : Handle
    {
        internal StoreServerHandle(long number) : base(number) { }

        protected override bool ReleaseHandle()
        {
            Raw.Native.store_server_destroy(handle.ToInt64());
            return true;
        }
    }

    internal sealed class SamplerHandle : Handle
    {
        internal SamplerHandle(long number) : base(number) { }

        protected override bool ReleaseHandle()
        {
            Raw.Native.sampler_destroy(handle.ToInt64());
            return true;
        }
    }

    /// Memory of a communicator, whose handle stays open as long: it is needed to free the memory.
    internal sealed class MemoryHandle : Handle
    {
        readonly CommHandle comm;

        /// `comm` has been counted for this.
        internal MemoryHandle(CommHandle comm, long address) : base(address)
        {
            this.comm = comm;
        }

        protected override bool ReleaseHandle()
        {
            bool freed = true;
            try
            {
                Raw.Native.mem_free(comm.Number, handle.ToInt64());
            }
            catch (DtException)
            {
                freed = false;  // it goes with the job
            }
            comm.DangerousRelease();
            return freed;
        }
    }

    /// A reducer, with the gradients that are kept until it ends its step.
    internal sealed class ReducerHandle : Handle
    {
        readonly object gate = new object();
        readonly Dictionary<int, Pin> watched = new Dictionary<int, Pin>();
        Pin[] pinned = new Pin[8];
        int count;
        long gone;

        internal ReducerHandle(long number) : base(number) { }

        internal void Hold(Pin pin)
        {
            lock (gate)
            {
                if (count == pinned.Length) Array.Resize(ref pinned, 2 * count);
                pinned[count++] = pin;
            }
        }

        /// How many gradients were kept up to now.
        internal long Held
        {
            get { lock (gate) return gone + count; }
        }

        /// The first so many that were ever kept.
        internal void LetGo(long held)
        {
            lock (gate)
            {
                int some = (int)Math.Max(0, held - gone);
                for (int i = 0; i < some; ++i) pinned[i].Free();
                Array.Copy(pinned, some, pinned, 0, count - some);
                count -= some;
                gone += some;
            }
        }

        /// Keeps what is watched now, and lets go of what was.
        internal void Watch(int index, Pin pin)
        {
            Pin before;
            lock (gate)
            {
                watched.TryGetValue(index, out before);
                watched[index] = pin;
            }
            before.Free();
        }

        protected override bool ReleaseHandle()
        {
            Raw.Native.reducer_destroy(handle.ToInt64());
            LetGo(Held);
            foreach (Pin each in watched.Values) each.Free();
            return true;
        }
    }
}
