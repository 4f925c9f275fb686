// SPDX-License-Identifier: Apache-2.0
#if NETSTANDARD2_1_OR_GREATER || NETCOREAPP || DT_SPAN
using System;

namespace Dt
{
    // Collectives over memories in which elements only change their place.
    public sealed partial class Comm
    {
        /// <summary>Gives each rank its part of send, and gathers everybody's part for this rank in
        /// recv, in rank order; both are of one length. Returns at once.</summary>
        public Work AlltoallAsync<T>(ReadOnlyMemory<T> send, Memory<T> recv, Dtype? dtype = null)
            where T : struct
        {
            Dtype type = Elements.Of<T>("alltoall", dtype);
            return Start(Exchange(type, send.Length, recv.Length), send, (ReadOnlyMemory<T>)recv);
        }

        /// <summary>Gathers everybody's elements, in rank order, on the root: recv has Size times
        /// as many as send. Elsewhere recv may be empty. Returns at once.</summary>
        public Work GatherAsync<T>(ReadOnlyMemory<T> send, Memory<T> recv, int root, Dtype? dtype =
            null)
            where T : struct
        {
            Dtype type = Elements.Of<T>("gather", dtype);
            return Start(Gathering(type, send.Length, recv.Length, root), send,
                (ReadOnlyMemory<T>)recv);
        }

        /// <summary>Gives each rank its part of the root's send, which has Size times as many
        /// elements as recv. Elsewhere send may be empty. Returns at once.</summary>
        public Work ScatterAsync<T>(ReadOnlyMemory<T> send, Memory<T> recv, int root, Dtype? dtype =
            null)
            where T : struct
        {
            Dtype type = Elements.Of<T>("scatter", dtype);
            return Start(Scattering(type, send.Length, recv.Length, root), send,
                (ReadOnlyMemory<T>)recv);
        }

        /// <summary>As Alltoall, with a count for each pair of ranks: sendCounts[r] elements go to
        /// rank r, and recvCounts[r] come from it, one part behind the other, or from
        /// sendOffsets[r] and recvOffsets[r] on. Received parts may not overlap. Where two ranks
        /// differ, all throw <see cref="DtMismatchException"/>. Returns at once.</summary>
        public Work AlltoallvAsync<T>(ReadOnlyMemory<T> send, long[] sendCounts, Memory<T> recv,
            long[] recvCounts, Dtype? dtype = null, long[] sendOffsets = null, long[] recvOffsets =
            null)
            where T : struct
        {
            Dtype type = Elements.Of<T>("alltoallv", dtype);
            return Start(Exchange(type, send.Length, sendCounts, sendOffsets, recv.Length, recvCounts,
                recvOffsets), send, (ReadOnlyMemory<T>)recv);
        }

        /// <summary>As Gather, with counts[r] elements of rank r, one part behind the other, or
        /// from offsets[r] on, where they may not overlap; elsewhere than on the root recv, counts
        /// and offsets are ignored. Where a rank gives another count, all throw <see
        /// cref="DtMismatchException"/>. Returns at once.</summary>
        public Work GathervAsync<T>(ReadOnlyMemory<T> send, Memory<T> recv, long[] counts, int root,
            Dtype? dtype = null, long[] offsets = null)
            where T : struct
        {
            Dtype type = Elements.Of<T>("gatherv", dtype);
            return Start(Gathering(type, send.Length, recv.Length, counts, offsets, root), send,
                (ReadOnlyMemory<T>)recv);
        }

        /// <summary>As Scatter, with counts[r] elements for rank r, one part behind the other, or
        /// from offsets[r] on; elsewhere than on the root send, counts and offsets are ignored.
        /// Where a rank expects another count, all throw <see cref="DtMismatchException"/>. Returns
        /// at once.</summary>
        public Work ScattervAsync<T>(ReadOnlyMemory<T> send, long[] counts, Memory<T> recv, int
            root, Dtype? dtype = null, long[] offsets = null)
            where T : struct
        {
            Dtype type = Elements.Of<T>("scatterv", dtype);
            return Start(Scattering(type, send.Length, counts, offsets, recv.Length, root), send,
                (ReadOnlyMemory<T>)recv);
        }

        /// <summary>As Allgather, with counts[r] elements of rank r, one part behind the other, or
        /// from offsets[r] on, where they may not overlap. All ranks name the same counts, or all
        /// throw <see cref="DtMismatchException"/>. Returns at once.</summary>
        public Work AllgathervAsync<T>(ReadOnlyMemory<T> send, Memory<T> recv, long[] counts, Dtype?
            dtype = null, long[] offsets = null)
            where T : struct
        {
            Dtype type = Elements.Of<T>("allgatherv", dtype);
            return Start(GatheringAll(type, send.Length, recv.Length, counts, offsets), send,
                (ReadOnlyMemory<T>)recv);
        }
    }
}
#endif
