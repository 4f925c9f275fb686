// SPDX-License-Identifier: Apache-2.0
package io.dt;

import java.nio.ByteBuffer;
import java.util.Collections;
import java.util.EnumMap;
import java.util.Map;

/**
 * What a rank did in a job so far, in nanoseconds.
 *
 * @param restarts how often the job was started before
 * @param stalls operations that took watchdog.stall_warn_ms or longer
 * @param uncounted operations that the flight recorder had no room for
 * @param steps of all reducers, like the next four
 * @param stepBytes gradient bytes
 * @param communicationNs time in which at least one bucket was under way
 * @param exposedNs of that, the program waited
 * @param hiddenShare 1 - exposed / communication, in [0, 1]
 * @param operations of each kind
 */
public record JobStatistics(
    int restarts, long stalls, long uncounted, long steps, long stepBytes, long communicationNs,
    long exposedNs, double hiddenShare, Map<OperationKind, OperationStatistics> operations) {

  static JobStatistics unpack(byte[] bytes) {
    ByteBuffer packed = Packing.read(bytes);
    Map<OperationKind, OperationStatistics> operations = new EnumMap<>(OperationKind.class);
    int restarts = (int) packed.getLong();
    long stalls = packed.getLong();
    long uncounted = packed.getLong();
    long steps = packed.getLong();
    long stepBytes = packed.getLong();
    long communicationNs = packed.getLong();
    long exposedNs = packed.getLong();
    double hiddenShare = Double.longBitsToDouble(packed.getLong());
    for (OperationKind kind : OperationKind.values()) {
      operations.put(kind, OperationStatistics.unpack(packed));
    }
    return new JobStatistics(
        restarts, stalls, uncounted, steps, stepBytes, communicationNs, exposedNs, hiddenShare,
        Collections.unmodifiableMap(operations));
  }
}
