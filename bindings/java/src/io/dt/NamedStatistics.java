// SPDX-License-Identifier: Apache-2.0
package io.dt;

import java.nio.ByteBuffer;

/**
 * What a rank did by name.
 *
 * @param answers lists of operations from rank 0
 * @param tensors names in these
 * @param operations that they became
 * @param fusedTensors that shared an operation with others
 * @param fusedBytes of these
 * @param cacheHits names whose description did not travel
 * @param stalls of rank 0: names that were warned of
 */
public record NamedStatistics(
    long answers, long tensors, long operations, long fusedTensors, long fusedBytes,
    long cacheHits, long stalls) {

  static NamedStatistics unpack(byte[] bytes) {
    ByteBuffer packed = Packing.read(bytes);
    return new NamedStatistics(
        packed.getLong(), packed.getLong(), packed.getLong(), packed.getLong(), packed.getLong(),
        packed.getLong(), packed.getLong());
  }
}
