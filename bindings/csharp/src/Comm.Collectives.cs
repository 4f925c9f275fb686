// SPDX-License-Identifier: Apache-2.0
using System.Threading;

namespace Dt
{
    // The operations. A token ends the awaiting of a work, not the operation, which goes on using its
    // buffers.
    public sealed partial class Comm
    {
        /// <summary>Sums (or averages, multiplies, ...) over all ranks; every rank ends with the
        /// same bits.</summary>
        public void AllReduce(Tensor inPlace, Reduction op = default(Reduction)) =>
            Run(OperationKind.AllReduce, inPlace, inPlace, op);

        /// <summary>The same without waiting.</summary>
        public Work AllReduceAsync(Tensor inPlace, Reduction op = default(Reduction), CancellationToken
            token = default(CancellationToken)) =>
            Start(OperationKind.AllReduce, inPlace, inPlace, token, op);

        /// <summary>Likewise into another buffer.</summary>
        public void AllReduce(Tensor send, Tensor recv, Reduction op = default(Reduction)) =>
            Run(OperationKind.AllReduce, send, recv, op);

        /// <summary>The same without waiting.</summary>
        public Work AllReduceAsync(Tensor send, Tensor recv, Reduction op = default(Reduction),
            CancellationToken token = default(CancellationToken)) =>
            Start(OperationKind.AllReduce, send, recv, token, op);

        /// <summary>As AllReduce, with the result on the root alone; elsewhere recv may be
        /// default.</summary>
        public void Reduce(Tensor send, Tensor recv, int root, Reduction op = default(Reduction)) =>
            Run(OperationKind.Reduce, send, recv, op, root);

        /// <summary>The same without waiting.</summary>
        public Work ReduceAsync(Tensor send, Tensor recv, int root, Reduction op = default(Reduction),
            CancellationToken token = default(CancellationToken)) =>
            Start(OperationKind.Reduce, send, recv, token, op, root);

        /// <summary>Copies the root's buffer into everybody's.</summary>
        public void Broadcast(Tensor buffer, int root) =>
            Run(OperationKind.Broadcast, buffer, buffer, peer: root);

        /// <summary>The same without waiting.</summary>
        public Work BroadcastAsync(Tensor buffer, int root, CancellationToken token =
            default(CancellationToken)) =>
            Start(OperationKind.Broadcast, buffer, buffer, token, peer: root);

        /// <summary>Gathers everybody's elements, in rank order, on every rank: recv has Size times
        /// as many as send.</summary>
        public void AllGather(Tensor send, Tensor recv) =>
            Run(OperationKind.AllGather, send, recv);

        /// <summary>The same without waiting.</summary>
        public Work AllGatherAsync(Tensor send, Tensor recv, CancellationToken token =
            default(CancellationToken)) =>
            Start(OperationKind.AllGather, send, recv, token);

        /// <summary>With a block of another length from each rank. All ranks give the same blocks,
        /// or all throw <see cref="DtMismatchException"/>. Received blocks may not
        /// overlap.</summary>
        public void AllGather(Tensor send, Tensor recv, Blocks blocks) =>
            Run(OperationKind.AllGatherV, send, recv, recvBlocks: blocks);

        /// <summary>The same without waiting.</summary>
        public Work AllGatherAsync(Tensor send, Tensor recv, Blocks blocks, CancellationToken token
            = default(CancellationToken)) =>
            Start(OperationKind.AllGatherV, send, recv, token, recvBlocks: blocks);

        /// <summary>Reduces over all ranks and leaves the r-th part on rank r: send has Size times
        /// as many elements as recv.</summary>
        public void ReduceScatter(Tensor send, Tensor recv, Reduction op = default(Reduction)) =>
            Run(OperationKind.ReduceScatter, send, recv, op);

        /// <summary>The same without waiting.</summary>
        public Work ReduceScatterAsync(Tensor send, Tensor recv, Reduction op = default(Reduction),
            CancellationToken token = default(CancellationToken)) =>
            Start(OperationKind.ReduceScatter, send, recv, token, op);

        /// <summary>Reduces over all ranks and leaves the r-th block of send on rank r. Counts are the
        /// same on all ranks.</summary>
        public void ReduceScatter(Tensor send, Blocks blocks, Tensor recv, Reduction op = default(Reduction)) =>
            Run(OperationKind.ReduceScatterV, send, recv, op, sendBlocks: blocks);

        /// <summary>The same without waiting.</summary>
        public Work ReduceScatterAsync(Tensor send, Blocks blocks, Tensor recv, Reduction op = default(Reduction),
            CancellationToken token = default(CancellationToken)) =>
            Start(OperationKind.ReduceScatterV, send, recv, token, op, sendBlocks: blocks);

