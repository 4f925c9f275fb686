// SPDX-License-Identifier: Apache-2.0
using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Runtime.InteropServices;
using System.Threading;
using System.Threading.Tasks;
using Dt;

/// Operations by name, and parameters that come together now and then.
static class NamedTests
{
    static readonly TimeSpan limit = TimeSpan.FromSeconds(60);

    internal static void Add()
    {
        foreach (int size in new[] { 1, 2, 3 })
            Suite.Add("named: all kinds in an order of each rank, " + size + " ranks", () => Ranks.Run(size, Kinds));
        Suite.Add("named: tasks and groups", () => Ranks.Run(2, Groups));
        Suite.Add("named: what is dropped goes on", () => Ranks.Run(2, Dropped));
        Suite.Add("named: a call that waits while a group begins", () => Ranks.Run(2, BesideGroup));
        Suite.Add("named: join and report", () => Ranks.Run(2, Join));
        Suite.Add("named: what is refused", () => Ranks.Run(2, Refusals));
        Suite.Add("outer: the mean of the parameters, and DiLoCo", () => Ranks.Run(2, OuterValues));
        Suite.Add("outer: memory, and what is refused", () => Ranks.Alone((job, world) => OuterRefusals(world)));
    }

    static void Kinds(Ranks each)
    {
        int rank = each.rank, size = each.size;
        using (Named named = new Named(each.world))
        {
            for (int step = 0; step < 3; ++step)
            {
                Random random = new Random(rank);
                List<Action> checks = new List<Action>();
                foreach (int i in Enumerable.Range(0, 40).OrderBy(_ => random.Next()))
                {
                    Comm by = named.Under("tensor " + i);
                    long[] send = new long[size], recv = new long[size];
                    for (int r = 0; r < size; ++r) send[r] = 100 * rank + i + r;
                    long sum = 100 * size * (size - 1) / 2 + size * (i + rank), last = 100 * (size - 1) + i;
                    int at = size - 1;
                    long wanted = last;
                    Work work;
                    switch (i % 5)
                    {
                        case 0: work = by.AllReduceAsync(send, recv); at = rank; wanted = sum; break;
                        case 1: work = by.BroadcastAsync(send, size - 1); recv = send; at = 0; break;
                        case 2: work = by.AllGatherAsync(Tensor.Of(send).Slice(0, 1), recv); break;
                        case 3:
                            work = by.ReduceScatterAsync(send, Tensor.Of(recv).Slice(0, 1));
                            at = 0;
                            wanted = sum;
                            break;
                        default: work = by.AllToAllAsync(send, recv); wanted = last + rank; break;
                    }
                    checks.Add(() =>
                    {
                        Suite.Check(work.Wait(limit), "it ends");
                        Suite.Equal(wanted, recv[at], "kind " + i % 5);
                    });
                }
                foreach (Action check in checks) check();
            }
            Suite.Equal(120L, named.Statistics.Tensors, "tensors");
            Suite.Equal(80L, named.Statistics.CacheHits, "cache hits");
            double[] array = { rank, 1 };
            named.Under("and waits").With(timeout: limit).AllReduce(array, ReduceOp.Max);
            Suite.Equal(size - 1.0, array[0], "the greatest");
        }
    }

    static void Groups(Ranks each)
    {
        using (Named named = new Named(each.world, new NamedOptions()))
        {
            float[][] arrays = new float[10][];
            Named ended = null;
            IReadOnlyList<Work> works = named.Group(group =>
            {
                ended = group;
                for (int i = 0; i < 10; ++i)
                {
                    arrays[i] = new float[] { 0, each.rank + i };
                    Work work = group.Under("w" + i).AllReduceAsync(arrays[i], ReduceOp.Avg);
                    Suite.Throws<DtInvalidArgumentException>(() => work.Test(), "its group is not submitted");
                }
                Suite.Throws<DtInvalidArgumentException>(() => group.Under("x").AllReduce(arrays[0]),
                    "AllReduce: the call waits", "call AllReduceAsync");
            });
            foreach (Work work in each.rank == 0 ? works : works.Reverse())
                Suite.Check(work.AsTask().Wait(limit), "its task ends");
            for (int i = 0; i < 10; ++i) Suite.Equal(i + 0.5f, arrays[i][1], "the mean");
            Suite.Equal(1L, named.Statistics.Operations, "operations");
            Suite.Throws<DtInvalidArgumentException>(() => ended.Under("x").AllReduceAsync(arrays[0]), "has ended");
            Suite.Equal(0, named.Group(group => { }).Count, "nothing");
            Suite.Throws<FormatException>(() => named.Group(group =>
            {
                group.Under("y").AllReduceAsync(arrays[0]);
                throw new FormatException();
            }));
        }
    }

