// SPDX-License-Identifier: Apache-2.0
using System;
using Dt;

/// Every collective of 2 and 3 ranks, with a closed form: element i of rank r is (r + size * i) % 5.
static class CollectiveTests
{
    internal static void Add()
    {
        foreach (int size in new int[] { 2, 3 })
        {
            int ranks = size;
            Suite.Add("collective: blocking, " + size + " ranks", () => Ranks.Run(ranks, each => All(each, false)));
            Suite.Add("collective: async, " + size + " ranks", () => Ranks.Run(ranks, each => All(each, true)));
            Suite.Add("collective: dtypes, " + size + " ranks", () => Ranks.Run(ranks, AllDtypes));
            Suite.Add("collective: addresses, " + size + " ranks", () => Ranks.Run(ranks, Addresses));
#if DT_SPAN
            Suite.Add("collective: spans and memories, " + size + " ranks", () => Ranks.Run(ranks, Spans));
#endif
        }
    }

    internal static int Value(int rank, int size, int i)
    {
        return (rank + size * i) % 5;
    }

    static int[] Own(Ranks each, int count)
    {
        int[] values = new int[count];
        for (int i = 0; i < count; ++i) values[i] = Value(each.rank, each.size, i);
        return values;
    }

    /// What the reduction of element i gives.
    internal static int Reduced(ReduceOp op, int size, int i)
    {
        int result = Value(0, size, i);
        for (int rank = 1; rank < size; ++rank)
        {
            int value = Value(rank, size, i);
            if (op == ReduceOp.Sum || op == ReduceOp.Avg) result += value;
            else if (op == ReduceOp.Prod) result *= value;
            else if (op == ReduceOp.Min) result = Math.Min(result, value);
            else result = Math.Max(result, value);
        }
        return op == ReduceOp.Avg ? result / size : result;
    }

    internal static void Done(Work work)
    {
        using (work) Suite.Check(work.Wait(60000), "the work is done");
    }

    static void All(Ranks each, bool async)
    {
        foreach (int count in new int[] { 0, 1, each.size - 1, 7, 1000, 30000 }) One(each, count, async);
        if (async) Done(each.world.BarrierAsync());
        else each.world.Barrier();
    }

    static void One(Ranks each, int count, bool async)
    {
        Comm world = each.world;
        int last = each.size - 1;
        foreach (ReduceOp op in new ReduceOp[] { ReduceOp.Sum, ReduceOp.Avg, ReduceOp.Prod, ReduceOp.Min, ReduceOp.Max })
        {
            int[] reduced = Own(each, count);
            if (async) Done(world.AllreduceAsync(reduced, op));
            else world.Allreduce(reduced, op);
            string what = "allreduce " + op;
            for (int i = 0; i < count; ++i) Suite.Equal(Reduced(op, each.size, i), reduced[i], what);
        }
        int[] send = Own(each, count);
        int[] recv = each.rank == last ? new int[count] : null;
        if (async) Done(world.ReduceAsync(send, recv, ReduceOp.Sum, last));
        else world.Reduce(send, recv, ReduceOp.Sum, last);
        for (int i = 0; recv != null && i < count; ++i) Suite.Equal(Reduced(ReduceOp.Sum, each.size, i), recv[i], "reduce");

        int[] copied = Own(each, count);
        if (async) Done(world.BroadcastAsync(copied, 1));
        else world.Broadcast(copied, 1);
        for (int i = 0; i < count; ++i) Suite.Equal(Value(1, each.size, i), copied[i], "broadcast");

        int[] all = new int[count * each.size];
        if (async) Done(world.AllgatherAsync(send, all));
        else world.Allgather(send, all);
        for (int i = 0; i < all.Length; ++i) Suite.Equal(Value(i / count, each.size, i % count), all[i], "allgather");

        int[] parts = Own(each, count * each.size), part = new int[count];
        if (async) Done(world.ReduceScatterAsync(parts, part));
        else world.ReduceScatter(parts, part);
        for (int i = 0; i < count; ++i)
        {
            Suite.Equal(Reduced(ReduceOp.Sum, each.size, each.rank * count + i), part[i], "reduce_scatter");
        }
        Ring(each, send, new int[count], async);
    }

    static void Ring(Ranks each, int[] send, int[] recv, bool async)
    {
        int next = (each.rank + 1) % each.size, before = (each.rank + each.size - 1) % each.size;
        if (async)
        {
            Work sent = each.world.SendAsync(send, next);
            Done(each.world.RecvAsync(recv, before));
            Done(sent);
        }
        else if (each.rank == 0)
        {
            each.world.Send(send, next);
            each.world.Recv(recv, before);
        }
        else
        {
            each.world.Recv(recv, before);
            each.world.Send(send, next);
        }
        for (int i = 0; i < recv.Length; ++i) Suite.Equal(Value(before, each.size, i), recv[i], "recv");
    }

