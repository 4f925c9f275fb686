// SPDX-License-Identifier: Apache-2.0
using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Runtime.InteropServices;
using Dt;

/// Parameters that each rank updates a part of.
static class ShardTests
{
    const int Steps = 4;
    const double Rate = 0.01;
    static readonly IntPtr anyStream = new IntPtr(12345);  // over host memory it is ignored
    static readonly int[] units = { 0, 0, 1, 1 };
    static readonly double[] decays = { 0.1, 0, 0.05, 0 };
    static readonly Param[] parameters =
    {
        new Param(600, Dtype.F32, "embedding", shape: new long[] { 20, 30 }), new Param(1, Dtype.F32, "bias"),
        new Param(1000, Dtype.F32, "weight"), new Param(0, Dtype.F32, "none")
    };

    internal static void Add()
    {
        Suite.Add("shard: stages and sizes end with the same bits", () => Ranks.Run(2, Same));
        Suite.Add("shard: pieces and their memory", () => Ranks.Run(2, Pieces));
        Suite.Add("shard: gradients in their places, and whole ones, in each stage",
            () => Ranks.Run(2, InPlace));
        Suite.Add("shard: what is refused", () => Ranks.Run(2, Refusals));
        Suite.Add("shard: what was disposed of", () => Ranks.Alone((job, world) => Closed(world)));
        Suite.Add("shard: AdamW computes its formula", AdamW);
        Suite.Add("shard: SGD computes its formula", Sgd);
        Suite.Add("shard: what an optimizer refuses", () => Ranks.Run(1, OptimizerRefusals));
        Suite.Add("shard: optimizers that were disposed of", () => Ranks.Run(1, ClosedOptimizer));
        Suite.Add("shard: checkpoints go on to the same bits",
            () => InFolder(file => Ranks.Run(2, each => Resumed(each, file))));
        Suite.Add("shard: what checkpoints refuse",
            () => InFolder(file => Ranks.Run(1, each => CheckpointRefusals(each, file))));
    }

    static void Same(Ranks each)
    {
        float[] plain = Train(each, new ShardOptions { Stage = 0, Units = units });
        for (int stage = 0; stage <= 3; ++stage)
        {
            foreach (long bytes in new long[] { 1, 1024, 1 << 20 })
            {
                foreach (long[] granules in new long[][] { null, new long[] { 64, 0, 100, 0 } })
                {
                    float[] cut = Train(each, new ShardOptions
                    {
                        Stage = stage,
                        Reducer = new ReducerOptions { BucketCapBytes = bytes },
                        Granules = granules,
                        Units = units
                    });
                    string what = "stage " + stage + ", " + bytes + " bytes, element ";
                    for (int i = 0; i < plain.Length; ++i) Suite.Equal(plain[i], cut[i], what + i);
                }
            }
        }
    }

    /// SGD with momentum. All parameters, and the norms of the steps: the same on all ranks.
    static float[] Train(Ranks each, ShardOptions options)
    {
        List<float> result = new List<float>();
        using (Shard shard = new Shard(each.world, parameters, options))
        {
            Reducer reducer = shard.Reducer;
            float[][] momentum = new float[parameters.Length][];
            for (int p = 0; p < parameters.Length; ++p)
            {
                momentum[p] = new float[parameters[p].Count];
                shard.Set(p, Drawn(0, p));
            }
            for (int step = 1; step <= Steps; ++step)
            {
                float[][] gradients = new float[parameters.Length][];
                for (int p = 0; p < gradients.Length; ++p)
                {
                    shard.Gather(units[p], anyStream);
                    gradients[p] = Read(shard.Parameter(p), parameters[p].Count);
                    for (int i = 0; i < gradients[p].Length; ++i)
                    {
                        gradients[p][i] += Draw(step, each.rank, p, i);
                    }
                    shard.Release(units[p], anyStream);
                }
                for (int p = gradients.Length; p-- > 0;)
                {
                    shard.Gather(units[p]);
                    if (p == 2)
                    {
                        IntPtr place = reducer.Gradient(p, anyStream);
                        Marshal.Copy(gradients[p], 0, place, gradients[p].Length);
                        reducer.Ready(p);
                    }
                    else
                    {
                        reducer.Ready(p, gradients[p]);
                    }
                }
                reducer.Finish();
                result.Add((float)reducer.ClipNorm(1.5));
                for (int p = 0; p < gradients.Length; ++p)
                {
                    Piece piece = shard.Piece(p, anyStream);
                    Shard.Part planned = shard.Plan(p)[each.world.Rank];
                    Suite.Equal(piece.Offset, planned.Offset, "the plan's offset");
                    Suite.Equal(piece.Count, planned.Count, "the plan's count");
                    Update(piece, momentum[p]);
                }
                shard.Updated(anyStream);
            }
            Gather(shard, result);
        }
        float[] all = result.ToArray();
        each.world.CheckEqual(all, "the result");
        return all;
    }

