// SPDX-License-Identifier: Apache-2.0
package io.dt;

import io.dt.raw.Raw;

/**
 * Updates this rank's pieces of a {@link Shard} by AdamW or SGD, which compute as PyTorch's, and
 * keeps state for these pieces only. For F16 and BF16 parameters the state has an F32 copy, which
 * is updated and then rounded into the parameter.
 *
 * <p>The shard may be closed before its optimizer. One thread at a time, which is that of the
 * reducer's {@code finish}.
 */
public final class Optimizer extends Handle {
  private Optimizer(long number) {
    super(number, Raw::optimizer_destroy);
  }

  /**
   * AdamW with the default options.
   *
   * @param shard of floating-point parameters, otherwise {@link UnsupportedException}
   * @return to be closed
   */
  public static Optimizer adamW(Shard shard) {
    return adamW(shard, AdamWOptions.DEFAULT);
  }

  /**
   * AdamW.
   *
   * @param shard of floating-point parameters, otherwise {@link UnsupportedException}
   * @param options the same on all ranks
   * @return to be closed
   */
  public static Optimizer adamW(Shard shard, AdamWOptions options) {
    Checks.notNull("Optimizer.adamW", "shard", shard);
    Checks.notNull("Optimizer.adamW", "options", options);
    byte[] packed = options.pack("Optimizer.adamW", shard.params);
    return new Optimizer(shard.call(number -> Raw.optimizer_adamw(number, packed)));
  }

  /**
   * SGD with the default options.
   *
   * @param shard of floating-point parameters, otherwise {@link UnsupportedException}
   * @return to be closed
   */
  public static Optimizer sgd(Shard shard) {
    return sgd(shard, SgdOptions.DEFAULT);
  }

  /**
   * SGD.
   *
   * @param shard of floating-point parameters, otherwise {@link UnsupportedException}
   * @param options the same on all ranks
   * @return to be closed
   */
  public static Optimizer sgd(Shard shard, SgdOptions options) {
    Checks.notNull("Optimizer.sgd", "shard", shard);
    Checks.notNull("Optimizer.sgd", "options", options);
    byte[] packed = options.pack("Optimizer.sgd", shard.params);
    return new Optimizer(shard.call(number -> Raw.optimizer_sgd(number, packed)));
  }

  /**
   * Updates the pieces by their gradients, then does what {@link Shard#updated} does; to be called
   * after {@code finish} of the shard's reducer, otherwise {@link InvalidStateException}. A
   * parameter that no rank had a gradient for stays as it is. Collective.
   *
   * @param rate the learning rate, finite, the same on all ranks
   */
  public void step(double rate) {
    step(rate, 0);
  }

  /**
   * As {@link #step(double)} over GPUs.
   *
   * @param rate the learning rate, finite, the same on all ranks
   * @param stream CUDA stream that updates the pieces, behind that of {@code finish}; ignored on a
   *     host communicator
   */
  public void step(double rate, long stream) {
    run(number -> Raw.optimizer_step(number, rate, stream));
  }

  /**
   * How many steps {@code withSkipNonFinite} of the options has skipped: the same number on all
   * ranks. On GPUs it waits until the counted steps are over.
   *
   * @param behind 0 to 7: the last steps that do not count yet
   * @return the number of steps
   */
  public long skipped(int behind) {
    return call(number -> Raw.optimizer_skipped(number, behind));
  }
}
