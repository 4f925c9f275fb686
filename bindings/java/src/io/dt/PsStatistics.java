// SPDX-License-Identifier: Apache-2.0
package io.dt;

import java.nio.ByteBuffer;

/**
 * What a worker of parameter servers did.
 *
 * @param pushes calls, also of set
 * @param pulls calls
 * @param pushedRows as they were given
 * @param pulledRows likewise
 * @param sentBytes of requests, without headers
 * @param receivedBytes likewise
 * @param reconnects of servers that were lost
 * @param clock steps of {@link Ps#clock}
 * @param mostAhead of the slowest worker, when {@link Ps#clock} returned
 */
public record PsStatistics(
    long pushes, long pulls, long pushedRows, long pulledRows, long sentBytes, long receivedBytes,
    long reconnects, long clock, long mostAhead) {

  static PsStatistics unpack(byte[] bytes) {
    ByteBuffer packed = Packing.read(bytes);
    return new PsStatistics(
        packed.getLong(), packed.getLong(), packed.getLong(), packed.getLong(), packed.getLong(),
        packed.getLong(), packed.getLong(), packed.getLong(), packed.getLong());
  }
}