    static void Update(Piece piece, float[] momentum)
    {
        float[] values = Read(piece.Parameter, piece.Count);
        float[] gradient = Read(piece.Gradient, piece.Count);
#if DT_SPAN
        Suite.Equal(piece.Count, (long)piece.ParameterSpan<float>().Length, "span of a piece");
        for (int i = 0; i < gradient.Length; ++i)
        {
            Suite.Equal(gradient[i], piece.GradientSpan<float>()[i], "through a span");
        }
#endif
        for (int i = 0; i < values.Length; ++i)
        {
            float one = 0.9f * momentum[piece.Offset + i] + gradient[i];
            momentum[piece.Offset + i] = one;
            values[i] -= 0.1f * one;
        }
        if (piece.Count > 0) Marshal.Copy(values, 0, piece.Parameter, values.Length);
    }

    static void Gather(Shard shard, List<float> result)
    {
        for (int p = 0; p < parameters.Length; ++p)
        {
            shard.Gather(units[p]);
            result.AddRange(Read(shard.Parameter(p), parameters[p].Count));
            shard.Release(units[p]);
        }
    }

    static float[] Gathered(Shard shard)
    {
        List<float> result = new List<float>();
        Gather(shard, result);
        return result.ToArray();
    }

    static float[] Read(IntPtr address, long count)
    {
        float[] values = new float[count];
        if (count > 0) Marshal.Copy(address, values, 0, values.Length);
        return values;
    }

    /// The same in each run; sums of them are rounded.
    static float Draw(int step, int rank, int parameter, int i)
    {
        ulong x = (ulong)(step * 64 + rank) << 40 | (ulong)parameter << 20 | (ulong)i;
        x *= 0x9e3779b97f4a7c15;
        x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9;
        return (x >> 40) / 16777216f - 0.5f;
    }

    /// Of all elements, the same on all ranks.
    static float[] Drawn(int step, int parameter)
    {
        float[] values = new float[parameters[parameter].Count];
        for (int i = 0; i < values.Length; ++i) values[i] = Draw(step, 0, parameter, i);
        return values;
    }

    static float[] Filled(int count, float value)
    {
        float[] values = new float[count];
        for (int i = 0; i < count; ++i) values[i] = value;
        return values;
    }

