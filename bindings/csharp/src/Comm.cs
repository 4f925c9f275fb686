// SPDX-License-Identifier: Apache-2.0
using System;

namespace Dt
{
    /// <summary>An ordered set of ranks that runs collectives. Any thread; the order of the calls
    /// must match on all ranks, so issue them from one thread per communicator.
    ///
    /// Collectives come in two forms: one returns when the result is there, over GPUs when it is
    /// enqueued; the other, with Async in its name, returns a <see cref="Work"/> at once, which can be awaited.
    /// Buffers are arrays, spans (not with Async), memories (only with Async), what
    /// <see cref="Allocate"/> gave, or addresses; all but spans and addresses are kept until the
    /// operation is done. Their element type is the dtype; the
    /// bits of 16-bit floats in a ushort need it said.
    /// An address of GPU memory goes with the CUDA stream that produces it.</summary>
    public sealed partial class Comm : IDisposable
    {
        internal readonly CommHandle handle;
        internal readonly Channel channel;
        readonly GroupState group;
        volatile bool closed;

        internal Comm(CommHandle handle, GroupState group)
        {
            this.handle = handle;
            this.group = group;
            channel = new Channel(handle);
        }

        /// Memory may keep the handle open after this object was closed.
        internal long Number
        {
            get { return closed ? handle.ClosedNumber : handle.Number; }
        }

        /// <summary>This rank's index in the communicator.</summary>
        public int Rank
        {
            get
            {
                int rank = Raw.Native.comm_rank(Number);
                GC.KeepAlive(this);
                return rank;
            }
        }

        /// <summary>Number of ranks in the communicator.</summary>
        public int Size
        {
            get
            {
                int size = Raw.Native.comm_size(Number);
                GC.KeepAlive(this);
                return size;
            }
        }

        /// <summary>World rank of a rank of this communicator.</summary>
        public int WorldRank(int rank)
        {
            int worldRank = Raw.Native.comm_world_rank(Number, rank);
            GC.KeepAlive(this);
            return worldRank;
        }

        /// <summary>Limit of each later operation on this communicator; when it passes, the operation
        /// fails with <see cref="DtTimeoutException"/>. 0: no limit; negative:
        /// collective.timeout_ms again.</summary>
        public void SetTimeout(long timeoutMs)
        {
            Raw.Native.comm_set_timeout(Number, timeoutMs);
            GC.KeepAlive(this);
        }

        /// <summary>Throws the error that broke the communicator. Call it before keeping a result
        /// that was only ordered on a stream.</summary>
        public void Check()
        {
            Raw.Native.comm_check(Number);
            GC.KeepAlive(this);
        }

        /// <summary>Ranks with equal color form a new communicator, ordered by (key, rank); null where
        /// the color is negative. Collective.</summary>
        public Comm Split(int color, int key)
        {
            long part = Raw.Native.comm_split(Number, color, key);
            GC.KeepAlive(this);
            return part == 0 ? null : new Comm(new CommHandle(part), new GroupState());
        }

        /// <summary>The ranks that are left after a failure, as a communicator of their own, in the same
        /// order: the job outlives its ranks. Collective over the ranks that live. This one stays broken.
        /// </summary>
        public Comm Shrink()
        {
            long smaller = Raw.Native.comm_shrink(Number);
            GC.KeepAlive(this);
            return new Comm(new CommHandle(smaller), new GroupState());
        }

        /// <summary>An eventfd owned by the communicator: readable when works have completed since it
        /// was last read.</summary>
        public int WorkFd
        {
            get
            {
                int fd = Raw.Native.work_fd(Number);
                GC.KeepAlive(this);
                return fd;
            }
        }

        /// <summary>Zeroed memory that all local ranks reach, so that reductions copy nothing; over
        /// GPUs memory of this rank's GPU.</summary>
        public Memory Allocate(long bytes)
        {
            return new Memory(this, bytes);
        }

        /// <summary>Begins a group: what is called on this communicator until
        /// <see cref="GroupEnd"/>, by any thread, is carried out as one. Calls without a work return
        /// at once; spans cannot be used in them.</summary>
        public void GroupBegin()
        {
            group.Begin(Number);
            GC.KeepAlive(this);
        }

