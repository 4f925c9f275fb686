// SPDX-License-Identifier: Apache-2.0
using System;

namespace Dt
{
    // Collectives over the beginning of memories, in which elements only change their place.
    public sealed partial class Comm
    {
        /// <summary>Gives each rank its part of send, and gathers everybody's part for this rank in
        /// recv, in rank order; both are of one length. The count is that of one part.</summary>
        public void Alltoall(Memory send, Memory recv, long count, Dtype dtype, IntPtr stream =
            default(IntPtr))
        {
            Check("alltoall", "send", send, count, dtype, Size);
            Check("alltoall", "recv", recv, count, dtype, Size);
            Run(new Operation(Kind.Alltoall, count, null, dtype, 0, stream), send, recv);
        }

        /// <summary>Gives each rank its part of send, and gathers everybody's part for this rank in
        /// recv, in rank order; both are of one length. The count is that of one part. Returns at
        /// once.</summary>
        public Work AlltoallAsync(Memory send, Memory recv, long count, Dtype dtype, IntPtr stream =
            default(IntPtr))
        {
            Check("alltoall", "send", send, count, dtype, Size);
            Check("alltoall", "recv", recv, count, dtype, Size);
            return Start(new Operation(Kind.Alltoall, count, null, dtype, 0, stream), send, recv);
        }

        /// <summary>Gathers everybody's elements, in rank order, on the root: recv has Size times
        /// as many as send. Elsewhere recv may be null. The count is that of send.</summary>
        public void Gather(Memory send, Memory recv, long count, Dtype dtype, int root, IntPtr
            stream = default(IntPtr))
        {
            Check("gather", "send", send, count, dtype, 1);
            if (Rank == root) Check("gather", "recv", recv, count, dtype, Size);
            Run(new Operation(Kind.Gather, count, null, dtype, root, stream), send, recv);
        }

        /// <summary>Gathers everybody's elements, in rank order, on the root: recv has Size times
        /// as many as send. Elsewhere recv may be null. The count is that of send. Returns at
        /// once.</summary>
        public Work GatherAsync(Memory send, Memory recv, long count, Dtype dtype, int root, IntPtr
            stream = default(IntPtr))
        {
            Check("gather", "send", send, count, dtype, 1);
            if (Rank == root) Check("gather", "recv", recv, count, dtype, Size);
            return Start(new Operation(Kind.Gather, count, null, dtype, root, stream), send, recv);
        }

        /// <summary>Gives each rank its part of the root's send, which has Size times as many
        /// elements as recv. Elsewhere send may be null. The count is that of recv.</summary>
        public void Scatter(Memory send, Memory recv, long count, Dtype dtype, int root, IntPtr
            stream = default(IntPtr))
        {
            if (Rank == root) Check("scatter", "send", send, count, dtype, Size);
            Check("scatter", "recv", recv, count, dtype, 1);
            Run(new Operation(Kind.Scatter, count, null, dtype, root, stream), send, recv);
        }

        /// <summary>Gives each rank its part of the root's send, which has Size times as many
        /// elements as recv. Elsewhere send may be null. The count is that of recv. Returns at
        /// once.</summary>
        public Work ScatterAsync(Memory send, Memory recv, long count, Dtype dtype, int root, IntPtr
            stream = default(IntPtr))
        {
            if (Rank == root) Check("scatter", "send", send, count, dtype, Size);
            Check("scatter", "recv", recv, count, dtype, 1);
            return Start(new Operation(Kind.Scatter, count, null, dtype, root, stream), send, recv);
        }

        /// <summary>As Alltoall, with a count for each pair of ranks: sendCounts[r] elements go to
        /// rank r, and recvCounts[r] come from it, one part behind the other, or from
        /// sendOffsets[r] and recvOffsets[r] on. Received parts may not overlap. Where two ranks
        /// differ, all throw <see cref="DtMismatchException"/>.</summary>
        public void Alltoallv(Memory send, long[] sendCounts, Memory recv, long[] recvCounts, Dtype
            dtype, IntPtr stream = default(IntPtr), long[] sendOffsets = null, long[] recvOffsets =
            null)
        {
            Counts to = Counts.Of("alltoallv", "sendCounts", sendCounts, sendOffsets, Size);
            Counts from = Counts.Of("alltoallv", "recvCounts", recvCounts, recvOffsets, Size);
            Check("alltoallv", "send", send, to, dtype);
            Check("alltoallv", "recv", recv, from, dtype);
            Run(new Operation(Kind.Alltoallv, 0, to.Pack(from), dtype, 0, stream), send, recv);
        }

        /// <summary>As Alltoall, with a count for each pair of ranks: sendCounts[r] elements go to
        /// rank r, and recvCounts[r] come from it, one part behind the other, or from
        /// sendOffsets[r] and recvOffsets[r] on. Received parts may not overlap. Where two ranks
        /// differ, all throw <see cref="DtMismatchException"/>. Returns at once.</summary>
        public Work AlltoallvAsync(Memory send, long[] sendCounts, Memory recv, long[] recvCounts,
            Dtype dtype, IntPtr stream = default(IntPtr), long[] sendOffsets = null, long[]
            recvOffsets = null)
        {
            Counts to = Counts.Of("alltoallv", "sendCounts", sendCounts, sendOffsets, Size);
            Counts from = Counts.Of("alltoallv", "recvCounts", recvCounts, recvOffsets, Size);
            Check("alltoallv", "send", send, to, dtype);
            Check("alltoallv", "recv", recv, from, dtype);
            return Start(new Operation(Kind.Alltoallv, 0, to.Pack(from), dtype, 0, stream), send,
                recv);
        }

