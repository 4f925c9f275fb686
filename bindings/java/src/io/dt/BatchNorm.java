// SPDX-License-Identifier: Apache-2.0
package io.dt;

import io.dt.raw.Raw;
import java.lang.ref.Reference;

/**
 * Statistics for batch normalisation over the batches of all ranks. An input has the elements
 * [batch, channels, spatial], with channels last spatial is 1; a rank may have no samples. Tensors
 * may be arrays, which are copied. Over GPUs all tensors are GPU memory, and results are there in
 * the order of the stream of {@link Comm#on}.
 */
public final class BatchNorm {
  private static final String MOMENTS = "BatchNorm.moments";
  private static final String SUMS = "BatchNorm.gradientSums";

  private BatchNorm() {}

  /**
   * Mean and variance of each channel, the same bits on all ranks: the forward half. Collective.
   *
   * @param comm a host communicator
   * @param input of 16-bit floats, floats or doubles
   * @param channels at least 1
   * @param spatial elements of a channel of one sample that lie together, at least 1
   * @return over all ranks
   */
  public static BatchMoments moments(Comm comm, Tensor input, int channels, long spatial) {
    double[] mean = new double[(int) room(channels)];
    double[] variance = new double[mean.length];
    long[] count = new long[1];
    moments(
        comm, input, channels, spatial, Tensor.of(mean), Tensor.of(variance), Tensor.of(count));
    return new BatchMoments(mean, variance, count[0]);
  }

  /**
   * As {@link #moments(Comm, Tensor, int, long)}, with the results in tensors.
   *
   * @param comm also over GPUs
   * @param input of 16-bit floats, floats or doubles
   * @param channels at least 1
   * @param spatial elements of a channel of one sample that lie together, at least 1
   * @param mean takes one double for each channel
   * @param variance likewise, without Bessel's correction
   * @param count takes the elements of each channel, one long
   */
  public static void moments(
      Comm comm, Tensor input, int channels, long spatial, Tensor mean, Tensor variance,
      Tensor count) {
    Checks.notNull(MOMENTS, "comm", comm);
    long batch = batch(MOMENTS, input, channels, spatial);
    result(MOMENTS, "mean", mean, room(channels), DataType.F64);
    result(MOMENTS, "variance", variance, room(channels), DataType.F64);
    result(MOMENTS, "count", count, 1, DataType.I64);
    call(
        MOMENTS, comm, 1,
        (number, at) ->
            Raw.batch_moments(
                number, at[0], batch, channels, spatial, input.type().number(), at[1], at[2], at[3],
                comm.launcher.stream),
        input, mean, variance, count);
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
    int channels = Checks.notNull(SUMS, "moments", moments).mean().length;
    double[] sum = new double[channels];
    double[] product = new double[channels];
    gradientSums(
        comm, input, gradient, Tensor.of(moments.mean()), Tensor.of(moments.variance()), spatial,
        epsilon, Tensor.of(sum), Tensor.of(product));
    return new BatchGradientSums(sum, product);
  }

  /**
   * As {@link #gradientSums(Comm, Tensor, Tensor, BatchMoments, long, double)}, with the moments
   * and the results in tensors.
   *
   * @param comm also over GPUs
   * @param input as {@link #moments(Comm, Tensor, int, long, Tensor, Tensor, Tensor)} had it
   * @param gradient of the loss, by the normalised input after weight and bias; as many elements
   * @param mean one double for each channel, as moments() gave them
   * @param variance likewise
   * @param spatial at least 1
   * @param epsilon what is added to the variance, at least 0
   * @param sum takes one double for each channel: of its gradient
   * @param product likewise: of its gradient times the normalised input
   */
  public static void gradientSums(
      Comm comm, Tensor input, Tensor gradient, Tensor mean, Tensor variance, long spatial,
      double epsilon, Tensor sum, Tensor product) {
    Checks.notNull(SUMS, "comm", comm);
    long channels = Checks.notNull(SUMS, "mean", mean).count();
    long batch = batch(SUMS, input, channels, spatial);
    if (Checks.notNull(SUMS, "gradient", gradient).type() != input.type()
        || gradient.count() != input.count()) {
      throw Checks.refused(
          SUMS, "gradient",
          "has " + gradient.count() + " elements of " + gradient.type() + ", but input "
              + input.count() + " of " + input.type(),
          "give as many of the same type");
    }
    sized(SUMS, "mean", mean, channels, DataType.F64);
    sized(SUMS, "variance", variance, channels, DataType.F64);
    result(SUMS, "sum", sum, channels, DataType.F64);
    result(SUMS, "product", product, channels, DataType.F64);
    call(
        SUMS, comm, 4,
        (number, at) ->
            Raw.batch_gradient_sums(
                number, at[0], at[1], batch, channels, spatial, input.type().number(), at[2],
                at[3], epsilon, at[4], at[5], comm.launcher.stream),
        input, gradient, mean, variance, sum, product);
  }

  private interface NativeCall {
    void make(long number, long[] addresses);
  }

  /**
   * Makes a call with the addresses of tensors, of which those from {@code firstResult} on are
   * written. What is an array is copied.
   */
  private static void call(
      String method, Comm comm, int firstResult, NativeCall call, Tensor... tensors) {
    Tensor[] memory = new Tensor[tensors.length];
    long[] addresses = new long[tensors.length];
    int acquired = 0;
    try {
      for (; acquired < memory.length; acquired++) {
        Tensor one = tensors[acquired].direct(method);
        one.acquire();
        memory[acquired] = one;
        addresses[acquired] = one.place();
      }
      comm.run(number -> call.make(number, addresses));
      for (int i = firstResult; i < memory.length; i++) {
        if (tensors[i].onHeap()) tensors[i].copyOut(addresses[i]);
      }
    } finally {
      while (acquired > 0) Tensor.release(memory[--acquired]);
      Reference.reachabilityFence(memory);
    }
  }

  /** Elements of an array with one for each channel; 0: so many are refused. */
  private static long room(long channels) {
    return channels < 1 || channels > 1 << 24 ? 0 : channels;
  }

  /** {@code count} 0: any. */
  private static void sized(String method, String name, Tensor tensor, long count, DataType type) {
    Checks.notNull(method, name, tensor);
    if (tensor.type() == type && (count == 0 || tensor.count() == count)) return;
    throw Checks.refused(
        method, name, "has " + tensor.count() + " elements of " + tensor.type(),
        "give " + (count == 0 ? tensor.count() : count) + " of " + type);
  }

  private static void result(String method, String name, Tensor tensor, long count, DataType type) {
    sized(method, name, tensor, count, type);
    tensor.checkWritable(method, name);
  }

  private static long batch(String method, Tensor input, long channels, long spatial) {
    Checks.notNull(method, "input", input);
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
}
