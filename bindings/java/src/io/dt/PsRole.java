// SPDX-License-Identifier: Apache-2.0
package io.dt;

/** What a process is in a job with parameter servers. */
public enum PsRole {
  /** Pushes gradients and pulls values: {@link Ps}. */
  WORKER,
  /** Keeps variables: {@link PsServer}. */
  SERVER,
  /** A {@link Ps} that only pulls; workers do not wait for it. */
  EVALUATOR
}
