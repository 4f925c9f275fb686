// SPDX-License-Identifier: Apache-2.0
using System;
using System.Collections.Generic;
using System.IO;
using System.IO.Compression;
using System.Linq;
using Dt;

/// The network of examples/fashion_mnist, trained on all ranks of a job: the same data, parameters
/// and operations, so that ranks of both programs make one job (--no-eval there).
unsafe sealed class Trainer {
    const int Side = 28, Pixels = Side * Side, Hidden = 128, Classes = 10;
    static readonly string[] names = { "conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias",
        "dense1.weight", "dense1.bias", "dense2.weight", "dense2.bias" };
    readonly byte[] pixels, labels;
    readonly ConvPool conv1, conv2;
    readonly int features, images, passes;
    readonly long[] counts;
    readonly float*[] values = new float*[8], gradients = new float*[8], momenta = new float*[8];
    readonly float* input, pooled1, pooled2, hidden, logits, turned, pooled1Gradient, pooled2Gradient, hiddenGradient;

    /// A step has the gradients of so many passes over so many images each.
    Trainer(byte[] pixels, byte[] labels, int images, int passes, ulong seed) {
        this.pixels = pixels; this.labels = labels; this.images = images; this.passes = passes;
        conv1 = new ConvPool(Side, 1, 16, 1, images);
        conv2 = new ConvPool(Side / 2, 16, 32, 0, images);
        features = conv2.OutputSize;
        counts = new long[] { conv1.Patch * 16, 16, conv2.Patch * 32, 32, features * Hidden, Hidden,
            Hidden * Classes, Classes };
        int[] fanIn = { conv1.Patch, 0, conv2.Patch, 0, features, 0, 100 * Hidden, 0 };
        for (int p = 0; p < 8; ++p) {
            momenta[p] = (values[p] = Matrix.New(2 * counts[p])) + counts[p];
            for (long i = 0; fanIn[p] > 0 && i < counts[p]; ++i)  // He
                values[p][i] = (float)Math.Sqrt(6f / fanIn[p]) * Next(ref seed);
        }
        int size1 = images * conv1.OutputSize, size2 = images * features;
        input = Matrix.New((long)images * conv1.InputSize);
        pooled1Gradient = (pooled1 = Matrix.New(2L * size1)) + size1;
        pooled2Gradient = (pooled2 = Matrix.New(2L * size2)) + size2;
        hiddenGradient = (hidden = Matrix.New(2 * images * Hidden)) + images * Hidden;
        logits = Matrix.New(images * Classes);
        turned = Matrix.New(features * Hidden);
    }

    /// splitmix64, in [-1, 1)
    static float Next(ref ulong state) {
        ulong z = state += 0x9e3779b97f4a7c15;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
        z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
        return ((int)((z ^ (z >> 31)) >> 40) - (1 << 23)) / 8388608f;
    }

    static byte[] Read(string path, int head, long most) {
        MemoryStream all = new MemoryStream();
        using (Stream file = new GZipStream(File.OpenRead(path), CompressionMode.Decompress)) file.CopyTo(all);
        return all.ToArray().Skip(head).Take((int)most).ToArray();
    }

    void Dense(float* from, int weight, int inSize, int outSize, float* to) {
        for (int i = 0; i < images * outSize; ++i) to[i] = values[weight + 1][i % outSize];
        Matrix.Multiply(from, inSize, 1, values[weight], to, images, inSize, outSize);
    }

