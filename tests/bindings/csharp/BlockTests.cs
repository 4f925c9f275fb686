// SPDX-License-Identifier: Apache-2.0
using System;
using Dt;

/// Collectives that move blocks, of 2 and 3 ranks, with a closed form: element i of what one rank has
/// for another one is 100 * sender + 10 * receiver + i.
static class BlockTests
{
    internal static void Add()
    {
        foreach (int size in new int[] { 2, 3 })
        {
            int ranks = size;
            foreach (Form each in Forms.All)
            {
                Form form = each;
                foreach (bool async in new bool[] { false, true })
                {
                    bool later = async;
                    if (async && form == Form.Span) continue;
                    Suite.Add("collective: blocks in " + form + (async ? ", async, " : ", ") + size + " ranks",
                        () => Ranks.Run(ranks, rank => All(rank, form, later)));
                }
            }
        }
        Suite.Add("collective: blocks in groups, and their statistics", () => Ranks.Run(3, Groups));
        Suite.Add("safety: blocks of a wrong size", () => Ranks.Run(2, Refused));
        Suite.Add("safety: blocks at wrong offsets", () => Ranks.Run(2, RefusedOffsets));
        Suite.Add("safety: counts that differ name both sides", () => Ranks.Run(2, Differ));
    }

    /// Counts that differ for each pair, zero among them.
    static int Uneven(int sender, int receiver)
    {
        return (sender + 2 * receiver + 1) % 4;
    }

    static int Count(int sender, int receiver, int count)
    {
        return count < 0 ? Uneven(sender, receiver) : count;
    }

    static int[] Part(int sender, int receiver, int count)
    {
        int[] values = new int[Count(sender, receiver, count)];
        for (int i = 0; i < values.Length; ++i) values[i] = 100 * sender + 10 * receiver + i;
        return values;
    }

    static int[] Joined(int size, Func<int, int[]> part)
    {
        int total = 0;
        for (int r = 0; r < size; ++r) total += part(r).Length;
        int[] all = new int[total];
        int at = 0;
        for (int r = 0; r < size; ++r)
        {
            int[] one = part(r);
            one.CopyTo(all, at);
            at += one.Length;
        }
        return all;
    }

    /// To all ranks; a negative count: as many as Uneven() says.
    static int[] Sent(int sender, int size, int count)
    {
        return Joined(size, r => Part(sender, r, count));
    }

    static int[] Received(int receiver, int size, int count)
    {
        return Joined(size, r => Part(r, receiver, count));
    }

    static long[] Longs(int size, Func<int, int> of)
    {
        long[] values = new long[size];
        for (int r = 0; r < size; ++r) values[r] = of(r);
        return values;
    }

    static void Same(int[] expected, int[] found, string what)
    {
        Suite.Equal(string.Join(" ", expected), string.Join(" ", found), what);
    }

    static void All(Ranks each, Form form, bool async)
    {
        foreach (int count in new int[] { 0, 1, 1000 }) One(each, form, async, count);
        for (int root = 0; root < each.size; ++root)
        {
            Counted(each, form, async, root);
            Placed(each, form, async, root);
        }
    }

    static void One(Ranks each, Form form, bool async, int count)
    {
        Comm world = each.world;
        int size = each.size, root = size - 1;
        bool atRoot = each.rank == root;
        int[] send = Sent(each.rank, size, count), recv = new int[size * count];
        Forms.Run(world, form, async, OperationKind.AllToAll, send, recv);
        Same(Received(each.rank, size, count), recv, "alltoall");

        int[] mine = Part(each.rank, root, count), whole = atRoot ? new int[size * count] : null;
        Forms.Run(world, form, async, OperationKind.Gather, mine, whole, rank: root);
        if (atRoot) Same(Received(root, size, count), whole, "gather");

        int[] split = atRoot ? Sent(root, size, count) : null, back = new int[count];
        Forms.Run(world, form, async, OperationKind.Scatter, split, back, rank: root);
        Same(Part(root, each.rank, count), back, "scatter");
    }

