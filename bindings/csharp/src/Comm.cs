// SPDX-License-Identifier: Apache-2.0
using System;
using System.Threading;

namespace Dt
{
    /// <summary>An ordered set of ranks that runs collectives. Any thread; the order of the calls
    /// must match on all ranks, so issue them from one thread per communicator.
    ///
    /// A call returns when the result is there, over GPUs when the operation is enqueued. With Async in
    /// its name it returns a <see cref="Work"/> at once, which can be awaited. Buffers are
    /// <see cref="Tensor"/>s, which arrays, memories and <see cref="Memory"/> become by themselves; calls
    /// that return when they are done also take spans.</summary>
    public sealed partial class Comm : DtObject
    {
        internal readonly Channel channel;
        internal readonly GroupState group;
        readonly WorldGroup world;  // null: not the world communicator
        // Name, stream and limit of operations called on this object: see With().
        internal readonly byte[] name;
        internal readonly long stream, timeoutMs;
        internal readonly Named named;  // what operations are submitted to by name; null: the communicator

        internal Comm(long number, GroupState group = null, WorldGroup world = null)
            : base(new Handle(number, Raw.NativePINVOKE.comm_destroy))
        {
            this.group = group ?? new GroupState();
            this.world = world;
            channel = new Channel(() => WorkFd);
        }

        internal Comm(Comm viewed, byte[] name, long timeoutMs, long stream, Named named) : base(viewed)
        {
            this.named = named;
            group = viewed.group;
            world = viewed.world;
            channel = viewed.channel;
            this.name = name;
            this.timeoutMs = timeoutMs;
            this.stream = stream;
        }

        /// <summary>This communicator, for operations that have a name in messages and traces (equal
        /// on all ranks), a time limit of their own (<see cref="Limit.None"/>: none), or buffers that a
        /// CUDA stream produces. What is not given stays as it is here. It costs nothing to keep.</summary>
        public Comm With(string name = null, TimeSpan? timeout = null, IntPtr? stream = null) =>
            new Comm(this, name == null ? this.name : Text.Terminated(name),
                timeout == null ? timeoutMs : Limit.InMs(timeout, 0, -1, 1),
                stream == null ? this.stream : stream.Value.ToInt64(), named);

        /// <summary>This rank's index in the communicator.</summary>
        public int Rank => Raw.Native.comm_rank(this);

        /// <summary>Number of ranks in the communicator.</summary>
        public int Size => Raw.Native.comm_size(this);

        /// <summary>World rank of a rank of this communicator.</summary>
        public int WorldRank(int rank) => Raw.Native.comm_world_rank(this, rank);

        /// <summary>Limit of each later operation on this communicator; when it passes, the operation
        /// fails with <see cref="DtTimeoutException"/>. Null: collective.timeout_ms again;
        /// <see cref="Limit.None"/>: none.</summary>
        public void SetTimeout(TimeSpan? timeout) =>
            Raw.Native.comm_set_timeout(this, Limit.InMs(timeout, -1, 0, 1));

        /// <summary>Throws the error that broke the communicator. Call it before keeping a result
        /// that was only ordered on a stream.</summary>
        public void Check() => Raw.Native.comm_check(this);

        /// <summary>Ranks with equal color form a new communicator, ordered by (key, rank); null where
        /// the color is negative. Collective.</summary>
        public Comm Split(int color, int key = 0)
        {
            long part = Raw.Native.comm_split(this, color, key);
            return part == 0 ? null : new Comm(part);
        }

        /// <summary>The same ranks over host memory, in a job on GPUs for what lies there. Over GPUs it
        /// has an order of its own, the same on all ranks for it, <see cref="Job.Agree"/> and
        /// <see cref="Split"/>. To be disposed of.</summary>
        public Comm Host()
        {
            long made = Raw.Native.comm_host(this);
            try
            {
                // Over host memory it is another handle of this communicator, with the same group.
                return Raw.Native.same_comm(this, made) ? new Comm(made, group, world) : new Comm(made);
            }
            catch
            {
                Raw.NativePINVOKE.comm_destroy(made);
                throw;
            }
        }

        /// <summary>The ranks that are left after a failure, as a communicator of their own, in the same
        /// order: the job outlives its ranks. Collective over the ranks that live. This one stays broken.
        /// </summary>
        public Comm Shrink() =>
            world != null ? world.Shrink(this) : new Comm(Raw.Native.comm_shrink(this));

        /// <summary>An eventfd owned by the communicator: readable when works have completed since it
        /// was last read.</summary>
        public int WorkFd => Raw.Native.work_fd(this);

        /// <summary>Zeroed memory that all local ranks reach, so that reductions copy nothing; over
        /// GPUs memory of this rank's GPU.</summary>
        public Memory Allocate(long count, Dtype dtype) => new Memory(this, count, dtype);

