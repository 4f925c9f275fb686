// SPDX-License-Identifier: Apache-2.0
using System;
using System.Collections.Generic;
using System.IO;
using System.Runtime.InteropServices;
using System.Security.Cryptography;
using System.Threading;
using Dt;

static class TrainingTests
{
    internal static void Add()
    {
        foreach (int size in new int[] { 2, 3 })
        {
            int ranks = size;
            Suite.Add("training: reducer gives the mean, " + size + " ranks", () => Ranks.Run(ranks, Means));
        }
        Suite.Add("training: reducer sums, and names what is missing", SumsAndMissing);
        Suite.Add("training: passes and parts are summed", () => Ranks.Run(2, Accumulated));
        Suite.Add("training: the wire, users and the norm", () => Ranks.Run(2, Norm));
        Suite.Add("training: a function reduces the buckets", () => Ranks.Run(2, Hooked));
        Suite.Add("training: a failed step keeps no works of its function", () => Ranks.Run(2, HookFails));
        Suite.Add("training: forgotten reducers and their functions", ForgottenHooks);
        Suite.Add("training: PowerSGD", () => Ranks.Run(2, Compressed));
        Suite.Add("training: errors of 8 bits", () => Ranks.Run(2, Errors));
        Suite.Add("training: what a rank does not use", () => Ranks.Run(2, Unused));
        Suite.Add("training: a gradient as rows", () => Ranks.Run(2, AsRows));
        Suite.Add("training: gradients in memory of one's own", () => Ranks.Run(2, InOwnMemory));
#if DT_SPAN
        Suite.Add("training: a gradient that is too long for a span", LongGradient);
#endif
        Suite.Add("training: a refused finish keeps the gradients", RefusedFinish);
        Suite.Add("training: memory lent to a reducer", LentMemory);
        Suite.Add("training: a reducer closed while it finishes", ClosedFinishing);
        Suite.Add("training: models that differ", Differ);
        Suite.Add("training: data and samplers that differ", DataDiffer);
        Suite.Add("training: parameters that diverge", Diverge);
        // A group of its own: it needs SHA-256, which .NET Core 3.1 takes from OpenSSL 1.
        Suite.Add("vectors: the sampler equals them", Vectors);
        Suite.Add("training: sampler ranges and bad arguments", SamplerArguments);
        Suite.Add("training: sampler of many indices", ManyIndices);
        Suite.Add("training: sampler of blocks and weights", SamplerOrders);
        Suite.Add("training: sampler in batches", SamplerBatches);
        Suite.Add("training: sampler resumed on other ranks", SamplerResumed);
    }

    static float Gradient(int rank, int parameter, int i)
    {
        return rank + 4 * parameter + 8 * (i % 16);
    }

    static void Means(Ranks each)
    {
        Param[] parameters = { new Param(1000, Dtype.F32, "a"), new Param(300, Dtype.F32, "b"), new Param(5, Dtype.F64, "c") };
        ReducerOptions options = new ReducerOptions { BucketCapBytes = 2048, FirstBucketBytes = 1024 };
        float mean = (each.size - 1) / 2f;
        using (Reducer reducer = new Reducer(each.world, parameters, options))
        {
            for (int step = 0; step < 5; ++step)
            {
                float[][] gradients = new float[2][];
                double[] last = { each.rank, 1, 2, 3, 4 };
                for (int p = 1; p >= 0; --p)
                {
                    gradients[p] = new float[parameters[p].Count];
                    for (int i = 0; i < gradients[p].Length; ++i) gradients[p][i] = Gradient(each.rank, p, i);
                    reducer.Ready(p, gradients[p]);
                    GC.Collect(0);
                }
                reducer.Ready(2, last);
                reducer.Finish();
                for (int p = 0; p < 2; ++p)
                {
                    for (int i = 0; i < gradients[p].Length; ++i)
                    {
                        Suite.Check(Math.Abs(Gradient(0, p, i) + mean - gradients[p][i]) < 1e-3, "mean of " + p);
                    }
                }
                Suite.Check(Math.Abs(mean - last[0]) < 1e-9, "mean in f64");
            }
            ReducerStatistics statistics = reducer.Statistics;
            Suite.Equal(5L, statistics.Steps, "steps");
            Suite.Equal(1300L * 4 + 5 * 8, statistics.Bytes, "bytes");
            Suite.Check(statistics.Rebuilt, "rebuilt by arrival");
            Suite.Check(statistics.HiddenShare >= 0 && statistics.HiddenShare <= 1, "share");
        }
        using (Reducer reducer = new Reducer(each.world, parameters, options))
        {
            for (int step = 0; step < 3; ++step)
            {
                for (int p = 0; p < 3; ++p) InPlace(each, reducer, p, parameters[p]);
                reducer.Finish();
                float[] found = new float[1000];
                Marshal.Copy(reducer.Gradient(0), found, 0, found.Length);
                for (int i = 0; i < found.Length; ++i)
                {
                    Suite.Check(Math.Abs(Gradient(0, 0, i) + mean - found[i]) < 1e-3, "mean in place");
                }
                bool changed = reducer.Rebuild();
                Suite.Check(step > 0 ? !changed : true, "the order does not change again");
            }
            Suite.Check(reducer.Bucket(0) >= 0, "bucket");
        }
    }

