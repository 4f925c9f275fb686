// SPDX-License-Identifier: Apache-2.0
package io.dt;

import java.nio.ByteBuffer;

/**
 * What a reducer did, in nanoseconds of this rank.
 *
 * @param bucketCount of the plan in use
 * @param steps finished steps
 * @param bytes gradient bytes reduced in the last step
 * @param communicationNs last step: time in which at least one bucket was under way
 * @param exposedNs last step: time that {@link Reducer#finish()} waited
 * @param totalBytes of all steps
 * @param totalCommunicationNs of all steps
 * @param totalExposedNs of all steps
 * @param rebuilt whether the plan follows the arrival order
 * @param tuned whether bucketCapBytes has been found by {@link ReducerOptions#withTuneSteps}
 * @param memoryBytes of the buckets now, and of a shard's parameters
 * @param totalGatherNs of a shard: that parameters were waited for
 * @param bucketCapBytes of the plan in use
 * @param hiddenShare of all steps: 1 - exposed / communication, in [0, 1]
 */
public record ReducerStatistics(
    int bucketCount, long steps, long bytes, long communicationNs, long exposedNs,
    long totalBytes, long totalCommunicationNs, long totalExposedNs, boolean rebuilt,
    boolean tuned, long memoryBytes, long totalGatherNs, long bucketCapBytes, double hiddenShare) {

  static ReducerStatistics unpack(byte[] bytes) {
    ByteBuffer packed = Packing.read(bytes);
    return new ReducerStatistics(
        (int) packed.getLong(), packed.getLong(), packed.getLong(), packed.getLong(),
        packed.getLong(), packed.getLong(), packed.getLong(), packed.getLong(),
        packed.getLong() != 0, packed.getLong() != 0, packed.getLong(), packed.getLong(),
        packed.getLong(), Double.longBitsToDouble(packed.getLong()));
  }
}
