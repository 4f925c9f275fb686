// SPDX-License-Identifier: Apache-2.0
using System;

namespace Dt
{
    // What collectives in which elements only change their place have in common: lengths that fit each
    // other. Where this rank is not the root, it has no whole and no counts.
    public sealed partial class Comm
    {
        Operation Exchange(Dtype type, long sent, long received)
        {
            const string Name = "alltoall";
            Elements.CheckEqual(Name, sent, received);
            int ranks = Size;
            if (sent % ranks != 0)
            {
                throw DtException.InvalidArgument(Name + ": send has " + sent +
                    " elements, which is no multiple of the " + ranks +
                    " ranks; give equal parts, or use Alltoallv");
            }
            return new Operation(Kind.Alltoall, sent / ranks, null, type, 0, IntPtr.Zero);
        }

        Operation Exchange(Dtype type, long sent, long[] sendCounts, long[] sendOffsets, long received,
            long[] recvCounts, long[] recvOffsets)
        {
            const string Name = "alltoallv";
            int ranks = Size;
            Counts to = Counts.Of(Name, "sendCounts", sendCounts, sendOffsets, ranks);
            to.CheckWhole("send", sent);
            Counts from = Counts.Of(Name, "recvCounts", recvCounts, recvOffsets, ranks);
            from.CheckWhole("recv", received);
            return new Operation(Kind.Alltoallv, 0, to.Pack(from), type, 0, IntPtr.Zero);
        }

        Operation Gathering(Dtype type, long sent, long received, int root)
        {
            if (Rank == root) Elements.CheckParts("gather", "send", sent, "recv", received, Size);
            return new Operation(Kind.Gather, sent, null, type, root, IntPtr.Zero);
        }

        Operation Gathering(Dtype type, long sent, long received, long[] counts, long[] offsets,
            int root)
        {
            Counts parts = Counts.None;
            if (Rank == root) parts = Parts("gatherv", counts, offsets, "recv", received, "send", sent);
            return new Operation(Kind.Gatherv, sent, parts.Pack(), type, root, IntPtr.Zero);
        }

        Operation GatheringAll(Dtype type, long sent, long received, long[] counts, long[] offsets)
        {
            Counts parts = Parts("allgatherv", counts, offsets, "recv", received, "send", sent);
            return new Operation(Kind.Allgatherv, 0, parts.Pack(), type, 0, IntPtr.Zero);
        }

        Operation Scattering(Dtype type, long sent, long received, int root)
        {
            if (Rank == root) Elements.CheckParts("scatter", "recv", received, "send", sent, Size);
            return new Operation(Kind.Scatter, received, null, type, root, IntPtr.Zero);
        }

        Operation Scattering(Dtype type, long sent, long[] counts, long[] offsets, long received,
            int root)
        {
            Counts parts = Counts.None;
            if (Rank == root) parts = Parts("scatterv", counts, offsets, "send", sent, "recv", received);
            return new Operation(Kind.Scatterv, received, parts.Pack(), type, root, IntPtr.Zero);
        }

        /// Counts that divide a buffer; another one has this rank's part.
        Counts Parts(string operation, long[] counts, long[] offsets, string whole, long wholeLength,
            string part, long partLength)
        {
            Counts parts = Counts.Of(operation, "counts", counts, offsets, Size);
            parts.CheckWhole(whole, wholeLength);
            parts.CheckOwn(Rank, part, partLength);
            return parts;
        }
    }
}
