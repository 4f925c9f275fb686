// SPDX-License-Identifier: Apache-2.0
package io.dt;

/**
 * How a reducer works.
 *
 * @param sum true: sum gradients instead of averaging them
 * @param keepPlan true: never rebuild by arrival order
 * @param findUnused true: a parameter may have no gradient in a step, see {@link Reducer#unused}
 * @param bucketCapBytes a bucket closes when it reaches this; 0: as the settings say
 * @param firstBucketBytes cap of the first bucket of each dtype; 0: as the settings say
 */
public record ReducerOptions(
    boolean sum,
    boolean keepPlan,
    boolean findUnused,
    long bucketCapBytes,
    long firstBucketBytes) {
  /** The defaults. */
  public static final ReducerOptions DEFAULT = new ReducerOptions(false, false, false, 0, 0);

  /**
   * With other caps of buckets.
   *
   * @param cap of each, in bytes
   * @param first of the first of each dtype, in bytes
   * @return a changed copy
   */
  public ReducerOptions withBucketBytes(long cap, long first) {
    return new ReducerOptions(sum, keepPlan, findUnused, cap, first);
  }

  /**
   * With sums instead of means.
   *
   * @return a changed copy
   */
  public ReducerOptions withSum() {
    return new ReducerOptions(true, keepPlan, findUnused, bucketCapBytes, firstBucketBytes);
  }

  /**
   * With the first plan for good.
   *
   * @return a changed copy
   */
  public ReducerOptions withKeptPlan() {
    return new ReducerOptions(sum, true, findUnused, bucketCapBytes, firstBucketBytes);
  }

  /**
   * For models some of whose parameters have no gradient in a step.
   *
   * @return a changed copy
   */
  public ReducerOptions withUnused() {
    return new ReducerOptions(sum, keepPlan, true, bucketCapBytes, firstBucketBytes);
  }
}