    static void Counted(Ranks each, Form form, bool async, int root)
    {
        Comm world = each.world;
        int size = each.size, rank = each.rank;
        bool atRoot = rank == root;
        long[] to = Longs(size, r => Uneven(rank, r)), from = Longs(size, r => Uneven(r, rank));
        int[] recv = new int[Received(rank, size, -1).Length];
        Forms.Run(world, form, async, OperationKind.AllToAllV, Sent(rank, size, -1), recv, sent: to, received: from);
        Same(Received(rank, size, -1), recv, "alltoallv");

        long[] all = Longs(size, r => Uneven(r, root)), counts = atRoot ? all : null;
        int[] everything = Received(root, size, -1), mine = Part(rank, root, -1);
        int[] whole = atRoot ? new int[everything.Length] : null;
        Forms.Run(world, form, async, OperationKind.GatherV, mine, whole, rank: root, received: counts);
        if (atRoot) Same(everything, whole, "gatherv");

        int[] back = new int[mine.Length];
        Forms.Run(world, form, async, OperationKind.ScatterV, whole, back, rank: root, sent: counts);
        Same(mine, back, "scatterv");

        int[] gathered = new int[everything.Length];
        Forms.Run(world, form, async, OperationKind.AllGatherV, mine, gathered, received: all);
        Same(everything, gathered, "allgatherv");

        // All ranks give the same, so the sum is size times that.
        int[] summed = new int[mine.Length];
        Forms.Run(world, form, async, OperationKind.ReduceScatterV, everything, summed, sent: all);
        Same(Times(size, mine), summed, "reduce_scatterv");
    }

    static int[] Times(int factor, int[] values)
    {
        int[] products = new int[values.Length];
        for (int i = 0; i < values.Length; ++i) products[i] = factor * values[i];
        return products;
    }

    /// Offsets of blocks in reverse order, with two elements before each.
    static long[] Backwards(long[] counts)
    {
        long[] offsets = new long[counts.Length];
        long end = 0;
        for (int r = counts.Length - 1; r >= 0; --r)
        {
            offsets[r] = end + 2;
            end += 2 + counts[r];
        }
        return offsets;
    }

    static int[] Gaps(long[] counts)
    {
        long end = 2 * counts.Length;
        foreach (long count in counts) end += count;
        int[] values = new int[end];
        for (int i = 0; i < values.Length; ++i) values[i] = -1;
        return values;
    }

    /// The parts where Backwards() says, -1 between them.
    static int[] Spread(long[] counts, Func<int, int[]> part)
    {
        int[] values = Gaps(counts);
        long[] offsets = Backwards(counts);
        for (int r = 0; r < counts.Length; ++r) part(r).CopyTo(values, offsets[r]);
        return values;
    }

    static Blocks Behind(long[] counts)
    {
        return new Blocks(counts, Backwards(counts));
    }

    static void Placed(Ranks each, Form form, bool async, int root)
    {
        Comm world = each.world;
        int size = each.size, rank = each.rank;
        bool atRoot = rank == root;
        long[] to = Longs(size, r => Uneven(rank, r)), from = Longs(size, r => Uneven(r, rank));
        int[] sent = Spread(to, r => Part(rank, r, -1)), received = Spread(from, r => Part(r, rank, -1));
        int[] recv = Gaps(from);
        Forms.Run(world, form, async, OperationKind.AllToAllV, sent, recv, sent: Behind(to), received: Behind(from));
        Same(received, recv, "alltoallv");
        recv = Gaps(from);
        Forms.Run(world, form, async, OperationKind.AllToAllV, Sent(rank, size, -1), recv, sent: to, received: Behind(from));
        Same(received, recv, "alltoallv, offsets of recv");
        recv = new int[Received(rank, size, -1).Length];
        Forms.Run(world, form, async, OperationKind.AllToAllV, sent, recv, sent: Behind(to), received: from);
        Same(Received(rank, size, -1), recv, "alltoallv, offsets of send");

        long[] all = Longs(size, r => Uneven(r, root));
        Blocks ofRoot = atRoot ? Behind(all) : default(Blocks);
        int[] everything = Spread(all, r => Part(r, root, -1)), mine = Part(rank, root, -1);
        int[] whole = atRoot ? Gaps(all) : null;
        Forms.Run(world, form, async, OperationKind.GatherV, mine, whole, rank: root, received: ofRoot);
        if (atRoot) Same(everything, whole, "gatherv");

        int[] back = new int[mine.Length];
        Forms.Run(world, form, async, OperationKind.ScatterV, whole, back, rank: root, sent: ofRoot);
        Same(mine, back, "scatterv");

        int[] gathered = Gaps(all);
        Forms.Run(world, form, async, OperationKind.AllGatherV, mine, gathered, received: Behind(all));
        Same(everything, gathered, "allgatherv");

        int[] summed = new int[mine.Length];
        Forms.Run(world, form, async, OperationKind.ReduceScatterV, everything, summed, sent: Behind(all));
        Same(Times(size, mine), summed, "reduce_scatterv");
    }

    static void Groups(Ranks each)
    {
        int size = each.size, rank = each.rank;
        int[] recv = new int[size], whole = rank == 0 ? new int[size] : null;
        each.world.Group(() =>
        {
            each.world.AllToAll(Sent(rank, size, 1), recv);
            each.world.Gather(new int[] { rank }, whole, 0);
        });
        Same(Received(rank, size, 1), recv, "alltoall");
        if (rank == 0) Same(new int[] { 0, 1, 2 }, whole, "gather");
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
