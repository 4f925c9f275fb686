// SPDX-License-Identifier: Apache-2.0
package io.dt;

/**
 * How names become operations; the same on all ranks.
 *
 * @param fuseBytes allReduces of one type and op are put together up to so many; 0: each is alone
 * @param cache names whose description does not travel again
 * @param stallMs rank 0 logs a warning of a name that waits for ranks for so long; 0: none
 * @param cycleUs how long rank 0 waits for more names while some are half there
 */
public record NamedOptions(long fuseBytes, int cache, long stallMs, long cycleUs) {
  /** The defaults: 64 MiB, 1024 names, a minute, a millisecond. */
  public static final NamedOptions DEFAULT = new NamedOptions(64 << 20, 1024, 60_000, 1000);

  byte[] pack() {
    return new Packing().add(fuseBytes).add(cache).add(stallMs).add(cycleUs).take();
  }
}
