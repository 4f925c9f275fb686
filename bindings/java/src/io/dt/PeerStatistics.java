// SPDX-License-Identifier: Apache-2.0
package io.dt;

import java.nio.ByteBuffer;

/**
 * How long calls of this rank were held up by another one.
 *
 * @param waits how often
 * @param waitedNs how long
 */
public record PeerStatistics(long waits, long waitedNs) {

  static PeerStatistics unpack(byte[] bytes) {
    ByteBuffer packed = Packing.read(bytes);
    return new PeerStatistics(packed.getLong(), packed.getLong());
  }
}