    static void InPlace(Ranks each, Reducer reducer, int p, Param parameter)
    {
        if (parameter.Dtype == Dtype.F32)
        {
            float[] values = new float[parameter.Count];
            for (int i = 0; i < values.Length; ++i) values[i] = Gradient(each.rank, p, i);
            Marshal.Copy(values, 0, reducer.Gradient(p), values.Length);
#if DT_SPAN
            Suite.Equal(values[3], reducer.GradientSpan<float>(p)[3], "through a span");
            Suite.Throws<DtInvalidArgumentException>(() => reducer.GradientSpan<double>(p).ToString(), "F64");
#endif
        }
        else
        {
            Marshal.Copy(new double[parameter.Count], 0, reducer.Gradient(p), (int)parameter.Count);
        }
        reducer.Ready(p);
    }

    static void Unused(Ranks each)
    {
        Param[] parameters = { new Param(4), new Param(2), new Param(1) };
        using (Reducer reducer = new Reducer(each.world, parameters))
            Suite.Throws<DtInvalidStateException>(() => reducer.Unused(0), "Unused: parameter #0", "find_unused");
        using (Reducer reducer = new Reducer(each.world, parameters, new ReducerOptions { FindUnused = true }))
        {
            UsedInEachStep(each, reducer);
            Suite.Equal(2, reducer.Active, "ranks with gradients");
        }
        using (Reducer reducer = new Reducer(each.world, parameters, new ReducerOptions { StaticGraph = true }))
            UsedInEachStep(each, reducer);
    }

    static void UsedInEachStep(Ranks each, Reducer reducer)
    {
        float[] both = { 6, 6, 6, 6 }, one = { 6, 6 };
        for (int step = 0; step < 3; ++step)
        {
            one[0] = one[1] = 6;
            reducer.Ready(0, both);
            if (each.rank == 1) reducer.Ready(1, one); else reducer.Unused(1, one);
            reducer.Finish();  // nobody has the third
            Suite.Equal(6f, both[3], "used by both");
            Suite.Equal(3f, one[1], "used by one");
            Suite.Equal(true, reducer.Used(1), "used");
            Suite.Equal(false, reducer.Used(2), "used by nobody");
        }
    }

    static void AsRows(Ranks each)
    {
        using (Reducer reducer = new Reducer(each.world, new[] { new Param(20, name: "table") },
            new ReducerOptions { RowElements = new long[] { 2 } }))
        {
            float[] values = { 1, 2, 10, 20, 3, 4 }, means;
            reducer.ReadyRows(0, new long[] { 3, each.rank, 3 }, values);
            reducer.Finish();
            Suite.Equal("0 1 3", string.Join(" ", reducer.Rows(0, out means)), "rows");
            Suite.Equal(10f, means[1], "of one rank");
            Suite.Equal(4f, means[4], "of both");
            Suite.Throws<DtInvalidArgumentException>(() => reducer.ReadyRows(0, new long[1], values), "6 elements",
                "1 rows of 2");
        }
    }

    static void InOwnMemory(Ranks each)
    {
        float[] flat = new float[6];
        ReducerOptions options = new ReducerOptions
        {
            Gradients = new[] { Tensor.Of(flat).Slice(0, 4), Tensor.Of(flat).Slice(4, 2), default(Tensor) }
        };
        Param[] parameters = { new Param(4), new Param(2), new Param(0) };
        using (Reducer reducer = new Reducer(each.world, parameters, options))
        {
            for (int step = 0; step < 3; ++step)
            {
                for (int i = 0; i < flat.Length; ++i) flat[i] = each.rank + step;
                for (int i = 0; i < 3; ++i) reducer.Ready(i);
                reducer.Finish();
                Suite.Equal(step + 0.5f, flat[0], "the first");
                Suite.Equal(step + 0.5f, flat[5], "the last");
            }
            Suite.Equal(0L, reducer.Statistics.MemoryBytes, "memory of dt");
        }
        options.Gradients[1] = Tensor.Of(flat).Slice(3, 2);
        Suite.Throws<DtInvalidArgumentException>(() => new Reducer(each.world, parameters, options), "share memory");
        options.Gradients[1] = Tensor.Of(flat).Slice(4, 1);
        Suite.Throws<DtInvalidArgumentException>(() => new Reducer(each.world, parameters, options),
            "Gradients[1] has 1 elements of F32; give 2 of F32");
        Suite.Throws<DtInvalidArgumentException>(
            () => new Shard(each.world, parameters, new ShardOptions { Reducer = options }), "Gradients is set");
    }

#if DT_SPAN
    /// It has an address, and is never touched.
    static void LongGradient() => Ranks.Alone((job, world) =>
    {
        const long Count = 1L << 31;
        using (Memory memory = world.Allocate<byte>(1))
        {
            ReducerOptions options = new ReducerOptions
            {
                Sum = true, Gradients = new[] { new Tensor(memory.Address, Count, Dtype.U8) }
            };
            using (Reducer reducer = new Reducer(world, new[] { new Param(Count, Dtype.U8) }, options))
            {
                Suite.Throws<DtInvalidArgumentException>(() => reducer.GradientSpan<byte>(0).Clear(),
                    "GradientSpan: there are 2147483648 elements", "use the address: Gradient");
            }
        }
    });
#endif