    /// The sum of losses, and how many are right.
    double[] Forward(long[] indices) {
        for (int image = 0; image < images; ++image)
            for (int i = 0; i < Pixels; ++i)
                input[image * conv1.InputSize + (i / Side + 1) * (Side + 2) + i % Side + 1] =
                    (pixels[indices[image] * Pixels + i] * (1f / 255) - 0.2860f) * (1f / 0.3530f);
        conv1.Forward(input, values[0], values[1], images, pooled1);
        conv2.Forward(pooled1, values[2], values[3], images, pooled2);
        Dense(pooled2, 4, features, Hidden, hidden);
        for (int i = 0; i < images * Hidden; ++i) hidden[i] = Math.Max(hidden[i], 0);
        Dense(hidden, 6, Hidden, Classes, logits);
        double[] score = new double[2];
        for (int image = 0; image < images; ++image) {
            float* own = logits + image * Classes;
            int best = 0, label = labels[indices[image]];
            for (int i = 1; i < Classes; ++i) if (own[i] > own[best]) best = i;
            double top = own[best], sum = 0;
            for (int i = 0; i < Classes; ++i) sum += Math.Exp(own[i] - top);
            score[0] += Math.Log(sum) - (own[label] - top);
            if (best == label) ++score[1];
            for (int i = 0; i < Classes; ++i)  // from here on their gradients
                own[i] = (float)(Math.Exp(own[i] - top) / sum - (i == label ? 1 : 0)) / (images * passes);
        }
        return score;
    }

    void DenseBackward(Reducer reducer, float* from, float* gradient, int weight, int inSize, int outSize,
        float* fromGradient) {
        float* biases = gradients[weight + 1];
        Matrix.Multiply(from, 1, inSize, gradient, gradients[weight], inSize, images, outSize);
        for (int i = 0; i < images * outSize; ++i) biases[i % outSize] += gradient[i];
        for (int done = weight + 1; done >= weight; --done) reducer.Ready(done);
        Matrix.MultiplyByTurned(gradient, values[weight], turned, fromGradient, images, outSize, inSize);
    }

    /// Each gradient is added straight in its bucket; in the last pass full buckets travel while this goes on.
    void Backward(Reducer reducer) {
        DenseBackward(reducer, hidden, logits, 6, Hidden, Classes, hiddenGradient);
        for (int i = 0; i < images * Hidden; ++i) if (hidden[i] <= 0) hiddenGradient[i] = 0;
        DenseBackward(reducer, pooled2, hiddenGradient, 4, features, Hidden, pooled2Gradient);
        conv2.Backward(pooled1, values[2], pooled2Gradient, images, gradients[2], gradients[3], pooled1Gradient);
        for (int done = 3; done >= 2; --done) reducer.Ready(done);
        conv1.Backward(input, values[0], pooled1Gradient, images, gradients[0], gradients[1], null);
        for (int done = 1; done >= 0; --done) reducer.Ready(done);
    }

    /// Every product and sum is rounded to a float, as in C++: all ranks keep equal bits.
    void Update(double peak, long step, long total) {
        double warmup = Math.Min(1, (step + 1) / 300.0), done = Math.Min(1, step / (double)Math.Max(total, 1));
        float rate = (float)(peak * warmup * warmup * 0.5 * (1 + Math.Cos(3.14159265358979323846 * done)));
        for (int p = 0; p < 8; ++p)
            for (long i = 0; i < counts[p]; ++i) {
                float pull = (float)(gradients[p][i] + (float)(1e-4f * values[p][i]));
                momenta[p][i] = (float)((float)(0.9f * momenta[p][i]) + pull);
                values[p][i] = (float)(values[p][i] - (float)(rate * momenta[p][i]));
            }
    }

    /// Throws on all ranks, and says what differs, where one has another step, parameter or momentum.
    void CheckEqual(Comm world, long step) {
        world.CheckEqual(new[] { step }, "step " + step);
        for (int p = 0; p < 8; ++p) {
            world.CheckEqual(new Tensor((IntPtr)values[p], counts[p], Dtype.F32), names[p]);
            world.CheckEqual(new Tensor((IntPtr)momenta[p], counts[p], Dtype.F32), "optimizer state of " + names[p]);
        }
    }

    static void Main(string[] arguments) {
        var options = new Dictionary<string, string> { { "--steps", "0" }, { "--batch", "120" }, { "--seed", "1" },
            { "--data", "/usr/share/datasets/fashion-mnist" }, { "--loss-log", "" }, { "--limit", "60000" },
            { "--lr", "0.05" }, { "--epochs", "3" }, { "--accumulate", "1" }, { "--wire", "f32" },
            { "--powersgd", "0" }, { "--clip", "0" } };
        for (int i = 0; i < arguments.Length; ++i) {
            if (!options.ContainsKey(arguments[i])) throw new ArgumentException("no option " + arguments[i]);
            options[arguments[i]] = arguments[++i];
        }
        using (Job job = new Job())
        using (Comm world = job.World()) {
            try {
                Train(job, world, options);
                job.Leave();
            } catch (Exception error) when (!(error is DtException)) {
                job.Abort(error.Message);  // the others end with this, too
                throw;
            }
        }
    }

