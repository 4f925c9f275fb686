// SPDX-License-Identifier: Apache-2.0
using System;
using System.Collections.Generic;
using System.Runtime.InteropServices;
using System.Threading;
using Dt;

/// What must be an exception with a message, and never a crash.
static class SafetyTests
{
    internal static void Add()
    {
        Suite.Add("safety: closed objects", Closed);
        Suite.Add("safety: wrong dtypes", WrongDtypes);
        Suite.Add("safety: buffers of a wrong size", WrongSizes);
        Suite.Add("safety: use after the job was finalized", AfterFinalize);
        Suite.Add("safety: many threads on closed and racing handles", Racing);
        Suite.Add("safety: forgotten objects are released", Forgotten);
        Suite.Add("safety: memory that this process cannot read", Unreadable);
        Suite.Add("safety: memory lent to operations", Lent);
        Suite.Add("safety: blocking calls make no garbage", NoGarbage);
        Suite.Add("safety: ranks that disagree", Disagree);
    }

    static void Closed()
    {
        Config config = new Config().Set("job.rank", "0").Set("job.world_size", "1");
        Job job = new Job(config);
        Comm world = job.World();
        float[] buffer = new float[4];
        Work work = world.AllReduceAsync(buffer);
        Work byAddress = world.BarrierAsync();
        Reducer reducer = new Reducer(world, new Param[] { new Param(4) });
        Sampler sampler = new Sampler(1, 0, 10);
        StoreServer server = Ranks.Serve(1);
        Dt.Memory memory = world.Allocate<byte>(64);  // keeps the communicator's handle behind the object
        IDisposable[] all = { work, byAddress, reducer, sampler, server, world, job, config };
        foreach (IDisposable each in all)
        {
            each.Dispose();
            each.Dispose();
        }
        Action[] calls =
        {
            () => config.Set("job.id", "x"), () => config.Get("job.id"), () => config.Dump(),
            () => config.SetLogSink((level, line) => { }), () => new Job(config), () => new StoreServer(config),
            () => job.Place.ToString(), () => job.World(), () => job.Abort(), () => job.Leave(),
            () => job.StoreSet("k", buffer.Length == 4 ? new byte[1] : null), () => job.StoreGet("k"),
            () => world.Rank.ToString(), () => world.Size.ToString(), () => world.Split(0),
            () => world.Check(), () => world.SetTimeout(null), () => world.WorkFd.ToString(),
            () => world.AllReduce(buffer), () => world.AllReduceAsync(buffer), () => world.Barrier(),
            () => world.BarrierAsync(), () => world.AllGather(buffer, new float[4]), () => world.GroupBegin(),
            () => world.GroupEnd(), () => world.Allocate<byte>(8),
            () => world.Send(buffer, 0), () => new Reducer(world, new Param[] { new Param(1) }),
            () => work.Test(), () => work.Wait(), () => work.AsTask(), () => work.Error(), () => work.WaitStream(IntPtr.Zero),
            () => byAddress.Test(), () => byAddress.AsTask(), () => Work.WaitAny(new Work[] { work }),
            () => reducer.Gradient(0), () => reducer.Ready(0), () => reducer.Ready(0, buffer),
            () => reducer.Finish(), () => reducer.Rebuild(), () => reducer.Bucket(0), () => reducer.Statistics.ToString(),
            () => sampler.Length.ToString(), () => sampler.Indices(0, 1), () => sampler.SetEpoch(1),
            () => server.Port.ToString()
        };
        foreach (Action each in calls) Suite.Throws<ObjectDisposedException>(each, " was disposed of; call it before Dispose");
        memory.Dispose();
        Suite.Throws<DtInvalidArgumentException>(() => Work.WaitAny(null));
        Suite.Throws<DtInvalidArgumentException>(() => Work.WaitAny(new Work[] { null }));
        Suite.Throws<DtInvalidArgumentException>(() => Work.WaitAny(new Work[0]));
    }

    struct Pair { internal int A, B; }