    static void Accumulated(Ranks each)
    {
        Param[] parameters = { new Param(2), new Param(3, uses: 2) };
        using (Reducer reducer = new Reducer(each.world, parameters))
        {
            float[] once = { each.rank, each.rank }, twice = { 1, 1, 1 };
            reducer.Accumulate(true);
            reducer.Ready(0, once);
            for (int i = 0; i < each.rank; ++i) reducer.Ready(1, twice);
            Suite.Throws<DtInvalidStateException>(() => reducer.Finish(), "accumulate");
            reducer.Accumulate(false);
            reducer.Ready(0, once);
            reducer.Ready(1, twice);
            reducer.Ready(1, twice);
            reducer.Finish();
            Suite.Equal(1f, once[1], "two passes");
            Suite.Equal(2.5f, twice[2], "two parts and a pass");
        }
    }

    static void Norm(Ranks each)
    {
        Param[] parameters = { new Param(4), new Param(2) };
        ReducerOptions options = new ReducerOptions { FindUnused = true, DivideByUsers = true, Wire = Wire.BF16, Predivide = 2 };
        using (Reducer reducer = new Reducer(each.world, parameters, options))
        {
            float[] both = { 3, 3, 3, 3 }, one = { 5, 5 };
            reducer.Ready(0, both);
            if (each.rank == 1) reducer.Ready(1, one); else reducer.Unused(1, one);
            reducer.Finish();
            Suite.Equal(3f, both[3], "used by both");
            Suite.Equal(5f, one[1], "used by one");
            double norm = Math.Sqrt(4 * 9 + 2 * 25);
            Suite.Check(Math.Abs(reducer.ClipNorm(1) - norm) < 1e-4, "the norm");
            Suite.Check(Math.Abs(one[1] - 5 / norm) < 1e-4, "it is clipped");
            Suite.Equal((double)one[0], reducer.ClipNorm(1, double.PositiveInfinity), "the largest");
        }
        using (Reducer reducer = new Reducer(each.world, parameters, new ReducerOptions { Order = new[] { 0, 1 } }))
            Suite.Equal("0,1", string.Join(",", reducer.Order), "the order");
        Suite.Throws<DtInvalidArgumentException>(
            () => new Reducer(each.world, parameters, new ReducerOptions { Predivide = -1 }), "predivide");
        options = new ReducerOptions { BucketCapBytes = 1024, FirstBucketBytes = 1024, TuneSteps = 3 };
        using (Reducer reducer = new Reducer(each.world, new[] { new Param(256), new Param(256) }, options))
        {
            while (!reducer.Statistics.Tuned)
            {
                for (int p = 0; p < 2; ++p) reducer.Ready(p, new float[256]);
                reducer.Finish();
            }
            Suite.Equal(0L, 4096 % reducer.Statistics.BucketCapBytes, "the size that was found");
        }
    }

    static void Compressed(Ranks each)
    {
        using (Reducer reducer = new Reducer(each.world, new[] { new Param(64), new Param(3) }))
        {
            reducer.PowerSgd(new long[] { 8, 0 });
            float[] matrix = new float[64];
            for (int i = 0; i < 64; ++i) matrix[i] = (i / 8 + 1) * (i % 8 - 3) * (each.rank + 1);
            reducer.Ready(0, matrix);
            reducer.Ready(1, new float[3]);
            reducer.Finish();
            for (int i = 0; i < 64; ++i)
                Suite.Check(Math.Abs(matrix[i] - (i / 8 + 1) * (i % 8 - 3) * 1.5) < 1e-3, "of rank 1");
            reducer.PowerSgd(new long[] { 8, 0 }, wire: Wire.BF16);
            float[] vector = { 1.001f, 1.001f, 1.001f };
            reducer.Ready(0, matrix);
            reducer.Ready(1, vector);
            reducer.Finish();
            Suite.Equal(1f, vector[2], "in 16 bits");
            Suite.Throws<DtInvalidArgumentException>(() => reducer.PowerSgd(new long[] { 8 }), "rows", "2 parameters");
        }
    }

