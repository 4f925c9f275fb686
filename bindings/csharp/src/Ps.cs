// SPDX-License-Identifier: Apache-2.0
using System;

namespace Dt
{
    /// <summary>How servers update a variable, by the formulas of PyTorch.</summary>
    public enum PsOptimizer
    {
        /// <summary>Gradient descent.</summary>
        Sgd = 0,
        /// <summary>SGD with momentum, and nesterov.</summary>
        Momentum = 1,
        /// <summary>With epsilon.</summary>
        Adagrad = 2,
        /// <summary>With beta1, beta2 and epsilon; it counts the updates of each row.</summary>
        Adam = 3
    }

    /// <summary>What the elements of a variable begin with. They follow from seed, row and column
    /// alone.</summary>
    public enum PsInitial
    {
        /// <summary>The initial value.</summary>
        Constant = 0,
        /// <summary>Between the initial value and its negative.</summary>
        Uniform = 1,
        /// <summary>With the initial value as standard deviation.</summary>
        Normal = 2
    }

    /// <summary>How a variable begins and is updated; the same on all workers.</summary>
    public sealed class PsSpec
    {
        /// <summary>What becomes of gradients.</summary>
        public PsOptimizer Optimizer { get; set; } = PsOptimizer.Sgd;
        /// <summary>Of learning, at least 0.</summary>
        public double Rate { get; set; } = 0.01;
        /// <summary>In [0, 1).</summary>
        public double Momentum { get; set; }
        /// <summary>Whether the momentum is Nesterov's.</summary>
        public bool Nesterov { get; set; }
        /// <summary>In [0, 1).</summary>
        public double Beta1 { get; set; } = 0.9;
        /// <summary>In [0, 1).</summary>
        public double Beta2 { get; set; } = 0.999;
        /// <summary>At least 0.</summary>
        public double Epsilon { get; set; } = 1e-8;
        /// <summary>What the elements begin with.</summary>
        public PsInitial Initial { get; set; } = PsInitial.Constant;
        /// <summary>Of these.</summary>
        public double InitialValue { get; set; }
        /// <summary>Likewise.</summary>
        public ulong Seed { get; set; }
    }

    /// <summary>How a worker of parameter servers works.</summary>
    public sealed class PsOptions
    {
        /// <summary>Which worker this is, of no other process; -1: as <see cref="Ps.Info"/> says.</summary>
        public int Worker { get; set; } = -1;
        /// <summary>All servers must be there within.</summary>
        public long ConnectMs { get; set; } = 300000;
        /// <summary>Of each later call, within which a lost server may come back; negative: no
        /// limit.</summary>
        public long TimeoutMs { get; set; } = 1800000;
        /// <summary>What calls may have under way; one with more waits for others.</summary>
        public long QueueBytes { get; set; } = 256 << 20;
    }

    /// <summary>What a worker of parameter servers did.</summary>
    public sealed class PsStatistics
    {
        /// <summary>Calls, also of Set.</summary>
        public long Pushes { get; }
        /// <summary>Calls.</summary>
        public long Pulls { get; }
        /// <summary>As they were given.</summary>
        public long PushedRows { get; }
        /// <summary>Likewise.</summary>
        public long PulledRows { get; }
        /// <summary>Of requests, without headers.</summary>
        public long SentBytes { get; }
        /// <summary>Likewise.</summary>
        public long ReceivedBytes { get; }
        /// <summary>Of servers that were lost.</summary>
        public long Reconnects { get; }
        /// <summary>Steps of <see cref="Ps.Clock"/>.</summary>
        public long Clock { get; }
        /// <summary>Of the slowest worker, when <see cref="Ps.Clock"/> returned.</summary>
        public long MostAhead { get; }

        internal PsStatistics(Unpacker packed)
        {
            Pushes = packed.Number();
            Pulls = packed.Number();
            PushedRows = packed.Number();
            PulledRows = packed.Number();
            SentBytes = packed.Number();
            ReceivedBytes = packed.Number();
            Reconnects = packed.Number();
            Clock = packed.Number();
            MostAhead = packed.Number();
        }
    }

    /// <summary>A worker's connection to the parameter servers of its job, or an evaluator's. Any thread, but Clock one at a time.
    /// Without <see cref="Leave"/> the servers take this worker for lost. Dispose ends what is under way with
    /// <see cref="DtAbortedException"/>.</summary>
    public sealed class Ps : DtObject
    {
        internal readonly Channel channel;

        /// <summary>Connects to all servers, with ps.servers and job.id of the config; null: what stands
        /// around the process. Null options: defaults.</summary>
        public Ps(Config config = null, PsOptions options = null)
            : base(new Handle(Created(config, options ?? new PsOptions()), Raw.NativePINVOKE.ps_destroy))
        {
            channel = new Channel(() => WorkFd);
        }

        static long Created(Config config, PsOptions options)
        {
            Loader.Ensure();
            return Raw.Native.ps_connect(config, options.Worker, options.ConnectMs, options.TimeoutMs,
                options.QueueBytes);
        }

        /// <summary>What this process is in a job with parameter servers: a program that is all of them makes
        /// a <see cref="PsServer"/> or a Ps by it. It is said by dt run --servers N, by TF_CONFIG, or by
        /// ps.servers, ps.index and ps.workers.</summary>
        public static PsPlace Info(Config config = null)
        {
            Loader.Ensure();
            return new PsPlace(new Unpacker(Raw.Native.ps_info(config)));
        }

        /// <summary>Makes a variable, or finds the one that another worker has made of the same. Null spec:
        /// defaults.</summary>
        public PsVariable Variable(string name, long rows = 1, int columns = 1, PsSpec spec = null)
        {
            spec = spec ?? new PsSpec();
            byte[] packed = new Packer()
                .AddNumbers((int)spec.Optimizer, spec.Nesterov ? 1 : 0, (int)spec.Initial, unchecked((long)spec.Seed))
                .AddDoubles(spec.Rate, spec.Momentum, spec.Beta1, spec.Beta2, spec.Epsilon, spec.InitialValue)
                .Take();
            int number = Raw.Native.ps_variable(this, name, rows, columns, packed, packed.Length);
            return new PsVariable(this, number, name, rows, columns);
        }

        /// <summary>Ends a step of this worker. Returns once no worker that is connected is more than so many
        /// steps behind; then a pull sees all that they pushed up to that step. -1: counts the step and does
        /// not wait.</summary>
        public void Clock(long ahead) => Raw.Native.ps_clock(this, ahead);

        /// <summary>Makes every server write a checkpoint, and waits for that.</summary>
        public void Save() => Raw.Native.ps_save(this);

        /// <summary>Says goodbye to the servers, behind all that is under way. They end when all workers
        /// have. A second call does nothing.</summary>
        public void Leave() => Raw.Native.ps_leave(this);

        /// <summary>What this worker did so far.</summary>
        public PsStatistics Statistics => new PsStatistics(new Unpacker(Raw.Native.ps_stats(this)));

        /// <summary>An eventfd that is readable when works have ended since it was last read; this one's own:
        /// do not close it.</summary>
        public int WorkFd => Raw.Native.ps_fd(this);
    }
}
