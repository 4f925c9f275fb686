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
    // channels last, spatial is 1.
    public sealed partial class Comm
    {
        /// <summary>Mean and variance of each channel over the batches of all ranks, the same bits on
        /// all: the forward half of batch normalisation. Collective; a rank may have no samples. Of
        /// floats or doubles.</summary>
        public BatchMoments BatchMoments(Tensor input, int channels, long spatial = 1)
        {
            long batch = Batch("BatchMoments", input, channels, spatial);
            Pin pin = input.Pin();
            try
            {
                byte[] packed = Raw.Native.batch_moments(this, input.AddressIn(pin), batch, channels, spatial,
                    (int)input.Dtype);
                return new BatchMoments(Doubles(packed, 8, channels),
                    Doubles(packed, 8 + 8 * channels, channels), BitConverter.ToInt64(packed, 0));
            }
            finally
            {
                pin.Free();
            }
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
            if (input.Count != gradient.Count || input.Dtype != gradient.Dtype)
                throw DtException.InvalidArgument(Name + ": input has " + input.Count + " elements of " + input.Dtype +
                    ", but gradient " + gradient.Count + " of " + gradient.Dtype + "; give two that are alike");
            int channels = moments.Mean.Length;
            long batch = Batch(Name, input, channels, spatial);
            byte[] known = new byte[16 * channels];
            Buffer.BlockCopy(moments.Mean, 0, known, 0, 8 * channels);
            Buffer.BlockCopy(moments.Variance, 0, known, 8 * channels, 8 * channels);
            Pin pin = input.Pin(), otherPin = gradient.Pin();
            try
            {
                byte[] packed = Raw.Native.batch_gradient_sums(this, input.AddressIn(pin), gradient.AddressIn(otherPin),
                    batch, channels, spatial, (int)input.Dtype, known, known.Length, epsilon);
                return new BatchGradientSums(Doubles(packed, 0, channels), Doubles(packed, 8 * channels, channels));
            }
            finally
            {
                Pin.Free(ref pin, ref otherPin);
            }
        }

        // libdt refuses a number of channels that is not positive.
        static long Batch(string operation, Tensor input, int channels, long spatial)
        {
            if (input.IsNone)
                throw DtException.InvalidArgument(operation + ": input is null; give an array, a memory or a Tensor");
            if (channels < 1 || spatial < 1 || spatial > long.MaxValue / channels) return 0;
            if (input.Count % (channels * spatial) == 0) return input.Count / (channels * spatial);
            throw DtException.InvalidArgument(operation + ": input has " + input.Count +
                " elements, which are no whole samples of " + channels + " channels x " + spatial +
                "; give it as [batch, channels, spatial]");
        }

        static double[] Doubles(byte[] packed, int offset, int count)
        {
            double[] values = new double[count];
            Buffer.BlockCopy(packed, offset, values, 0, 8 * count);
            return values;
        }
    }
}