    static void Dropped(Ranks each)
    {
        if (each.rank == 1)
        {
            using (Named named = new Named(each.world))
            {
                each.job.StoreWait(new[] { "dropped" });
                named.Under("w").AllReduce(new float[] { 1 });
                each.job.StoreWait(new[] { "seen" });
            }
            using (Named named = new Named(each.world))
            {
                each.job.StoreWait(new[] { "dropped over an address" });
                float[] sum = { 1 };
                named.Under("a").AllReduce(sum);
                Suite.Check(sum[0] == 3, "it is carried out");
            }
            return;
        }
        WeakReference array = null;
        Thread thread = new Thread(() =>  // whose stack keeps nothing
        {
            float[] values = { 1 };
            new Named(each.world).Under("w").AllReduceAsync(values);
            array = new WeakReference(values);
        });
        thread.Start();
        thread.Join();
        Suite.Collect();
        Suite.Check(array.IsAlive, "it is kept until the work is done");
        each.job.StoreSet("dropped", new byte[0]);
        Suite.WaitFor(() =>
        {
            Suite.Collect();
            return !array.IsAlive;
        }, "it is let go of");
        each.job.StoreSet("seen", new byte[0]);
        float[] number = { 2 };
        GCHandle pin = GCHandle.Alloc(number, GCHandleType.Pinned);
        thread = new Thread(() =>
            new Named(each.world).Under("a").AllReduceAsync(new Tensor(pin.AddrOfPinnedObject(), 1, Dtype.F32)));
        thread.Start();
        thread.Join();
        Suite.Collect();
        each.job.StoreSet("dropped over an address", new byte[0]);
        Suite.WaitFor(() => Volatile.Read(ref number[0]) == 3, "it is carried out");
        pin.Free();
    }

    static void BesideGroup(Ranks each)
    {
        using (Named named = new Named(each.world))
        {
            int[] value = { 1 + each.rank };
            if (each.rank == 1)
            {
                each.job.StoreWait(new[] { "grouped" });
                named.Under("x").AllReduce(value);
                return;
            }
            Thread other = new Thread(() => named.Under("x").AllReduce(value));
            other.IsBackground = true;
            other.Start();
            Suite.WaitFor(() => named.Report(limit).Contains("\"x\""), "it waits for rank 1");
            each.world.GroupBegin();
            each.job.StoreSet("grouped", new byte[0]);
            Suite.Check(other.Join(limit), "the group does not concern it");
            Suite.Equal(3, value[0], "sum");
            each.world.GroupEnd();
        }
    }

    static void Join(Ranks each)
    {
        using (Named named = new Named(each.world))
        {
            if (each.rank == 1)
            {
                each.job.StoreWait(new[] { "reported" });
                Suite.Check(named.Join(TimeSpan.Zero) <= 0, "not this rank");
                while (named.Join(TimeSpan.FromSeconds(1)) < 0) { }
                return;
            }
            long[] values = { 5 };
            Work work = named.Under("tail").AllReduceAsync(values);
            string report = named.Report(limit);
            Suite.Check(report.Contains("\"tail\" (allreduce i64 sum x 1) was submitted by rank 0"), report);
            each.job.StoreSet("reported", new byte[0]);
            work.Wait();
            Suite.Equal(5L, values[0], "with the zero of who joined");
            Suite.Equal(0, named.Join(limit), "the last");
        }
    }

    static void Refusals(Ranks each)
    {
        Named named = new Named(each.world);
        Comm by = named.Under("a name");
        int[] one = { 1 };
        Suite.Throws<DtMismatchException>(() => by.AllReduce(new float[1 + each.rank]), "\"a name\"");
        Suite.Throws<DtUnsupportedException>(() => by.Barrier(), "by name go allreduce");
        Suite.Throws<DtUnsupportedException>(() => by.AllGather(one, new int[2], new Blocks(new long[] { 1, 1 })),
            "by name go allreduce");
        Suite.Throws<DtUnsupportedException>(() => by.AllReduce(one, new Combine((a, b, n) => { })), "of the caller");
        Suite.Throws<DtInvalidArgumentException>(() => named.Under("").AllReduce(one), "name");
        Suite.Throws<DtInvalidArgumentException>(() => named.Under(null), "null");
        Suite.Throws<DtInvalidArgumentException>(() => named.Under(new string('x', 1001)).AllReduce(one),
            "Under: name has 1001 bytes");
        Suite.Throws<DtInvalidArgumentException>(() => new Named(each.world, new NamedOptions { StallMs = -1 }),
            "Named: stallMs is -1");
        Suite.Throws<DtInvalidArgumentException>(() => new Named(null), "comm is null");
        Suite.Throws<DtInvalidArgumentException>(() => named.Group(group =>
        {
            for (int i = 0; i < 2; ++i) group.Under("twice").AllReduceAsync(one);
        }), "Group: names[1] is \"twice\"");
        Work pending = each.rank == 0 ? named.Under("never").AllReduceAsync(one) : null;
        each.world.Barrier();
        named.Dispose();
        named.Dispose();
        if (pending != null) Suite.Throws<DtAbortedException>(() => pending.Wait(limit));
        Suite.Throws<ObjectDisposedException>(() => by.AllReduce(one), "Named");
        Suite.Throws<ObjectDisposedException>(() => by.AllReduceAsync(one), "Named");
        Suite.Throws<ObjectDisposedException>(() => named.Under("x"), "Named");
        Suite.Throws<ObjectDisposedException>(() => named.Join(limit), "Named");
        Suite.Throws<ObjectDisposedException>(() => named.Group(group => { }), "Named");
        each.world.Barrier();  // the communicator is whole
    }