    static void WrongDtypes()
    {
        Ranks.Alone((job, world) =>
        {
            Suite.Throws<DtInvalidArgumentException>(() => Tensor.Of(new bool[1]), "Boolean");
            Suite.Throws<DtInvalidArgumentException>(() => Tensor.Of(new char[1]), "Char");
            Suite.Throws<DtInvalidArgumentException>(() => Tensor.Of(new Pair[1]), "Pair");
            Suite.Throws<DtInvalidArgumentException>(() => Tensor.Of(new decimal[1]), "Decimal");
            Suite.Throws<DtInvalidArgumentException>(() => Tensor.Of(new ushort[1]), "F16 or BF16");
            Suite.Throws<DtInvalidArgumentException>(() => Tensor.Of(new float[1], Dtype.I32), "F32, not I32");
            Suite.Throws<DtInvalidArgumentException>(() => Tensor.Of(new ushort[1], Dtype.F32), "F16 or BF16");
            Suite.Throws<DtInvalidArgumentException>(() => new Tensor(IntPtr.Zero, 0, (Dtype)77), "give a Dtype");
            Suite.Throws<DtInvalidArgumentException>(() => world.Allocate<bool>(1), "Boolean");
            Suite.Throws<DtInvalidArgumentException>(() => world.AllReduce(new float[1], (ReduceOp)77), "AllReduce", "ReduceOp");
#if DT_SPAN
            Suite.Throws<DtInvalidArgumentException>(() => world.AllReduce(new Span<bool>(new bool[1])), "Boolean");
            Suite.Throws<DtInvalidArgumentException>(() => Tensor.Of<char>("text".AsMemory()), "Char");
#endif
        });
    }

    static void WrongSizes()
    {
        Ranks.Run(2, each =>
        {
            Comm world = each.world;
            float[] four = new float[4], eight = new float[8];
            Suite.Throws<DtInvalidArgumentException>(() => world.AllReduce(four, eight), "4", "8");
            Suite.Throws<DtInvalidArgumentException>(() => world.AllReduceAsync(eight, four), "4", "8");
            Suite.Throws<DtInvalidArgumentException>(() => world.AllGather(four, four), "2 ranks");
            Suite.Throws<DtInvalidArgumentException>(() => world.AllGatherAsync(four, new float[9]), "9");
            Suite.Throws<DtInvalidArgumentException>(() => world.ReduceScatter(four, four), "2 ranks");
            Suite.Throws<DtInvalidArgumentException>(() => world.ReduceScatterAsync(new float[7], four), "7");
            Suite.Throws<DtInvalidArgumentException>(() => world.AllReduce((float[])null), "AllReduce: send is null; give an array");
            Suite.Throws<DtInvalidArgumentException>(() => world.AllReduceAsync(four, default(Tensor)), "AllReduce: recv is null");
            Suite.Throws<DtInvalidArgumentException>(() => world.Reduce(four, default(Tensor), each.rank), "Reduce: recv is null");
            Suite.Throws<DtInvalidArgumentException>(() => world.Broadcast(four, 2), "Broadcast: root is 2");
            Suite.Throws<DtInvalidArgumentException>(() => world.Send(four, each.rank), "Send: peer");
            Suite.Throws<DtInvalidArgumentException>(() => new Tensor(IntPtr.Zero, 4, Dtype.F32), "address is 0");
            Suite.Throws<DtInvalidArgumentException>(() => new Tensor(IntPtr.Zero, -1, Dtype.F32), "count is -1");
            using (Reducer reducer = new Reducer(world, new Param[] { new Param(8, Dtype.F32, "weight") }))
            {
                Suite.Throws<DtInvalidArgumentException>(() => reducer.Ready(0, four), "weight", "4", "8");
                Suite.Throws<DtInvalidArgumentException>(() => reducer.Ready(0, new double[8]), "F64", "F32");
                Suite.Throws<DtInvalidArgumentException>(() => reducer.Ready(1, eight));
                Suite.Throws<DtInvalidArgumentException>(() => reducer.Gradient(-1));
                Suite.Throws<DtInvalidArgumentException>(() => reducer.Bucket(1));
                float[] rows;
                Suite.Throws<DtInvalidArgumentException>(() => reducer.Rows(1, out rows));
                Suite.Throws<DtInvalidArgumentException>(() => reducer.Rows(-1, out rows));
            }
#if DT_SPAN
            Suite.Throws<DtInvalidArgumentException>(
                () => world.AllReduce(new ReadOnlySpan<float>(four), new Span<float>(eight)), "4", "8");
            Suite.Throws<DtInvalidArgumentException>(
                () => world.AllReduceAsync(new ReadOnlyMemory<float>(four), new Memory<float>(eight)), "4", "8");
#endif
#if DT_SPAN
            ReadOnlyResults(world, each.rank);
#endif
            world.Barrier();  // nothing of all this broke it
        });
    }

#if DT_SPAN
    static void ReadOnlyResults(Comm world, int rank)
    {
        float[] four = new float[4], eight = new float[8], kept = { 1, 2, 3, 4 };
        Tensor read = Tensor.Of(new ReadOnlyMemory<float>(kept)), part = read.Slice(0, 4);
        double[] double4 = new double[4];
        Tensor readDoubles = new ReadOnlyMemory<double>(double4);
        foreach (Action call in new Action[]
        {
            () => world.AllReduce(part), () => world.AllReduce(four, part), () => world.AllReduceAsync(four, part),
            () => world.AllGather(new float[2], part), () => world.ReduceScatter(eight, part),
            () => world.AllToAll(four, part), () => world.Recv(part, 1 - rank), () => world.Scatter(eight, part, 0),
            () => world.Broadcast(part, 1 - rank), () => world.Reduce(four, part, rank),
            () => world.Gather(new float[2], part, rank),
            () => world.BatchMoments(four, 4, readDoubles, new double[4], new long[1]),
            () => world.BatchGradientSums(four, four, double4, double4, new double[4], readDoubles),
            () => new Outer(world, new[] { new OuterParam(read) }, new OuterOptions()),
            () => new Reducer(world, new[] { new Param(4) }, new ReducerOptions { Gradients = new[] { read } })
        })
        {
            Suite.Throws<DtInvalidArgumentException>(call, "is a ReadOnlyMemory");
        }
        Suite.Throws<DtInvalidArgumentException>(() => world.AllReduce(part), "AllReduce: inPlace is a ReadOnlyMemory");
        Suite.Throws<DtInvalidArgumentException>(() => world.AllReduce(four, part), "AllReduce: recv is");
        using (Reducer reducer = new Reducer(world, new[] { new Param(4) }, new ReducerOptions { FindUnused = true }))
        {
            Suite.Throws<DtInvalidArgumentException>(() => reducer.Ready(0, read), "Ready: gradient is a ReadOnlyMemory");
            Suite.Throws<DtInvalidArgumentException>(() => reducer.Unused(0, read), "Unused: gradient");
        }
        Tensor written = Tensor.Of(new Memory<float>(four));
        world.Broadcast(rank == 0 ? read : written, 0);  // only read there
        world.Reduce(read, rank == 0 ? written : read, 0);
        Suite.Equal(rank == 0 ? 8f : 4f, four[3], "what was received");
        Suite.Equal(4f, kept[3], "what was only read");
    }
#endif

