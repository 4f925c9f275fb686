// SPDX-License-Identifier: Apache-2.0
using System;
using System.Collections.Generic;

namespace Dt
{
    /// <summary>Operations, as <see cref="JobStatistics"/> counts them. V: with <see cref="Blocks"/>.</summary>
#pragma warning disable 1591  // the names say it
    public enum OperationKind
    {
        AllReduce = 0,
        Reduce = 1,
        Broadcast = 2,
        AllGather = 3,
        ReduceScatter = 4,
        Barrier = 5,
        Send = 6,
        Recv = 7,
        AllToAll = 8,
        AllToAllV = 9,
        Gather = 10,
        GatherV = 11,
        Scatter = 12,
        ScatterV = 13,
        AllGatherV = 14,
        ReduceScatterV = 15
    }
#pragma warning restore 1591

    /// <summary>What a rank did in operations of one kind, on all communicators.</summary>
    public sealed class OperationStatistics
    {
        /// <summary>That have ended, failures among them.</summary>
        public long Operations { get; }
        /// <summary>Of these, failures.</summary>
        public long Failures { get; }
        /// <summary>Of the larger of an operation's two buffers.</summary>
        public long Bytes { get; }
        /// <summary>The same times the factor of nccl-tests for a bus bandwidth.</summary>
        public long BusBytes { get; }
        /// <summary>From the start of each to its end.</summary>
        public long BusyNs { get; }
        /// <summary>Bus bytes by time: GB/s.</summary>
        public double BusbwGbs { get; }

        internal OperationStatistics(Unpacker packed)
        {
            Operations = packed.Number();
            Failures = packed.Number();
            Bytes = packed.Number();
            BusBytes = packed.Number();
            BusyNs = packed.Number();
            BusbwGbs = BitConverter.Int64BitsToDouble(packed.Number());
        }
    }

    /// <summary>How long calls of this rank were held up by another one.</summary>
    public sealed class PeerStatistics
    {
        /// <summary>How often.</summary>
        public long Waits { get; }
        /// <summary>How long.</summary>
        public long WaitedNs { get; }

        internal PeerStatistics(Unpacker packed)
        {
            Waits = packed.Number();
            WaitedNs = packed.Number();
        }
    }

    /// <summary>What a rank did in a job so far. Times in nanoseconds.</summary>
    public sealed class JobStatistics
    {
        /// <summary>How often the job was started before.</summary>
        public int Restarts { get; }
        /// <summary>Operations that took watchdog.stall_warn_ms or longer.</summary>
        public long Stalls { get; }
        /// <summary>Operations that the flight recorder had no room for.</summary>
        public long Uncounted { get; }
        /// <summary>Of all reducers, like the next four.</summary>
        public long Steps { get; }
        /// <summary>Gradient bytes.</summary>
        public long StepBytes { get; }
        /// <summary>Time in which at least one bucket was under way.</summary>
        public long CommunicationNs { get; }
        /// <summary>Of that, the program waited.</summary>
        public long ExposedNs { get; }
        /// <summary>1 - exposed / communication, in [0, 1].</summary>
        public double HiddenShare { get; }
        /// <summary>Of each kind.</summary>
        public IReadOnlyDictionary<OperationKind, OperationStatistics> Operations { get; }

        internal JobStatistics(Unpacker packed)
        {
            Restarts = (int)packed.Number();
            Stalls = packed.Number();
            Uncounted = packed.Number();
            Steps = packed.Number();
            StepBytes = packed.Number();
            CommunicationNs = packed.Number();
            ExposedNs = packed.Number();
            HiddenShare = BitConverter.Int64BitsToDouble(packed.Number());
            var operations = new Dictionary<OperationKind, OperationStatistics>();
            for (OperationKind kind = OperationKind.AllReduce; kind <= OperationKind.ReduceScatterV; ++kind)
            {
                operations[kind] = new OperationStatistics(packed);
            }
            Operations = operations;
        }
    }
}
