// SPDX-License-Identifier: Apache-2.0
package io.dt;

import java.nio.ByteBuffer;

/**
 * What a parameter server did.
 *
 * @param workers that are connected
 * @param pushes requests: a call of a worker may be several
 * @param pulls likewise
 * @param pushedRows in these
 * @param pulledRows likewise
 * @param saves checkpoints that were written
 * @param busyNs of a processor, by the thread that serves
 */
public record PsServerStatistics(
    int workers, long pushes, long pulls, long pushedRows, long pulledRows, long saves,
    long busyNs) {

  static PsServerStatistics unpack(byte[] bytes) {
    ByteBuffer packed = Packing.read(bytes);
    return new PsServerStatistics(
        (int) packed.getLong(), packed.getLong(), packed.getLong(), packed.getLong(),
        packed.getLong(), packed.getLong(), packed.getLong());
  }
}