        /// <summary>Ends the group, carries it out, and waits for what was called without a
        /// work.</summary>
        public void GroupEnd()
        {
            group.End(Number);
            GC.KeepAlive(this);
        }

        /// <summary>Carries out what these operations call on this communicator as one.</summary>
        public void Group(Action operations)
        {
            if (operations == null) throw DtException.InvalidArgument("group: operations is null; give a delegate");
            GroupBegin();
            bool whole = false;
            try
            {
                operations();
                whole = true;
            }
            finally
            {
                try
                {
                    GroupEnd();
                }
                catch (DtException)
                {
                    if (whole) throw;  // else the operations' own exception says why
                }
            }
        }

        /// <summary>Throws on all ranks, naming those that differ, unless all hold the same bytes at
        /// their addresses. The name is for messages, and compared, too. Collective; the communicator
        /// stays usable.</summary>
        public void CheckEqual(IntPtr data, long bytes, string name = null,
            IntPtr stream = default(IntPtr))
        {
            Raw.Native.check_equal(Number, data.ToInt64(), bytes, name ?? "", stream.ToInt64());
            GC.KeepAlive(this);
        }

        /// <summary>Likewise of all elements of an array.</summary>
        public void CheckEqual<T>(T[] data, string name = null, Dtype? dtype = null) where T : struct
        {
            const string Operation = "check_equal";
            Dtype type = Elements.Of<T>(Operation, dtype);
            long count = Elements.Length(Operation, "data", data);
            Pin pin = Pin.Of(data);
            try
            {
                CheckEqual(new IntPtr(pin.Address), count * Elements.Size(type), name);
            }
            finally
            {
                pin.Free();
            }
        }

        /// <summary>Returns when every rank has called it.</summary>
        public void Barrier(IntPtr stream = default(IntPtr))
        {
            Raw.Native.barrier(Number, stream.ToInt64());
            GC.KeepAlive(this);
        }

        /// <summary>Completes when every rank has called it.</summary>
        public Work BarrierAsync(IntPtr stream = default(IntPtr))
        {
            return Start(new Operation(Kind.Barrier, 0, Dtype.U8, ReduceOp.Sum, 0, stream), 0, 0);
        }

        /// <summary>Drops the handle; works in flight go on. Never waits for peers: those that go on
        /// using the communicator get an error. It is dropped for good when its
        /// <see cref="Memory"/> is.</summary>
        public void Dispose()
        {
            closed = true;
            handle.Dispose();
        }

        void Run(Operation operation, long send, long recv)
        {
            operation.Run(Number, send, recv);
            GC.KeepAlive(this);
        }

        /// Arrays stay pinned until the call returns, inside a group until that ends.
        void Run<T>(Operation operation, T[] send, T[] recv) where T : struct
        {
            Pin sendPin = Pin.Of(send);
            Pin recvPin = new Pin();
            int turn = group.Turns;
            try
            {
                if (recv != null && !ReferenceEquals(send, recv)) recvPin = Pin.Of(recv);
                operation.Run(Number, sendPin.Address,
                    ReferenceEquals(send, recv) ? sendPin.Address : recvPin.Address);
                if (GroupState.IsInside(turn))
                {
                    group.Hold(turn, sendPin, recvPin);
                    sendPin = new Pin();
                    recvPin = new Pin();
                }
                else
                {
                    group.Settle(turn);
                }
            }
            finally
            {
                sendPin.Free();
                recvPin.Free();
            }
            GC.KeepAlive(this);
        }

        /// What lies at addresses is the caller's to keep.
        Work Start(Operation operation, long send, long recv)
        {
            Work work = new Work(new Pending(this));
            work.pending.Issue(operation, send, recv);
            return work;
        }

        Work Start<T>(Operation operation, T[] send, T[] recv) where T : struct
        {
            Completions.Prepare();
            Pending pending = new Pending(this);
            Work work = new Work(pending);
            try
            {
                pending.send = Pin.Of(send);
                if (recv != null && !ReferenceEquals(send, recv)) pending.recv = Pin.Of(recv);
                pending.Issue(operation, pending.send.Address,
                    ReferenceEquals(send, recv) ? pending.send.Address : pending.recv.Address);
            }
            catch
            {
                pending.LetGo();
                throw;
            }
            Completions.Track(pending);
            return work;
        }
    }
}
