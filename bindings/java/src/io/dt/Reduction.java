// SPDX-License-Identifier: Apache-2.0
package io.dt;

/** How the values of the ranks become one: a {@link ReduceOp}, or a function of the caller's. */
public sealed interface Reduction permits ReduceOp, Combine {}