    static void AfterFinalize()
    {
        Config config = new Config().Set("job.rank", "0").Set("job.world_size", "1");
        using (config)
        using (Job job = new Job(config))
        using (Comm world = job.World())
        {
            job.Leave();
            job.Leave();
            Suite.Throws<DtInvalidStateException>(() => world.AllReduce(new float[1]), "Leave was called");
            Suite.Throws<DtInvalidStateException>(() => world.AllReduceAsync(new float[1]));
            Suite.Throws<DtInvalidStateException>(() => job.World());
            Suite.Throws<DtInvalidStateException>(() => job.StoreSet("k", new byte[1]));
        }
    }

    /// Every call succeeds or says that something is closed.
    static void Racing()
    {
        for (int round = 0; round < 20; ++round)
        {
            Config config = new Config().Set("job.rank", "0").Set("job.world_size", "1");
            Job job = new Job(config);
            Comm world = job.World();
            List<string> wrong = new List<string>();
            Thread[] threads = new Thread[6];
            using (Barrier start = new Barrier(threads.Length))
            {
                for (int t = 0; t < threads.Length; ++t)
                {
                    int index = t;
                    threads[t] = new Thread(() =>
                    {
                        start.SignalAndWait();
                        for (int i = 0; i < 200; ++i)
                        {
                            try
                            {
                                Attempt(index, i, job, world, config);
                            }
                            catch (DtInvalidArgumentException error)
                            {
                                // The object was closed while this call was running.
                                if (error.Message.Contains("is closed")) continue;
                                lock (wrong) wrong.Add(error.ToString());
                            }
                            catch (ObjectDisposedException)
                            {
                            }
                            catch (Exception error)
                            {
                                lock (wrong) wrong.Add(error.ToString());
                            }
                        }
                    });
                    threads[t].Start();
                }
                foreach (Thread thread in threads) Suite.Check(thread.Join(60000), "threads end");
            }
            Suite.Check(wrong.Count == 0, wrong.Count == 0 ? "" : wrong[0]);
        }
    }

