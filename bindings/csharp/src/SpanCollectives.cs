// SPDX-License-Identifier: Apache-2.0
#if DT_SPAN
using System;
using System.Runtime.InteropServices;

namespace Dt
{
    /// <summary>The operations of <see cref="Comm"/> over spans, which stay in their place as long as
    /// the call lasts. Extension methods, so that arrays, which become spans, too, stay tensors: a group
    /// keeps these until it ends.</summary>
    public static class SpanCollectives
    {
        /// <summary>As <see cref="Comm.AllReduce(Tensor, Reduction)"/>.</summary>
        public static void AllReduce<T>(this Comm comm, Span<T> inPlace, Reduction op = default(Reduction))
            where T : struct =>
            Run<T>(comm, OperationKind.AllReduce, inPlace, inPlace, op);

        /// <summary>As <see cref="Comm.AllReduce(Tensor, Tensor, Reduction)"/>.</summary>
        public static void AllReduce<T>(this Comm comm, ReadOnlySpan<T> send, Span<T> recv, Reduction
            op = default(Reduction)) where T : struct =>
            Run<T>(comm, OperationKind.AllReduce, send, recv, op);

        /// <summary>As <see cref="Comm.Reduce(Tensor, Tensor, int, Reduction)"/>.</summary>
        public static void Reduce<T>(this Comm comm, ReadOnlySpan<T> send, Span<T> recv, int root,
            Reduction op = default(Reduction)) where T : struct =>
            Run<T>(comm, OperationKind.Reduce, send, recv, op, root);

        /// <summary>As <see cref="Comm.Broadcast(Tensor, int)"/>.</summary>
        public static void Broadcast<T>(this Comm comm, Span<T> buffer, int root) where T : struct
            =>
            Run<T>(comm, OperationKind.Broadcast, buffer, buffer, peer: root);

        /// <summary>As <see cref="Comm.AllGather(Tensor, Tensor)"/>.</summary>
        public static void AllGather<T>(this Comm comm, ReadOnlySpan<T> send, Span<T> recv) where T
            : struct =>
            Run<T>(comm, OperationKind.AllGather, send, recv);

        /// <summary>As <see cref="Comm.AllGather(Tensor, Tensor, Blocks)"/>.</summary>
        public static void AllGather<T>(this Comm comm, ReadOnlySpan<T> send, Span<T> recv, Blocks
            blocks) where T : struct =>
            Run<T>(comm, OperationKind.AllGatherV, send, recv, recvBlocks: blocks);

        /// <summary>As <see cref="Comm.ReduceScatter(Tensor, Tensor, Reduction)"/>.</summary>
        public static void ReduceScatter<T>(this Comm comm, ReadOnlySpan<T> send, Span<T> recv,
            Reduction op = default(Reduction)) where T : struct =>
            Run<T>(comm, OperationKind.ReduceScatter, send, recv, op);

        /// <summary>As <see cref="Comm.ReduceScatter(Tensor, Blocks, Tensor, Reduction)"/>.</summary>
        public static void ReduceScatter<T>(this Comm comm, ReadOnlySpan<T> send, Blocks blocks,
            Span<T> recv, Reduction op = default(Reduction)) where T : struct =>
            Run<T>(comm, OperationKind.ReduceScatterV, send, recv, op, sendBlocks: blocks);

        /// <summary>As <see cref="Comm.AllToAll(Tensor, Tensor)"/>.</summary>
        public static void AllToAll<T>(this Comm comm, ReadOnlySpan<T> send, Span<T> recv) where T :
            struct =>
            Run<T>(comm, OperationKind.AllToAll, send, recv);

        /// <summary>As <see cref="Comm.AllToAll(Tensor, Blocks, Tensor, Blocks)"/>.</summary>
        public static void AllToAll<T>(this Comm comm, ReadOnlySpan<T> send, Blocks sendBlocks,
            Span<T> recv, Blocks recvBlocks) where T : struct =>
            Run<T>(comm, OperationKind.AllToAllV, send, recv, sendBlocks: sendBlocks, recvBlocks:
                recvBlocks);

        /// <summary>As <see cref="Comm.Gather(Tensor, Tensor, int)"/>.</summary>
        public static void Gather<T>(this Comm comm, ReadOnlySpan<T> send, Span<T> recv, int root)
            where T : struct =>
            Run<T>(comm, OperationKind.Gather, send, recv, peer: root);

        /// <summary>As <see cref="Comm.Gather(Tensor, Tensor, Blocks, int)"/>.</summary>
        public static void Gather<T>(this Comm comm, ReadOnlySpan<T> send, Span<T> recv, Blocks
            blocks, int root) where T : struct =>
            Run<T>(comm, OperationKind.GatherV, send, recv, peer: root, recvBlocks: blocks);

        /// <summary>As <see cref="Comm.Scatter(Tensor, Tensor, int)"/>.</summary>
        public static void Scatter<T>(this Comm comm, ReadOnlySpan<T> send, Span<T> recv, int root)
            where T : struct =>
            Run<T>(comm, OperationKind.Scatter, send, recv, peer: root);

        /// <summary>As <see cref="Comm.Scatter(Tensor, Blocks, Tensor, int)"/>.</summary>
        public static void Scatter<T>(this Comm comm, ReadOnlySpan<T> send, Blocks blocks, Span<T>
            recv, int root) where T : struct =>
            Run<T>(comm, OperationKind.ScatterV, send, recv, peer: root, sendBlocks: blocks);

        /// <summary>As <see cref="Comm.Send(Tensor, int)"/>.</summary>
        public static void Send<T>(this Comm comm, ReadOnlySpan<T> buffer, int peer) where T :
            struct =>
            Run<T>(comm, OperationKind.Send, buffer, default(ReadOnlySpan<T>), peer: peer);

        /// <summary>As <see cref="Comm.Recv(Tensor, int)"/>.</summary>
        public static void Recv<T>(this Comm comm, Span<T> buffer, int peer) where T : struct =>
            Run<T>(comm, OperationKind.Recv, default(ReadOnlySpan<T>), buffer, peer: peer);

        static unsafe void Run<T>(Comm comm, OperationKind kind, ReadOnlySpan<T> send, ReadOnlySpan<T> recv,
            Reduction op = default(Reduction), int peer = 0, Blocks sendBlocks = default(Blocks),
            Blocks recvBlocks = default(Blocks)) where T : struct
        {
            Dtype dtype = Elements.Of<T>();
            fixed (byte* from = &First(send))
            fixed (byte* to = &First(recv))
            {
                comm.Run(kind, Tensor.At((long)from, send.Length, dtype), Tensor.At((long)to, recv.Length, dtype),
                    op, peer, sendBlocks, recvBlocks, false);
            }
        }

        /// The first element; an empty span has none, and its address becomes 0.
        static ref byte First<T>(ReadOnlySpan<T> span) where T : struct =>
            // The bytes of more than 2 GB have no span: those of the first element are enough.
            ref MemoryMarshal.GetReference(MemoryMarshal.AsBytes(span.Slice(0, span.IsEmpty ? 0 : 1)));
    }
}
#endif
