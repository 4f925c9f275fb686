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
        Recv,
        Alltoall,
        Alltoallv,
        Gather,
        Gatherv,
        Scatter,
        Scatterv,
        Allgatherv
    }

    /// A collective without its buffers.
    internal struct Operation
    {
        internal Kind Kind;
        internal long Count;
        internal byte[] Counts;  // of each rank, as Counts packs them
        internal Dtype Dtype;
        internal ReduceOp Op;
        internal int Rank;  // root or peer
        internal long Stream;

        internal Operation(Kind kind, long count, Dtype dtype, ReduceOp op, int rank, IntPtr stream)
        {
            Kind = kind;
            Count = count;
            Counts = null;
            Dtype = dtype;
            Op = op;
            Rank = rank;
            Stream = stream.ToInt64();
        }

        /// In which elements only change their place.
        internal Operation(Kind kind, long count, byte[] counts, Dtype dtype, int root, IntPtr stream)
            : this(kind, count, dtype, ReduceOp.Sum, root, stream)
        {
            Counts = counts;
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
                case Kind.Recv: Raw.Native.recv(comm, send, Count, dtype, Rank, Stream); return;
                default: Move(comm, send, recv, dtype); return;
            }
        }

        void Move(long comm, long send, long recv, int dtype)
        {
            long bytes = Counts == null ? 0 : Counts.LongLength;
            switch (Kind)
            {
                case Kind.Alltoall: Raw.Native.alltoall(comm, send, recv, Count, dtype, Stream); return;
                case Kind.Alltoallv: Raw.Native.alltoallv(comm, send, recv, Counts, bytes, dtype, Stream); return;
                case Kind.Gather: Raw.Native.gather(comm, send, recv, Count, dtype, Rank, Stream); return;
                case Kind.Gatherv: Raw.Native.gatherv(comm, send, Count, recv, Counts, bytes, dtype, Rank, Stream); return;
                case Kind.Scatter: Raw.Native.scatter(comm, send, recv, Count, dtype, Rank, Stream); return;
                case Kind.Scatterv: Raw.Native.scatterv(comm, send, Counts, bytes, recv, Count, dtype, Rank, Stream); return;
                default: Raw.Native.allgatherv(comm, send, recv, Counts, bytes, dtype, Stream); return;
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
                case Kind.Recv: return Raw.Native.recv_async(comm, send, Count, dtype, Rank, Stream);
                default: return StartMove(comm, send, recv, dtype);
            }
        }

        long StartMove(long comm, long send, long recv, int dtype)
        {
            long bytes = Counts == null ? 0 : Counts.LongLength;
            switch (Kind)
            {
                case Kind.Alltoall: return Raw.Native.alltoall_async(comm, send, recv, Count, dtype, Stream);
                case Kind.Alltoallv: return Raw.Native.alltoallv_async(comm, send, recv, Counts, bytes, dtype, Stream);
                case Kind.Gather: return Raw.Native.gather_async(comm, send, recv, Count, dtype, Rank, Stream);
                case Kind.Gatherv: return Raw.Native.gatherv_async(comm, send, Count, recv, Counts, bytes, dtype, Rank, Stream);
                case Kind.Scatter: return Raw.Native.scatter_async(comm, send, recv, Count, dtype, Rank, Stream);
                case Kind.Scatterv: return Raw.Native.scatterv_async(comm, send, Counts, bytes, recv, Count, dtype, Rank, Stream);
                default: return Raw.Native.allgatherv_async(comm, send, recv, Counts, bytes, dtype, Stream);
            }
        }
    }
}
