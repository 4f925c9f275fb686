// SPDX-License-Identifier: Apache-2.0
using System;

namespace Dt
{
    /// <summary>Of each channel, over the batches of all ranks.</summary>
    public sealed class BatchMoments
    {
        /// <summary>One for each channel.</summary>
        public double[] Mean { get; }
        /// <summary>One for each channel, without Bessel's correction.</summary>
        public double[] Variance { get; }
        /// <summary>Elements of each channel.</summary>
        public long Count { get; }

        /// <summary>As they were made.</summary>
        public BatchMoments(double[] mean, double[] variance, long count)
        {
            if (mean == null || variance == null)
                throw DtException.InvalidArgument("BatchMoments: mean or variance is null; give one for each channel");
            if (mean.Length != variance.Length)
                throw DtException.InvalidArgument("BatchMoments: " + mean.Length + " means, but " +
                    variance.Length + " variances; give one of each for each channel");
            Mean = mean;
            Variance = variance;
            Count = count;
        }
    }

    /// <summary>What the gradient of a normalised batch needs of all ranks.</summary>
    public sealed class BatchGradientSums
    {
        /// <summary>Of each channel's gradient.</summary>
        public double[] Sum { get; }
        /// <summary>Of each channel's gradient times the normalised input.</summary>
        public double[] Product { get; }

        internal BatchGradientSums(double[] sum, double[] product)
        {
            Sum = sum;
            Product = product;
        }
    }

    // Statistics for batch normalisation. An input has the elements [batch, channels, spatial]; with
    // channels last, spatial is 1. libdt refuses a number of channels that is not in [1, 2^24].
    public sealed partial class Comm
    {
        /// <summary>Mean and variance of each channel over the batches of all ranks, the same bits on
        /// all: the forward half of batch normalisation. Collective; a rank may have no samples. Of
        /// 16-bit floats, floats or doubles; over host memory.</summary>
        public BatchMoments BatchMoments(Tensor input, int channels, long spatial = 1)
        {
            double[] mean = new double[Room(channels)], variance = new double[mean.Length];
            long[] count = new long[1];
            BatchMoments(input, channels, mean, variance, count, spatial);
            return new BatchMoments(mean, variance, count[0]);
        }

        /// <summary>The same with the results in tensors: mean and variance of one double for each
        /// channel, count of one long. Over GPUs all are GPU memory, and the results are there in the
        /// order of the stream of <see cref="With"/>.</summary>
        public void BatchMoments(Tensor input, int channels, Tensor mean, Tensor variance, Tensor count,
            long spatial = 1)
        {
            const string Name = "BatchMoments";
            long batch = Batch(Name, input, channels, spatial);
            CheckResult(Name, "mean", mean, Room(channels), Dtype.F64);
            CheckResult(Name, "variance", variance, Room(channels), Dtype.F64);
            CheckResult(Name, "count", count, 1, Dtype.I64);
            Pinned(at => Raw.Native.batch_moments(this, at[0], batch, channels, spatial, (int)input.Dtype,
                at[1], at[2], at[3], stream), input, mean, variance, count);
        }

        /// <summary>Sums over all ranks that the gradient of the input needs: the backward half. The
        /// moments are those of the input, and the gradient that of the loss by the normalised input
        /// after weight and bias. Collective.</summary>
        public BatchGradientSums BatchGradientSums(Tensor input, Tensor gradient, BatchMoments moments,
            long spatial = 1, double epsilon = 1e-5)
        {
            const string Name = "BatchGradientSums";
            if (moments == null)
                throw DtException.InvalidArgument(Name + ": moments is null; give what BatchMoments gave");
            double[] sum = new double[moments.Mean.Length], product = new double[sum.Length];
            BatchGradientSums(input, gradient, moments.Mean, moments.Variance, sum, product, spatial, epsilon);
            return new BatchGradientSums(sum, product);
        }

        /// <summary>The same with the moments and the results in tensors of one double for each channel.
        /// Over GPUs all are GPU memory, and the results are there in the order of the stream of
        /// <see cref="With"/>.</summary>
        public void BatchGradientSums(Tensor input, Tensor gradient, Tensor mean, Tensor variance, Tensor sum,
            Tensor product, long spatial = 1, double epsilon = 1e-5)
        {
            const string Name = "BatchGradientSums";
            if (input.Count != gradient.Count || input.Dtype != gradient.Dtype)
                throw DtException.InvalidArgument(Name + ": input has " + input.Count + " elements of " + input.Dtype +
                    ", but gradient " + gradient.Count + " of " + gradient.Dtype + "; give two that are alike");
            long channels = mean.Count;
            long batch = Batch(Name, input, channels, spatial);
            CheckSize(Name, "mean", mean, 0, Dtype.F64);
            CheckSize(Name, "variance", variance, channels, Dtype.F64);
            CheckResult(Name, "sum", sum, channels, Dtype.F64);
            CheckResult(Name, "product", product, channels, Dtype.F64);
            Pinned(at => Raw.Native.batch_gradient_sums(this, at[0], at[1], batch, channels, spatial,
                (int)input.Dtype, at[2], at[3], epsilon, at[4], at[5], stream),
                input, gradient, mean, variance, sum, product);
        }

        static long Batch(string operation, in Tensor input, long channels, long spatial)
        {
            CheckGiven(operation, "input", input);
            if (channels < 1 || spatial < 1) return 0;
            if (spatial <= long.MaxValue / channels && input.Count % (channels * spatial) == 0)
                return input.Count / (channels * spatial);
            throw DtException.InvalidArgument(operation + ": input has " + input.Count +
                " elements, which are no whole samples of " + channels + " channels x " + spatial +
                "; give it as [batch, channels, spatial]");
        }

        /// Elements of an array with one for each channel; 0: libdt refuses so many.
        static int Room(int channels) => channels < 1 || channels > 1 << 24 ? 0 : channels;

        static void CheckGiven(string operation, string name, in Tensor tensor)
        {
            if (!tensor.IsNone) return;
            throw DtException.InvalidArgument(operation + ": " + name +
                " is null; give an array, a memory or a Tensor");
        }

        /// A count of 0: any.
        static void CheckSize(string operation, string name, in Tensor tensor, long count, Dtype dtype)
        {
            CheckGiven(operation, name, tensor);
            if (tensor.Dtype == dtype && (count == 0 || tensor.Count == count)) return;
            throw DtException.InvalidArgument(operation + ": " + name + " has " + tensor.Count + " elements of " +
                tensor.Dtype + "; give " + (count == 0 ? tensor.Count : count) + " of " + dtype);
        }

        static void CheckResult(string operation, string name, in Tensor tensor, long count, Dtype dtype)
        {
            CheckSize(operation, name, tensor, count, dtype);
            tensor.CheckWritable(operation, name);
        }

        /// Makes a call with the addresses of tensors, which stay in their place until it returns.
        static void Pinned(Action<long[]> call, params Tensor[] tensors)
        {
            Pin[] pins = new Pin[tensors.Length];
            long[] addresses = new long[tensors.Length];
            int pinned = 0;
            try
            {
                for (; pinned < pins.Length; ++pinned)
                {
                    pins[pinned].Set(tensors[pinned], 0);
                    addresses[pinned] = tensors[pinned].AddressIn(pins[pinned]);
                }
                call(addresses);
            }
            finally
            {
                Pin.Free(pins, pinned);
            }
        }
    }
}
