// SPDX-License-Identifier: Apache-2.0
package io.dt;

import io.dt.raw.Raw;
import java.util.List;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;

/**
 * What dt uses until a reducer's handle is destroyed, by {@link Reducer#close}, by the garbage
 * collector, or at the end of the last call that runs meanwhile. It must not refer to the reducer,
 * which could never be collected then.
 */
final class Retained {
  /** Those of {@link ReducerOptions#withGradients}; null for a parameter without one. */
  private final List<Tensor> fixed;
  /** Gradients given to ready and unused, which finish writes. */
  private final Queue<Tensor> gradients = new ConcurrentLinkedQueue<>();
  /** Parameters that finish reads. */
  private final Tensor[] watched;

  private volatile HookCalls hook;

  /** {@code fixed} have been acquired for this. */
  Retained(int parameters, List<Tensor> fixed) {
    this.fixed = fixed;
    watched = new Tensor[parameters];
  }

  /** The gradient has been acquired for this. */
  void addGradient(Tensor gradient) {
    gradients.add(gradient);
  }

  void releaseGradients() {
    for (Tensor each; (each = gradients.poll()) != null; ) Tensor.release(each);
  }

  /** The parameter (or null) has been acquired for this; the caller releases the result. */
  Tensor watch(int index, Tensor parameter) {
    Tensor old = watched[index];
    watched[index] = parameter;
    return old;
  }

  /** Null: none. */
  HookCalls hook() {
    return hook;
  }

  /** The caller deletes the result. */
  HookCalls setHook(HookCalls calls) {
    HookCalls old = hook;
    hook = calls;
    return old;
  }

  /** No call on the handle runs any more. */
  void destroy(long reducer) {
    Raw.reducer_destroy(reducer);
    HookCalls.delete(hook);
    releaseGradients();
    for (Tensor each : watched) Tensor.release(each);
    for (Tensor each : fixed) Tensor.release(each);
  }
}
