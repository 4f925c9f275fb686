// SPDX-License-Identifier: Apache-2.0
package io.dt;

import java.util.List;

/** How SGD updates, see {@link Optimizer#sgd}. Each {@code with} gives a changed copy. */
public final class SgdOptions {
  /** The defaults: no momentum, no weight decay. */
  public static final SgdOptions DEFAULT = new SgdOptions(0, 0, false, 0, new double[0], false);

  private final double momentum;
  private final double dampening;
  private final boolean nesterov;
  private final double weightDecay;
  private final double[] weightDecays;
  private final boolean skipNonFinite;

  private SgdOptions(
      double momentum,
      double dampening,
      boolean nesterov,
      double weightDecay,
      double[] weightDecays,
      boolean skipNonFinite) {
    this.momentum = momentum;
    this.dampening = dampening;
    this.nesterov = nesterov;
    this.weightDecay = weightDecay;
    this.weightDecays = weightDecays;
    this.skipNonFinite = skipNonFinite;
  }

  /** In the order of Raw.optimizer_sgd. */
  byte[] pack(String method, List<Param> params) {
    Checks.oneEach(method, "weightDecays", weightDecays.length, params);
    Packing packing = new Packing().add(momentum).add(dampening).add(weightDecay);
    packing.add(nesterov ? 1 : 0).add(skipNonFinite ? 1 : 0);
    for (double each : weightDecays) packing.add(each);
    return packing.take();
  }

  /**
   * With momentum.
   *
   * @param momentum at least 0: factor of the last step's momentum
   * @return a changed copy
   */
  public SgdOptions withMomentum(double momentum) {
    return new SgdOptions(momentum, dampening, nesterov, weightDecay, weightDecays, skipNonFinite);
  }

  /**
   * With dampening of the momentum.
   *
   * @param dampening from the second step on, the momentum gets 1 - dampening of the gradient
   * @return a changed copy
   */
  public SgdOptions withDampening(double dampening) {
    return new SgdOptions(momentum, dampening, nesterov, weightDecay, weightDecays, skipNonFinite);
  }

  /**
   * With Nesterov's momentum, which needs a momentum and no dampening.
   *
   * @return a changed copy
   */
  public SgdOptions withNesterov() {
    return new SgdOptions(momentum, dampening, true, weightDecay, weightDecays, skipNonFinite);
  }

  /**
   * With the same weight decay for all parameters.
   *
   * @param weightDecay at least 0; a step adds weightDecay * parameter to the gradient
   * @return a changed copy
   */
  public SgdOptions withWeightDecay(double weightDecay) {
    return new SgdOptions(momentum, dampening, nesterov, weightDecay, new double[0], skipNonFinite);
  }

  /**
   * With a weight decay for each parameter.
   *
   * @param weightDecays one for each parameter, at least 0
   * @return a changed copy
   */
  public SgdOptions withWeightDecays(double... weightDecays) {
    double[] own = Checks.notNull("SgdOptions.withWeightDecays", "weightDecays", weightDecays);
    return new SgdOptions(momentum, dampening, nesterov, weightDecay, own.clone(), skipNonFinite);
  }

  /**
   * With steps that change nothing where gradients are not all finite, see {@link
   * Optimizer#skipped}.
   *
   * @return a changed copy
   */
  public SgdOptions withSkipNonFinite() {
    return new SgdOptions(momentum, dampening, nesterov, weightDecay, weightDecays, true);
  }
}
