// SPDX-License-Identifier: Apache-2.0
package io.dt;

/** How the values of the ranks become one. Each rank gets the same bits. */
public enum ReduceOp {
  /** Their sum; integers wrap. */
  SUM,
  /** Their mean; of integers the wrapped sum divided, truncated. */
  AVG,
  /** Their product. */
  PROD,
  /** The least; NaN wins. */
  MIN,
  /** The greatest; NaN wins. */
  MAX,
  /** Bitwise and, for integers and truth values. */
  BAND,
  /** Bitwise or. */
  BOR,
  /** Bitwise exclusive or. */
  BXOR;

  /** As dt_reduce_op. */
  int number() {
    return ordinal();
  }
}