    static float LastOfStep(Reducer reducer, int rank)
    {
        float[] gradient = new float[70];
        for (int i = 0; i < 70; ++i) gradient[i] = 1 + i / 7f + rank;
        reducer.Ready(0, gradient);
        reducer.Finish();
        return gradient[68];
    }

    static void Errors(Ranks each)
    {
        Param[] parameters = { new Param(70) };
        ReducerOptions options = new ReducerOptions { Wire = Wire.Bits8 };
        string path = Path.GetTempFileName();
        using (Reducer reducer = new Reducer(each.world, parameters, options))
        using (Reducer resumed = new Reducer(each.world, parameters, options))
        using (Reducer plain = new Reducer(each.world, parameters))
        {
            LastOfStep(reducer, each.rank);
            reducer.Save(path);
            resumed.Load(path);
            Suite.Equal(LastOfStep(reducer, each.rank), LastOfStep(resumed, each.rank), "behind Load()");
            Suite.Throws<DtMismatchException>(() => plain.Load(path), "with compression \"8 bits\"");
        }
        File.Delete(path);
    }

    /// The works of a hook in a step that fails.
    static void HookFails(Ranks each)
    {
        WeakReference[] works = new WeakReference[40];
        using (Comm part = each.world.Split(0))
        using (Reducer reducer = FailedStep(part, works))
        {
            Suite.Collect();
            int left = 0;
            foreach (WeakReference work in works) left += work.IsAlive ? 1 : 0;
            Suite.Check(left < 10, "of 40 works " + left + " are kept");
            Suite.Throws<DtException>(() => reducer.Finish());
        }
    }

    /// On a thread of its own: Mono takes what looks like a pointer on a stack for one.
    static Reducer FailedStep(Comm comm, WeakReference[] works)
    {
        Param[] parameters = new Param[works.Length];
        for (int i = 0; i < works.Length; ++i) parameters[i] = new Param(1000);
        Reducer reducer = new Reducer(comm, parameters, new ReducerOptions { BucketCapBytes = 4000, FirstBucketBytes = 4000 });
        int count = 0;
        reducer.SetHook((bucket, stage) =>
        {
            if (stage == 1) throw new TimeZoneNotFoundException("in finish");
            Work work = comm.AllReduceAsync(bucket.Data);
            works[count++] = new WeakReference(work);
            return work;
        });
        Exception failure = null;
        Thread thread = new Thread(() =>
        {
            try
            {
                for (int i = works.Length - 1; i >= 0; --i) reducer.Ready(i, new float[1000]);
                reducer.Finish();
            }
            catch (Exception error)
            {
                failure = error;
            }
        });
        thread.Start();
        thread.Join();
        Suite.Check(failure is TimeZoneNotFoundException, "what the hook has thrown: " + failure);
        Suite.Equal(works.Length, count, "buckets");
        return reducer;
    }

    static void ForgottenHooks() => Ranks.Alone((job, world) =>
    {
        WeakReference[] reducers = new WeakReference[40];
        Thread other = new Thread(() =>  // whose stack keeps nothing
        {
            for (int i = 0; i < reducers.Length; ++i) reducers[i] = HookOfItsReducer(world);
        });
        other.Start();
        other.Join();
        Suite.WaitForGarbage(reducers, "the reducers");
    });

    static WeakReference HookOfItsReducer(Comm world)
    {
        Reducer reducer = new Reducer(world, new[] { new Param(1) });
        int called = 0;
        reducer.SetHook((bucket, stage) =>
        {
            called += reducer.Bucket(0) + 1;
            return null;
        });
        Suite.Collect();
        reducer.Ready(0, new float[1]);
        reducer.Finish();
        Suite.Equal(1, called, "calls");
        return new WeakReference(reducer);
    }

    static void Hooked(Ranks each)
    {
        List<string> calls = new List<string>();
        using (Reducer reducer = new Reducer(each.world, new[] { new Param(4), new Param(2) }))
        {
            reducer.SetHook((bucket, stage) =>
            {
                calls.Add(bucket.Index + " " + bucket.IsLast + " " + string.Join(",", bucket.Params) + " " + stage);
                return stage == 1 ? null : each.world.AllReduceAsync(bucket.Data);
            });
            float[] weight = { 1, 1, 1, 1 + each.rank }, bias = { 0, 0 };
            reducer.Ready(1, bias);
            reducer.Ready(0, weight);
            reducer.Finish();
            Suite.Equal(3f, weight[3], "the sum");
            Suite.Equal("0 True 1,0 0; 0 True 1,0 1", string.Join("; ", calls), "calls");
            reducer.SetHook((bucket, stage) =>
            {
                if (each.rank == 0) throw new TimeZoneNotFoundException("no more");
                return stage == 1 ? null : each.world.AllReduceAsync(bucket.Data);
            });
            reducer.Ready(1, bias);
            if (each.rank == 0)
            {
                Suite.Throws<TimeZoneNotFoundException>(() => reducer.Ready(0, weight), "no more");
                return;
            }
            Suite.Throws<DtException>(() =>
            {
                reducer.Ready(0, weight);
                reducer.Finish();
            }, "hook failed on rank 0, bucket 0, stage 0: it returned DT_ERR_ABORTED");
        }
    }

