// SPDX-License-Identifier: Apache-2.0
using System;

namespace Dt
{
    // Collectives over arrays in which elements only change their place.
    public sealed partial class Comm
    {
        /// <summary>Gives each rank its part of send, and gathers everybody's part for this rank in
        /// recv, in rank order; both are of one length.</summary>
        public void Alltoall<T>(T[] send, T[] recv, Dtype? dtype = null)
            where T : struct
        {
            const string Name = "alltoall";
            Dtype type = Elements.Of<T>(Name, dtype);
            long sent = Elements.Length(Name, "send", send);
            long received = Elements.Length(Name, "recv", recv);
            Run(Exchange(type, sent, received), send, recv);
        }

        /// <summary>Gives each rank its part of send, and gathers everybody's part for this rank in
        /// recv, in rank order; both are of one length. Returns at once.</summary>
        public Work AlltoallAsync<T>(T[] send, T[] recv, Dtype? dtype = null)
            where T : struct
        {
            const string Name = "alltoall";
            Dtype type = Elements.Of<T>(Name, dtype);
            long sent = Elements.Length(Name, "send", send);
            long received = Elements.Length(Name, "recv", recv);
            return Start(Exchange(type, sent, received), send, recv);
        }

        /// <summary>Gathers everybody's elements, in rank order, on the root: recv has Size times
        /// as many as send. Elsewhere recv may be null.</summary>
        public void Gather<T>(T[] send, T[] recv, int root, Dtype? dtype = null)
            where T : struct
        {
            const string Name = "gather";
            Dtype type = Elements.Of<T>(Name, dtype);
            long sent = Elements.Length(Name, "send", send);
            long received = Rank == root ? Elements.Length(Name, "recv", recv) : 0;
            Run(Gathering(type, sent, received, root), send, recv);
        }

        /// <summary>Gathers everybody's elements, in rank order, on the root: recv has Size times
        /// as many as send. Elsewhere recv may be null. Returns at once.</summary>
        public Work GatherAsync<T>(T[] send, T[] recv, int root, Dtype? dtype = null)
            where T : struct
        {
            const string Name = "gather";
            Dtype type = Elements.Of<T>(Name, dtype);
            long sent = Elements.Length(Name, "send", send);
            long received = Rank == root ? Elements.Length(Name, "recv", recv) : 0;
            return Start(Gathering(type, sent, received, root), send, recv);
        }

        /// <summary>Gives each rank its part of the root's send, which has Size times as many
        /// elements as recv. Elsewhere send may be null.</summary>
        public void Scatter<T>(T[] send, T[] recv, int root, Dtype? dtype = null)
            where T : struct
        {
            const string Name = "scatter";
            Dtype type = Elements.Of<T>(Name, dtype);
            long sent = Rank == root ? Elements.Length(Name, "send", send) : 0;
            long received = Elements.Length(Name, "recv", recv);
            Run(Scattering(type, sent, received, root), send, recv);
        }

        /// <summary>Gives each rank its part of the root's send, which has Size times as many
        /// elements as recv. Elsewhere send may be null. Returns at once.</summary>
        public Work ScatterAsync<T>(T[] send, T[] recv, int root, Dtype? dtype = null)
            where T : struct
        {
            const string Name = "scatter";
            Dtype type = Elements.Of<T>(Name, dtype);
            long sent = Rank == root ? Elements.Length(Name, "send", send) : 0;
            long received = Elements.Length(Name, "recv", recv);
            return Start(Scattering(type, sent, received, root), send, recv);
        }

        /// <summary>As Alltoall, with a count for each pair of ranks: sendCounts[r] elements go to
        /// rank r, and recvCounts[r] come from it, one part behind the other, or from
        /// sendOffsets[r] and recvOffsets[r] on. Received parts may not overlap. Where two ranks
        /// differ, all throw <see cref="DtMismatchException"/>.</summary>
        public void Alltoallv<T>(T[] send, long[] sendCounts, T[] recv, long[] recvCounts, Dtype?
            dtype = null, long[] sendOffsets = null, long[] recvOffsets = null)
            where T : struct
        {
            const string Name = "alltoallv";
            Dtype type = Elements.Of<T>(Name, dtype);
            long sent = Elements.Length(Name, "send", send);
            long received = Elements.Length(Name, "recv", recv);
            Run(Exchange(type, sent, sendCounts, sendOffsets, received, recvCounts, recvOffsets),
                send, recv);
        }

        /// <summary>As Alltoall, with a count for each pair of ranks: sendCounts[r] elements go to
        /// rank r, and recvCounts[r] come from it, one part behind the other, or from
        /// sendOffsets[r] and recvOffsets[r] on. Received parts may not overlap. Where two ranks
        /// differ, all throw <see cref="DtMismatchException"/>. Returns at once.</summary>
        public Work AlltoallvAsync<T>(T[] send, long[] sendCounts, T[] recv, long[] recvCounts,
            Dtype? dtype = null, long[] sendOffsets = null, long[] recvOffsets = null)
            where T : struct
        {
            const string Name = "alltoallv";
            Dtype type = Elements.Of<T>(Name, dtype);
            long sent = Elements.Length(Name, "send", send);
            long received = Elements.Length(Name, "recv", recv);
            return Start(Exchange(type, sent, sendCounts, sendOffsets, received, recvCounts,
                recvOffsets), send, recv);
        }

