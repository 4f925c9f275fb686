// SPDX-License-Identifier: Apache-2.0
using System;
using Dt;

/// Every collective of 2 and 3 ranks in every form, with a closed form: element i of rank r is
/// (r + size * i) % 5.
static class CollectiveTests
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
                    bool now = !async;
                    if (async && form == Form.Span) continue;
                    Suite.Add("collective: " + form + (async ? ", async, " : ", ") + size + " ranks",
                        () => Ranks.Run(ranks, rank => All(rank, form, !now)));
                }
            }
            Suite.Add("collective: dtypes, " + size + " ranks", () => Ranks.Run(ranks, AllDtypes));
            Suite.Add("collective: in place in a larger buffer, " + size + " ranks", () => Ranks.Run(ranks, InPlace));
#if DT_SPAN
            Suite.Add("collective: parts of buffers, " + size + " ranks", () => Ranks.Run(ranks, Parts));
#endif
        }
        Suite.Add("collective: members alone make a communicator", () => Ranks.Run(2, MembersAlone));
        Suite.Add("collective: names, limits and streams of calls", () => Ranks.Run(2, Views));
        Suite.Add("collective: BFloat16 rounds to the nearest", Rounding);
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

    static void All(Ranks each, Form form, bool async)
    {
        foreach (int count in new int[] { 0, 1, each.size - 1, 7, 1000, 30000 }) One(each, form, async, count);
        Forms.Run(each.world, form, async, OperationKind.Barrier, null, null);
    }

    static void One(Ranks each, Form form, bool async, int count)
    {
        Comm world = each.world;
        int size = each.size, last = size - 1;
        int[] send = Own(each, count);
        foreach (ReduceOp op in new ReduceOp[] { ReduceOp.Sum, ReduceOp.Avg, ReduceOp.Prod, ReduceOp.Min, ReduceOp.Max })
        {
            int[] reduced = Own(each, count), other = new int[count];
            Forms.Run(world, form, async, OperationKind.AllReduce, reduced, reduced, op);
            Forms.Run(world, form, async, OperationKind.AllReduce, send, other, op);
            for (int i = 0; i < count; ++i)
            {
                Suite.Equal(Reduced(op, size, i), reduced[i], "in place " + op);
                Suite.Equal(Reduced(op, size, i), other[i], "allreduce " + op);
            }
        }
        int[] recv = each.rank == last ? new int[count] : null;
        Forms.Run(world, form, async, OperationKind.Reduce, send, recv, ReduceOp.Sum, last);
        for (int i = 0; recv != null && i < count; ++i) Suite.Equal(Reduced(ReduceOp.Sum, size, i), recv[i], "reduce");

        int[] copied = Own(each, count);
        Forms.Run(world, form, async, OperationKind.Broadcast, copied, copied, rank: 1);
        for (int i = 0; i < count; ++i) Suite.Equal(Value(1, size, i), copied[i], "broadcast");

        int[] all = new int[count * size];
        Forms.Run(world, form, async, OperationKind.AllGather, send, all);
        for (int i = 0; i < all.Length; ++i) Suite.Equal(Value(i / count, size, i % count), all[i], "allgather");

        int[] parts = Own(each, count * size), part = new int[count];
        Forms.Run(world, form, async, OperationKind.ReduceScatter, parts, part);
        for (int i = 0; i < count; ++i)
        {
            Suite.Equal(Reduced(ReduceOp.Sum, size, each.rank * count + i), part[i], "reduce_scatter");
        }
        Ring(each, form, async, send, new int[count]);
    }

    static void Ring(Ranks each, Form form, bool async, int[] send, int[] recv)
    {
        int next = (each.rank + 1) % each.size, before = (each.rank + each.size - 1) % each.size;
        Action sends = () => Forms.Run(each.world, form, async, OperationKind.Send, send, null, rank: next);
        if (async && form == Form.Array)
        {
            Work sent = each.world.SendAsync(send, next);
            Forms.Done(each.world.RecvAsync(recv, before));
            Forms.Done(sent);
        }
        else
        {
            if (each.rank == 0) sends();
            Forms.Run(each.world, form, async, OperationKind.Recv, null, recv, rank: before);
            if (each.rank != 0) sends();
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
        OneDtype<BFloat16>(each, x => (BFloat16)x, null);
        OneDtype<ushort>(each, F16, Dtype.F16);
        OneDtype<ushort>(each, x => (ushort)x, Dtype.U16);
        OneDtype<short>(each, x => (short)x, Dtype.I16);
        short[] bits = { (short)(1 << each.rank) };
        each.world.AllReduce(Tensor.Of(bits, Dtype.I16), ReduceOp.Bor);
        Suite.Equal((short)((1 << each.size) - 1), bits[0], "bits");
        byte[] truth = { (byte)(each.rank == 0 ? 1 : 0) };
        each.world.AllReduce(Tensor.Of(truth, Dtype.Bool), ReduceOp.Prod);
        Suite.Equal((byte)(each.size == 1 ? 1 : 0), truth[0], "and");
        Suite.Throws<DtInvalidArgumentException>(() => each.world.AllReduce(Tensor.Of(truth, Dtype.F8E5M2)),
            "sum of f8e5m2: 8-bit floats are moved only; convert them");
        OneDtype<ushort>(each, x => ((BFloat16)x).Bits, Dtype.BF16);
        OneDtype<short>(each, x => (short)((BFloat16)x).Bits, Dtype.BF16);
        // As they are passed: each becomes a tensor by itself.
        each.world.AllReduce(new sbyte[2]);
        each.world.AllReduce(new byte[2]);
        each.world.AllReduce(new uint[2]);
        each.world.AllReduce(new long[2]);
        each.world.AllReduce(new ulong[2]);
        each.world.AllReduce(new double[2]);
        each.world.AllReduce(new BFloat16[2]);
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
            each.world.AllReduce(Tensor.Of(buffer, dtype), op);
            for (int i = 0; i < Count; ++i) Suite.Equal(of(Reduced(op, each.size, i)), buffer[i], typeof(T).Name + " " + op);
        }
    }

    static void Rounding()
    {
        float[] values = { 1, 1.00390625f, 1.01171875f, -2.5f, 3.39e38f, float.PositiveInfinity, 0 };
        float[] rounded = { 1, 1, 1.015625f, -2.5f, 3.38953139e38f, float.PositiveInfinity, 0 };
        for (int i = 0; i < values.Length; ++i) Suite.Equal(rounded[i], (float)(BFloat16)values[i], "of " + values[i]);
        Suite.Check(float.IsNaN((BFloat16)float.NaN), "NaN stays one");
        Suite.Equal((BFloat16)2, BFloat16.FromBits(0x4000), "bits");
    }

    /// Parts of one array are tensors, too, and one pin holds it.
    static void InPlace(Ranks each)
    {
        const int Count = 50;
        int[] array = new int[Count * each.size];
        Own(each, Count).CopyTo(array, each.rank * Count);
        using (Dt.Memory memory = each.world.Allocate<int>(Count * each.size))
        {
            memory.Write(array);
            foreach (Tensor whole in new Tensor[] { array, memory, new Tensor(memory.Address, memory.Count, memory.Dtype, memory) })
            {
                each.world.AllGather(whole.Slice(each.rank * Count, Count), whole);
                Forms.Done(each.world.AllGatherAsync(whole.Slice(each.rank * Count, Count), whole));
            }
            int[] read = new int[array.Length];
            memory.Read(read);
            for (int i = 0; i < array.Length; ++i)
            {
                Suite.Equal(Value(i / Count, each.size, i % Count), array[i], "in an array");
                Suite.Equal(array[i], read[i], "in memory");
            }
        }
        Tensor part = array;
        Suite.Throws<DtInvalidArgumentException>(() => part.Slice(1, array.Length), "elements 1 to", "not all among");
        Suite.Throws<DtInvalidArgumentException>(() => part.Slice(-1, 1), "Slice");
    }

    static void MembersAlone(Ranks each)
    {
        Suite.Throws<DtInvalidArgumentException>(() => each.job.CreateComm(new[] { 7 }), "CreateComm: ranks[0] is 7");
        using (Comm pair = each.job.CreateComm(new[] { 1, 0 }, "pair"))
        using (Comm host = pair.Host())
        {
            Suite.Equal(1 - each.world.Rank, host.Rank, "rank");
            int[] buffer = { each.world.Rank };
            host.AllReduce(buffer);
            Suite.Equal(1, buffer[0], "sum");
        }
    }

    static void Views(Ranks each)
    {
        using (Comm part = each.world.Split(0))
        {
            Comm named = part.With("gradients"), both = named.With(timeout: TimeSpan.FromMilliseconds(200));
            int[] buffer = { 1 };
            named.AllReduce(buffer);
            Forms.Done(named.With(stream: IntPtr.Zero, timeout: Limit.None).AllReduceAsync(buffer));
            Suite.Equal(4, buffer[0], "sum");
            named.Dispose();
            Suite.Equal(2, named.Size, "nothing was disposed of");
            each.world.Barrier();
            if (each.rank == 0)
            {
                DtException error = Suite.Throws<DtTimeoutException>(() => both.AllReduce(buffer), "gradients");
                Suite.Equal("allreduce", error.Operation, "operation");
            }
            each.job.StoreBarrier("timed out");
            part.Dispose();
            Suite.Throws<ObjectDisposedException>(() => named.Barrier(), "Comm was disposed of");
        }
        Suite.Throws<DtInvalidArgumentException>(() => each.world.With(timeout: TimeSpan.FromMilliseconds(-5)), "time limit");
    }

#if DT_SPAN
    static void Parts(Ranks each)
    {
        const int Count = 33;
        int[] array = Own(each, Count + 2);
        each.world.AllReduce(new Span<int>(array, 1, Count), ReduceOp.Max);
        Suite.Equal(Value(each.rank, each.size, 0), array[0], "before the span");
        Suite.Equal(Reduced(ReduceOp.Max, each.size, 1), array[1], "in the span");
        Suite.Equal(Value(each.rank, each.size, Count + 1), array[Count + 1], "behind the span");
        int[] own = Own(each, Count);
        Forms.Done(each.world.AllReduceAsync(new Memory<int>(own, 3, 4)));
        Suite.Equal(Value(each.rank, each.size, 2), own[2], "before the memory");
        Suite.Equal(Reduced(ReduceOp.Sum, each.size, 3), own[3], "in the memory");
        Suite.Equal(Value(each.rank, each.size, 7), own[7], "behind the memory");
        each.world.AllReduce(new Span<float>(new float[0]));
        Span<long> stack = stackalloc long[2];
        stack[0] = each.rank;
        each.world.AllReduce(stack);
        Suite.Equal((long)(each.size * (each.size - 1) / 2), stack[0], "on the stack");
    }
#endif
}
