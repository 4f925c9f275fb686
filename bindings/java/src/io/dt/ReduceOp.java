// SPDX-License-Identifier: Apache-2.0
package io.dt;

/** The reductions that dt has. Each rank gets the same bits. */
public enum ReduceOp implements Reduction {
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

  /** As dt_reduce_op, which a Combine does not need. */
  static int number(Reduction op) {
    return op instanceof ReduceOp one ? one.ordinal() : 0;
  }
}
