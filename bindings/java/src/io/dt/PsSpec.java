// SPDX-License-Identifier: Apache-2.0
package io.dt;

/**
 * How a variable begins and is updated; the same on all workers.
 *
 * @param optimizer what becomes of gradients
 * @param rate of learning, at least 0
 * @param momentum in [0, 1)
 * @param nesterov whether the momentum is Nesterov's
 * @param beta1 in [0, 1)
 * @param beta2 in [0, 1)
 * @param epsilon at least 0
 * @param initial what the elements begin with
 * @param initialValue of these
 * @param seed likewise
 */
public record PsSpec(
    PsOptimizer optimizer, double rate, double momentum, boolean nesterov, double beta1,
    double beta2, double epsilon, PsInitial initial, double initialValue, long seed) {
  /** SGD with the rate 0.01, of zeros. */
  public static final PsSpec DEFAULT = new PsSpec(PsOptimizer.SGD, 0.01);

  /**
   * Of zeros, with the default betas 0.9 and 0.999, and epsilon 1e-8.
   *
   * @param optimizer what becomes of gradients
   * @param rate of learning
   */
  public PsSpec(PsOptimizer optimizer, double rate) {
    this(optimizer, rate, 0, false, 0.9, 0.999, 1e-8, PsInitial.CONSTANT, 0, 0);
  }

  /**
   * The same with other elements at the beginning.
   *
   * @param initial what they are
   * @param value of these
   * @param seed likewise
   * @return a changed copy
   */
  public PsSpec withInitial(PsInitial initial, double value, long seed) {
    return new PsSpec(
        optimizer, rate, momentum, nesterov, beta1, beta2, epsilon, initial, value, seed);
  }

  /** In the order of Raw.ps_variable. */
  byte[] pack() {
    Packing packing = new Packing();
    packing.add(Checks.notNull("Ps.variable", "optimizer", optimizer).ordinal());
    packing.add(nesterov ? 1 : 0);
    packing.add(Checks.notNull("Ps.variable", "initial", initial).ordinal()).add(seed);
    packing.add(rate).add(momentum).add(beta1).add(beta2).add(epsilon).add(initialValue);
    return packing.take();
  }
}
