// SPDX-License-Identifier: Apache-2.0
package io.dt;

/**
 * How a worker of parameter servers works.
 *
 * @param worker which one this is, of no other process; -1: as {@link Ps#info} says
 * @param connectMs all servers must be there within
 * @param timeoutMs of each later call, within which a lost server may come back; negative: no limit
 * @param queueBytes what calls may have under way; one with more waits for others
 */
public record PsOptions(int worker, long connectMs, long timeoutMs, long queueBytes) {
  /** The defaults: five minutes, half an hour, 256 MiB. */
  public static final PsOptions DEFAULT = new PsOptions(-1);

  /**
   * With the default limits.
   *
   * @param worker which one this is; -1: as {@link Ps#info} says
   */
  public PsOptions(int worker) {
    this(worker, 300_000, 1_800_000, 256 << 20);
  }
}