    static void AllDtypes(Ranks each)
    {
        OneDtype<sbyte>(each, x => (sbyte)x, null);
        OneDtype<byte>(each, x => (byte)x, null);
        OneDtype<int>(each, x => x, null);
        OneDtype<uint>(each, x => (uint)x, null);
        OneDtype<long>(each, x => x, null);
        OneDtype<ulong>(each, x => (ulong)x, null);
        OneDtype<float>(each, x => x, null);
        OneDtype<double>(each, x => x, null);
        OneDtype<ushort>(each, F16, Dtype.F16);
        OneDtype<ushort>(each, BF16, Dtype.BF16);
        OneDtype<short>(each, x => (short)BF16(x), Dtype.BF16);
    }

    static ushort BF16(int value)
    {
        return (ushort)(BitConverter.ToUInt32(BitConverter.GetBytes((float)value), 0) >> 16);
    }

    /// Of a whole number below 2048.
    static ushort F16(int value)
    {
        if (value == 0) return 0;
        uint bits = BitConverter.ToUInt32(BitConverter.GetBytes((float)value), 0);
        return (ushort)((((bits >> 23) - 127 + 15) << 10) | ((bits >> 13) & 0x3ff));
    }

    static void OneDtype<T>(Ranks each, Func<int, T> of, Dtype? dtype) where T : struct
    {
        const int Count = 101;
        foreach (ReduceOp op in new ReduceOp[] { ReduceOp.Sum, ReduceOp.Prod, ReduceOp.Min, ReduceOp.Max })
        {
            T[] buffer = new T[Count];
            for (int i = 0; i < Count; ++i) buffer[i] = of(Value(each.rank, each.size, i));
            each.world.Allreduce(buffer, op, dtype);
            for (int i = 0; i < Count; ++i) Suite.Equal(of(Reduced(op, each.size, i)), buffer[i], typeof(T).Name + " " + op);
        }
    }

    static void Addresses(Ranks each)
    {
        const int Count = 50;
        using (Dt.Memory memory = each.world.Allocate(Count * sizeof(int) * (each.size + 1)))
        {
            IntPtr first = memory.Address, rest = first + Count * sizeof(int);
            int[] all = new int[Count * (each.size + 1)];
            memory.Write(Own(each, Count));
            each.world.Allgather(first, rest, Count, Dtype.I32);
            memory.Read(all);
            for (int i = 0; i < Count * each.size; ++i) Suite.Equal(Value(i / Count, each.size, i % Count), all[Count + i], "allgather");
            using (Work work = each.world.ReduceScatterAsync(rest, first, Count, Dtype.I32, ReduceOp.Max)) work.Wait();
            memory.Read(all);
            for (int i = 0; i < Count; ++i) Suite.Equal(Value(each.rank, each.size, i), all[i], "reduce_scatter");
            each.world.Broadcast(first, Count, Dtype.I32, 0);
            memory.Read(all);
            for (int i = 0; i < Count; ++i) Suite.Equal(Value(0, each.size, i), all[i], "broadcast");
        }
    }

#if DT_SPAN
    static void Spans(Ranks each)
    {
        const int Count = 33;
        int[] array = Own(each, Count + 2);
        each.world.Allreduce(new Span<int>(array, 1, Count), ReduceOp.Max);
        Suite.Equal(Value(each.rank, each.size, 0), array[0], "before the span");
        Suite.Equal(Reduced(ReduceOp.Max, each.size, 1), array[1], "in the span");
        Suite.Equal(Value(each.rank, each.size, Count + 1), array[Count + 1], "behind the span");

        int[] all = new int[Count * each.size], own = Own(each, Count);
        each.world.Allgather(new ReadOnlySpan<int>(own), new Span<int>(all));
        for (int i = 0; i < all.Length; ++i) Suite.Equal(Value(i / Count, each.size, i % Count), all[i], "allgather");
        Array.Clear(all, 0, all.Length);
        Done(each.world.AllgatherAsync(new ReadOnlyMemory<int>(own), new Memory<int>(all)));
        for (int i = 0; i < all.Length; ++i) Suite.Equal(Value(i / Count, each.size, i % Count), all[i], "allgather async");
        Done(each.world.AllreduceAsync(new Memory<int>(own, 3, 4)));
        Suite.Equal(Value(each.rank, each.size, 2), own[2], "before the memory");
        Suite.Equal(Reduced(ReduceOp.Sum, each.size, 3), own[3], "in the memory");
        each.world.Allreduce(new Span<float>(new float[0]));
        Span<long> stack = stackalloc long[2];
        stack[0] = each.rank;
        each.world.Allreduce(stack);
        Suite.Equal((long)(each.size * (each.size - 1) / 2), stack[0], "on the stack");
    }
#endif
}
