// SPDX-License-Identifier: Apache-2.0
package io.dt;

/** What gradients of F32 travel as, where links are slow. */
public enum Wire {
  /** As they are. */
  SAME,
  /** What is larger than 65520 becomes infinite. */
  F16,
  /** With the range of F32. */
  BF16,
  /** In blocks of 64, each with a scale; what rounding leaves out is added to the next gradient. */
  BITS8
}