    static void Pieces(Ranks each)
    {
        const int Count = 1024, Half = Count / 2;
        using (Shard shard = new Shard(each.world, new Param[] { new Param(Count) }))
        {
            Piece piece = shard.Piece(0);
            Suite.Equal((long)each.rank * Half, piece.Offset, "offset");
            Suite.Equal((long)Half, piece.Count, "count");
            Suite.Equal(Dtype.F32, piece.Dtype, "dtype");
            Suite.Equal(IntPtr.Zero, piece.Gradient, "there was no step");
            Suite.Equal(0L, shard.Parameter(0).ToInt64() % 256, "alignment");
            Suite.Equal(0f, Read(shard.Parameter(0), Count)[0], "parameters are zeros");
            // Each rank has other values, and then all have what the pieces' owners have.
            shard.Set(0, Filled(Count, each.rank + 1));
            shard.Updated();
            shard.Gather(0);
            float[] whole = Read(shard.Parameter(0), Count);
            for (int i = 0; i < Count; ++i) Suite.Equal(i < Half ? 1f : 2f, whole[i], "gathered");
#if DT_SPAN
            Suite.Equal(2f, shard.ParameterSpan<float>(0)[Half], "through a span");
            Invalid(() => shard.ParameterSpan<double>(0).ToString(), "F32", "F64");
            Invalid(() => piece.ParameterSpan<int>().ToString(), "I32");
            Suite.Check(piece.GradientSpan<float>().IsEmpty, "there was no step");
#endif
            // A reducer may go before its shard, which keeps the gradients.
            float[] gradient = Filled(Count, each.rank);
#if DT_SPAN
            shard.Reducer.Ready(0, new ReadOnlyMemory<float>(gradient));
#else
            shard.Reducer.Ready(0, gradient);
#endif
            shard.Reducer.Finish();
            Suite.Equal((float)each.rank, gradient[0], "it stays as it is");
            shard.Reducer.Dispose();
            Gone(() => shard.Reducer.Finish(), "Reducer");
            Suite.Equal(0.5f, Read(shard.Piece(0).Gradient, Half)[Half - 1], "the mean");
        }
        ShardOptions rows = new ShardOptions { Granules = new long[] { 10 } };
        using (Shard shard = new Shard(each.world, new Param[] { new Param(10) }, rows))
        {
            Piece piece = shard.Piece(0);
            Suite.Check(piece.Count == 0 || piece.Count == 10, "in one piece");
            if (piece.Count == 0) Suite.Equal(IntPtr.Zero, piece.Parameter, "there is none");
        }
    }

    static void InPlace(Ranks each)
    {
        for (int stage = 0; stage <= 3; ++stage)
        {
            ShardOptions options = new ShardOptions
            {
                Stage = stage,
                Reducer = new ReducerOptions { BucketCapBytes = 1 },
                Units = units
            };
            using (Shard shard = new Shard(each.world, parameters, options))
            {
                Suite.Check(shard.Reducer.Statistics.BucketCount > 2, "several buckets");
                IntPtr[] places = new IntPtr[parameters.Length];
                for (int step = 1; step <= 3; ++step)
                {
                    if (step > 1) Rebuilt(shard, stage, places);
                    for (int p = parameters.Length; p-- > 0;)
                    {
                        places[p] = shard.Reducer.Gradient(p);
                        float[] gradient = new float[parameters[p].Count];
                        for (int i = 0; i < gradient.Length; ++i)
                        {
                            gradient[i] = Draw(step, each.rank, p, i);
                        }
                        Marshal.Copy(gradient, 0, places[p], gradient.Length);
                        shard.Reducer.Ready(p);
                    }
                    shard.Reducer.Finish();
                    for (int p = 0; p < parameters.Length; ++p) Whole(each.world, shard, step, p);
                    shard.Updated();
                }
            }
        }
    }

    /// It changes nothing, and an earlier step's places stay refused.
    static void Rebuilt(Shard shard, int stage, IntPtr[] places)
    {
        long bytes = shard.Reducer.Statistics.MemoryBytes;
        Suite.Check(!shard.Reducer.Rebuild(), "the plan stays");
        Suite.Equal(bytes, shard.Reducer.Statistics.MemoryBytes, "memory");
        if (stage < 2) return;
        Suite.Throws<DtInvalidStateException>(() => shard.Reducer.Ready(2),
            "Gradient gave no place for its gradient in this step");
        Tensor stale = new Tensor(places[0], parameters[0].Count, Dtype.F32);
        Suite.Throws<DtException>(() => shard.Reducer.Ready(0, stale),
            "Gradient gave", "call it in each step");
    }

    /// The mean of the ranks' gradients, in a part of an array.
    static void Whole(Comm world, Shard shard, int step, int parameter)
    {
        int count = (int)parameters[parameter].Count;
        float[] whole = new float[count + 2];
        shard.FullGradient(parameter, Tensor.Of(whole).Slice(1, count));
        for (int i = 0; i < count; ++i)
        {
            float mean = (Draw(step, 0, parameter, i) + Draw(step, 1, parameter, i)) / 2;
            Suite.Check(Math.Abs(whole[i + 1] - mean) <= 1e-6, whole[i + 1] + " is near " + mean);
        }
        Suite.Equal(0f, whole[0] + whole[count + 1], "behind the ends");
        world.CheckEqual(whole, "a whole gradient");
    }