        /// <summary>Likewise for elements of a type.</summary>
        public Memory Allocate<T>(long count) where T : struct => new Memory(this, count, Elements.Of<T>());

        /// <summary>Begins a group: what is called on this communicator until
        /// <see cref="GroupEnd"/>, by any thread, is carried out as one. Calls without a work return
        /// at once; spans cannot be used in them.</summary>
        public void GroupBegin() => group.Begin(this);

        /// <summary>Ends the group, carries it out, and waits for what was called without a
        /// work.</summary>
        public void GroupEnd() => group.End(this);

        /// <summary>Ends the group and carries it out without waiting. The work is done when all operations
        /// of the group are, also those with a work of their own; its error is that of the first that
        /// failed. Buffers stay in their place until then.</summary>
        public Work GroupEndAsync(CancellationToken token = default(CancellationToken)) =>
            new Work(group.EndAsync(this), token);

        /// <summary>Carries out what these operations call on this communicator as one.</summary>
        public void Group(Action operations)
        {
            CallInGroup(operations);
            GroupEnd();
        }

        /// <summary>The same without waiting, see <see cref="GroupEndAsync"/>.</summary>
        public Work GroupAsync(Action operations, CancellationToken token = default(CancellationToken))
        {
            CallInGroup(operations);
            return GroupEndAsync(token);
        }

        /// After an exception the group has ended.
        void CallInGroup(Action operations)
        {
            if (operations == null) throw DtException.InvalidArgument("Group: operations is null; give a delegate");
            GroupBegin();
            try
            {
                operations();
            }
            catch
            {
                try
                {
                    GroupEnd();
                }
                catch (DtException)
                {
                    // The operations' own exception says why.
                }
                throw;
            }
        }

        /// <summary>Throws on all ranks, naming those that differ, unless all hold the same bytes. The
        /// name is for messages, and compared, too. Collective; the communicator stays usable.</summary>
        public void CheckEqual(Tensor data, string name = null)
        {
            Pin pin = data.Pin();
            try
            {
                Raw.Native.check_equal(this, data.AddressIn(pin), data.Bytes, name ?? "", stream);
            }
            finally
            {
                pin.Free();
            }
        }

        /// Buffers are kept in their place until the call returns, inside a group until that ends.
        /// `lasting`: not only as long as this call.
        internal unsafe void Run(OperationKind kind, in Tensor send, in Tensor recv,
            Reduction op = default(Reduction), int peer = 0, Blocks sendBlocks = default(Blocks),
            Blocks recvBlocks = default(Blocks), bool lasting = true)
        {
            Call call = new Call(this, kind, send, recv, op, peer, sendBlocks, recvBlocks);
            if (named != null) named.CheckWaits(kind);
            Pin sendPin = new Pin(), recvPin = new Pin();
            // What is submitted by name takes no part in groups of the communicator.
            int turn = named != null ? 0 : group.Turns;
            bool inside = GroupState.IsInside(turn), held = false;
            if (inside && !lasting)
            {
                throw DtException.InvalidArgument(Call.NameOf(kind) + ": a span cannot be kept until the " +
                    "group ends; give an array or a memory");
            }
            fixed (byte* from = inside ? null : send.Array, to = inside ? null : recv.Array)
            {
                try
                {
                    call.Place(send, recv, ref sendPin, ref recvPin, (long)from, (long)to);
                    call.Run(this);
                    held = inside && group.Hold(turn, sendPin, recvPin, call.custom);
                    if (held)
                    {
                        sendPin = recvPin = new Pin();
                        return;
                    }
                    if (!inside && named == null) group.Settle(turn);
                }
                finally
                {
                    if (call.custom != null && !held) call.custom.End();
                    Pin.Free(ref sendPin, ref recvPin);
                }
            }
            Combination.Check(call.custom);
        }

        Work Start(OperationKind kind, in Tensor send, in Tensor recv, CancellationToken token,
            Reduction op = default(Reduction), int peer = 0, Blocks sendBlocks = default(Blocks),
            Blocks recvBlocks = default(Blocks))
        {
            Call call = new Call(this, kind, send, recv, op, peer, sendBlocks, recvBlocks);
            // One by a name ends with its Named, which the program need not keep.
            bool held = named != null || send.HasOwner || recv.HasOwner || call.custom != null;
            if (held) Completions.Prepare();
            Pending pending = new Pending(this, channel);
            Work work = new Work(pending, token);
            try
            {
                pending.custom = call.custom;
                call.Place(send, recv, ref pending.send, ref pending.recv);
                if (named != null && named.batch != null)
                {
                    call.Add(this, named.batch, work, pending);
                    return work;
                }
                pending.Issue(call, this);
            }
            catch
            {
                pending.LetGo();
                throw;
            }
            if (held) Completions.Track(pending);  // otherwise once somebody asks for its task
            return work;
        }
    }
}
