// SPDX-License-Identifier: Apache-2.0
using System;

namespace Dt
{
    internal enum Kind
    {
        Allreduce,
        Reduce,
        Broadcast,
        Allgather,
        ReduceScatter,
        Barrier,
        Send,
        Recv
    }

    /// A collective without its buffers.
    internal struct Operation
    {
        internal Kind Kind;
        internal long Count;
        internal Dtype Dtype;
        internal ReduceOp Op;
        internal int Rank;  // root or peer
        internal long Stream;

        internal Operation(Kind kind, long count, Dtype dtype, ReduceOp op, int rank, IntPtr stream)
        {
            Kind = kind;
            Count = count;
            Dtype = dtype;
            Op = op;
            Rank = rank;
            Stream = stream.ToInt64();
        }

        /// `recv` is unused where there is one buffer.
        internal void Run(long comm, long send, long recv)
        {
            int dtype = (int)Dtype, op = (int)Op;
            switch (Kind)
            {
                case Kind.Allreduce: Raw.Native.allreduce(comm, send, recv, Count, dtype, op, Stream); return;
                case Kind.Reduce: Raw.Native.reduce(comm, send, recv, Count, dtype, op, Rank, Stream); return;
                case Kind.Broadcast: Raw.Native.broadcast(comm, send, Count, dtype, Rank, Stream); return;
                case Kind.Allgather: Raw.Native.allgather(comm, send, recv, Count, dtype, Stream); return;
                case Kind.ReduceScatter: Raw.Native.reduce_scatter(comm, send, recv, Count, dtype, op, Stream); return;
                case Kind.Barrier: Raw.Native.barrier(comm, Stream); return;
                case Kind.Send: Raw.Native.send(comm, send, Count, dtype, Rank, Stream); return;
                default: Raw.Native.recv(comm, send, Count, dtype, Rank, Stream); return;
            }
        }

        /// Gives the number of the work.
        internal long Start(long comm, long send, long recv)
        {
            int dtype = (int)Dtype, op = (int)Op;
            switch (Kind)
            {
                case Kind.Allreduce: return Raw.Native.allreduce_async(comm, send, recv, Count, dtype, op, Stream);
                case Kind.Reduce: return Raw.Native.reduce_async(comm, send, recv, Count, dtype, op, Rank, Stream);
                case Kind.Broadcast: return Raw.Native.broadcast_async(comm, send, Count, dtype, Rank, Stream);
                case Kind.Allgather: return Raw.Native.allgather_async(comm, send, recv, Count, dtype, Stream);
                case Kind.ReduceScatter: return Raw.Native.reduce_scatter_async(comm, send, recv, Count, dtype, op, Stream);
                case Kind.Barrier: return Raw.Native.barrier_async(comm, Stream);
                case Kind.Send: return Raw.Native.send_async(comm, send, Count, dtype, Rank, Stream);
                default: return Raw.Native.recv_async(comm, send, Count, dtype, Rank, Stream);
            }
        }
    }
}