    static void Invalid(Action call, params string[] texts)
    {
        Suite.Throws<DtInvalidArgumentException>(call, texts);
    }

    static void Gone(Action call, string what)
    {
        Suite.Throws<ObjectDisposedException>(call, what + " was disposed of");
    }

    static void Refused(Ranks each, ShardOptions options, params string[] texts)
    {
        Invalid(() => new Shard(each.world, parameters, options), texts);
    }

    static void Refusals(Ranks each)
    {
        Refused(each, new ShardOptions { Stage = 4 }, "Shard: stage is 4; it must be in [0, 3]");
        Refused(each, new ShardOptions { Prefetch = -1 }, "Shard: prefetch is -1");
        Refused(each, new ShardOptions { ShardRanks = 3 }, "is 3; it must be 0 or divide the 2");
        Refused(each, new ShardOptions { Offload = "" }, "Shard: offload is empty");
        Refused(each, new ShardOptions { Units = new int[] { 0, -1, 0, 0 } }, "units[1] is -1");
        Refused(each, new ShardOptions { Granules = new long[] { 0, 0, -5, 0 } },
            "granules[2] is -5");
        Refused(each, new ShardOptions { Units = new int[] { 0, 1 } },
            "Shard: Units has 2 numbers for 4 parameters");
        Refused(each, new ShardOptions { Granules = new long[1] }, "Granules");
        Invalid(() => new Shard(null, parameters), "Shard: comm is null");
        Invalid(() => new Shard(each.world, null), "Shard: parameters is null");
        Param[] other = { new Param(4 + each.rank, Dtype.F32, "bias") };
        Suite.Throws<DtMismatchException>(() => new Shard(each.world, other), "bias");
        using (Shard shard = new Shard(each.world, parameters, new ShardOptions { Units = units }))
        {
            Invalid(() => shard.Gather(7),
                "Gather: unit is 7, which no parameter has");
            Invalid(() => shard.Parameter(4), "Parameter: index is 4");
            Invalid(() => shard.Piece(-1), "Piece: index is -1");
            Invalid(() => shard.Plan(-1), "Plan: index is -1");
            Param odd = new Param(5, Dtype.F32, "w", shape: new long[] { 2, 3 });
            Invalid(() => new Shard(each.world, new[] { odd }).Dispose(), "(w) cannot have the shape (2, 3): it has 5");
            Invalid(() => shard.Set(4, new float[1]), "Set: index is 4");
            Invalid(() => shard.Set(1, (float[])null), "Set: values is null");
            Invalid(() => shard.Set(2, new float[2]), "weight", "2", "1000");
            Invalid(() => shard.Set(1, new double[1]), "F64");
            Suite.Throws<DtInvalidStateException>(() => shard.FullGradient(1, new float[1]),
                "FullGradient on comm \"world\": there are no gradients; call it between Finish");
            Invalid(() => shard.FullGradient(4, new float[1]), "FullGradient: index is 4");
            Invalid(() => shard.FullGradient(1, (float[])null), "FullGradient: output is null");
            Invalid(() => shard.FullGradient(2, new float[2]),
                "FullGradient: the buffer of parameter 2 (weight) is 2 elements", "1000");
            Invalid(() => shard.FullGradient(1, new double[1]), "F64");
            shard.Updated();
            shard.Gather(0);
        }
    }

    static void Closed(Comm world)
    {
        Shard shard = new Shard(world, new Param[] { new Param(4) });
        Reducer reducer = shard.Reducer;
        Piece piece = shard.Piece(0);
        shard.Dispose();
        shard.Dispose();
        Action[] calls =
        {
            () => shard.Updated(), () => shard.Gather(0), () => shard.Release(0), () => shard.Parameter(0),
            () => shard.Piece(0), () => shard.Set(0, new float[4]),
            () => shard.FullGradient(0, new float[4]),
            () => shard.Save("/nowhere/x"), () => shard.Load("/nowhere/x"),
            () => piece.Parameter.ToInt64(), () => piece.Gradient.ToInt64(),
#if DT_SPAN
            () => piece.ParameterSpan<float>().Clear(), () => shard.ParameterSpan<float>(0).Clear(),
#endif
        };
        foreach (Action call in calls) Gone(call, "Shard");
        Gone(() => reducer.Finish(), "Reducer");
    }

