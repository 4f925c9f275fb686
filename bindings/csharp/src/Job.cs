// SPDX-License-Identifier: Apache-2.0
using System;

namespace Dt
{
    /// <summary>Where a rank stands.</summary>
    public sealed class Place
    {
        /// <summary>In [0, WorldSize).</summary>
        public int Rank { get; private set; }
        /// <summary>Number of ranks.</summary>
        public int WorldSize { get; private set; }
        /// <summary>In [0, LocalSize): index on this host.</summary>
        public int LocalRank { get; private set; }
        /// <summary>Ranks on this host.</summary>
        public int LocalSize { get; private set; }
        /// <summary>In [0, NodeCount).</summary>
        public int NodeRank { get; private set; }
        /// <summary>Hosts of the job.</summary>
        public int NodeCount { get; private set; }
        /// <summary>How often the job was started before.</summary>
        public int Attempt { get; private set; }
        /// <summary>Port of the store; 0 at world size 1.</summary>
        public int MasterPort { get; private set; }
        /// <summary>Address of the store; empty at world size 1.</summary>
        public string MasterAddress { get; private set; }
        /// <summary>Equal on all ranks.</summary>
        public string JobId { get; private set; }
        /// <summary>This host's name.</summary>
        public string Host { get; private set; }
        /// <summary>Who started the process: "dt run", "config", "torchrun", "slurm", "single"
        /// and others.</summary>
        public string Launcher { get; private set; }

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

    /// <summary>This process's (or thread's) membership in a distributed run. Any
    /// thread.</summary>
    public sealed partial class Job : IDisposable
    {
        readonly JobHandle handle;
        // Handles of the world communicator are one communicator, with one group at a time.
        readonly GroupState worldGroup = new GroupState();

        /// <summary>Joins the job that started this process. Collective: returns when all ranks are
        /// there. A process that nobody launched becomes rank 0 of 1.</summary>
        public Job() : this(null) { }

        /// <summary>Likewise with these settings, read during the call. Several jobs can live in one
        /// process, and threads can be ranks: give each its own config with job.rank,
        /// job.world_size, job.master_addr, job.master_port (see <see cref="StoreServer"/>). Null:
        /// what stands around the process.</summary>
        public Job(Config config)
        {
            Loader.Ensure();
            handle = new JobHandle(Raw.Native.job_init(config == null ? 0 : config.handle.Number));
            GC.KeepAlive(config);
        }

        /// <summary>Where this rank stands.</summary>
        public Place Place
        {
            get
            {
                byte[] packed = Raw.Native.job_place(handle.Number);
                GC.KeepAlive(this);
                return new Place(new Unpacker(packed));
            }
        }

        /// <summary>A new handle of the communicator of all ranks, to be disposed of.</summary>
        public Comm World()
        {
            Comm comm = new Comm(new CommHandle(Raw.Native.job_world(handle.Number)), worldGroup);
            GC.KeepAlive(this);
            return comm;
        }

        /// <summary>Fails the job on every rank with <see cref="DtAbortedException"/> and this
        /// message (or none), naming this rank. Returns at once. Any time.</summary>
        public void Abort(string message = null)
        {
            Raw.Native.job_abort(handle.Number, message);
            GC.KeepAlive(this);
        }

        /// <summary>Writes the last operations of this rank into a file below this directory (null:
        /// as trace.dir says) for the command dt trace.</summary>
        public void TraceDump(string directory = null)
        {
            Raw.Native.job_trace_dump(handle.Number, directory);
            GC.KeepAlive(this);
        }

        /// <summary>What this rank did so far, on all communicators and in all reducers.</summary>
        public JobStatistics Statistics
        {
            get
            {
                byte[] packed = Raw.Native.job_stats(handle.Number);
                GC.KeepAlive(this);
                return new JobStatistics(new Unpacker(packed));
            }
        }

        /// <summary>How long calls of this rank were held up by that one.</summary>
        public PeerStatistics PeerStatistics(int rank)
        {
            byte[] packed = Raw.Native.job_peer_stats(handle.Number, rank);
            GC.KeepAlive(this);
            return new PeerStatistics(new Unpacker(packed));
        }

        /// <summary>This rank will be away on purpose, as for a checkpoint, for at most so many
        /// milliseconds: until <see cref="BusyEnd"/> the others wait for it instead of timing out,
        /// and its silence is no death.</summary>
        public void BusyBegin(string what, long maxMs)
        {
            Raw.Native.job_busy_begin(handle.Number, what, maxMs);
            GC.KeepAlive(this);
        }

        /// <summary>This rank is back.</summary>
        public void BusyEnd()
        {
            Raw.Native.job_busy_end(handle.Number);
            GC.KeepAlive(this);
        }

        /// <summary>A vote of all ranks, as whether a step is kept: true where every rank says so.
        /// </summary>
        public bool Agree(bool agreed)
        {
            bool all = Raw.Native.job_agree(handle.Number, agreed);
            GC.KeepAlive(this);
            return all;
        }

        /// <summary>Asks all ranks to stop: their <see cref="StopRequested"/> says so from the next
        /// call on.</summary>
        public void RequestStop()
        {
            Raw.Native.job_request_stop(handle.Number);
            GC.KeepAlive(this);
        }

        /// <summary>Whether to stop, in the same step on all ranks: a rank called
        /// <see cref="RequestStop"/>, or dt run was told to stop. All ranks call it in the same order
        /// as operations of the communicator of all ranks.</summary>
        public bool StopRequested()
        {
            bool stop = Raw.Native.job_stop_requested(handle.Number);
            GC.KeepAlive(this);
            return stop;
        }

        /// <summary>Leaves the job together: returns when every rank has called it. Waits so many
        /// milliseconds for the others; negative: job.finalize_timeout_ms. The job has ended in
        /// every case.</summary>
        public void FinalizeJob(long timeoutMs = -1)
        {
            Raw.Native.job_finalize(handle.Number, timeoutMs);
            GC.KeepAlive(this);
        }

        /// <summary>Drops the handle. Without <see cref="FinalizeJob"/> the other ranks hear of a death
        /// once the job's other objects are gone, too. Never waits for peers.</summary>
        public void Dispose()
        {
            handle.Dispose();
        }
    }
}
