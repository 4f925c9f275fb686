// SPDX-License-Identifier: Apache-2.0
package io.dt;

/** Reduces buckets in the place of a {@link Reducer}, see {@link Reducer#setHook}. */
@FunctionalInterface
public interface BucketHook {
  /**
   * Called with stage 0 as soon as a bucket is full, and with the next stage once the work that it
   * gave is done, in finish, until it gives none. The bucket's data then holds the result.
   *
   * @param bucket the bucket
   * @param stage 0, 1, 2, ...
   * @return what it has started, or null
   * @throws Exception which comes out of ready, unused or finish
   */
  Work reduce(Bucket bucket, int stage) throws Exception;
}