    static void Attempt(int index, int i, Job job, Comm world, Config config)
    {
        switch (index)
        {
            case 0: world.AllReduce(new float[16]); return;
            case 1: using (Work work = world.AllReduceAsync(new float[16])) work.Wait(); return;
            case 2: world.Size.ToString(); job.Place.ToString(); return;
            case 3: using (Comm again = job.World()) again.AllReduceAsync(new float[3]).AsTask().Wait(60000); return;
            case 4: using (Dt.Memory memory = world.Allocate<float>(16)) memory.Write(new float[3]); return;
            default:
                config.Get("job.id");
                if (i == 120) world.Dispose();
                if (i == 150) job.Dispose();
                if (i == 170) config.Dispose();
                return;
        }
    }

    static void Forgotten()
    {
        for (int i = 0; i < 50; ++i) Forget();
        Suite.Collect();
    }

    static void Forget()
    {
        Config config = new Config().Set("job.rank", "0").Set("job.world_size", "1");
        Job job = new Job(config);
        Comm world = job.World();
        world.AllReduceAsync(new float[100]);
        world.BarrierAsync();
        world.Allocate<byte>(100).Write(new byte[3]);
        new Reducer(world, new Param[] { new Param(3) }).Ready(0, new float[3]);
        new Sampler(1, 0, 5).Indices();
    }

    [DllImport("libc", SetLastError = true)]
    static extern int mprotect(IntPtr address, UIntPtr bytes, int protection);

    static void Protect(IntPtr address, long bytes, bool closed)
    {
        const int ReadWrite = 3;
        Suite.Equal(0, mprotect(address, new UIntPtr((ulong)bytes), closed ? 0 : ReadWrite), "mprotect");
    }

    /// As a GPU's.
    static void Unreadable()
    {
        const string Says = "the memory is a GPU's";
        Ranks.Alone((job, world) =>
        {
            using (Dt.Memory memory = world.Allocate<byte>(4096))
            {
                Protect(memory.Address, memory.Bytes, true);
                Suite.Throws<DtInvalidArgumentException>(() => memory.Write(new float[1]), Says);
                Suite.Throws<DtInvalidArgumentException>(() => memory.Read(new float[1]), Says);
#if DT_SPAN
                Suite.Throws<DtInvalidArgumentException>(() => memory.AsSpan<float>().Clear(), Says);
#endif
                Protect(memory.Address, memory.Bytes, false);
                memory.Write(new float[] { 3 });
                float[] read = new float[1];
                memory.Read(read);
                Suite.Equal(3f, read[0], "what was written");
            }
#if DT_SPAN
            const int Page = 4096;
            using (Reducer reducer = new Reducer(world, new Param[] { new Param(1 << 16) }))
            {
                IntPtr address = reducer.Gradient(0);
                if (address.ToInt64() % Page == 0)
                {
                    Protect(address, Page, true);
                    Suite.Throws<DtInvalidArgumentException>(() => reducer.GradientSpan<float>(0).Clear(), Says);
                    Protect(address, Page, false);
                }
                reducer.GradientSpan<float>(0).Clear();
            }
#endif
        });
    }

    static Dt.Memory Filled(Comm world, int elements, int value)
    {
        Dt.Memory memory = world.Allocate<int>(elements);
        int[] values = new int[elements];
        for (int i = 0; i < elements; ++i) values[i] = value;
        memory.Write(values);
        return memory;
    }

    static int First(Dt.Memory memory)
    {
        int[] values = new int[1];
        memory.Read(values);
        return values[0];
    }

    /// Nobody keeps the memory.
    static Work Borrow(Comm world, int value, bool close)
    {
        Dt.Memory send = Filled(world, 4, value), recv = world.Allocate<int>(4);
        Work work = world.AllReduceAsync(send, recv);
        if (close)
        {
            send.Dispose();
            recv.Dispose();
            Suite.Throws<ObjectDisposedException>(() => world.AllReduce(send, recv), "Memory was disposed of");
        }
        return work;
    }