    static void AdamW()
    {
        double[] same = { 0.01, 0.01, 0.01, 0.01 };
        Compare(shard => Optimizer.AdamW(shard), AdamW(0.9, 0.999, 1e-8), same);
        AdamWOptions options =
            new AdamWOptions { Beta1 = 0.8, Beta2 = 0.99, Epsilon = 0.01, WeightDecay = 0.2 };
        Compare(shard => Optimizer.AdamW(shard, options), AdamW(0.8, 0.99, 0.01),
            new double[] { 0.2, 0.2, 0.2, 0.2 });
        options.WeightDecays = decays;
        Compare(shard => Optimizer.AdamW(shard, options), AdamW(0.8, 0.99, 0.01), decays);
    }

    /// Gives an element after all steps, of which gradient[0] is the value before them.
    static Func<double[], double, double> AdamW(double beta1, double beta2, double epsilon)
    {
        return (gradient, decay) =>
        {
            double value = gradient[0], mean = 0, square = 0;
            for (int step = 1; step <= Steps; ++step)
            {
                value -= Rate * decay * value;
                mean = beta1 * mean + (1 - beta1) * gradient[step];
                square = beta2 * square + (1 - beta2) * gradient[step] * gradient[step];
                double root = Math.Sqrt(square / (1 - Math.Pow(beta2, step)));
                value -= Rate * mean / (1 - Math.Pow(beta1, step)) / (root + epsilon);
            }
            return value;
        };
    }

    static void Sgd()
    {
        Compare(shard => Optimizer.Sgd(shard), Sgd(0, 0, false), new double[4]);
        Compare(
            shard => Optimizer.Sgd(shard,
                new SgdOptions { Momentum = 0.9, Dampening = 0.3, WeightDecay = 0.2 }),
            Sgd(0.9, 0.3, false), new double[] { 0.2, 0.2, 0.2, 0.2 });
        Compare(
            shard => Optimizer.Sgd(shard,
                new SgdOptions { Momentum = 0.9, Nesterov = true, WeightDecays = decays }),
            Sgd(0.9, 0, true), decays);
    }

    static Func<double[], double, double> Sgd(double momentum, double dampening, bool nesterov)
    {
        return (gradient, decay) =>
        {
            double value = gradient[0], kept = 0;
            for (int step = 1; step <= Steps; ++step)
            {
                double change = gradient[step] + decay * value;
                kept = momentum * kept + (step == 1 ? 1 : 1 - dampening) * change;
                value -= Rate * (nesterov ? change + momentum * kept : kept);
            }
            return value;
        };
    }

    /// World sizes and stages end with the same bits, which are near the formula.
    static void Compare(Func<Shard, Optimizer> make, Func<double[], double, double> formula,
        double[] decay)
    {
        List<float[]> results = new List<float[]>();
        for (int size = 1; size <= 2; ++size)
        {
            Ranks.Run(size, each =>
            {
                for (int stage = 0; stage <= 3; ++stage)
                {
                    float[] result = Optimize(each.world, stage, make);
                    lock (results) results.Add(result);
                }
            });
        }
        Suite.Equal(12, results.Count, "results");
        int at = 0;
        for (int p = 0; p < parameters.Length; ++p)
        {
            for (int i = 0; i < parameters[p].Count; ++i, ++at)
            {
                float found = results[0][at];
                foreach (float[] each in results) Suite.Equal(found, each[at], "element " + at);
                double[] gradient = new double[Steps + 1];
                for (int step = 0; step <= Steps; ++step) gradient[step] = Draw(step, 0, p, i);
                double wanted = formula(gradient, decay[p]);
                Suite.Check(Math.Abs(found - wanted) <= 1e-6, found + " is near " + wanted);
            }
        }
    }

