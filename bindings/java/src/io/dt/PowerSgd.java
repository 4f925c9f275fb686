// SPDX-License-Identifier: Apache-2.0
package io.dt;

/**
 * How {@link Reducer#powerSgd} compresses gradients.
 *
 * @param rank columns of the two matrices that travel, 1 to 64
 * @param startStep steps before it are averaged as they are
 * @param minCompression matrices are compressed by at least that
 * @param errorFeedback true: what a step leaves out is added to the next
 * @param warmStart true: a step begins with the last one's matrices
 * @param seed of the random matrices
 * @param wire F16 or BF16: what the matrices and all other gradients of F32 travel as
 */
public record PowerSgd(
    int rank,
    long startStep,
    double minCompression,
    boolean errorFeedback,
    boolean warmStart,
    long seed,
    Wire wire) {
  /**
   * From the first step, where it halves what travels at least.
   *
   * @param rank columns of the two matrices that travel, 1 to 64
   */
  public PowerSgd(int rank) {
    this(rank, 0, 2, true, true, 0, Wire.SAME);
  }

  /**
   * The same with a wire.
   *
   * @param wire F16 or BF16: what the matrices and all other gradients of F32 travel as
   * @return the options with it
   */
  public PowerSgd withWire(Wire wire) {
    return new PowerSgd(rank, startStep, minCompression, errorFeedback, warmStart, seed, wire);
  }
}
