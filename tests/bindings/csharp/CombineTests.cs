// SPDX-License-Identifier: Apache-2.0
using System;
using System.Collections.Generic;
using System.Runtime.CompilerServices;
using System.Threading;
using Dt;

/// Reductions by functions of C#.
static class CombineTests
{
    const int Count = 60000;  // several parts
    static readonly Combine add = Combine.Of<int>(Add);

    internal static void Add()
    {
        foreach (int size in new int[] { 1, 2, 3 })
        {
            Suite.Add("combine: all operations of " + size, () => Ranks.Run(size, All));
            Suite.Add("combine: pairs of " + size, () => Ranks.Run(size, Pairs));
        }
        Suite.Add("combine: what a function throws", Throwing);
        Suite.Add("combine: on threads of libdt, while garbage is collected", Collected);
        Suite.Add("combine: a function goes with its operation", () => Ranks.Run(2, Gone));
        Suite.Add("combine: what is refused", () => Ranks.Alone((job, world) => Refused(world)));
    }

    static void Add(int[] given, int[] inOut)
    {
        Suite.Equal(given.Length, inOut.Length, "lengths");
        for (int i = 0; i < given.Length; ++i) inOut[i] += given[i];
    }

    static unsafe void AddAt(IntPtr given, IntPtr inOut, long count)
    {
        for (long i = 0; i < count; ++i) ((int*)inOut)[i] += ((int*)given)[i];
    }

    static int[] Mine(int rank, int count = Count)
    {
        int[] values = new int[count];
        for (int i = 0; i < count; ++i) values[i] = 1000 * rank + i;
        return values;
    }

    static int Sum(int size, int i)
    {
        return 1000 * (size * (size - 1) / 2) + size * i;
    }

    static void CheckSum(int[] found, int size, int first, string what)
    {
        for (int i = 0; i < found.Length; ++i)
        {
            if (found[i] != Sum(size, first + i)) Suite.Equal(Sum(size, first + i), found[i], what + " at " + i);
        }
    }

    static void All(Ranks each)
    {
        int size = each.size, share = Count / size;
        int[] waited = Mine(each.rank), grouped = Mine(each.rank), streamed = Mine(each.rank), reduced = new int[Count];
        each.world.AllReduce(waited, add);
        CheckSum(waited, size, 0, "AllReduce");
        waited = Mine(each.rank);
        each.world.AllReduce(waited, new Combine(AddAt));
        CheckSum(waited, size, 0, "by addresses");
#if DT_SPAN
        waited = Mine(each.rank);
        each.world.AllReduce(new Span<int>(waited), Combine.OfSpans<int>((given, inOut) =>
        {
            for (int i = 0; i < given.Length; ++i) inOut[i] += given[i];
        }));
        CheckSum(waited, size, 0, "by spans");
#endif
        List<int[]> several = new List<int[]>();
        List<Work> works = new List<Work>();
        for (int i = 0; i < 4; ++i)
        {
            several.Add(Mine(each.rank));
            works.Add(each.world.AllReduceAsync(several[i], add));
        }
        foreach (Work work in works) Suite.Check(work.Wait() && work.Test() && work.Error() == null, "done");
        foreach (int[] one in several) CheckSum(one, size, 0, "AllReduceAsync");
        each.world.Group(() => each.world.AllReduce(grouped, add));
        CheckSum(grouped, size, 0, "in a group");
        each.world.AllReduceAsync(streamed, add).WaitStream(IntPtr.Zero);
        CheckSum(streamed, size, 0, "WaitStream");
        each.world.Reduce(Mine(each.rank), reduced, size - 1, add);
        if (each.rank == size - 1) CheckSum(reduced, size, 0, "Reduce");
        int[] part = new int[share];
        each.world.ReduceScatter(Mine(each.rank, share * size), part, add);
        CheckSum(part, size, each.rank * share, "ReduceScatter");
        long[] counts = new long[size];
        for (int i = 0; i < size; ++i) counts[i] = share;
        int[] block = new int[share];
        each.world.ReduceScatterAsync(Mine(each.rank, share * size), counts, block, add).Wait();
        CheckSum(block, size, each.rank * share, "ReduceScatter with blocks");
    }

    /// Pairs of a value and an index: the one with the greater value stays.
    static void Greatest(double[] given, double[] inOut)
    {
        for (int i = 0; i < given.Length; i += 2)
        {
            if (given[i] > inOut[i]) Array.Copy(given, i, inOut, i, 2);
        }
    }

    static void Pairs(Ranks each)
    {
        const int Some = 5000;
        Combine op = Combine.Of<double>(Greatest, 2);
        double[] values = new double[2 * Some], own = new double[2];
        for (int i = 0; i < Some; ++i)
        {
            values[2 * i] = (i + each.rank) % each.size;
            values[2 * i + 1] = each.rank;
        }
        long[] counts = new long[each.size];
        for (int i = 0; i < each.size; ++i) counts[i] = 2;
        each.world.ReduceScatter(Tensor.Of(values).Slice(0, 2 * each.size), counts, own, op);
        each.world.AllReduce(values, op);
        for (int i = 0; i < Some; ++i)
        {
            Suite.Equal(each.size - 1.0, values[2 * i], "value");
            Suite.Equal((double)((each.size - 1 - i % each.size + each.size) % each.size), values[2 * i + 1], "index");
        }
        Suite.Equal(values[2 * each.rank + 1], own[1], "this rank's block");
    }

