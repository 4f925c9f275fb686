// SPDX-License-Identifier: Apache-2.0
package io.dt;

import java.nio.ByteBuffer;

/**
 * Where a process stands in a job with parameter servers: what {@link Ps#info} gives.
 *
 * @param role what it is
 * @param index of the server, the worker or the evaluator
 * @param servers how many there are
 * @param workers likewise; 0: not known
 * @param attempt how often the job was started again
 */
public record PsPlace(PsRole role, int index, int servers, int workers, int attempt) {

  static PsPlace unpack(byte[] bytes) {
    ByteBuffer packed = Packing.read(bytes);
    return new PsPlace(
        PsRole.values()[(int) packed.getLong()], (int) packed.getLong(), (int) packed.getLong(),
        (int) packed.getLong(), (int) packed.getLong());
  }
}
