// SPDX-License-Identifier: Apache-2.0
#if NETSTANDARD2_1_OR_GREATER || NETCOREAPP || DT_SPAN
using System;

namespace Dt
{
    // Collectives over spans in which elements only change their place.
    public sealed partial class Comm
    {
        /// <summary>Gives each rank its part of send, and gathers everybody's part for this rank in
        /// recv, in rank order; both are of one length.</summary>
        public void Alltoall<T>(ReadOnlySpan<T> send, Span<T> recv, Dtype? dtype = null)
            where T : struct
        {
            Dtype type = Elements.Of<T>("alltoall", dtype);
            Run(Exchange(type, send.Length, recv.Length), send, recv);
        }

        /// <summary>Gathers everybody's elements, in rank order, on the root: recv has Size times
        /// as many as send. Elsewhere recv may be empty.</summary>
        public void Gather<T>(ReadOnlySpan<T> send, Span<T> recv, int root, Dtype? dtype = null)
            where T : struct
        {
            Dtype type = Elements.Of<T>("gather", dtype);
            Run(Gathering(type, send.Length, recv.Length, root), send, recv);
        }

        /// <summary>Gives each rank its part of the root's send, which has Size times as many
        /// elements as recv. Elsewhere send may be empty.</summary>
        public void Scatter<T>(ReadOnlySpan<T> send, Span<T> recv, int root, Dtype? dtype = null)
            where T : struct
        {
            Dtype type = Elements.Of<T>("scatter", dtype);
            Run(Scattering(type, send.Length, recv.Length, root), send, recv);
        }

        /// <summary>As Alltoall, with a count for each pair of ranks: sendCounts[r] elements go to
        /// rank r, and recvCounts[r] come from it, one part behind the other, or from
        /// sendOffsets[r] and recvOffsets[r] on. Received parts may not overlap. Where two ranks
        /// differ, all throw <see cref="DtMismatchException"/>.</summary>
        public void Alltoallv<T>(ReadOnlySpan<T> send, long[] sendCounts, Span<T> recv, long[]
            recvCounts, Dtype? dtype = null, long[] sendOffsets = null, long[] recvOffsets = null)
            where T : struct
        {
            Dtype type = Elements.Of<T>("alltoallv", dtype);
            Run(Exchange(type, send.Length, sendCounts, sendOffsets, recv.Length, recvCounts,
                recvOffsets), send, recv);
        }

        /// <summary>As Gather, with counts[r] elements of rank r, one part behind the other, or
        /// from offsets[r] on, where they may not overlap; elsewhere than on the root recv, counts
        /// and offsets are ignored. Where a rank gives another count, all throw <see
        /// cref="DtMismatchException"/>.</summary>
        public void Gatherv<T>(ReadOnlySpan<T> send, Span<T> recv, long[] counts, int root, Dtype?
            dtype = null, long[] offsets = null)
            where T : struct
        {
            Dtype type = Elements.Of<T>("gatherv", dtype);
            Run(Gathering(type, send.Length, recv.Length, counts, offsets, root), send, recv);
        }

        /// <summary>As Scatter, with counts[r] elements for rank r, one part behind the other, or
        /// from offsets[r] on; elsewhere than on the root send, counts and offsets are ignored.
        /// Where a rank expects another count, all throw <see
        /// cref="DtMismatchException"/>.</summary>
        public void Scatterv<T>(ReadOnlySpan<T> send, long[] counts, Span<T> recv, int root, Dtype?
            dtype = null, long[] offsets = null)
            where T : struct
        {
            Dtype type = Elements.Of<T>("scatterv", dtype);
            Run(Scattering(type, send.Length, counts, offsets, recv.Length, root), send, recv);
        }

        /// <summary>As Allgather, with counts[r] elements of rank r, one part behind the other, or
        /// from offsets[r] on, where they may not overlap. All ranks name the same counts, or all
        /// throw <see cref="DtMismatchException"/>.</summary>
        public void Allgatherv<T>(ReadOnlySpan<T> send, Span<T> recv, long[] counts, Dtype? dtype =
            null, long[] offsets = null)
            where T : struct
        {
            Dtype type = Elements.Of<T>("allgatherv", dtype);
            Run(GatheringAll(type, send.Length, recv.Length, counts, offsets), send, recv);
        }
    }
}
#endif
