// SPDX-License-Identifier: Apache-2.0
package io.dt;

import io.dt.raw.Raw;
import java.lang.ref.Reference;
import java.nio.Buffer;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/**
 * Statistics for batch normalisation over the batches of all ranks. An input has the elements
 * [batch, channels, spatial], with channels last spatial is 1; a rank may have no samples.
 */
public final class BatchNorm {
  private BatchNorm() {}

  /**
   * Mean and variance of each channel, the same bits on all ranks: the forward half. Collective.
   *
   * @param comm a host communicator
   * @param input direct, of floats or doubles
   * @param channels at least 1
   * @param spatial elements of a channel of one sample that lie together, at least 1
   * @return over all ranks
   */
  public static BatchMoments moments(Comm comm, Buffer input, int channels, long spatial) {
    Dtype dtype = Buffers.dtype("batchMoments", "input", input);
    long count = Buffers.count("batchMoments", "input", input, dtype);
    try {
      ByteBuffer packed =
          Packing.read(
              Raw.batch_moments(
                  comm.number(), Buffers.address(input),
                  batch("batchMoments", count, channels, spatial), channels, spatial,
                  dtype.number()));
      long elements = packed.getLong();
      return new BatchMoments(doubles(packed, channels), doubles(packed, channels), elements);
    } finally {
      Reference.reachabilityFence(comm);
      Reference.reachabilityFence(input);
    }
  }

  /**
   * As {@link #moments(Comm, Buffer, int, long)}, of a copy.
   *
   * @param comm a host communicator
   * @param input all of its elements
   * @param channels at least 1
   * @param spatial at least 1
   * @return over all ranks
   */
  public static BatchMoments moments(Comm comm, float[] input, int channels, long spatial) {
    return moments(comm, copy(input), channels, spatial);
  }

  /**
   * Sums that the gradient of the input needs: the backward half. Collective.
   *
   * @param comm a host communicator
   * @param input as {@link #moments} had it
   * @param gradient of the loss, by the normalised input after weight and bias; as many elements
   * @param moments what {@link #moments} gave
   * @param spatial at least 1
   * @param epsilon what is added to the variance, at least 0
   * @return over all ranks
   */
  public static BatchGradientSums gradientSums(
      Comm comm, Buffer input, Buffer gradient, BatchMoments moments, long spatial,
      double epsilon) {
    String operation = "batchGradientSums";
    Dtype dtype = Buffers.dtype(operation, "input", input);
    long count = Buffers.count(operation, "input", input, dtype);
    if (Buffers.dtype(operation, "gradient", gradient) != dtype) {
      throw Buffers.refused(operation, "gradient", "is not of " + dtype, "give it as the input");
    }
    Buffers.wanted(
        operation, "gradient", Buffers.count(operation, "gradient", gradient, dtype), count);
    int channels = moments.mean().length;
    if (moments.variance().length != channels) {
      throw Buffers.refused(
          operation, "moments", "have other variances than means", "give what moments() gave");
    }
    ByteBuffer known = ByteBuffer.allocate(16 * channels).order(ByteOrder.nativeOrder());
    known.asDoubleBuffer().put(moments.mean()).put(moments.variance());
    try {
      ByteBuffer packed =
          Packing.read(
              Raw.batch_gradient_sums(
                  comm.number(), Buffers.address(input), Buffers.address(gradient),
                  batch(operation, count, channels, spatial), channels, spatial, dtype.number(),
                  known.array(), epsilon));
      return new BatchGradientSums(doubles(packed, channels), doubles(packed, channels));
    } finally {
      Reference.reachabilityFence(comm);
      Reference.reachabilityFence(input);
      Reference.reachabilityFence(gradient);
    }
  }

  /**
   * As {@link #gradientSums(Comm, Buffer, Buffer, BatchMoments, long, double)}, of copies.
   *
   * @param comm a host communicator
   * @param input all of its elements
   * @param gradient as many elements
   * @param moments what {@link #moments} gave
   * @param spatial at least 1
   * @param epsilon at least 0
   * @return over all ranks
   */
  public static BatchGradientSums gradientSums(
      Comm comm, float[] input, float[] gradient, BatchMoments moments, long spatial,
      double epsilon) {
    return gradientSums(comm, copy(input), copy(gradient), moments, spatial, epsilon);
  }

  /** What is no number of channels is left to dt to refuse. */
  private static long batch(String operation, long count, int channels, long spatial) {
    if (channels < 1 || spatial < 1 || spatial > Long.MAX_VALUE / channels) return 0;
    if (count % (channels * spatial) != 0) {
      throw Buffers.refused(
          operation, "input",
          "has " + count + " elements, which are no whole samples of " + channels + " channels x "
              + spatial,
          "give it as [batch, channels, spatial]");
    }
    return count / (channels * spatial);
  }

  private static Buffer copy(float[] values) {
    ByteBuffer copy =
        ByteBuffer.allocateDirect(Math.multiplyExact(4, values.length))
            .order(ByteOrder.nativeOrder());
    return copy.asFloatBuffer().put(values).flip();
  }

  private static double[] doubles(ByteBuffer packed, int count) {
    double[] values = new double[count];
    for (int i = 0; i < count; i++) values[i] = packed.getDouble();
    return values;
  }
}
