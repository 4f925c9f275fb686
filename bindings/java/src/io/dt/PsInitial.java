// SPDX-License-Identifier: Apache-2.0
package io.dt;

/**
 * What the elements of a variable begin with. They follow from seed, row and column alone.
 */
public enum PsInitial {
  /** The initial value. */
  CONSTANT,
  /** Between the initial value and its negative. */
  UNIFORM,
  /** With the initial value as standard deviation. */
  NORMAL
}
