// SPDX-License-Identifier: Apache-2.0
package io.dt;

import java.nio.ByteBuffer;

/**
 * What a rank did in operations of one kind, on all communicators.
 *
 * @param operations that have ended, failures among them
 * @param failures of these
 * @param bytes of the larger of an operation's two buffers
 * @param busBytes the same times the factor of nccl-tests for a bus bandwidth
 * @param busyNs from the start of each to its end
 * @param busbwGbs bus bytes by time: GB/s
 */
public record OperationStatistics(
    long operations, long failures, long bytes, long busBytes, long busyNs, double busbwGbs) {

  static OperationStatistics unpack(ByteBuffer packed) {
    return new OperationStatistics(
        packed.getLong(), packed.getLong(), packed.getLong(), packed.getLong(), packed.getLong(),
        Double.longBitsToDouble(packed.getLong()));
  }
}