    static void Near(double wanted, double found) =>
        Suite.Check(Math.Abs(wanted - found) < 1e-4, "expected " + wanted + ", found " + found);

    static void OuterValues(Ranks each)
    {
        int rank = each.rank;
        float[] own = new float[2];
        OuterOptions local = new OuterOptions { SyncEvery = 2, Rate = 1, Momentum = 0 };
        using (Memory memory = each.world.Allocate<float>(1))
        using (Outer outer = new Outer(each.world, new[] { new OuterParam(own, "a"), new OuterParam(memory) }, local))
        {
            for (int step = 1; step <= 4; ++step)
            {
                for (int i = 0; i < own.Length; ++i) own[i] += (rank + 1) * (i + 1);
                Suite.Collect();
                Suite.Equal(step % 2 == 0, outer.Step(), "whether it changed something");
            }
            for (int i = 0; i < own.Length; ++i) Near(6 * (i + 1), own[i]);
        }
        string path = Path.Combine(Path.GetTempPath(), "dt-outer-" + System.Diagnostics.Process.GetCurrentProcess().Id);
        float[] one = { 0 };
        using (Outer outer = new Outer(each.world, new[] { new OuterParam(one, "w") }))
        {
            one[0] += rank + 1;
            outer.Step();
            double wanted = 0.7 * 1.9 * 1.5;  // the first step of Nesterov's momentum
            Near(wanted, one[0]);
            if (rank == 0) outer.Save(path);
            each.world.Barrier();
            one[0] = rank;
            outer.Load(path);
            Near(wanted, one[0]);
            Suite.Equal(1L, outer.Steps, "steps");
            using (Comm part = each.world.Split(0))
            {
                outer.Move(part);
                one[0] += rank + 1;
                outer.Sync();
                Near(wanted + 0.7 * 1.5 * (1 + 0.9 * 1.9), one[0]);
            }
        }
        if (rank == 0) File.Delete(path);
    }

    static void OuterRefusals(Comm world)
    {
        float[] one = { 1 };
        Suite.Throws<DtInvalidArgumentException>(() => new Outer(null, new OuterParam[0]), "Outer: comm is null");
        Suite.Throws<DtInvalidArgumentException>(() => new Outer(world, null), "Outer: parameters is null");
        Suite.Throws<DtInvalidArgumentException>(() => new Outer(world, new OuterParam[0]), "count is 0");
        Suite.Throws<DtInvalidArgumentException>(() => new Outer(world, new OuterParam[1]), "parameters[0] has no data");
        Suite.Throws<DtInvalidArgumentException>(
            () => new Outer(world, new[] { new OuterParam(one), new OuterParam(new long[1]) }),
            "Outer: params[1].dtype is i64; it must be f32");
        Suite.Throws<DtInvalidArgumentException>(
            () => new Outer(world, new[] { new OuterParam(one) }, new OuterOptions { SyncEvery = 0 }),
            "Outer: syncEvery is 0");
        WeakReference kept = null;
        Outer outer = null;
        Thread thread = new Thread(() =>
        {
            float[] values = { 1 };
            kept = new WeakReference(values);
            outer = new Outer(world, new[] { new OuterParam(values) });
        });
        thread.Start();
        thread.Join();
        Suite.Collect();
        outer.Step();
        Suite.Check(kept.IsAlive, "it is kept");
        Suite.Throws<DtSystemException>(() => outer.Save("/nowhere/model"), "/nowhere");
        Suite.Throws<DtInvalidArgumentException>(() => outer.Load(null), "path is null");
        outer.Dispose();
        outer.Dispose();
        Suite.Collect();
        Suite.Check(!kept.IsAlive, "it is let go of");
        Suite.Throws<ObjectDisposedException>(() => outer.Step(), "Outer");
        Suite.Throws<ObjectDisposedException>(() => outer.Move(world), "Outer");
        Suite.Throws<ObjectDisposedException>(() => outer.Sync(), "Outer");
    }
}
