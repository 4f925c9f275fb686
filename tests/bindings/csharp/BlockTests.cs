// SPDX-License-Identifier: Apache-2.0
using System;
using Dt;

/// Operations that move blocks: groups, and what is refused. MatrixTests has their values.
static class BlockTests
{
    internal static void Add()
    {
        Suite.Add("collective: blocks in groups, and their statistics", () => Ranks.Run(3, Groups));
        Suite.Add("safety: blocks of a wrong size", () => Ranks.Run(2, Refused));
        Suite.Add("safety: blocks at wrong offsets", () => Ranks.Run(2, RefusedOffsets));
        Suite.Add("safety: counts that differ name both sides", () => Ranks.Run(2, Differ));
    }

    static void Groups(Ranks each)
    {
        int size = each.size, rank = each.rank;
        int[] recv = new int[size], whole = rank == 0 ? new int[size] : null;
        each.world.Group(() =>
        {
            each.world.AllToAll(new int[] { 10 * rank, 10 * rank + 1, 10 * rank + 2 }, recv);
            each.world.Gather(new int[] { rank }, whole, 0);
        });
        Suite.Equal(rank + " " + (10 + rank) + " " + (20 + rank), string.Join(" ", recv), "alltoall");
        if (rank == 0) Suite.Equal("0 1 2", string.Join(" ", whole), "gather");
        var operations = each.job.Statistics.Operations;
        Suite.Equal(1L, operations[OperationKind.AllToAll].Operations, "alltoalls");
        Suite.Equal(1L, operations[OperationKind.Gather].Operations, "gathers");
        Suite.Equal(0L, operations[OperationKind.AllGatherV].Operations, "allgathervs");
    }

    static void Refused(Ranks each)
    {
        Comm world = each.world;
        int rank = each.rank;
        int[] three = new int[3], six = new int[6], seven = new int[7], none = null;
        long[] whole = { 3, 3 };
        Refuse(() => world.AllToAll(six, seven), "AllToAll: send has 6 elements, but recv 7");
        Refuse(() => world.AllToAllAsync(seven, new int[7]), "no multiple of the 2 ranks");
        Refuse(() => world.AllToAll(six, new long[] { 6 }, new int[6], whole),
            "AllToAll: sendBlocks.Counts has 1 elements, but the communicator has 2 ranks");
        Refuse(() => world.AllToAllAsync(six, whole, new int[6], new long[] { 7, -1 }), "recvBlocks.Counts[1] is -1");
        Refuse(() => world.AllToAll(six, whole, seven, whole), "recvBlocks.Counts [3, 3] are not 7 elements together, as recv has");
        Refuse(() => world.AllToAll(six, new long[] { long.MaxValue, long.MaxValue }, six, whole), "not 6 elements together");
        Refuse(() => world.AllGather(three, seven, whole), "AllGather: blocks.Counts [3, 3] are not 7 elements together");
        Refuse(() => world.AllGatherAsync(seven, six, whole), "blocks.Counts[" + rank + "], which is this rank's, is 3, but send has 7");
        Refuse(() => world.Gather(six, seven, rank), "Gather: send has 6", "2 times as many");
        Refuse(() => world.Gather(six, none, rank), "Gather: recv is null");
        Refuse(() => world.Gather(three, six, default(Blocks), rank), "Gather: blocks.Counts is null");
        Refuse(() => world.Gather(three, none, whole, rank), "Gather: recv is null");
        Refuse(() => world.Scatter(six, seven, rank), "Scatter: recv has 7", "2 times as many");
        Refuse(() => world.Scatter(seven, whole, three, rank), "Scatter: blocks.Counts [3, 3] are not 7 elements together");
        Refuse(() => world.GatherAsync(three, six, 2), "Gather: root is 2");
        Refuse(() => world.AllToAll(six, six), "AllToAll: ", "overlap");
        Refuse(() => world.AllToAll(six, new float[6]), "send has elements of I32, but recv of F32");
        using (Dt.Memory send = world.Allocate<int>(4), recv = world.Allocate<int>(8))
        {
            Refuse(() => world.AllToAll(send, new long[] { 2, 3 }, recv, new long[] { 4, 4 }), "sendBlocks.Counts [2, 3] are not 4");
            Refuse(() => world.Gather(send.Slice(0, 1), default(Tensor), rank), "Gather: recv is null");
        }
#if DT_SPAN
        Refuse(() => world.AllToAll(new ReadOnlySpan<int>(six), new Span<int>(seven)), "6", "7");
        Refuse(() => world.AllGatherAsync(new ReadOnlyMemory<int>(three), new Memory<int>(seven), whole), "3", "7");
#endif
        world.Barrier();  // nothing of all this broke it
    }