    static void SumsAndMissing()
    {
        Ranks.Run(2, each =>
        {
            Param[] parameters = { new Param(10, Dtype.F32, "weight"), new Param(4, Dtype.F32, "bias") };
            using (Reducer reducer = new Reducer(each.world, parameters, new ReducerOptions { Sum = true, KeepPlan = true }))
            {
                float[] weight = new float[10], bias = { 1, 2, 3, 4 };
                weight[9] = each.rank + 1;
                reducer.Ready(0, weight);
                Suite.Throws<DtInvalidStateException>(() => reducer.Ready(0, weight), "weight");
                if (each.rank == 0) reducer.Ready(1, bias);
                Suite.Throws<DtInvalidStateException>(() => reducer.Finish(), "bias", "1");
                weight = new float[10];
                weight[9] = each.rank + 1;
                reducer.Ready(1, bias);
                reducer.Ready(0, weight);
                reducer.Finish();
                Suite.Equal(3f, weight[9], "sum");
            }
        });
    }

    /// A gradient that the reducer alone keeps; made by a thread whose stack is gone afterwards.
    static WeakReference Lend(Reducer reducer, float value)
    {
        WeakReference lent = null;
        Thread thread = new Thread(() =>
        {
            float[] gradient = { value, 0, 0, 0 };
            lent = new WeakReference(gradient);
            reducer.Ready(0, gradient);
        });
        thread.Start();
        thread.Join();
        return lent;
    }

    /// Memory that the reducer alone keeps, and that is closed.
    static void LentMemory()
    {
        Ranks.Run(2, each =>
        {
            Param[] parameters = { new Param(4, Dtype.F32, "bias") };
            using (Reducer reducer = new Reducer(each.world, parameters))
            using (Dt.Memory read = each.world.Allocate<float>(4), few = each.world.Allocate<float>(3))
            {
                Suite.Throws<DtInvalidArgumentException>(() => reducer.Ready(0, few), "bias", "3", "4");
                Suite.Throws<DtInvalidArgumentException>(() => reducer.Ready(0, (float[])null), "null");
                Suite.Throws<DtInvalidArgumentException>(() => reducer.Ready(1, read));
                using (Dt.Memory gradient = each.world.Allocate<float>(4))
                {
                    gradient.Write(new float[] { 0, 0, 0, each.rank });
                    reducer.Ready(0, gradient);
                }
                Suite.Collect();
                reducer.Finish();
                read.Write(new float[] { 0, 0, 0, 2 * each.rank + 1 });
                reducer.Ready(0, read);
                reducer.Finish();
                float[] mean = new float[4];
                read.Read(mean);
                Suite.Equal(2f, mean[3], "mean");
            }
        });
    }

    static bool IsKept(WeakReference lent)
    {
        Suite.Collect();
        return lent.IsAlive;
    }

    static void RefusedFinish()
    {
        Ranks.Alone((job, world) =>
        {
            using (Reducer reducer = new Reducer(world, new Param[] { new Param(4) }))
            {
                WeakReference lent = Lend(reducer, 3);
                world.GroupBegin();
                Suite.Throws<DtInvalidStateException>(() => reducer.Finish());
                world.GroupEnd();
                Suite.Check(IsKept(lent), "the gradient stays while its step is open");
                reducer.Finish();
                Suite.Equal(1L, reducer.Statistics.Steps, "steps");
            }
        });
    }

    [DllImport("libc")]
    static extern int gettid();

    static bool Sleeps(int thread)
    {
        return File.ReadAllText("/proc/self/task/" + thread + "/stat").Contains(") S ");
    }

    static void ClosedFinishing()
    {
        Ranks.Run(2, each =>
        {
            Reducer reducer = new Reducer(each.world, new Param[] { new Param(4) });
            WeakReference lent = Lend(reducer, each.rank + 1);
            if (each.rank == 0)
            {
                Exception failure = null;
                int id = 0;
                Thread finishing = new Thread(() =>
                {
                    Volatile.Write(ref id, gettid());
                    try
                    {
                        reducer.Finish();
                    }
                    catch (Exception error)
                    {
                        failure = error;
                    }
                });
                finishing.Start();
                Suite.WaitFor(() => Volatile.Read(ref id) != 0, "the thread begins");
                int asleep = 0;  // looks in a row: it waits for its peer, and no longer for a lock
                Suite.WaitFor(() => (asleep = Sleeps(id) ? asleep + 1 : 0) == 100, "finish waits");
                reducer.Dispose();
                Suite.Throws<ObjectDisposedException>(() => reducer.Finish(), "Reducer was disposed of");
                Suite.Throws<ObjectDisposedException>(() => reducer.Ready(0, new float[4]));
                Suite.Check(IsKept(lent), "the gradient stays while finish runs");
                each.job.StoreSet("closed", new byte[0]);
                Suite.Check(finishing.Join(60000), "finish ends");
                Suite.Check(failure == null, "finish succeeds: " + failure);
            }
            else
            {
                each.job.StoreGet("closed");
                reducer.Finish();
                reducer.Dispose();
            }
        });
    }