    static void Train(Job job, Comm world, Dictionary<string, string> options) {
        Func<string, long> number = name => long.Parse(options[name]);
        long batch = number("--batch"), seed = number("--seed"), most = number("--limit"), step = 0;
        Func<string, double> real = name => double.Parse(options[name], System.Globalization.CultureInfo.InvariantCulture);
        double rate = real("--lr"), clip = real("--clip");
        string data = options["--data"] + "/train-", lossLog = options["--loss-log"];
        byte[] labels = Read(data + "labels-idx1-ubyte.gz", 8, most);
        int size = world.Size, passes = (int)Math.Max(number("--accumulate"), 1), images = (int)(batch / size / passes);
        if (batch % (size * passes) != 0) throw new ArgumentException("--batch must be a multiple of " + size * passes);
        Trainer own = new Trainer(Read(data + "images-idx3-ubyte.gz", 16, most * Pixels), labels, images, passes,
            (ulong)seed);
        var parameters = own.counts.Select((count, p) => new Param(count, Dtype.F32, names[p]));
        long perEpoch = labels.Length / batch, total = number("--epochs") * perEpoch;
        long end = number("--steps") > 0 ? Math.Min(number("--steps"), total) : total;
        Wire wire = options["--wire"] == "f32" ? Wire.Same
            : (Wire)Enum.Parse(typeof(Wire), options["--wire"] == "8bit" ? "Bits8" : options["--wire"], true);
        ReducerOptions buckets = new ReducerOptions { FirstBucketBytes = 1 << 18, BucketCapBytes = 1 << 18 };
        if (number("--powersgd") == 0) buckets.Wire = wire;
        using (Reducer reducer = new Reducer(world, parameters, buckets))
        using (Sampler sampler = new Sampler(size, world.Rank, labels.Length, seed))
        using (TextWriter log = lossLog != "" && world.Rank == 0 ? new StreamWriter(lossLog) : TextWriter.Null) {
            sampler.Check(world);
            if (number("--powersgd") > 0)  // a weight is a matrix with a column for each output
                reducer.PowerSgd(own.counts.Select((count, p) => p % 2 == 0 ? count / own.counts[p + 1] : 0).ToArray(),
                    (int)number("--powersgd"), wire: wire);
            log.WriteLine("step,loss");
            for (bool stopped = false; step < end && !stopped; ++step) {
                if (step % perEpoch == 0) sampler.SetEpoch(step / perEpoch);
                for (int p = 0; p < 8 && step < 2; ++p) own.gradients[p] = (float*)reducer.Gradient(p);
                for (int p = 0; p < 8; ++p) Matrix.Clear(own.gradients[p], own.counts[p]);
                long[] indices = sampler.Indices(step % perEpoch * images * passes, images * passes);
                double[] totals = new double[2];
                Work totalsDone = null;
                for (int pass = 0; pass < passes; ++pass) {
                    double[] score = own.Forward(indices.Skip(pass * images).Take(images).ToArray());
                    for (int i = 0; i < 2; ++i) totals[i] += score[i];
                    if (pass + 1 == passes) totalsDone = world.AllReduceAsync(totals);
                    reducer.Accumulate(pass + 1 < passes);
                    own.Backward(reducer);
                }
                reducer.Finish();
                if (clip > 0) reducer.ClipNorm(clip);
                own.Update(rate, step, total);
                if (step == 0) reducer.Rebuild();  // buckets in the order of arrival
                using (totalsDone) totalsDone.Wait();
                stopped = job.StopRequested();  // by any rank, or before a pre-emption
                log.WriteLine(FormattableString.Invariant($"{step + 1},{(float)(totals[0] / batch):G9}"));
            }
            own.CheckEqual(world, step);
            if (world.Rank == 0 && size > 1) Console.WriteLine("parameters equal on all {0} ranks", size);
        }
    }
}
