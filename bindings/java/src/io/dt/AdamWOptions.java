// SPDX-License-Identifier: Apache-2.0
package io.dt;

import java.util.List;

/** How AdamW updates, see {@link Optimizer#adamW}. Each {@code with} gives a changed copy. */
public final class AdamWOptions {
  /** The defaults: betas 0.9 and 0.999, epsilon 1e-8, weight decay 0.01. */
  public static final AdamWOptions DEFAULT =
      new AdamWOptions(0.9, 0.999, 1e-8, 0.01, new double[0], false);

  private final double beta1;
  private final double beta2;
  private final double epsilon;
  private final double weightDecay;
  private final double[] weightDecays;
  private final boolean skipNonFinite;

  private AdamWOptions(
      double beta1,
      double beta2,
      double epsilon,
      double weightDecay,
      double[] weightDecays,
      boolean skipNonFinite) {
    this.beta1 = beta1;
    this.beta2 = beta2;
    this.epsilon = epsilon;
    this.weightDecay = weightDecay;
    this.weightDecays = weightDecays;
    this.skipNonFinite = skipNonFinite;
  }

  /** In the order of Raw.optimizer_adamw. */
  byte[] pack(String method, List<Param> params) {
    Checks.oneEach(method, "weightDecays", weightDecays.length, params);
    Packing packing = new Packing().add(beta1).add(beta2).add(epsilon).add(weightDecay);
    packing.add(skipNonFinite ? 1 : 0);
    for (double each : weightDecays) packing.add(each);
    return packing.take();
  }

  /**
   * With other decay rates of the running means.
   *
   * @param beta1 of the gradients' mean, in [0, 1)
   * @param beta2 of the mean of their squares, in [0, 1)
   * @return a changed copy
   */
  public AdamWOptions withBetas(double beta1, double beta2) {
    return new AdamWOptions(beta1, beta2, epsilon, weightDecay, weightDecays, skipNonFinite);
  }

  /**
   * With another epsilon.
   *
   * @param epsilon at least 0, added to the denominator
   * @return a changed copy
   */
  public AdamWOptions withEpsilon(double epsilon) {
    return new AdamWOptions(beta1, beta2, epsilon, weightDecay, weightDecays, skipNonFinite);
  }

  /**
   * With the same weight decay for all parameters.
   *
   * @param weightDecay at least 0; a step multiplies parameters by 1 - rate * weightDecay
   * @return a changed copy
   */
  public AdamWOptions withWeightDecay(double weightDecay) {
    return new AdamWOptions(beta1, beta2, epsilon, weightDecay, new double[0], skipNonFinite);
  }

  /**
   * With a weight decay for each parameter.
   *
   * @param weightDecays one for each parameter, at least 0
   * @return a changed copy
   */
  public AdamWOptions withWeightDecays(double... weightDecays) {
    double[] own = Checks.notNull("AdamWOptions.withWeightDecays", "weightDecays", weightDecays);
    return new AdamWOptions(beta1, beta2, epsilon, weightDecay, own.clone(), skipNonFinite);
  }

  /**
   * With steps that change nothing where gradients are not all finite, see {@link
   * Optimizer#skipped}.
   *
   * @return a changed copy
   */
  public AdamWOptions withSkipNonFinite() {
    return new AdamWOptions(beta1, beta2, epsilon, weightDecay, weightDecays, true);
  }
}
