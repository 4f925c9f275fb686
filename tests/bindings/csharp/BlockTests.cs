// SPDX-License-Identifier: Apache-2.0
using System;
using System.Runtime.InteropServices;
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
            foreach (bool each in new bool[] { false, true })
            {
                bool async = each;
                string how = (async ? "async, " : "blocking, ") + size + " ranks";
                Suite.Add("collective: blocks, " + how, () => Ranks.Run(ranks, rank => All(rank, async)));
                Suite.Add("collective: counted blocks, " + how, () => Ranks.Run(ranks, rank => Counted(rank, async)));
                Suite.Add("collective: blocks at offsets, " + how, () => Ranks.Run(ranks, rank => Placed(rank, async)));
            }
#if DT_SPAN
            Suite.Add("collective: spans and memories of blocks, " + size + " ranks", () => Ranks.Run(ranks, Spans));
#endif
        }
        Suite.Add("collective: blocks by addresses", () => Ranks.Run(2, Addresses));
        Suite.Add("collective: blocks in memories", () => Ranks.Run(2, Memories));
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

    static void Done(Work work)
    {
        CollectiveTests.Done(work);
    }

    static void All(Ranks each, bool async)
    {
        foreach (int count in new int[] { 0, 1, 1000 }) One(each, count, async);
    }

    static void One(Ranks each, int count, bool async)
    {
        Comm world = each.world;
        int size = each.size, root = size - 1;
        bool atRoot = each.rank == root;
        int[] send = Sent(each.rank, size, count), recv = new int[size * count];
        if (async) Done(world.AlltoallAsync(send, recv));
        else world.Alltoall(send, recv);
        Same(Received(each.rank, size, count), recv, "alltoall");

        int[] mine = Part(each.rank, root, count), whole = atRoot ? new int[size * count] : null;
        if (async) Done(world.GatherAsync(mine, whole, root));
        else world.Gather(mine, whole, root);
        if (atRoot) Same(Received(root, size, count), whole, "gather");

        int[] split = atRoot ? Sent(root, size, count) : null, back = new int[count];
        if (async) Done(world.ScatterAsync(split, back, root));
        else world.Scatter(split, back, root);
        Same(Part(root, each.rank, count), back, "scatter");
    }

    static void Counted(Ranks each, bool async)
    {
        for (int root = 0; root < each.size; ++root) OneCounted(each, root, async);
    }

    static void OneCounted(Ranks each, int root, bool async)
    {
        Comm world = each.world;
        int size = each.size, rank = each.rank;
        bool atRoot = rank == root;
        long[] to = Longs(size, r => Uneven(rank, r)), from = Longs(size, r => Uneven(r, rank));
        int[] recv = new int[Received(rank, size, -1).Length];
        if (async) Done(world.AlltoallvAsync(Sent(rank, size, -1), to, recv, from));
        else world.Alltoallv(Sent(rank, size, -1), to, recv, from);
        Same(Received(rank, size, -1), recv, "alltoallv");

        long[] all = Longs(size, r => Uneven(r, root)), counts = atRoot ? all : null;
        int[] everything = Received(root, size, -1), mine = Part(rank, root, -1);
        int[] whole = atRoot ? new int[everything.Length] : null;
        if (async) Done(world.GathervAsync(mine, whole, counts, root));
        else world.Gatherv(mine, whole, counts, root);
        if (atRoot) Same(everything, whole, "gatherv");

        int[] back = new int[mine.Length];
        if (async) Done(world.ScattervAsync(whole, counts, back, root));
        else world.Scatterv(whole, counts, back, root);
        Same(mine, back, "scatterv");

        int[] gathered = new int[everything.Length];
        if (async) Done(world.AllgathervAsync(mine, gathered, all));
        else world.Allgatherv(mine, gathered, all);
        Same(everything, gathered, "allgatherv");
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

    static void Placed(Ranks each, bool async)
    {
        for (int root = 0; root < each.size; ++root) OnePlaced(each, root, async);
    }

    static void OnePlaced(Ranks each, int root, bool async)
    {
        Comm world = each.world;
        int size = each.size, rank = each.rank;
        bool atRoot = rank == root;
        long[] to = Longs(size, r => Uneven(rank, r)), from = Longs(size, r => Uneven(r, rank));
        int[] sent = Spread(to, r => Part(rank, r, -1)), received = Spread(from, r => Part(r, rank, -1));
        int[] recv = Gaps(from);
        if (async) Done(world.AlltoallvAsync(sent, to, recv, from, null, Backwards(to), Backwards(from)));
        else world.Alltoallv(sent, to, recv, from, null, Backwards(to), Backwards(from));
        Same(received, recv, "alltoallv");
        recv = Gaps(from);
        world.Alltoallv(Sent(rank, size, -1), to, recv, from, recvOffsets: Backwards(from));
        Same(received, recv, "alltoallv, offsets of recv");
        recv = new int[Received(rank, size, -1).Length];
        world.Alltoallv(sent, to, recv, from, sendOffsets: Backwards(to));
        Same(Received(rank, size, -1), recv, "alltoallv, offsets of send");

        long[] all = Longs(size, r => Uneven(r, root)), counts = atRoot ? all : null;
        long[] offsets = atRoot ? Backwards(all) : null;
        int[] everything = Spread(all, r => Part(r, root, -1)), mine = Part(rank, root, -1);
        int[] whole = atRoot ? Gaps(all) : null;
        if (async) Done(world.GathervAsync(mine, whole, counts, root, offsets: offsets));
        else world.Gatherv(mine, whole, counts, root, offsets: offsets);
        if (atRoot) Same(everything, whole, "gatherv");

        int[] back = new int[mine.Length];
        if (async) Done(world.ScattervAsync(whole, counts, back, root, offsets: offsets));
        else world.Scatterv(whole, counts, back, root, offsets: offsets);
        Same(mine, back, "scatterv");

        int[] gathered = Gaps(all);
        if (async) Done(world.AllgathervAsync(mine, gathered, all, offsets: Backwards(all)));
        else world.Allgatherv(mine, gathered, all, offsets: Backwards(all));
        Same(everything, gathered, "allgatherv");
#if DT_SPAN
        PlacedSpans(each, root);
#endif
    }

#if DT_SPAN
    static void PlacedSpans(Ranks each, int root)
    {
        Comm world = each.world;
        int size = each.size, rank = each.rank;
        bool atRoot = rank == root;
        long[] to = Longs(size, r => Uneven(rank, r)), from = Longs(size, r => Uneven(r, rank));
        int[] sent = Spread(to, r => Part(rank, r, -1)), received = Spread(from, r => Part(r, rank, -1));
        int[] recv = Gaps(from);
        world.Alltoallv(new ReadOnlySpan<int>(sent), to, new Span<int>(recv), from, null, Backwards(to), Backwards(from));
        Same(received, recv, "alltoallv");
        recv = Gaps(from);
        Done(world.AlltoallvAsync(new ReadOnlyMemory<int>(sent), to, new Memory<int>(recv), from, null,
            Backwards(to), Backwards(from)));
        Same(received, recv, "alltoallv async");

        long[] all = Longs(size, r => Uneven(r, root)), counts = atRoot ? all : null;
        long[] offsets = atRoot ? Backwards(all) : null;
        int[] everything = Spread(all, r => Part(r, root, -1)), mine = Part(rank, root, -1);
        int[] whole = atRoot ? Gaps(all) : null, back = new int[mine.Length];
        world.Gatherv(new ReadOnlySpan<int>(mine), new Span<int>(whole), counts, root, offsets: offsets);
        if (atRoot) Same(everything, whole, "gatherv");
        world.Scatterv(new ReadOnlySpan<int>(whole), counts, new Span<int>(back), root, offsets: offsets);
        Same(mine, back, "scatterv");
        int[] gathered = Gaps(all);
        world.Allgatherv(new ReadOnlySpan<int>(mine), new Span<int>(gathered), all, offsets: Backwards(all));
        Same(everything, gathered, "allgatherv");

        whole = atRoot ? Gaps(all) : null;
        Done(world.GathervAsync(new ReadOnlyMemory<int>(mine), new Memory<int>(whole), counts, root, offsets: offsets));
        if (atRoot) Same(everything, whole, "gatherv async");
        Array.Clear(back, 0, back.Length);
        Done(world.ScattervAsync(new ReadOnlyMemory<int>(whole), counts, new Memory<int>(back), root, offsets: offsets));
        Same(mine, back, "scatterv async");
        gathered = Gaps(all);
        Done(world.AllgathervAsync(new ReadOnlyMemory<int>(mine), new Memory<int>(gathered), all, offsets: Backwards(all)));
        Same(everything, gathered, "allgatherv async");
    }

    static void Spans(Ranks each)
    {
        Comm world = each.world;
        int size = each.size, rank = each.rank;
        bool atRoot = rank == 0;
        int[] recv = new int[2 * size];
        world.Alltoall(new ReadOnlySpan<int>(Sent(rank, size, 2)), new Span<int>(recv));
        Same(Received(rank, size, 2), recv, "alltoall");
        Array.Clear(recv, 0, recv.Length);
        Done(world.AlltoallAsync(new ReadOnlyMemory<int>(Sent(rank, size, 2)), new Memory<int>(recv)));
        Same(Received(rank, size, 2), recv, "alltoall async");

        int[] mine = Part(rank, 0, 2), back = new int[2];
        Array.Clear(recv, 0, recv.Length);
        world.Gather(new ReadOnlySpan<int>(mine), atRoot ? new Span<int>(recv) : default(Span<int>), 0);
        if (atRoot) Same(Received(0, size, 2), recv, "gather");
        world.Scatter(atRoot ? new ReadOnlySpan<int>(recv) : default(ReadOnlySpan<int>), new Span<int>(back), 0);
        Same(mine, back, "scatter");
        Array.Clear(back, 0, 2);
        Done(world.ScatterAsync(new ReadOnlyMemory<int>(atRoot ? recv : null), new Memory<int>(back), 0));
        Same(mine, back, "scatter async");
        Done(world.GatherAsync(new ReadOnlyMemory<int>(mine), new Memory<int>(atRoot ? recv : null), 0));
        if (atRoot) Same(Received(0, size, 2), recv, "gather async");
        CountedSpans(each);
    }

    static void CountedSpans(Ranks each)
    {
        Comm world = each.world;
        int size = each.size, rank = each.rank;
        bool atRoot = rank == 0;
        long[] to = Longs(size, r => Uneven(rank, r)), from = Longs(size, r => Uneven(r, rank));
        int[] sent = Sent(rank, size, -1), wanted = Received(rank, size, -1), recv = new int[wanted.Length];
        world.Alltoallv(new ReadOnlySpan<int>(sent), to, new Span<int>(recv), from);
        Same(wanted, recv, "alltoallv");
        Array.Clear(recv, 0, recv.Length);
        Done(world.AlltoallvAsync(new ReadOnlyMemory<int>(sent), to, new Memory<int>(recv), from));
        Same(wanted, recv, "alltoallv async");

        long[] all = Longs(size, r => Uneven(r, 0)), counts = atRoot ? all : null;
        int[] everything = Received(0, size, -1), mine = Part(rank, 0, -1);
        int[] whole = atRoot ? new int[everything.Length] : null, back = new int[mine.Length];
        world.Gatherv(new ReadOnlySpan<int>(mine), new Span<int>(whole), counts, 0);
        if (atRoot) Same(everything, whole, "gatherv");
        Done(world.GathervAsync(new ReadOnlyMemory<int>(mine), new Memory<int>(whole), counts, 0));
        world.Scatterv(new ReadOnlySpan<int>(whole), counts, new Span<int>(back), 0);
        Same(mine, back, "scatterv");
        Done(world.ScattervAsync(new ReadOnlyMemory<int>(whole), counts, new Memory<int>(back), 0));
        Same(mine, back, "scatterv async");
        int[] gathered = new int[everything.Length];
        world.Allgatherv(new ReadOnlySpan<int>(mine), new Span<int>(gathered), all);
        Same(everything, gathered, "allgatherv");
        Array.Clear(gathered, 0, gathered.Length);
        Done(world.AllgathervAsync(new ReadOnlyMemory<int>(mine), new Memory<int>(gathered), all));
        Same(everything, gathered, "allgatherv async");
    }
#endif

    /// Of two ranks: what lies at `recv` after each operation on what each rank has at `send`.
    static void Addresses(Ranks each)
    {
        Comm world = each.world;
        int rank = each.rank, peer = 1 - rank;
        long[] counts = { 3, 1 }, mine = { 1 - rank, 3 - 2 * rank }, theirs = { 1 + 2 * rank, rank };
        using (Dt.Memory memory = world.Allocate(4096))
        {
            IntPtr send = memory.Address, recv = send + 64;
            int[] all = new int[1024];
            Part(rank, 0, 4).CopyTo(all, 0);
            memory.Write(all);
            Func<int, int> at = i => { memory.Read(all); return all[16 + i]; };
            world.Alltoall(send, recv, 2, Dtype.I32);
            Suite.Equal(100 * peer + 2 * rank, at(2 * peer), "alltoall");
            Done(world.AlltoallAsync(send, recv, 1, Dtype.I32));
            Suite.Equal(100 * peer + rank, at(peer), "alltoall async");
            world.Gather(send, rank == 1 ? recv : IntPtr.Zero, 4, Dtype.I32, 1);
            if (rank == 1) Suite.Equal(3, at(3), "gather");
            Done(world.ScatterAsync(rank == 1 ? send : IntPtr.Zero, recv, 2, Dtype.I32, 1));
            Suite.Equal(100 + 2 * rank, at(0), "scatter");
            Done(world.AlltoallvAsync(send, mine, recv, theirs, Dtype.I32));
            Suite.Equal(rank, at(0), "alltoallv");
            world.Gatherv(send, counts[rank], recv, rank == 0 ? counts : null, Dtype.I32, 0);
            if (rank == 0) Suite.Equal(100, at(3), "gatherv");
            Done(world.ScattervAsync(send, rank == 0 ? counts : null, recv, counts[rank], Dtype.I32, 0));
            Suite.Equal(3 * rank, at(0), "scatterv");
            world.Allgatherv(send, recv, counts, Dtype.I32);
            Suite.Equal(100, at(3), "allgatherv");
            Suite.Throws<DtInvalidArgumentException>(
                () => world.Allgatherv(send, recv, new long[] { -1, 2 }, Dtype.I32), "counts[0] is -1");
            PlacedAddresses(world, rank, send, recv, at);
        }
    }

    /// Rank 1's block of one element at 1, rank 0's of three from 3 on; what is between stays -7.
    static void PlacedAddresses(Comm world, int rank, IntPtr send, IntPtr recv, Func<int, int> at)
    {
        bool atRoot = rank == 0;
        long[] counts = { 3, 1 }, offsets = { 3, 1 }, reversed = { 1, 0 };
        long[] mine = { 1 - rank, 3 - 2 * rank }, theirs = { 1 + 2 * rank, rank };
        long[] ofRoot = atRoot ? counts : null, placesOfRoot = atRoot ? offsets : null;
        Action clear = () => { for (int i = 0; i < 6; ++i) Marshal.WriteInt32(recv, 4 * i, -7); };
        Action same = () => Suite.Equal("-7 100 -7 0 1 2", string.Join(" ",
            new int[] { at(0), at(1), at(2), at(3), at(4), at(5) }), "places");
        clear();
        world.Allgatherv(send, recv, counts, Dtype.I32, offsets: offsets);
        same();
        clear();
        Done(world.AllgathervAsync(send, recv, counts, Dtype.I32, offsets: offsets));
        same();
        clear();
        world.Gatherv(send, counts[rank], recv, ofRoot, Dtype.I32, 0, offsets: placesOfRoot);
        if (atRoot) same();
        clear();
        Done(world.GathervAsync(send, counts[rank], recv, ofRoot, Dtype.I32, 0, offsets: placesOfRoot));
        if (atRoot) same();
        world.Scatterv(send, ofRoot, recv, counts[rank], Dtype.I32, 0, offsets: atRoot ? reversed : null);
        Suite.Equal(atRoot ? 1 : 0, at(0), "scatterv");
        clear();
        Done(world.ScattervAsync(send, ofRoot, recv, counts[rank], Dtype.I32, 0, offsets: atRoot ? reversed : null));
        Suite.Equal(atRoot ? 1 : 0, at(0), "scatterv async");
        clear();
        world.Alltoallv(send, mine, recv, theirs, Dtype.I32, recvOffsets: offsets);
        Suite.Equal(rank == 0 ? "-7 -7 0" : "-7 100 1", string.Join(" ", new int[] { at(0), at(1), at(3) }), "alltoallv");
        clear();
        Done(world.AlltoallvAsync(send, mine, recv, theirs, Dtype.I32, sendOffsets: reversed));
        Suite.Equal(rank == 0 ? 1 : 0, at(0), "alltoallv async");
        Refuse(() => world.Allgatherv(send, recv, counts, Dtype.I32, offsets: new long[] { 0, 2 }),
            "blocks of ranks 0 and 1 overlap in recv: offsets[0] is 0 with 3 elements, offsets[1] is 2 with 1");
        Refuse(() => world.Alltoallv(send, new long[] { long.MaxValue, long.MaxValue }, recv, counts, Dtype.I32,
            recvOffsets: offsets), "send_counts[0] is 9223372036854775807", "2^63 bytes");
    }

    static void Memories(Ranks each)
    {
        Comm world = each.world;
        int rank = each.rank, peer = 1 - rank;
        long[] counts = { 3, 1 };
        using (Dt.Memory send = world.Allocate(16), recv = world.Allocate(32))
        {
            int[] all = new int[8];
            Func<int, int> at = i => { recv.Read(all); return all[i]; };
            send.Write(Part(rank, 0, 4));
            world.Alltoall(send, recv, 2, Dtype.I32);
            Suite.Equal(100 * peer + 2 * rank, at(2 * peer), "alltoall");
            Done(world.GatherAsync(send, rank == 0 ? recv : null, 4, Dtype.I32, 0));
            if (rank == 0) Suite.Equal(103, at(7), "gather");
            world.Scatter(rank == 0 ? send : null, recv, 2, Dtype.I32, 0);
            Suite.Equal(2 * rank, at(0), "scatter");
            Done(world.ScatterAsync(rank == 1 ? send : null, recv, 2, Dtype.I32, 1));
            Suite.Equal(100 + 2 * rank, at(0), "scatter async");
            Done(world.GathervAsync(send, counts[rank], recv, rank == 0 ? counts : null, Dtype.I32, 0));
            if (rank == 0) Suite.Equal(100, at(3), "gatherv");
            world.Scatterv(rank == 0 ? send : null, rank == 0 ? counts : null, recv, counts[rank], Dtype.I32, 0);
            Suite.Equal(3 * rank, at(0), "scatterv");
            Done(world.AllgathervAsync(send, recv, counts, Dtype.I32));
            Suite.Equal(100, at(3), "allgatherv");
            world.Alltoallv(send, new long[] { 2, 2 }, recv, new long[] { 2, 2 }, Dtype.I32);
            Suite.Equal(100 * peer + 2 * rank, at(2 * peer), "alltoallv");
            Suite.Throws<DtInvalidArgumentException>(
                () => world.Alltoallv(send, new long[] { 2, 3 }, recv, new long[] { 2, 3 }, Dtype.I32),
                "alltoallv: send has 16 bytes", "5 elements");
            Suite.Throws<DtInvalidArgumentException>(
                () => world.Gather(send, null, 1, Dtype.I32, rank), "gather: recv is null");
            PlacedMemories(world, rank, send, recv, at);
        }
    }

    /// Rank 1's block of one element at 1, rank 0's of three from 3 on, in memory of 8 elements.
    static void PlacedMemories(Comm world, int rank, Dt.Memory send, Dt.Memory recv, Func<int, int> at)
    {
        bool atRoot = rank == 0;
        long[] counts = { 3, 1 }, offsets = { 3, 1 }, twos = { 2, 2 }, reversed = { 2, 0 };
        long[] ofRoot = atRoot ? counts : null, placesOfRoot = atRoot ? offsets : null;
        int[] blank = { -7, -7, -7, -7, -7, -7, -7, -7 };
        Action same = () => Suite.Equal("-7 100 -7 0 1 2 -7", string.Join(" ",
            new int[] { at(0), at(1), at(2), at(3), at(4), at(5), at(6) }), "places");
        recv.Write(blank);
        world.Allgatherv(send, recv, counts, Dtype.I32, offsets: offsets);
        same();
        recv.Write(blank);
        Done(world.AllgathervAsync(send, recv, counts, Dtype.I32, offsets: offsets));
        same();
        recv.Write(blank);
        world.Gatherv(send, counts[rank], recv, ofRoot, Dtype.I32, 0, offsets: placesOfRoot);
        if (atRoot) same();
        recv.Write(blank);
        Done(world.GathervAsync(send, counts[rank], recv, ofRoot, Dtype.I32, 0, offsets: placesOfRoot));
        if (atRoot) same();
        world.Scatterv(send, atRoot ? twos : null, recv, 2, Dtype.I32, 0, offsets: reversed);
        Suite.Equal(atRoot ? 2 : 0, at(0), "scatterv");
        recv.Write(blank);
        Done(world.ScattervAsync(send, atRoot ? twos : null, recv, 2, Dtype.I32, 0, offsets: reversed));
        Suite.Equal(atRoot ? 2 : 0, at(0), "scatterv async");
        recv.Write(blank);
        world.Alltoallv(send, twos, recv, twos, Dtype.I32, sendOffsets: reversed, recvOffsets: new long[] { 6, 0 });
        Suite.Equal(100 + 2 * (1 - rank), at(0), "alltoallv");
        Suite.Equal(2 * (1 - rank) + 1, at(7), "alltoallv");
        recv.Write(blank);
        Done(world.AlltoallvAsync(send, twos, recv, twos, Dtype.I32, sendOffsets: reversed));
        Suite.Equal(2 * (1 - rank), at(0), "alltoallv async");
        Refuse(() => world.Allgatherv(send, recv, counts, Dtype.I32, offsets: new long[] { 6, 0 }),
            "the block of rank 0 does not lie in recv: it has 3 elements and offsets[0] is 6, but recv has 8");
        Refuse(() => world.Scatterv(send, new long[] { 2, 2 }, recv, 2, Dtype.I32, rank, offsets: new long[] { 0, 3 }),
            "the block of rank 1 does not lie in send: it has 2 elements and offsets[1] is 3, but send has 4");
        Refuse(() => world.Gatherv(send, 1, null, counts, Dtype.I32, rank, offsets: offsets), "gatherv: recv is null");
    }

    static void Groups(Ranks each)
    {
        int size = each.size, rank = each.rank;
        int[] recv = new int[size], whole = rank == 0 ? new int[size] : null;
        each.world.Group(() =>
        {
            each.world.Alltoall(Sent(rank, size, 1), recv);
            each.world.Gather(new int[] { rank }, whole, 0);
        });
        Same(Received(rank, size, 1), recv, "alltoall");
        if (rank == 0) Same(new int[] { 0, 1, 2 }, whole, "gather");
        var operations = each.job.Statistics.Operations;
        Suite.Equal(1L, operations[OperationKind.Alltoall].Operations, "alltoalls");
        Suite.Equal(1L, operations[OperationKind.Gather].Operations, "gathers");
        Suite.Equal(0L, operations[OperationKind.Allgatherv].Operations, "allgathervs");
    }

    static void Refused(Ranks each)
    {
        Comm world = each.world;
        int rank = each.rank;
        int[] three = new int[3], six = new int[6], seven = new int[7];
        long[] whole = { 3, 3 };
        Refuse(() => world.Alltoall(six, seven), "alltoall: send has 6 elements, but recv 7");
        Refuse(() => world.AlltoallAsync(seven, new int[7]), "no multiple of the 2 ranks");
        Refuse(() => world.Alltoallv(six, new long[] { 6 }, new int[6], whole),
            "alltoallv: sendCounts has 1 counts, but the communicator has 2 ranks");
        Refuse(() => world.AlltoallvAsync(six, whole, new int[6], new long[] { 7, -1 }), "recvCounts[1] is -1");
        Refuse(() => world.Alltoallv(six, whole, seven, whole), "recvCounts are 6 elements together, but recv has 7");
        Refuse(() => world.Allgatherv(three, seven, whole), "allgatherv: counts are 6 elements together, but recv has 7");
        Refuse(() => world.AllgathervAsync(seven, six, whole), "counts[" + rank + "], which is this rank's, is 3, but send has 7");
        Refuse(() => world.Gather(six, seven, rank), "gather: send has 6", "2 times as many");
        Refuse(() => world.Gather(six, null, rank), "gather: recv is null");
        Refuse(() => world.Gatherv(three, six, null, rank), "gatherv: counts is null");
        Refuse(() => world.Scatter(six, seven, rank), "scatter: recv has 7", "2 times as many");
        Refuse(() => world.Scatterv(seven, whole, three, rank), "scatterv: counts are 6 elements together, but send has 7");
        Refuse(() => world.GatherAsync(three, six, 2), "root");
        Refuse(() => world.Alltoall(new ushort[2], new ushort[2]), "F16 or BF16");
#if DT_SPAN
        Refuse(() => world.Alltoall(new ReadOnlySpan<int>(six), new Span<int>(seven)), "6", "7");
        Refuse(() => world.AllgathervAsync(new ReadOnlyMemory<int>(three), new Memory<int>(seven), whole), "6", "7");
#endif
        world.Barrier();  // nothing of all this broke it
    }

    static void RefusedOffsets(Ranks each)
    {
        Comm world = each.world;
        int rank = each.rank;
        int[] two = new int[2], eight = new int[8], other = new int[8];
        long[] twos = { 2, 2 }, inside = { 2, 0 };
        Refuse(() => world.Allgatherv(two, eight, twos, offsets: new long[] { 0 }),
            "allgatherv: offsets has 1 offsets, but the communicator has 2 ranks; give one for each rank");
        Refuse(() => world.AlltoallvAsync(eight, twos, other, twos, sendOffsets: inside, recvOffsets: new long[] { 0, -1 }),
            "alltoallv: recvOffsets[1] is -1; give an offset of at least 0");
        Refuse(() => world.Alltoallv(eight, twos, other, twos, sendOffsets: new long[] { 0, 7 }, recvOffsets: inside),
            "alltoallv: the block of rank 1 does not lie in send: it has 2 elements and sendOffsets[1] is 7, " +
            "but send has 8; give a smaller offset or a larger buffer");
        Refuse(() => world.Gatherv(two, eight, twos, rank, offsets: new long[] { 0, long.MaxValue }),
            "gatherv: the block of rank 1 does not lie in recv", "offsets[1] is 9223372036854775807, but recv has 8");
        Refuse(() => world.Scatterv(eight, new long[] { 9, 0 }, two, rank, offsets: inside),
            "rank 0 does not lie in send: it has 9 elements and offsets[0] is 2");
        Refuse(() => world.Allgatherv(two, eight, twos, offsets: new long[] { 4, 3 }),
            "blocks of ranks 1 and 0 overlap in recv: offsets[1] is 3 with 2 elements, offsets[0] is 4 with 2");
        Refuse(() => world.Allgatherv(eight, other, twos, offsets: inside),
            "counts[" + rank + "], which is this rank's, is 2, but send has 8");
        // An empty block may be anywhere, and what is sent may overlap.
        world.Allgatherv(new int[2 * rank], eight, new long[] { 0, 2 }, offsets: new long[] { long.MaxValue / 8, 6 });
        world.Scatterv(eight, twos, two, 0, offsets: new long[] { 1, 2 });
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
            () => each.world.Gatherv(new int[2 + each.rank], recv, counts, 0), "gatherv", "2", "3");
    }
}