    /// All parameters; ranks have the same gradients.
    static float[] Optimize(Comm world, int stage, Func<Shard, Optimizer> make)
    {
        ShardOptions options = new ShardOptions { Stage = stage, Units = units };
        using (Shard shard = new Shard(world, parameters, options))
        using (Optimizer optimizer = make(shard))
        {
            for (int p = 0; p < parameters.Length; ++p) shard.Set(p, Drawn(0, p));
            StepAll(shard, optimizer, 1, Steps);
            return Gathered(shard);
        }
    }

    static void StepAll(Shard shard, Optimizer optimizer, int first, int last)
    {
        for (int step = first; step <= last; ++step)
        {
            Reduce(shard, step);
            optimizer.Step(Rate, anyStream);
        }
    }

    static void Reduce(Shard shard, int step)
    {
        for (int p = parameters.Length; p-- > 0;) shard.Reducer.Ready(p, Drawn(step, p));
        shard.Reducer.Finish();
    }

    static void OptimizerRefusals(Ranks each)
    {
        Invalid(() => Optimizer.AdamW(null), "AdamW: shard is null");
        Invalid(() => Optimizer.Sgd(null), "Sgd: shard is null");
        Param[] counts = { new Param(4, Dtype.I32, "count") };
        using (Shard shard = new Shard(each.world, counts))
        {
            Suite.Throws<DtUnsupportedException>(() => Optimizer.AdamW(shard),
                "AdamW: parameter #0 \"count\" is of i32");
        }
        using (Shard shard = new Shard(each.world, parameters))
        using (Optimizer optimizer = Optimizer.Sgd(shard))
        {
            AdamWRefuses(shard, new AdamWOptions { Beta1 = 1 },
                "AdamW: beta1 is 1; it must be in [0, 1)");
            AdamWRefuses(shard, new AdamWOptions { Beta2 = -1 }, "beta2 is -1");
            AdamWRefuses(shard, new AdamWOptions { Epsilon = -1 }, "epsilon is -1");
            AdamWRefuses(shard, new AdamWOptions { WeightDecay = -1 },
                "weightDecay is -1; it must be at least 0");
            AdamWRefuses(shard, new AdamWOptions { WeightDecays = new double[] { 0, -1, 0, 0 } },
                "weightDecays[1] is -1");
            AdamWRefuses(shard, new AdamWOptions { WeightDecays = new double[1] },
                "AdamW: WeightDecays has 1 numbers for 4 parameters; give one each");
            SgdRefuses(shard, new SgdOptions { Momentum = -1 }, "Sgd: momentum is -1");
            SgdRefuses(shard, new SgdOptions { Nesterov = true }, "nesterov is 1");
            SgdRefuses(shard, new SgdOptions { Dampening = double.NaN }, "dampening");
            SgdRefuses(shard, new SgdOptions { WeightDecays = new double[2] },
                "Sgd: WeightDecays has 2 numbers for 4 parameters");
            Suite.Throws<DtInvalidStateException>(() => optimizer.Step(Rate),
                "Step", "there are no gradients; call it between Finish");
            Reduce(shard, 1);
            Invalid(() => optimizer.Step(double.PositiveInfinity),
                "Step: rate is inf; it must be finite");
            optimizer.Step(Rate);
        }
        Skips(each.world, shard => Optimizer.AdamW(shard, new AdamWOptions { SkipNonFinite = true }));
        Skips(each.world, shard => Optimizer.Sgd(shard, new SgdOptions { SkipNonFinite = true }));
    }

    static void Skips(Comm world, Func<Shard, Optimizer> make)
    {
        using (Shard shard = new Shard(world, new Param[] { new Param(2) }))
        using (Optimizer optimizer = make(shard))
        {
            foreach (float each in new float[] { float.NaN, 1, float.PositiveInfinity })
            {
                shard.Reducer.Ready(0, new float[] { 1, each });
                shard.Reducer.Finish();
                optimizer.Step(Rate);
            }
            Suite.Check(optimizer.Skipped() == 2, "two steps were skipped");
            Suite.Check(optimizer.Skipped(1) == 1, "one before the last");
            Invalid(() => optimizer.Skipped(8), "behind is 8; it must be between 0 and 7");
        }
    }

    static void AdamWRefuses(Shard shard, AdamWOptions options, string text)
    {
        Invalid(() => Optimizer.AdamW(shard, options), text);
    }

