// SPDX-License-Identifier: Apache-2.0
package io.dt;

/** What the mean over the ranks of an {@link Outer} travels as. It is summed in f32. */
public enum OuterFormat {
  /** As it is. */
  F32,
  /** With the range of F32. */
  BF16,
  /** Blocks of 64 elements of 8 bits, each with a scale of F32. */
  BITS8,
  /** Likewise of 4 bits. */
  BITS4
}
