// SPDX-License-Identifier: Apache-2.0
package io.dt;

import io.dt.raw.Raw;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/**
 * Statistics for batch normalisation over the batches of all ranks. An input has the elements
 * [batch, channels, spatial], with channels last spatial is 1; a rank may have no samples. Inputs
 * may be arrays, which are copied.
 */
public final class BatchNorm {
  private static final String MOMENTS = "BatchNorm.moments";
  private static final String SUMS = "BatchNorm.gradientSums";

  private BatchNorm() {}

  /**
   * Mean and variance of each channel, the same bits on all ranks: the forward half. Collective.
   *
   * @param comm a host communicator
   * @param input of floats or doubles
   * @param channels at least 1
   * @param spatial elements of a channel of one sample that lie together, at least 1
   * @return over all ranks
   */
  public static BatchMoments moments(Comm comm, Tensor input, int channels, long spatial) {
    Checks.notNull(MOMENTS, "comm", comm);
    Tensor memory = Checks.notNull(MOMENTS, "input", input).direct(MOMENTS);
    long batch = batch(MOMENTS, memory, channels, spatial);
    byte[][] packed = new byte[1][];
    memory.use(
        () -> packed[0] =
            comm.call(
                number ->
                    Raw.batch_moments(
                        number, memory.place(), batch, channels, spatial,
                        memory.type().number())));
    ByteBuffer read = Packing.read(packed[0]);
    long elements = read.getLong();
    return new BatchMoments(doubles(read, channels), doubles(read, channels), elements);
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
      Comm comm, Tensor input, Tensor gradient, BatchMoments moments, long spatial,
      double epsilon) {
    Checks.notNull(SUMS, "comm", comm);
    Tensor memory = Checks.notNull(SUMS, "input", input).direct(SUMS);
    Tensor other = Checks.notNull(SUMS, "gradient", gradient).direct(SUMS);
    int channels = Checks.notNull(SUMS, "moments", moments).mean().length;
    if (other.type() != memory.type() || other.count() != memory.count()) {
      throw Checks.refused(
          SUMS, "gradient",
          "has " + other.count() + " elements of " + other.type() + ", but input "
              + memory.count() + " of " + memory.type(),
          "give as many of the same type");
    }
    if (moments.variance().length != channels) {
      throw Checks.refused(
          SUMS, "moments", "have other variances than means", "give what moments() gave");
    }
    long batch = batch(SUMS, memory, channels, spatial);
    ByteBuffer known = ByteBuffer.allocate(16 * channels).order(ByteOrder.nativeOrder());
    known.asDoubleBuffer().put(moments.mean()).put(moments.variance());
    byte[][] packed = new byte[1][];
    memory.use(
        () -> other.use(
            () -> packed[0] =
                comm.call(
                    number ->
                        Raw.batch_gradient_sums(
                            number, memory.place(), other.place(), batch, channels, spatial,
                            memory.type().number(), known.array(), epsilon))));
    ByteBuffer read = Packing.read(packed[0]);
    return new BatchGradientSums(doubles(read, channels), doubles(read, channels));
  }

  private static long batch(String method, Tensor input, int channels, long spatial) {
    Checks.atLeast(method, "channels", channels, 1);
    Checks.atLeast(method, "spatial", spatial, 1);
    if (spatial > Long.MAX_VALUE / channels || input.count() % (channels * spatial) != 0) {
      throw Checks.refused(
          method, "input",
          "has " + input.count() + " elements, which are no whole samples of " + channels
              + " channels x " + spatial,
          "give it as [batch, channels, spatial]");
    }
    return input.count() / (channels * spatial);
  }

  private static double[] doubles(ByteBuffer packed, int count) {
    double[] values = new double[count];
    for (int i = 0; i < count; i++) values[i] = packed.getDouble();
    return values;
  }
}
