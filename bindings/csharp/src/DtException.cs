// SPDX-License-Identifier: Apache-2.0
using System;

namespace Dt
{
    /// <summary>A failed call of dt, or a failed operation, as data. Each status that this version
    /// knows has a subclass. The message says what, where, why and what to do next.</summary>
    public class DtException : Exception
    {
        /// <summary>What the program should do about it.</summary>
        public Status Status { get; }
        /// <summary>World rank behind the failure, -1 unknown.</summary>
        public int Rank { get; }
        /// <summary>That rank's host, empty unknown.</summary>
        public string Host { get; }
        /// <summary>That rank's process, 0 unknown.</summary>
        public long Pid { get; }
        /// <summary>"allreduce", empty none.</summary>
        public string Operation { get; }
        /// <summary>Of the operation on its communicator, -1 none.</summary>
        public long Sequence { get; }

        internal DtException(ErrorParts parts) : base(parts.Message, parts.Inner)
        {
            Status = parts.Status;
            Rank = parts.Rank;
            Host = parts.Host;
            Pid = parts.Pid;
            Operation = parts.Operation;
            Sequence = parts.Sequence;
        }

        internal static DtException Make(ErrorParts parts)
        {
            switch (parts.Status)
            {
                case Status.PeerLost: return new DtPeerLostException(parts);
                case Status.Timeout: return new DtTimeoutException(parts);
                case Status.Mismatch: return new DtMismatchException(parts);
                case Status.Aborted: return new DtAbortedException(parts);
                case Status.InvalidArgument: return new DtInvalidArgumentException(parts);
                case Status.InvalidState: return new DtInvalidStateException(parts);
                case Status.Unsupported: return new DtUnsupportedException(parts);
                case Status.Version: return new DtVersionException(parts);
                case Status.Config: return new DtConfigException(parts);
                case Status.OutOfMemory: return new DtOutOfMemoryException(parts);
                case Status.System: return new DtSystemException(parts);
                case Status.Cuda: return new DtCudaException(parts);
                case Status.Nccl: return new DtNcclException(parts);
                case Status.Internal: return new DtInternalException(parts);
                default: return new DtException(parts);
            }
        }

        /// What the layer above libdt refuses.
        internal static DtException InvalidArgument(string message) =>
            Make(new ErrorParts(Status.InvalidArgument, message));
    }

    /// What an exception is made of.
    internal struct ErrorParts
    {
        internal Status Status;
        internal int Rank;
        internal string Host;
        internal long Pid;
        internal string Operation;
        internal long Sequence;
        internal string Message;
        internal Exception Inner;

        internal ErrorParts(Status status, string message)
        {
            Status = status;
            Rank = -1;
            Host = "";
            Pid = 0;
            Operation = "";
            Sequence = -1;
            Message = message;
            Inner = null;
        }
    }

    /// <summary>A rank died: <see cref="DtException.Rank"/>, <see cref="DtException.Host"/> and <see cref="DtException.Pid"/> say which.</summary>
    public sealed class DtPeerLostException : DtException
    {
        internal DtPeerLostException(ErrorParts parts) : base(parts) { }
    }

    /// <summary>Ranks did not arrive in time.</summary>
    public sealed class DtTimeoutException : DtException
    {
        internal DtTimeoutException(ErrorParts parts) : base(parts) { }
    }

    /// <summary>Ranks called different operations.</summary>
    public sealed class DtMismatchException : DtException
    {
        internal DtMismatchException(ErrorParts parts) : base(parts) { }
    }

    /// <summary>A rank aborted the job.</summary>
    public sealed class DtAbortedException : DtException
    {
        internal DtAbortedException(ErrorParts parts) : base(parts) { }
    }

    /// <summary>An argument is wrong.</summary>
    public sealed class DtInvalidArgumentException : DtException
    {
        internal DtInvalidArgumentException(ErrorParts parts) : base(parts) { }
    }

    /// <summary>The call does not fit the state of the object.</summary>
    public sealed class DtInvalidStateException : DtException
    {
        internal DtInvalidStateException(ErrorParts parts) : base(parts) { }
    }

    /// <summary>This build or machine cannot do it.</summary>
    public sealed class DtUnsupportedException : DtException
    {
        internal DtUnsupportedException(ErrorParts parts) : base(parts) { }
    }

    /// <summary>Libraries of different versions met.</summary>
    public sealed class DtVersionException : DtException
    {
        internal DtVersionException(ErrorParts parts) : base(parts) { }
    }

    /// <summary>Bad settings.</summary>
    public sealed class DtConfigException : DtException
    {
        internal DtConfigException(ErrorParts parts) : base(parts) { }
    }

    /// <summary>No memory.</summary>
    public sealed class DtOutOfMemoryException : DtException
    {
        internal DtOutOfMemoryException(ErrorParts parts) : base(parts) { }
    }

    /// <summary>The operating system refused something.</summary>
    public sealed class DtSystemException : DtException
    {
        internal DtSystemException(ErrorParts parts) : base(parts) { }
    }

    /// <summary>CUDA failed.</summary>
    public sealed class DtCudaException : DtException
    {
        internal DtCudaException(ErrorParts parts) : base(parts) { }
    }

    /// <summary>NCCL failed.</summary>
    public sealed class DtNcclException : DtException
    {
        internal DtNcclException(ErrorParts parts) : base(parts) { }
    }

    /// <summary>A bug inside dt.</summary>
    public sealed class DtInternalException : DtException
    {
        internal DtInternalException(ErrorParts parts) : base(parts) { }
    }
}
