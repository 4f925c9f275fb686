// SPDX-License-Identifier: Apache-2.0
using System;
using System.Collections.Generic;
using System.Runtime.InteropServices;

namespace Dt
{
    /// A handle of libdt: a number that libdt looks up, so a closed one that is still used is an
    /// error and nothing worse. The number stays readable after the handle was closed.
    internal class Handle : SafeHandle
    {
        readonly Action<long> release;

        internal Handle(long number, Action<long> release) : base(IntPtr.Zero, true)
        {
            this.release = release;
            SetHandle(new IntPtr(number));
        }

        public override bool IsInvalid => handle == IntPtr.Zero;

        /// Callers keep this object reachable until their call returns.
        internal long Number => DangerousGetHandle().ToInt64();

        protected override bool ReleaseHandle()
        {
            release(handle.ToInt64());
            return true;
        }
    }

    /// <summary>What stands for an object of libdt. Any thread may dispose of it at any time: that
    /// never waits for other ranks, and later calls throw
    /// <see cref="ObjectDisposedException"/>.</summary>
    public abstract class DtObject : IDisposable
    {
        internal readonly Handle handle;
        readonly DtObject original;  // this, unless this is a view of another object
        volatile bool closed;

        internal DtObject(Handle handle)
        {
            this.handle = handle;
            original = this;
        }

        internal DtObject(DtObject viewed)
        {
            handle = viewed.handle;
            original = viewed.original;
        }

        /// Throws after Dispose, also where something else keeps the handle open.
        internal long Number
        {
            get
            {
                if (original.closed)
                {
                    throw new ObjectDisposedException(GetType().FullName, "this " + GetType().Name +
                        " was disposed of; call it before Dispose");
                }
                return handle.Number;
            }
        }

        /// For the native layer, which calls it for each argument; 0: none.
        internal static long NumberOf(DtObject one) => one == null ? 0 : one.Number;

        /// Keeps the handle, and what belongs to it, until this is disposed of, even if another thread
        /// disposes of the object meanwhile. A struct, because a delegate would make garbage in each call.
        internal struct Use : IDisposable
        {
            readonly Handle handle;

            internal Use(DtObject used)
            {
                bool counted = false;
                NumberOf(used);
                handle = used.handle;
                handle.DangerousAddRef(ref counted);
            }

            public void Dispose() => handle.DangerousRelease();
        }

        /// <summary>Drops the handle. Nothing happens to an object that was made by
        /// <see cref="Comm.With"/>.</summary>
        public virtual void Dispose()
        {
            if (original != this) return;
            closed = true;
            handle.Dispose();
        }
    }

    /// Memory of a communicator, whose handle stays open as long: it is needed to free the memory.
    internal sealed class MemoryHandle : Handle
    {
        readonly Handle comm;

        /// `comm` has been counted for this.
        internal MemoryHandle(Handle comm, long address) : base(address, null)
        {
            this.comm = comm;
        }

        protected override bool ReleaseHandle()
        {
            Raw.NativePINVOKE.mem_free(comm.Number, handle.ToInt64());
            bool freed = !PendingError.IsThere;
            if (!freed) PendingError.Take();  // the memory goes with the job
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

        readonly Pin[] gradients;  // that are reduced where they lie

        internal ReducerHandle(long number, params Pin[] gradients) : base(number, Raw.NativePINVOKE.reducer_destroy)
        {
            this.gradients = gradients;
        }

        HookCalls hook;

        /// Keeps it, and gives the one before.
        internal void KeepHook(ref HookCalls calls) => calls = System.Threading.Interlocked.Exchange(ref hook, calls);

        internal void EndHookStep() => hook?.EndStep();

        internal void RethrowHook() => hook?.Rethrow();

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
                try
                {
                    Pin.Free(pinned, some);
                }
                finally
                {
                    Array.Copy(pinned, some, pinned, 0, count - some);
                    Array.Clear(pinned, count - some, some);
                    count -= some;
                    gone += some;
                }
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
            bool released = base.ReleaseHandle();
            LetGo(Held);
            hook?.Dispose();
            Pin.Free(new List<Pin>(watched.Values).ToArray(), watched.Count);
            Pin.Free(gradients, gradients.Length);
            return released;
        }
    }
}
