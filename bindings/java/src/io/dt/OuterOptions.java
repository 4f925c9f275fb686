// SPDX-License-Identifier: Apache-2.0
package io.dt;

/**
 * How ranks come together; the same on all ranks. Local SGD, the mean of the parameters, has rate 1
 * and momentum 0.
 *
 * @param syncEvery steps in which each fragment has its turn once
 * @param fragments a divisor of syncEvery: parts of the parameters, with turns one after the other
 * @param delay steps that go on while a mean is under way; less than syncEvery / fragments
 * @param alpha in [0, 1]: how much of a rank's own parameters stays when the mean is there
 * @param rate of SGD on the global parameters
 * @param momentum in [0, 1)
 * @param nesterov whether the momentum is Nesterov's
 * @param format what the mean travels as
 */
public record OuterOptions(
    long syncEvery, int fragments, long delay, double alpha, double rate, double momentum,
    boolean nesterov, OuterFormat format) {
  /**
   * DiLoCo's.
   *
   * @param syncEvery steps from one mean to the next
   */
  public OuterOptions(long syncEvery) {
    this(syncEvery, 1, 0, 0, 0.7, 0.9, true, OuterFormat.F32);
  }

  /** In the order of Raw.outer_create. */
  void pack(Packing packing) {
    packing.add(syncEvery).add(fragments).add(delay).add(nesterov ? 1 : 0);
    packing.add(Checks.notNull("Outer", "format", format).ordinal());
    packing.add(alpha).add(rate).add(momentum);
  }
}