    static void SgdRefuses(Shard shard, SgdOptions options, string text)
    {
        Invalid(() => Optimizer.Sgd(shard, options), text);
    }

    static void ClosedOptimizer(Ranks each)
    {
        Shard shard = new Shard(each.world, parameters);
        Optimizer optimizer = Optimizer.Sgd(shard), other = Optimizer.AdamW(shard);
        Reduce(shard, 1);
        shard.Dispose();
        Gone(() => Optimizer.Sgd(shard), "Shard");
        // The optimizer keeps what it needs of its shard.
        optimizer.Step(Rate);
        optimizer.Dispose();
        optimizer.Dispose();
        other.Dispose();
        Gone(() => optimizer.Step(Rate), "Optimizer");
    }

    /// Gives the body a path in a folder of its own.
    static void InFolder(Action<string> body)
    {
        string folder = Path.Combine(Path.GetTempPath(), Path.GetRandomFileName());
        Directory.CreateDirectory(folder);
        try
        {
            body(Path.Combine(folder, "dt_shard_save")); // a name, not a word of C
        }
        finally
        {
            Directory.Delete(folder, true);
        }
    }

    static void Resumed(Ranks each, string file)
    {
        float[] saved, ended;
        using (Shard shard = new Shard(each.world, parameters, new ShardOptions { Units = units }))
        using (Optimizer optimizer = Optimizer.AdamW(shard))
        {
            for (int p = 0; p < parameters.Length; ++p) shard.Set(p, Drawn(0, p));
            StepAll(shard, optimizer, 1, 2);
            shard.Save(file, optimizer);
            Suite.Check(File.ReadAllText(file).Contains("\"shape\":[20,30]"), "the file has the shape");
            saved = Gathered(shard);
            StepAll(shard, optimizer, 3, Steps);
            ended = Gathered(shard);
        }
        foreach (int stage in new int[] { 0, 3 })
        {
            string offload = stage == 3 ? Path.GetDirectoryName(file) : null;
            ShardOptions options = new ShardOptions
            {
                Stage = stage, Units = units, Offload = offload
            };
            using (Shard shard = new Shard(each.world, parameters, options))
            using (Optimizer optimizer = Optimizer.AdamW(shard))
            {
                shard.Load(file, optimizer);
                StepAll(shard, optimizer, 3, Steps);
                Suite.Check(Gathered(shard).SequenceEqual(ended), "the same bits");
                shard.Load(file);
                Suite.Check(Gathered(shard).SequenceEqual(saved), "parameters alone");
            }
        }
    }

    static void CheckpointRefusals(Ranks each, string file)
    {
        string lost = file + "/dt_lost";
        Param[] wide = { new Param(4, Dtype.F64, "w") };
        using (Shard shard = new Shard(each.world, new Param[] { new Param(4, Dtype.F32, "w") }))
        using (Shard other = new Shard(each.world, wide))
        using (Optimizer optimizer = Optimizer.Sgd(shard))
        {
            Suite.Throws<DtSystemException>(() => shard.Save(lost, optimizer),
                "Save on comm \"world\"", "\"" + lost + ".partial\": No such file");
            Suite.Throws<DtSystemException>(() => shard.Load(lost),
                "Load on", "\"" + lost + "\": No such file");
            Suite.Throws<DtSystemException>(
                () => new Shard(each.world, wide, new ShardOptions { Offload = lost }),
                "Shard on comm \"world\": rank 0", "cannot make a file in \"" + lost + "\": No");
            Invalid(() => shard.Save(null), "Save: path is null");
            Invalid(() => shard.Load(null), "Load: path is null");
            Invalid(() => other.Save(file, optimizer), "optimizer is of another shard");
            shard.Save(file);
            Invalid(() => shard.Load(file, optimizer), "it has no state of an optimizer");
            Invalid(() => other.Load(file), "its \"w\" has 4 elements of F32, this model's");
            File.WriteAllText(file, "{}");
            Invalid(() => shard.Load(file), "give a file that Save wrote");
            optimizer.Dispose();
            Gone(() => shard.Save(file, optimizer), "Optimizer");
            Gone(() => shard.Load(file, optimizer), "Optimizer");
        }
    }
}
