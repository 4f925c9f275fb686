// SPDX-License-Identifier: Apache-2.0
using System;
using System.Collections.Generic;

namespace Dt
{
    /// <summary>Where a rank stands.</summary>
    public sealed class Place
    {
        /// <summary>In [0, WorldSize).</summary>
        public int Rank { get; }
        /// <summary>Number of ranks.</summary>
        public int WorldSize { get; }
        /// <summary>In [0, LocalSize): index on this host.</summary>
        public int LocalRank { get; }
        /// <summary>Ranks on this host.</summary>
        public int LocalSize { get; }
        /// <summary>In [0, NodeCount).</summary>
        public int NodeRank { get; }
        /// <summary>Hosts of the job.</summary>
        public int NodeCount { get; }
        /// <summary>How often the job was started before.</summary>
        public int Attempt { get; }
        /// <summary>Port of the store; 0 at world size 1.</summary>
        public int MasterPort { get; }
        /// <summary>Address of the store; empty at world size 1.</summary>
        public string MasterAddress { get; }
        /// <summary>Equal on all ranks.</summary>
        public string JobId { get; }
        /// <summary>This host's name.</summary>
        public string Host { get; }
        /// <summary>Who started the process: "dt run", "config", "torchrun", "slurm", "single"
        /// and others.</summary>
        public string Launcher { get; }

        internal Place(Unpacker packed)
        {
            Rank = (int)packed.Number();
            WorldSize = (int)packed.Number();
            LocalRank = (int)packed.Number();
            LocalSize = (int)packed.Number();
            NodeRank = (int)packed.Number();
            NodeCount = (int)packed.Number();
            Attempt = (int)packed.Number();
            MasterPort = (int)packed.Number();
            MasterAddress = packed.Text();
            JobId = packed.Text();
            Host = packed.Text();
            Launcher = packed.Text();
        }
    }

    /// <summary>This process's (or thread's) membership in a distributed run. Any thread. Without
    /// <see cref="Leave"/> the other ranks hear of a death once the job's objects are gone.</summary>
    public sealed partial class Job : DtObject
#if DT_SPAN
        , IAsyncDisposable
#endif
    {
        readonly WorldGroup world = new WorldGroup();

        /// <summary>Joins the job that started this process. Collective: returns when all ranks are
        /// there. A process that nobody launched becomes rank 0 of 1. With a config its settings, read
        /// during the call. Several jobs can live in one process, and threads can be ranks: give each
        /// its own config with job.rank, job.world_size, job.master_addr, job.master_port (see
        /// <see cref="StoreServer"/>).</summary>
        public Job(Config config = null)
            : base(new Handle(Loader.Ready(Raw.Native.job_init, config), Raw.NativePINVOKE.job_destroy)) { }

        /// <summary>Where this rank stands.</summary>
        public Place Place => new Place(new Unpacker(Raw.Native.job_place(this)));

        /// <summary>A new handle of the communicator of all ranks, to be disposed of. Waits while another
        /// thread is in <see cref="Comm.Shrink"/> of it.</summary>
        public Comm World() => world.Open(this);

        /// <summary>A communicator of these world ranks in this order, which they alone make: the others
        /// are not asked. Collective over those ranks. To be disposed of. The name is for messages and
        /// traces, the same on all of them.</summary>
        public Comm CreateComm(IEnumerable<int> ranks, string name = null)
        {
            if (ranks == null) throw new ArgumentNullException(nameof(ranks));
            Packer members = new Packer();
            foreach (int rank in ranks) members.AddNumber(rank);
            byte[] packed = members.Take();
            return new Comm(Raw.Native.comm_create(this, packed, packed.LongLength, name));
        }

        /// <summary>Fails the job on every rank with <see cref="DtAbortedException"/> and this
        /// message (or none), naming this rank. Returns at once. Any time.</summary>
        public void Abort(string message = null) => Raw.Native.job_abort(this, message);

        /// <summary>Writes the last operations of this rank into a file below this directory (null:
        /// as trace.dir says) for the command dt trace.</summary>
        public void TraceDump(string directory = null) => Raw.Native.job_trace_dump(this, directory);

        /// <summary>What this rank did so far, on all communicators and in all reducers.</summary>
        public JobStatistics Statistics => new JobStatistics(new Unpacker(Raw.Native.job_stats(this)));

        /// <summary>How long calls of this rank were held up by that one.</summary>
        public PeerStatistics PeerStatistics(int rank) =>
            new PeerStatistics(new Unpacker(Raw.Native.job_peer_stats(this, rank)));

        /// <summary>This rank will be away on purpose, as for a checkpoint, for at most so long: until
        /// <see cref="BusyEnd"/> the others wait for it instead of timing out, and its silence is no
        /// death.</summary>
        public void BusyBegin(string what, TimeSpan most) =>
            Raw.Native.job_busy_begin(this, what, Limit.InMs(most));

        /// <summary>This rank is back.</summary>
        public void BusyEnd() => Raw.Native.job_busy_end(this);

        /// <summary>A vote of all ranks, as whether a step is kept: true where every rank says so.
        /// </summary>
        public bool Agree(bool agreed) => Raw.Native.job_agree(this, agreed);

        /// <summary>Asks all ranks to stop: their <see cref="StopRequested"/> says so from the next
        /// call on.</summary>
        public void RequestStop() => Raw.Native.job_request_stop(this);

        /// <summary>Whether to stop, in the same step on all ranks: a rank called
        /// <see cref="RequestStop"/>, or dt run was told to stop. All ranks call it in the same order
        /// as operations of the communicator of all ranks.</summary>
        public bool StopRequested() => Raw.Native.job_stop_requested(this);

        /// <summary>Leaves the job together: returns when every rank has called it, or throws when the
        /// time is over; null: job.finalize_timeout_ms. The job has ended in every case.</summary>
        public void Leave(TimeSpan? timeout = null) => Raw.Native.job_finalize(this, Limit.InMs(timeout));

#if DT_SPAN
        /// <summary>As Dispose, on a thread of the pool. It does not leave the job together: an
        /// exception may be on its way. Call <see cref="Leave"/> for that.</summary>
        public System.Threading.Tasks.ValueTask DisposeAsync() =>
            new System.Threading.Tasks.ValueTask(System.Threading.Tasks.Task.Run((Action)Dispose));
#endif
    }
}