    static void Differ()
    {
        Ranks.Run(2, each =>
        {
            using (Comm part = each.world.Split(0, 0))
            {
                Suite.Throws<DtMismatchException>(
                    () => new Reducer(part, new Param[] { new Param(3 + each.rank, Dtype.F32, "\u00e4") }), "\u00e4");
            }
            each.job.StoreBarrier("differ");
        });
    }

    // Rank 0 has (1, 10), rank 1 nothing, rank 2 (3, 30).
    static void BatchStatistics(Comm world)
    {
        float[][] rows = { new float[] { 1, 10 }, new float[0], new float[] { 3, 30 } };
        float[] own = rows[world.Rank];
        BatchMoments moments = world.BatchMoments(own, 2);
        Suite.Check(moments.Mean[0] == 2 && moments.Mean[1] == 20, "means");
        Suite.Check(moments.Variance[0] == 1 && moments.Variance[1] == 100, "variances");
        Suite.Check(moments.Count == 2, "elements of each channel");
        BatchGradientSums sums = world.BatchGradientSums(own, own, moments, 1, 0);
        Suite.Check(sums.Sum[0] == 4 && sums.Sum[1] == 40, "sums");
        Suite.Check(sums.Product[0] == 2 && sums.Product[1] == 20, "products");
        Suite.Throws<DtInvalidArgumentException>(() => world.BatchMoments(new double[4], 3),
            "has 4 elements, which are no whole samples of 3 channels x 1");
        Suite.Throws<DtInvalidArgumentException>(() => world.BatchMoments(new double[4], 0), "channels is 0");
        Suite.Throws<DtInvalidArgumentException>(() => world.BatchMoments(new int[4], 2), "dtype is i32");
        Suite.Throws<DtInvalidArgumentException>(
            () => world.BatchGradientSums(new double[2], new double[4], moments),
            "input has 2 elements of F64, but gradient 4 of F64");
        Suite.Throws<DtInvalidArgumentException>(
            () => world.BatchGradientSums(own, own, moments, 1, -1), "epsilon is -1");
        BatchStatisticsInTensors(world, moments);
    }

    // The same elements in 16 bits.
    static void BatchStatisticsInTensors(Comm world, BatchMoments moments)
    {
        BFloat16[][] rows =
        {
            new BFloat16[] { (BFloat16)1f, (BFloat16)10f }, new BFloat16[0],
            new BFloat16[] { (BFloat16)3f, (BFloat16)30f }
        };
        BFloat16[] own = rows[world.Rank];
        double[] mean = new double[2], variance = new double[2], sum = new double[2], product = new double[2];
        long[] count = new long[1];
        world.With(stream: IntPtr.Zero).BatchMoments(own, 2, mean, variance, count);
        Suite.Check(mean[0] == moments.Mean[0] && mean[1] == moments.Mean[1], "means in a tensor");
        Suite.Check(variance[0] == moments.Variance[0] && variance[1] == moments.Variance[1],
            "variances in a tensor");
        Suite.Check(count[0] == moments.Count, "the count in a tensor");
        world.BatchGradientSums(own, own, mean, variance, sum, product, 1, 0);
        Suite.Check(sum[0] == 4 && sum[1] == 40, "sums in a tensor");
        Suite.Check(product[0] == 2 && product[1] == 20, "products in a tensor");
        Suite.Throws<DtInvalidArgumentException>(() => world.BatchMoments(new double[0], 1 << 30),
            "channels is 1073741824");
        Suite.Throws<DtInvalidArgumentException>(
            () => world.BatchMoments(own, 2, mean, new double[3], count),
            "variance has 3 elements of F64; give 2 of F64");
        Suite.Throws<DtInvalidArgumentException>(
            () => world.BatchMoments(own, 2, mean, variance, new int[1]),
            "count has 1 elements of I32; give 1 of I64");
        Suite.Throws<DtInvalidArgumentException>(
            () => world.BatchGradientSums(own, own, mean, variance, new float[2], product),
            "sum has 2 elements of F32; give 2 of F64");
        Suite.Throws<DtInvalidArgumentException>(
            () => world.BatchGradientSums(own, own, mean, variance, sum, default(Tensor)), "product is null");
    }

