// SPDX-License-Identifier: Apache-2.0
using System;
using Dt;

/// What MatrixTests does not vary: element types by themselves, parts, views, communicators.
static class CollectiveTests
{
    internal static void Add()
    {
        Suite.Add("collective: element types", () => Ranks.Run(2, ElementTypes));
        Suite.Add("collective: large buffers", () => Ranks.Run(3, Large));
        Suite.Add("collective: parts of tensors", () => Ranks.Run(2, Slices));
#if DT_SPAN
        Suite.Add("collective: parts of buffers", () => Ranks.Run(3, Parts));
#endif
        Suite.Add("collective: members alone make a communicator", () => Ranks.Run(2, MembersAlone));
        Suite.Add("collective: names, limits and streams of calls", () => Ranks.Run(2, Views));
        Suite.Add("collective: BFloat16 rounds to the nearest", Rounding);
        Suite.Add("collective: System.Half is F16 where there is one", HalfFloats);
    }

    static void Done(Work work)
    {
        using (work) Suite.Check(work.Wait(TimeSpan.FromMinutes(1)), "the work is done");
    }

    static void ElementTypes(Ranks each)
    {
        Suite.Throws<DtInvalidArgumentException>(() => each.world.AllReduce(Tensor.Of(new byte[1], Dtype.F8E5M2)),
            "sum of f8e5m2: 8-bit floats are moved only; convert them");
        // The bits of a BFloat16 in an integer.
        short[] bits = { (short)((BFloat16)1.5f).Bits };
        each.world.AllReduce(Tensor.Of(bits, Dtype.BF16));
        Suite.Equal(((BFloat16)3).Bits, (ushort)bits[0], "bits");
        // As they are passed: each becomes a tensor by itself.
        each.world.AllReduce(new sbyte[2]);
        each.world.AllReduce(new byte[2]);
        each.world.AllReduce(new uint[2]);
        each.world.AllReduce(new long[2]);
        each.world.AllReduce(new ulong[2]);
        each.world.AllReduce(new double[2]);
        each.world.AllReduce(new BFloat16[2]);
    }

    static void Rounding()
    {
        float[] values = { 1, 1.00390625f, 1.01171875f, -2.5f, 3.39e38f, float.PositiveInfinity, 0 };
        float[] rounded = { 1, 1, 1.015625f, -2.5f, 3.38953139e38f, float.PositiveInfinity, 0 };
        for (int i = 0; i < values.Length; ++i) Suite.Equal(rounded[i], (float)(BFloat16)values[i], "of " + values[i]);
        Suite.Check(float.IsNaN((BFloat16)float.NaN), "NaN stays one");
        Suite.Equal((BFloat16)2, BFloat16.FromBits(0x4000), "bits");
    }

    /// By its name: .NET Standard does not know it.
    static void HalfFloats()
    {
        Type half = typeof(object).Assembly.GetType("System.Half");
        if (half == null) return;
        foreach (System.Reflection.MethodInfo method in typeof(Tensor).GetMethods())
        {
            if (method.Name != "Of" || !method.GetParameters()[0].ParameterType.IsArray) continue;
            object[] arguments = { Array.CreateInstance(half, 3), null };
            Tensor tensor = (Tensor)method.MakeGenericMethod(half).Invoke(null, arguments);
            Suite.Equal(Dtype.F16, tensor.Dtype, "dtype");
            Suite.Equal(3L, tensor.Count, "count");
        }
    }

    static void Large(Ranks each)
    {
        const int Count = 100000;
        int[] own = new int[Count], gathered = new int[3 * Count], read = new int[Count];
        for (int i = 0; i < Count; ++i) own[i] = each.rank + 1;
        each.world.AllGather(own, gathered);
        for (int i = 0; i < gathered.Length; ++i) Suite.Equal(i / Count + 1, gathered[i], "gathered");
        using (Dt.Memory memory = each.world.Allocate<int>(Count))
        {
            memory.Write(own);
            each.world.AllReduce(memory);
            memory.Read(read);
        }
        Done(each.world.AllReduceAsync(own));
        for (int i = 0; i < Count; ++i) Suite.Equal(12, own[i] + read[i], "sums");
    }

    static void Slices(Ranks each)
    {
        Tensor part = new int[100];
        Suite.Throws<DtInvalidArgumentException>(() => part.Slice(1, 100), "elements 1 to", "not all among");
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
            Done(named.With(stream: IntPtr.Zero, timeout: Limit.None).AllReduceAsync(buffer));
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
        int[] array = { 7, each.rank, 7 };
        each.world.AllReduce(new Span<int>(array, 1, 1), ReduceOp.Max);
        Suite.Equal("7 2 7", string.Join(" ", array), "in the span");
        array[1] = each.rank;
        Done(each.world.AllReduceAsync(new Memory<int>(array, 1, 1)));
        Suite.Equal("7 3 7", string.Join(" ", array), "in the memory");
        each.world.AllReduce(new Span<float>(new float[0]));
        Span<long> stack = stackalloc long[2];
        stack[0] = each.rank;
        each.world.AllReduce(stack);
        Suite.Equal(3L, stack[0], "on the stack");
    }
#endif
}