    static void Throwing()
    {
        foreach (int size in new int[] { 2, 3 })
        {
            int seen = 0;
            Ranks.Run(size, each =>
            {
                Combine fail = Combine.Of<int>((given, inOut) => { throw new KeyNotFoundException("on purpose"); });
                Comm world = each.world;
                Meet(ref seen, () => world.AllReduce(Mine(0), fail));
                Work work = world.AllReduceAsync(Mine(0), fail);
                Meet(ref seen, () => work.Wait());
                Meet(ref seen, () => work.Test());
                Meet(ref seen, () => { if (work.Error() != null) throw work.Error(); });
                Meet(ref seen, () => work.AsTask().GetAwaiter().GetResult());
                Meet(ref seen, () => world.AllReduceAsync(Mine(0, 5), fail).WaitStream(IntPtr.Zero));
                Meet(ref seen, () => world.AllReduceAsync(Mine(0, 5), fail).GetAwaiter().GetResult());
                Meet(ref seen, () => world.Group(() => world.AllReduce(Mine(0), fail)));
                Meet(ref seen, () => world.GroupAsync(() => world.AllReduce(Mine(0), fail)).Wait());
                All(each);  // it stays usable
            });
            Suite.Check(seen >= 9, "all forms throw where the function ran: " + seen);
        }
    }

    static void Meet(ref int seen, Action call)
    {
        try
        {
            call();
        }
        catch (DtInvalidArgumentException error)
        {
            Suite.Check(error.Message.Contains("AllReduce: the function of Combine threw KeyNotFoundException: on purpose"),
                error.Message);
            Suite.Check(error.InnerException is KeyNotFoundException, "what was thrown is the cause");
            Interlocked.Increment(ref seen);
        }
    }

    static void Collected()
    {
        bool over = false;
        int foreign = 0;
        AutoResetEvent called = new AutoResetEvent(false);
        Thread collector = new Thread(() =>
        {
            while (called.WaitOne() && !Volatile.Read(ref over)) GC.Collect();
        });
        collector.Start();
        try
        {
            Ranks.Run(2, each =>
            {
                Thread own = Thread.CurrentThread;
                Combine op = Combine.Of<int>((given, inOut) =>
                {
                    called.Set();
                    if (Thread.CurrentThread != own) Interlocked.Increment(ref foreign);
                    Add(given, inOut);
                });
                for (int i = 0; i < 50; ++i)
                {
                    int[] values = Mine(each.rank);
                    Suite.Check(each.world.AllReduceAsync(values, op).AsTask().Wait(60000), "in time");
                    CheckSum(values, 2, 0, "sum");
                }
            });
        }
        finally
        {
            Volatile.Write(ref over, true);
            called.Set();
            collector.Join();
        }
        Suite.Check(foreign > 0, "another thread has called the function");
    }

    static void Gone(Ranks each)
    {
        WeakReference[] states = new WeakReference[40];
        for (int i = 0; i < states.Length; ++i) states[i] = Forgotten(each);
        each.world.BarrierAsync().Wait();
        Suite.WaitForGarbage(states, "the functions");
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    static WeakReference Forgotten(Ranks each)
    {
        WeakReference state = null;
        Thread other = new Thread(() =>  // whose stack goes with it: Mono's collector is conservative
        {
            object token = new object();
            state = new WeakReference(token);
            each.world.AllReduceAsync(Mine(each.rank), Combine.Of<int>((given, inOut) =>
            {
                GC.KeepAlive(token);
                Add(given, inOut);
            }));
        });
        other.Start();
        other.Join();
        return state;
    }

    static void Refused(Comm world)
    {
        Suite.Throws<DtInvalidArgumentException>(() => new Combine(null), "function is null");
        Suite.Throws<DtInvalidArgumentException>(() => Combine.Of<int>(null), "function is null");
        Suite.Throws<DtInvalidArgumentException>(() => new Combine(AddAt, 0), "items is 0");
        Suite.Throws<DtInvalidArgumentException>(() => world.AllReduce(new int[1], (Combine)null), "Combine: it is null");
        Suite.Throws<DtInvalidArgumentException>(() => world.AllReduce(new double[1], add), "Int32", "F64");
        Suite.Throws<DtInvalidArgumentException>(() => world.AllReduce(new double[3], Combine.Of<double>(Greatest, 2)),
            "3 is no multiple of the 2 items");
        Suite.Throws<DtInvalidArgumentException>(() => world.AllReduce(new byte[4096], new Combine(AddAt, 4096)),
            "4096 items of U8", "at most 4095");
    }
}
