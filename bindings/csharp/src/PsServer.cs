// SPDX-License-Identifier: Apache-2.0
using System;

namespace Dt
{
    /// <summary>What a process is in a job with parameter servers.</summary>
    public enum PsRole
    {
        /// <summary>Pushes gradients and pulls values: <see cref="Ps"/>.</summary>
        Worker = 0,
        /// <summary>Keeps variables: <see cref="PsServer"/>.</summary>
        Server = 1,
        /// <summary>A <see cref="Ps"/> that only pulls; workers do not wait for it.</summary>
        Evaluator = 2
    }

    /// <summary>Where a process stands in a job with parameter servers.</summary>
    public sealed class PsPlace
    {
        /// <summary>What it is.</summary>
        public PsRole Role { get; }
        /// <summary>Of the server, the worker or the evaluator.</summary>
        public int Index { get; }
        /// <summary>How many servers there are.</summary>
        public int Servers { get; }
        /// <summary>How many workers there are; 0: not known.</summary>
        public int Workers { get; }
        /// <summary>How often the job was started again.</summary>
        public int Attempt { get; }

        internal PsPlace(Unpacker packed)
        {
            Role = (PsRole)packed.Number();
            Index = (int)packed.Number();
            Servers = (int)packed.Number();
            Workers = (int)packed.Number();
            Attempt = (int)packed.Number();
        }
    }

    /// <summary>What a parameter server did.</summary>
    public sealed class PsServerStatistics
    {
        /// <summary>Workers that are connected.</summary>
        public int Workers { get; }
        /// <summary>Requests: a call of a worker may be several.</summary>
        public long Pushes { get; }
        /// <summary>Likewise.</summary>
        public long Pulls { get; }
        /// <summary>Rows in pushes.</summary>
        public long PushedRows { get; }
        /// <summary>Rows in pulls.</summary>
        public long PulledRows { get; }
        /// <summary>Checkpoints that were written.</summary>
        public long Saves { get; }
        /// <summary>Of a processor, by the thread that serves.</summary>
        public long BusyNs { get; }

        internal PsServerStatistics(Unpacker packed)
        {
            Workers = (int)packed.Number();
            Pushes = packed.Number();
            Pulls = packed.Number();
            PushedRows = packed.Number();
            PulledRows = packed.Number();
            Saves = packed.Number();
            BusyNs = packed.Number();
        }
    }

    /// <summary>How a parameter server works.</summary>
    public sealed class PsServerOptions
    {
        /// <summary>A directory that is there, for this server's file; a server that finds it begins with
        /// it. Null: a server that is lost takes its values with it.</summary>
        public string Checkpoint { get; set; }
        /// <summary>Between checkpoints, while pushes come; 0: at the end and by <see cref="Ps.Save"/>
        /// only.</summary>
        public long SaveEveryMs { get; set; } = 60000;
        /// <summary>How long the server waits for a lost worker once another has left.</summary>
        public long AbsentMs { get; set; } = 10000;
        /// <summary>How long it waits for workers that have not come yet, and for one to come back where
        /// all were lost.</summary>
        public long ArrivalMs { get; set; } = 300000;
    }

    /// <summary>The parameter server that this process is. It serves once this is made: then
    /// <see cref="Wait"/>.</summary>
    public sealed class PsServer : DtObject
    {
        /// <summary>Serves with ps.servers (port 0: the kernel chooses), ps.index, ps.workers and job.id of
        /// the config; null: what stands around the process. Null options: defaults.</summary>
        public PsServer(Config config = null, PsServerOptions options = null)
            : base(new Handle(Created(config, options ?? new PsServerOptions()), Raw.NativePINVOKE.ps_server_destroy)) { }

        static long Created(Config config, PsServerOptions options)
        {
            Loader.Ensure();
            return Raw.Native.ps_serve(config, options.Checkpoint, options.SaveEveryMs, options.AbsentMs,
                options.ArrivalMs);
        }

        /// <summary>The port where it serves.</summary>
        public int Port => Raw.Native.ps_server_port(this);

        /// <summary>Waits until all workers have left, or were lost for long, and the last checkpoint is
        /// written. False when the time was over first; null: no limit.</summary>
        public bool Wait(TimeSpan? timeout = null) => Raw.Native.ps_server_wait(this, Limit.InMs(timeout));

        /// <summary>What it did so far.</summary>
        public PsServerStatistics Statistics => new PsServerStatistics(new Unpacker(Raw.Native.ps_server_stats(this)));
    }
}
