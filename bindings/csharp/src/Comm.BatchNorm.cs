// SPDX-License-Identifier: Apache-2.0
using System;

namespace Dt
{
    /// <summary>Of each channel, over the batches of all ranks.</summary>
    public sealed class BatchMoments
    {
        /// <summary>One for each channel.</summary>
        public double[] Mean { get; private set; }
        /// <summary>One for each channel, without Bessel's correction.</summary>
        public double[] Variance { get; private set; }
        /// <summary>Elements of each channel.</summary>
        public long Count { get; private set; }

        /// <summary>As they were made.</summary>
        public BatchMoments(double[] mean, double[] variance, long count)
        {
            if (mean == null) throw new ArgumentNullException("mean");
            if (variance == null) throw new ArgumentNullException("variance");
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
        public double[] Sum { get; private set; }
        /// <summary>Of each channel's gradient times the normalised input.</summary>
        public double[] Product { get; private set; }

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
        public BatchMoments BatchMoments<T>(T[] input, int channels, long spatial = 1) where T : struct
        {
            const string Name = "batch_moments";
            Dtype type = Elements.Of<T>(Name, null);
            long batch = Batch(Name, Elements.Length(Name, "input", input), channels, spatial);
            Pin pin = Pin.Of(input);
            try
            {
                byte[] packed = Raw.Native.batch_moments(Number, pin.Address, batch, channels, spatial,
                    (int)type);
                GC.KeepAlive(this);
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
        public BatchGradientSums BatchGradientSums<T>(T[] input, T[] gradient, BatchMoments moments,
            long spatial = 1, double epsilon = 1e-5) where T : struct
        {
            const string Name = "batch_gradient_sums";
            if (moments == null) throw new ArgumentNullException("moments");
            Dtype type = Elements.Of<T>(Name, null);
            long count = Elements.Length(Name, "input", input);
            long other = Elements.Length(Name, "gradient", gradient);
            if (count != other)
                throw DtException.InvalidArgument(Name + ": input has " + count +
                    " elements, but gradient " + other + "; give arrays of one length");
            int channels = moments.Mean.Length;
            long batch = Batch(Name, count, channels, spatial);
            byte[] known = new byte[16 * channels];
            Buffer.BlockCopy(moments.Mean, 0, known, 0, 8 * channels);
            Buffer.BlockCopy(moments.Variance, 0, known, 8 * channels, 8 * channels);
            Pin pin = Pin.Of(input);
            Pin otherPin = Pin.Of(gradient);
            try
            {
                byte[] packed = Raw.Native.batch_gradient_sums(Number, pin.Address, otherPin.Address,
                    batch, channels, spatial, (int)type, known, known.Length, epsilon);
                GC.KeepAlive(this);
                return new BatchGradientSums(Doubles(packed, 0, channels),
                    Doubles(packed, 8 * channels, channels));
            }
            finally
            {
                otherPin.Free();
                pin.Free();
            }
        }

        // What is no number of channels is left to dt to refuse.
        static long Batch(string operation, long count, int channels, long spatial)
        {
            if (channels < 1 || spatial < 1 || spatial > long.MaxValue / channels) return 0;
            if (count % (channels * spatial) == 0) return count / (channels * spatial);
            throw DtException.InvalidArgument(operation + ": input has " + count +
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