    static void Lent()
    {
        Ranks.Run(2, each =>
        {
            Comm world = each.world;
            foreach (bool close in new bool[] { false, true })
            {
                if (each.rank == 0)
                {
                    Work work = Borrow(world, 5, close);
                    Suite.Collect();
                    each.job.StoreSet("lent" + close, new byte[0]);
                    work.Wait();
                }
                else
                {
                    each.job.StoreGet("lent" + close);
                    int[] sum = { 1, 1, 1, 1 };
                    world.AllReduce(sum);
                    Suite.Equal(6, sum[0], "sum with lent memory");
                }
            }
            using (Dt.Memory one = Filled(world, 1, each.rank + 1))
            using (Dt.Memory two = Filled(world, 2, each.rank + 1))
            using (Dt.Memory other = world.Allocate<int>(2))
            {
                Tensor single = other.Slice(0, 1);
                world.AllReduce(one, single);
                Suite.Equal(3, First(other), "allreduce");
                world.Reduce(one, each.rank == 0 ? single : default(Tensor), 0, ReduceOp.Prod);
                if (each.rank == 0) Suite.Equal(2, First(other), "reduce");
                world.AllGather(one, other);
                Suite.Equal(1, First(other), "allgather");
                world.ReduceScatter(two, single);
                Suite.Equal(3, First(other), "reduce_scatter");
                world.Group(() =>
                {
                    world.Broadcast(one, 1);
                    Borrowed(world);
                });
                Suite.Equal(2, First(one), "broadcast");
                if (each.rank == 0) world.Send(one, 1);
                else world.Recv(single, 0);
                if (each.rank == 1) Suite.Equal(2, First(other), "recv");
                Suite.Throws<DtInvalidArgumentException>(() => world.AllReduce(one, other), "recv", "2");
                Suite.Throws<DtInvalidArgumentException>(() => world.AllGatherAsync(one, one), "recv", "2 times");
                Suite.Throws<DtInvalidArgumentException>(() => world.ReduceScatter(other, two), "send", "2 times");
                Suite.Throws<DtInvalidArgumentException>(() => other.Slice(1, 2), "elements 1 to 3");
                Suite.Throws<DtInvalidArgumentException>(() => world.Broadcast((Dt.Memory)null, 0), "null");
                Suite.Throws<DtInvalidArgumentException>(() => world.ReduceAsync(one, default(Tensor), each.rank), "null");
            }
            world.Barrier();
        });
    }

    /// Inside a group: it lasts until that ends.
    static void Borrowed(Comm world)
    {
        using (Dt.Memory memory = Filled(world, 1, 3)) world.AllReduce(memory);
        Suite.Collect();
    }

    /// The smallest object has 16 bytes: one in each call would fill the nursery of 4 MiB, which is
    /// what a collection of generation 0 empties, several times.
    static void NoGarbage()
    {
        const int Calls = 1000000;
        Ranks.Alone((job, world) =>
        {
            float[] buffer = new float[256], other = new float[256];
            Dt.Memory memory = world.Allocate<float>(256);
            Comm named = world.With("gradients", Limit.None);
            Action all = () =>
            {
                world.AllReduce(buffer);
                world.AllReduce(buffer, other);
                named.AllReduce(memory);
                named.AllReduce(new Tensor(memory.Address, 256, Dtype.F32));
#if DT_SPAN
                world.AllReduce(new Span<float>(buffer));
                world.AllReduce(new ReadOnlyMemory<float>(buffer), new Memory<float>(other));
#endif
            };
            for (int i = 0; i < 1000; ++i) all();
            GC.Collect();
            int collections = GC.CollectionCount(0);
            long before = GC.GetTotalMemory(false);
            for (int i = 0; i < Calls / 4; ++i) all();
            long bytes = GC.GetTotalMemory(false) - before;
            Suite.Equal(collections, GC.CollectionCount(0), "collections over a million calls");
            Suite.Check(bytes < Calls, bytes + " bytes of a million calls are less than one each");
        });
    }

    static void Disagree()
    {
        Ranks.Run(2, each =>
        {
            using (Comm part = each.world.Split(0, 0))
            {
                DtException error = Suite.Throws<DtMismatchException>(
                    () => part.AllReduce(new float[each.rank + 1]), "1", "2");
                Suite.Equal("allreduce", error.Operation, "operation");
                Suite.Throws<DtMismatchException>(() => part.AllReduceAsync(new float[1]).Wait());
                Suite.Throws<DtMismatchException>(() => new Reducer(each.world, new Param[] { new Param(4 + each.rank) }));
            }
            each.world.Barrier();
        });
    }
}
