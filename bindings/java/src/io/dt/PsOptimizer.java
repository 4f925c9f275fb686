// SPDX-License-Identifier: Apache-2.0
package io.dt;

/** How servers update a variable, by the formulas of PyTorch. */
public enum PsOptimizer {
  /** Gradient descent. */
  SGD,
  /** SGD with momentum, and nesterov. */
  MOMENTUM,
  /** With epsilon. */
  ADAGRAD,
  /** With beta1, beta2 and epsilon; it counts the updates of each row. */
  ADAM
}