    static void DataDiffer()
    {
        Ranks.Run(3, each =>
        {
            BatchStatistics(each.world);
            each.world.CheckEqual(new float[] { 1, 2, 3 }, "weights");
            each.world.CheckEqual(new long[0]);
            DtException error = Suite.Throws<DtMismatchException>(
                () => each.world.CheckEqual(new double[] { 1, each.rank == 2 ? 3 : 2 }, "ä"), "rank 2 (");
            Suite.Check(error.Message.Contains("ä"), "the name");
            Suite.Throws<DtInvalidArgumentException>(() => each.world.CheckEqual(new Tensor(new IntPtr(8), -1, Dtype.U8)), "count is -1");
            using (Sampler sampler = new Sampler(each.size, each.rank, 100, 7))
            using (Sampler other = new Sampler(each.size, each.rank, 100, each.rank))
            {
                sampler.Check(each.world);
                Suite.Throws<DtMismatchException>(() => other.Check(each.world), "has seed = 1");
                Suite.Throws<DtInvalidArgumentException>(() => sampler.Check(null), "comm");
            }
            each.world.Barrier();
        });
    }

    static void Diverge()
    {
        Ranks.Run(2, each =>
        {
            using (Memory memory = each.world.Allocate<float>(4))
            using (Reducer reducer = new Reducer(each.world, new Param[] { new Param(4, Dtype.F32, "weight") }))
            {
                float[] gradient = new float[4];
                float[] weight = { 1, 2, 3, 4 };
                reducer.Watch(0, weight);
                reducer.Ready(0, gradient);
                reducer.Finish();
                GC.Collect();
                if (each.rank == 1) weight[2] = 5;
                reducer.Ready(0, gradient);
                Suite.Throws<DtMismatchException>(() => reducer.Finish(), "#0 weight");
                reducer.Watch(0, memory);
                reducer.Ready(0, gradient);
                reducer.Finish();
                reducer.Watch(0, default(Tensor));
                reducer.Ready(0, gradient);
                reducer.Finish();
                Suite.Throws<DtInvalidArgumentException>(() => reducer.Watch(1, weight), "index");
            }
        });
    }

    /// Lines of numbers: world rank size seed epoch shuffle drop_last count, then the indices or "sha256" and the hash.
    static void Vectors()
    {
        string path = Path.Combine(AppDomain.CurrentDomain.BaseDirectory, "sampler_vectors.txt");
        int cases = 0;
        foreach (string line in File.ReadAllLines(path))
        {
            string[] words = line.Split(' ');
            using (Sampler sampler = new Sampler(int.Parse(words[0]), int.Parse(words[1]), long.Parse(words[2]),
                long.Parse(words[3]), words[5] == "0", words[6] == "1"))
            {
                sampler.SetEpoch(long.Parse(words[4]));
                Suite.Equal(long.Parse(words[7]), sampler.Length, "length in " + line);
                long[] indices = sampler.Indices();
                if (words.Length > 8 && words[8] == "sha256")
                {
                    Suite.Equal(words[9], Hash(indices), "hash in " + line);
                }
                else
                {
                    Suite.Equal(words.Length - 8, indices.Length, "indices in " + line);
                    for (int i = 0; i < indices.Length; ++i) Suite.Equal(long.Parse(words[8 + i]), indices[i], line);
                }
            }
            ++cases;
        }
        Suite.Check(cases > 300, cases + " cases are all");
    }

    static string Hash(long[] indices)
    {
        byte[] bytes = new byte[indices.Length * sizeof(long)];
        System.Buffer.BlockCopy(indices, 0, bytes, 0, bytes.Length);
        using (SHA256 sha = SHA256.Create())
        {
            return BitConverter.ToString(sha.ComputeHash(bytes)).Replace("-", "").ToLowerInvariant();
        }
    }

    /// More than pass through one array of bytes.
    static void ManyIndices()
    {
        const int Size = (5 << 19) + 3;
        using (Sampler sampler = new Sampler(1, 0, Size, 0, true))
        {
            long[] all = sampler.Indices(), part = sampler.Indices(7, Size - 8);
            Suite.Equal(Size, all.Length, "all");
            for (int i = 0; i < Size; ++i)
            {
                if (all[i] != i) Suite.Equal((long)i, all[i], "in order");
            }
            Suite.Equal(Size - 8, part.Length, "a part");
            for (int i = 0; i < part.Length; ++i)
            {
                if (part[i] != i + 7) Suite.Equal(i + 7L, part[i], "of a part");
            }
        }
    }

    static void SamplerArguments()
    {
        using (Sampler sampler = new Sampler(3, 1, 100, 5))
        {
            long[] all = sampler.Indices(), middle = sampler.Indices(10, 5);
            for (int i = 0; i < 5; ++i) Suite.Equal(all[10 + i], middle[i], "a range");
            Suite.Equal(0, sampler.Indices(34, 0).Length, "an empty range at the end");
            Suite.Throws<DtInvalidArgumentException>(() => sampler.Indices(30, 5));
            Suite.Throws<DtInvalidArgumentException>(() => sampler.Indices(-1, 5));
            Suite.Throws<DtInvalidArgumentException>(() => sampler.Indices(0, long.MaxValue));
            Suite.Throws<DtInvalidArgumentException>(() => sampler.SetEpoch(-1));
        }
        Suite.Throws<DtInvalidArgumentException>(() => new Sampler(0, 0, 10));
        Suite.Throws<DtInvalidArgumentException>(() => new Sampler(2, 2, 10));
    }