        /// <summary>As Gather, with counts[r] elements of rank r, one part behind the other, or
        /// from offsets[r] on, where they may not overlap; elsewhere than on the root recv, counts
        /// and offsets are ignored. Where a rank gives another count, all throw <see
        /// cref="DtMismatchException"/>.</summary>
        public void Gatherv<T>(T[] send, T[] recv, long[] counts, int root, Dtype? dtype = null,
            long[] offsets = null)
            where T : struct
        {
            const string Name = "gatherv";
            Dtype type = Elements.Of<T>(Name, dtype);
            long sent = Elements.Length(Name, "send", send);
            long received = Rank == root ? Elements.Length(Name, "recv", recv) : 0;
            Run(Gathering(type, sent, received, counts, offsets, root), send, recv);
        }

        /// <summary>As Gather, with counts[r] elements of rank r, one part behind the other, or
        /// from offsets[r] on, where they may not overlap; elsewhere than on the root recv, counts
        /// and offsets are ignored. Where a rank gives another count, all throw <see
        /// cref="DtMismatchException"/>. Returns at once.</summary>
        public Work GathervAsync<T>(T[] send, T[] recv, long[] counts, int root, Dtype? dtype =
            null, long[] offsets = null)
            where T : struct
        {
            const string Name = "gatherv";
            Dtype type = Elements.Of<T>(Name, dtype);
            long sent = Elements.Length(Name, "send", send);
            long received = Rank == root ? Elements.Length(Name, "recv", recv) : 0;
            return Start(Gathering(type, sent, received, counts, offsets, root), send, recv);
        }

        /// <summary>As Scatter, with counts[r] elements for rank r, one part behind the other, or
        /// from offsets[r] on; elsewhere than on the root send, counts and offsets are ignored.
        /// Where a rank expects another count, all throw <see
        /// cref="DtMismatchException"/>.</summary>
        public void Scatterv<T>(T[] send, long[] counts, T[] recv, int root, Dtype? dtype = null,
            long[] offsets = null)
            where T : struct
        {
            const string Name = "scatterv";
            Dtype type = Elements.Of<T>(Name, dtype);
            long sent = Rank == root ? Elements.Length(Name, "send", send) : 0;
            long received = Elements.Length(Name, "recv", recv);
            Run(Scattering(type, sent, counts, offsets, received, root), send, recv);
        }

        /// <summary>As Scatter, with counts[r] elements for rank r, one part behind the other, or
        /// from offsets[r] on; elsewhere than on the root send, counts and offsets are ignored.
        /// Where a rank expects another count, all throw <see cref="DtMismatchException"/>. Returns
        /// at once.</summary>
        public Work ScattervAsync<T>(T[] send, long[] counts, T[] recv, int root, Dtype? dtype =
            null, long[] offsets = null)
            where T : struct
        {
            const string Name = "scatterv";
            Dtype type = Elements.Of<T>(Name, dtype);
            long sent = Rank == root ? Elements.Length(Name, "send", send) : 0;
            long received = Elements.Length(Name, "recv", recv);
            return Start(Scattering(type, sent, counts, offsets, received, root), send, recv);
        }

        /// <summary>As Allgather, with counts[r] elements of rank r, one part behind the other, or
        /// from offsets[r] on, where they may not overlap. All ranks name the same counts, or all
        /// throw <see cref="DtMismatchException"/>.</summary>
        public void Allgatherv<T>(T[] send, T[] recv, long[] counts, Dtype? dtype = null, long[]
            offsets = null)
            where T : struct
        {
            const string Name = "allgatherv";
            Dtype type = Elements.Of<T>(Name, dtype);
            long sent = Elements.Length(Name, "send", send);
            long received = Elements.Length(Name, "recv", recv);
            Run(GatheringAll(type, sent, received, counts, offsets), send, recv);
        }

        /// <summary>As Allgather, with counts[r] elements of rank r, one part behind the other, or
        /// from offsets[r] on, where they may not overlap. All ranks name the same counts, or all
        /// throw <see cref="DtMismatchException"/>. Returns at once.</summary>
        public Work AllgathervAsync<T>(T[] send, T[] recv, long[] counts, Dtype? dtype = null,
            long[] offsets = null)
            where T : struct
        {
            const string Name = "allgatherv";
            Dtype type = Elements.Of<T>(Name, dtype);
            long sent = Elements.Length(Name, "send", send);
            long received = Elements.Length(Name, "recv", recv);
            return Start(GatheringAll(type, sent, received, counts, offsets), send, recv);
        }
    }
}