        /// <summary>Gives each rank its part of send, and gathers everybody's part for this rank in
        /// recv, in rank order; both are of one length.</summary>
        public void AllToAll(Tensor send, Tensor recv) =>
            Run(OperationKind.AllToAll, send, recv);

        /// <summary>The same without waiting.</summary>
        public Work AllToAllAsync(Tensor send, Tensor recv, CancellationToken token =
            default(CancellationToken)) =>
            Start(OperationKind.AllToAll, send, recv, token);

        /// <summary>With a block of another length for each pair of ranks. Where two ranks differ,
        /// all throw <see cref="DtMismatchException"/>. Received blocks may not overlap.</summary>
        public void AllToAll(Tensor send, Blocks sendBlocks, Tensor recv, Blocks recvBlocks) =>
            Run(OperationKind.AllToAllV, send, recv, sendBlocks: sendBlocks, recvBlocks:
                recvBlocks);

        /// <summary>The same without waiting.</summary>
        public Work AllToAllAsync(Tensor send, Blocks sendBlocks, Tensor recv, Blocks recvBlocks,
            CancellationToken token = default(CancellationToken)) =>
            Start(OperationKind.AllToAllV, send, recv, token, sendBlocks: sendBlocks, recvBlocks:
                recvBlocks);

        /// <summary>Gathers everybody's elements, in rank order, on the root: recv has Size times
        /// as many as send. Elsewhere it may be default.</summary>
        public void Gather(Tensor send, Tensor recv, int root) =>
            Run(OperationKind.Gather, send, recv, peer: root);

        /// <summary>The same without waiting.</summary>
        public Work GatherAsync(Tensor send, Tensor recv, int root, CancellationToken token =
            default(CancellationToken)) =>
            Start(OperationKind.Gather, send, recv, token, peer: root);

        /// <summary>With a block of another length from each rank; elsewhere than on the root recv
        /// and blocks are ignored. Where a rank sends another count, all throw <see
        /// cref="DtMismatchException"/>. Received blocks may not overlap.</summary>
        public void Gather(Tensor send, Tensor recv, Blocks blocks, int root) =>
            Run(OperationKind.GatherV, send, recv, peer: root, recvBlocks: blocks);

        /// <summary>The same without waiting.</summary>
        public Work GatherAsync(Tensor send, Tensor recv, Blocks blocks, int root, CancellationToken
            token = default(CancellationToken)) =>
            Start(OperationKind.GatherV, send, recv, token, peer: root, recvBlocks: blocks);

        /// <summary>Gives each rank its part of the root's send, which has Size times as many
        /// elements as recv. Elsewhere it may be default.</summary>
        public void Scatter(Tensor send, Tensor recv, int root) =>
            Run(OperationKind.Scatter, send, recv, peer: root);

        /// <summary>The same without waiting.</summary>
        public Work ScatterAsync(Tensor send, Tensor recv, int root, CancellationToken token =
            default(CancellationToken)) =>
            Start(OperationKind.Scatter, send, recv, token, peer: root);

        /// <summary>With a block of another length for each rank; elsewhere than on the root send
        /// and blocks are ignored. Where a rank expects another count, all throw <see
        /// cref="DtMismatchException"/>.</summary>
        public void Scatter(Tensor send, Blocks blocks, Tensor recv, int root) =>
            Run(OperationKind.ScatterV, send, recv, peer: root, sendBlocks: blocks);

        /// <summary>The same without waiting.</summary>
        public Work ScatterAsync(Tensor send, Blocks blocks, Tensor recv, int root,
            CancellationToken token = default(CancellationToken)) =>
            Start(OperationKind.ScatterV, send, recv, token, peer: root, sendBlocks: blocks);

        /// <summary>Sends to one peer, which receives as many elements of the same dtype.</summary>
        public void Send(Tensor buffer, int peer) =>
            Run(OperationKind.Send, buffer, default(Tensor), peer: peer);

        /// <summary>The same without waiting.</summary>
        public Work SendAsync(Tensor buffer, int peer, CancellationToken token =
            default(CancellationToken)) =>
            Start(OperationKind.Send, buffer, default(Tensor), token, peer: peer);

        /// <summary>Receives what the peer sends.</summary>
        public void Recv(Tensor buffer, int peer) =>
            Run(OperationKind.Recv, default(Tensor), buffer, peer: peer);

        /// <summary>The same without waiting.</summary>
        public Work RecvAsync(Tensor buffer, int peer, CancellationToken token =
            default(CancellationToken)) =>
            Start(OperationKind.Recv, default(Tensor), buffer, token, peer: peer);

        /// <summary>Returns when every rank has called it.</summary>
        public void Barrier() =>
            Run(OperationKind.Barrier, default(Tensor), default(Tensor));

        /// <summary>The same without waiting.</summary>
        public Work BarrierAsync(CancellationToken token = default(CancellationToken)) =>
            Start(OperationKind.Barrier, default(Tensor), default(Tensor), token);
    }
}