        /// <summary>As Gather, with counts[r] elements of rank r, one part behind the other, or
        /// from offsets[r] on, where they may not overlap; elsewhere than on the root recv, counts
        /// and offsets are ignored. Where a rank gives another count, all throw <see
        /// cref="DtMismatchException"/>.</summary>
        public void Gatherv(Memory send, long sendCount, Memory recv, long[] counts, Dtype dtype,
            int root, IntPtr stream = default(IntPtr), long[] offsets = null)
        {
            Counts parts = Rank == root
                ? Counts.Of("gatherv", "counts", counts, offsets, Size) : Counts.None;
            Check("gatherv", "send", send, sendCount, dtype, 1);
            if (Rank == root) Check("gatherv", "recv", recv, parts, dtype);
            Run(new Operation(Kind.Gatherv, sendCount, parts.Pack(), dtype, root, stream), send,
                recv);
        }

        /// <summary>As Gather, with counts[r] elements of rank r, one part behind the other, or
        /// from offsets[r] on, where they may not overlap; elsewhere than on the root recv, counts
        /// and offsets are ignored. Where a rank gives another count, all throw <see
        /// cref="DtMismatchException"/>. Returns at once.</summary>
        public Work GathervAsync(Memory send, long sendCount, Memory recv, long[] counts, Dtype
            dtype, int root, IntPtr stream = default(IntPtr), long[] offsets = null)
        {
            Counts parts = Rank == root
                ? Counts.Of("gatherv", "counts", counts, offsets, Size) : Counts.None;
            Check("gatherv", "send", send, sendCount, dtype, 1);
            if (Rank == root) Check("gatherv", "recv", recv, parts, dtype);
            return Start(new Operation(Kind.Gatherv, sendCount, parts.Pack(), dtype, root, stream),
                send, recv);
        }

        /// <summary>As Scatter, with counts[r] elements for rank r, one part behind the other, or
        /// from offsets[r] on; elsewhere than on the root send, counts and offsets are ignored.
        /// Where a rank expects another count, all throw <see
        /// cref="DtMismatchException"/>.</summary>
        public void Scatterv(Memory send, long[] counts, Memory recv, long recvCount, Dtype dtype,
            int root, IntPtr stream = default(IntPtr), long[] offsets = null)
        {
            Counts parts = Rank == root
                ? Counts.Of("scatterv", "counts", counts, offsets, Size) : Counts.None;
            Check("scatterv", "recv", recv, recvCount, dtype, 1);
            if (Rank == root) Check("scatterv", "send", send, parts, dtype);
            Run(new Operation(Kind.Scatterv, recvCount, parts.Pack(), dtype, root, stream), send,
                recv);
        }

        /// <summary>As Scatter, with counts[r] elements for rank r, one part behind the other, or
        /// from offsets[r] on; elsewhere than on the root send, counts and offsets are ignored.
        /// Where a rank expects another count, all throw <see cref="DtMismatchException"/>. Returns
        /// at once.</summary>
        public Work ScattervAsync(Memory send, long[] counts, Memory recv, long recvCount, Dtype
            dtype, int root, IntPtr stream = default(IntPtr), long[] offsets = null)
        {
            Counts parts = Rank == root
                ? Counts.Of("scatterv", "counts", counts, offsets, Size) : Counts.None;
            Check("scatterv", "recv", recv, recvCount, dtype, 1);
            if (Rank == root) Check("scatterv", "send", send, parts, dtype);
            return Start(new Operation(Kind.Scatterv, recvCount, parts.Pack(), dtype, root, stream),
                send, recv);
        }

        /// <summary>As Allgather, with counts[r] elements of rank r, one part behind the other, or
        /// from offsets[r] on, where they may not overlap. All ranks name the same counts, or all
        /// throw <see cref="DtMismatchException"/>.</summary>
        public void Allgatherv(Memory send, Memory recv, long[] counts, Dtype dtype, IntPtr stream =
            default(IntPtr), long[] offsets = null)
        {
            Counts parts = Counts.Of("allgatherv", "counts", counts, offsets, Size);
            Check("allgatherv", "send", send, parts[Rank], dtype, 1);
            Check("allgatherv", "recv", recv, parts, dtype);
            Run(new Operation(Kind.Allgatherv, 0, parts.Pack(), dtype, 0, stream), send, recv);
        }

        /// <summary>As Allgather, with counts[r] elements of rank r, one part behind the other, or
        /// from offsets[r] on, where they may not overlap. All ranks name the same counts, or all
        /// throw <see cref="DtMismatchException"/>. Returns at once.</summary>
        public Work AllgathervAsync(Memory send, Memory recv, long[] counts, Dtype dtype, IntPtr
            stream = default(IntPtr), long[] offsets = null)
        {
            Counts parts = Counts.Of("allgatherv", "counts", counts, offsets, Size);
            Check("allgatherv", "send", send, parts[Rank], dtype, 1);
            Check("allgatherv", "recv", recv, parts, dtype);
            return Start(new Operation(Kind.Allgatherv, 0, parts.Pack(), dtype, 0, stream), send,
                recv);
        }
    }
}
