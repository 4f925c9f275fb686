// SPDX-License-Identifier: Apache-2.0
using System;
using System.Collections.Generic;

namespace Dt
{
    /// <summary>How names become operations; the same on all ranks.</summary>
    public sealed class NamedOptions
    {
        /// <summary>AllReduces of one dtype and op are put together up to so many; 0: each is
        /// alone.</summary>
        public long FuseBytes { get; set; } = 64 << 20;
        /// <summary>Names whose description does not travel again.</summary>
        public int Cache { get; set; } = 1024;
        /// <summary>Rank 0 logs a warning of a name that waits for ranks for so long; 0: none.</summary>
        public long StallMs { get; set; } = 60000;
        /// <summary>How long rank 0 waits for more names while some are half there.</summary>
        public long CycleUs { get; set; } = 1000;
    }

    /// <summary>What a rank did by name.</summary>
    public sealed class NamedStatistics
    {
        /// <summary>Lists of operations from rank 0.</summary>
        public long Answers { get; }
        /// <summary>Names in these.</summary>
        public long Tensors { get; }
        /// <summary>That they became.</summary>
        public long Operations { get; }
        /// <summary>Names that shared an operation with others.</summary>
        public long FusedTensors { get; }
        /// <summary>Bytes of these.</summary>
        public long FusedBytes { get; }
        /// <summary>Names whose description did not travel.</summary>
        public long CacheHits { get; }
        /// <summary>Of rank 0: names that were warned of.</summary>
        public long Stalls { get; }

        internal NamedStatistics(Unpacker packed)
        {
            Answers = packed.Number();
            Tensors = packed.Number();
            Operations = packed.Number();
            FusedTensors = packed.Number();
            FusedBytes = packed.Number();
            CacheHits = packed.Number();
            Stalls = packed.Number();
        }
    }

    /// <summary>Takes operations by name, from any thread and in any order, as Horovod does:
    /// named.Under("layer3.weight").AllReduceAsync(gradient). An operation runs once every rank has
    /// submitted the same under its name, which is free again once the work is done. The time-out limits
    /// the wait for the other ranks, and then the operation. After a time-out or the loss of a rank all
    /// works end with that error, and so do later calls: make a new one. When this is disposed of, what is
    /// not carried out yet ends with <see cref="DtAbortedException"/>, on all ranks.</summary>
    public sealed class Named : DtObject
    {
        readonly Comm comm;
        internal readonly Batch batch;  // of a group; otherwise null

        /// What a group will submit.
        internal sealed class Batch
        {
            internal readonly Packer packer = new Packer();
            internal readonly List<Work> works = new List<Work>();
            internal readonly List<Pending> pending = new List<Pending>();
            internal bool over;
        }

        /// <summary>Collective over a communicator over host memory, which is not to be disposed of as long
        /// as operations are submitted. Null options: defaults.</summary>
        public Named(Comm comm, NamedOptions options = null)
            : base(new Handle(Created(comm, options ?? new NamedOptions()), Raw.NativePINVOKE.named_destroy))
        {
            this.comm = comm;
        }

        Named(Named viewed) : base(viewed)
        {
            comm = viewed.comm;
            batch = new Batch();
        }

        static long Created(Comm comm, NamedOptions options)
        {
            if (comm == null) throw DtException.InvalidArgument("Named: comm is null; give a communicator");
            byte[] packed = new Packer()
                .AddNumbers(options.FuseBytes, options.Cache, options.StallMs, options.CycleUs).Take();
            return Raw.Native.named_create(comm, packed, packed.Length);
        }

        /// <summary>The communicator, with operations that are submitted under this name of 1 to 1000 bytes:
        /// AllReduce, Broadcast, AllGather, ReduceScatter and AllToAll, without blocks and with a
        /// <see cref="ReduceOp"/>. Everything else of it is as it was.</summary>
        public Comm Under(string name)
        {
            NumberOf(this);
            return new Comm(comm, Text.Terminated(name), comm.timeoutMs, 0, this);
        }

        /// <summary>Submits operations that run together, once all ranks have submitted all of them: those
        /// that the function calls, by methods that end in Async, on what it is given. Gives their works, in
        /// the order of the calls. What it throws is thrown here, and nothing is submitted then.</summary>
        public IReadOnlyList<Work> Group(Action<Named> operations)
        {
            if (operations == null) throw DtException.InvalidArgument("Group: operations is null; give a delegate");
            NumberOf(this);
            Named part = new Named(this);
            Batch group = part.batch;
            bool issued = false;
            try
            {
                operations(part);
                Completions.Prepare();
                if (group.works.Count > 0) Submit(group);
                issued = true;
            }
            finally
            {
                group.over = true;
                if (!issued)
                {
                    foreach (Pending each in group.pending) each.LetGo();
                }
            }
            foreach (Pending each in group.pending) Completions.Track(each);
            return group.works;
        }

        void Submit(Batch group)
        {
            byte[] packed = group.packer.Take();
            Unpacker works = new Unpacker(Raw.Native.named_submit_group(this, packed, packed.Length));
            foreach (Pending each in group.pending)
            {
                each.overtakes = true;
                each.Issued(works.Number());
            }
        }

        /// <summary>For uneven inputs: this rank has no more, and gives zeros to what others submit until all
        /// have called this; these may be AllReduce of Sum, Avg, Bor and Bxor only. Gives the rank that
        /// joined last; -1 when the time was over first: this rank stays joined, and may call it again to go
        /// on waiting.</summary>
        public int Join(TimeSpan? timeout = null) => Raw.Native.named_join(this, Limit.InMs(timeout));

        /// <summary>The names that wait for other ranks, a line each, as rank 0 knows them; empty where none
        /// does.</summary>
        public string Report(TimeSpan? timeout = null) => Raw.Native.named_report(this, Limit.InMs(timeout));

        /// <summary>What this rank did by name so far.</summary>
        public NamedStatistics Statistics => new NamedStatistics(new Unpacker(Raw.Native.named_stats(this)));

        internal void CheckWaits(OperationKind kind)
        {
            if (batch == null) return;
            string name = Call.NameOf(kind);
            throw DtException.InvalidArgument(name + ": the call waits, but its group is submitted later; call " +
                name + "Async");
        }
    }
}
