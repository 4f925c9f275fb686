// SPDX-License-Identifier: Apache-2.0
package io.dt;

/**
 * How a reducer works.
 *
 * @param sum true: sum gradients instead of averaging them
 * @param keepPlan true: never rebuild by arrival order
 * @param bucketCapBytes a bucket closes when it reaches this; 0: as the settings say
 * @param firstBucketBytes cap of the first bucket of each dtype; 0: as the settings say
 */
public record ReducerOptions(
    boolean sum, boolean keepPlan, long bucketCapBytes, long firstBucketBytes) {
  /** The defaults. */
  public static final ReducerOptions DEFAULT = new ReducerOptions(false, false, 0, 0);

  /**
   * With other caps of buckets.
   *
   * @param cap of each, in bytes
   * @param first of the first of each dtype, in bytes
   * @return a changed copy
   */
  public ReducerOptions withBucketBytes(long cap, long first) {
    return new ReducerOptions(sum, keepPlan, cap, first);
  }

  /**
   * With sums instead of means.
   *
   * @return a changed copy
   */
  public ReducerOptions withSum() {
    return new ReducerOptions(true, keepPlan, bucketCapBytes, firstBucketBytes);
  }

  /**
   * With the first plan for good.
   *
   * @return a changed copy
   */
  public ReducerOptions withKeptPlan() {
    return new ReducerOptions(sum, true, bucketCapBytes, firstBucketBytes);
  }
}