    static void RefusedOffsets(Ranks each)
    {
        Comm world = each.world;
        int rank = each.rank;
        int[] two = new int[2], eight = new int[8], other = new int[8];
        long[] twos = { 2, 2 };
        Blocks inside = new Blocks(twos, new long[] { 2, 0 });
        Func<long, long, Blocks> at = (first, second) => new Blocks(twos, new long[] { first, second });
        Refuse(() => world.AllGather(two, eight, new Blocks(twos, new long[] { 0 })),
            "AllGather: blocks.Offsets has 1 elements, but the communicator has 2 ranks; give one for each rank");
        Refuse(() => world.AllToAllAsync(eight, inside, other, at(0, -1)),
            "AllToAll: recvBlocks.Offsets[1] is -1; give an offset of at least 0");
        Refuse(() => world.AllToAll(eight, at(0, 7), other, inside),
            "AllToAll: the block of rank 1 does not lie in send: it has 2 elements and sendBlocks.Offsets[1] is 7, " +
            "but send has 8; give a smaller offset or a larger buffer");
        Refuse(() => world.Gather(two, eight, at(0, long.MaxValue), rank),
            "Gather: the block of rank 1 does not lie in recv", "blocks.Offsets[1] is 9223372036854775807, but recv has 8");
        Refuse(() => world.Scatter(eight, new Blocks(new long[] { 9, 0 }, new long[] { 2, 0 }), two, rank),
            "rank 0 does not lie in send: it has 9 elements and blocks.Offsets[0] is 2");
        Refuse(() => world.AllGather(two, eight, at(4, 3)),
            "blocks of ranks 1 and 0 overlap in recv: blocks.Offsets[1] is 3 with 2 elements, blocks.Offsets[0] is 4 with 2");
        Refuse(() => world.AllGather(eight, other, inside),
            "blocks.Counts[" + rank + "], which is this rank's, is 2, but send has 8");
        using (Dt.Memory send = world.Allocate<int>(4), recv = world.Allocate<int>(8))
        {
            Refuse(() => world.AllGather(send.Slice(0, 2), recv, at(7, 0)), "the block of rank 0 does not lie in recv");
            Refuse(() => world.Scatter(send, at(0, 3), recv.Slice(0, 2), rank), "the block of rank 1 does not lie in send");
        }
        // An empty block may be anywhere, and what is sent may overlap.
        world.AllGather(new int[2 * rank], eight, new Blocks(new long[] { 0, 2 }, new long[] { long.MaxValue / 8, 6 }));
        world.Scatter(eight, at(1, 2), two, 0);
        world.Barrier();  // nothing of all this broke it
    }

    static void Refuse(Action call, params string[] texts)
    {
        Suite.Throws<DtInvalidArgumentException>(call, texts);
    }

    static void Differ(Ranks each)
    {
        int[] recv = each.rank == 0 ? new int[4] : null;
        long[] counts = each.rank == 0 ? new long[] { 2, 2 } : null;
        Suite.Throws<DtMismatchException>(
            () => each.world.Gather(new int[2 + each.rank], recv, counts, 0), "gatherv", "2", "3");
    }
}