    static void SameIndices(long[] wanted, long[] got, string what)
    {
        Suite.Equal(string.Join(" ", wanted), string.Join(" ", got), what);
    }

    /// What tests/bindings/python/sampler_test.py works out.
    static void SamplerOrders()
    {
        using (Sampler blocks = Sampler.Blocks(1, 0, 10, 3, 4, 5))
        using (Sampler drawn = Sampler.Weighted(1, 0, new double[] { 0, 1, 2, 3 }, 8, 5))
        using (Sampler many = Sampler.Blocks(8, 7, 1000000000000, 1, 0, 5, true))
        {
            SameIndices(new long[] { 2, 1, 0, 6, 7, 8, 4, 3, 5, 9 }, blocks.Indices(), "blocks");
            SameIndices(new long[] { 3, 3, 3, 2, 1, 2, 2, 2 }, drawn.Indices(), "weights");
            Suite.Equal(125000000000, many.Length, "length of many");
            Suite.Equal(100, many.Next(100).Length, "of many");
        }
        Suite.Throws<DtInvalidArgumentException>(() => Sampler.Blocks(1, 0, 10, 0), "block is 0; it must be at least 1");
        Suite.Throws<DtInvalidArgumentException>(() => Sampler.Blocks(1, 0, 10, 1, -1), "Sampler: window is -1");
        Suite.Throws<DtInvalidArgumentException>(() => Sampler.Weighted(1, 0, null), "weights has no elements; give one");
        Suite.Throws<DtInvalidArgumentException>(() => Sampler.Weighted(1, 0, new double[] { 1, double.NaN }),
            "Sampler: weights[1] is nan; weights are finite and >= 0");
    }

    static void SamplerBatches()
    {
        using (Sampler sampler = new Sampler(3, 1, 100, 4))
        {
            for (int epoch = 0; epoch < 2; ++epoch)
            {
                sampler.SetEpoch(epoch);
                List<long> joined = new List<long>();
                foreach (long[] batch in sampler.Batches(8))
                {
                    Suite.Equal(Math.Min(8, 34 - joined.Count), batch.Length, "of a batch");
                    joined.AddRange(batch);
                }
                SameIndices(sampler.Indices(), joined.ToArray(), "batches");
            }
            Suite.Throws<DtInvalidStateException>(() => sampler.Next(1), "rank 1 has taken its 34 samples of epoch 1",
                "go on with SetEpoch()");
            sampler.SetEpoch(2);
            Suite.Throws<DtInvalidArgumentException>(() => sampler.Next(0), "count is 0");
            Suite.Throws<DtInvalidArgumentException>(() => sampler.Next(1 << 28), "at most 134217728");
            Suite.Equal(34, sampler.Next(1 << 27).Length, "all at once");
        }
        using (Sampler whole = new Sampler(3, 1, 100, 4, wholeBatches: true))
        {
            int count = 0;
            foreach (long[] batch in whole.Batches(8)) count += batch.Length == 8 ? 1 : 100;
            Suite.Equal(4, count, "whole batches");
        }
    }

    static void SamplerResumed()
    {
        SamplerState state;
        long[] order;
        using (Sampler sampler = new Sampler(1, 0, 100, 4))
        {
            sampler.SetEpoch(7);
            order = sampler.Indices();
            sampler.Next(20);
            Suite.Equal(3L, sampler.Save(3).Consumed, "consumed of what was used");
            state = sampler.Save();
            Suite.Equal(7L, state.Epoch, "epoch");
            Suite.Equal(20L, state.Consumed, "consumed");
            Suite.Throws<DtInvalidArgumentException>(() => sampler.Save(101), "taken is 101");
            Suite.Throws<DtInvalidArgumentException>(() => sampler.Resume(null), "state is null");
        }
        for (int rank = 0; rank < 3; ++rank)
        {
            using (Sampler sampler = new Sampler(3, rank, 100, 4))
            {
                sampler.Resume(new SamplerState(7, 20, state.Size, state.Order));
                sampler.SetEpoch(7);
                long[] part = sampler.Next(100);
                Suite.Equal(27, part.Length, "rest");
                for (int i = 0; i < 27; ++i) Suite.Equal(order[(20 + rank + 3 * i) % 100], part[i], "of the rest");
                Suite.Equal(100L, sampler.Save().Consumed, "consumed in the end");
            }
        }
        using (Sampler other = new Sampler(1, 0, 100, 5))
        {
            Suite.Throws<DtInvalidArgumentException>(() => other.Resume(state), "another seed or another order");
        }
    }
}
