// SPDX-License-Identifier: Apache-2.0
package io.dt;

import io.dt.raw.Loader;
import io.dt.raw.Raw;
import java.lang.ref.Reference;

/**
 * Which samples of a data set this rank sees, in which order: index for index as PyTorch's
 * DistributedSampler. One thread at a time.
 */
public final class Sampler extends Handle {
  /** Indices that are fetched at once: an array of bytes has room for 2^28, and a copy costs. */
  private static final int SLICE = 1 << 20;

  /**
   * Deals a data set out to the ranks of a communicator, shuffled, the tail filled up from the
   * front.
   *
   * @param comm whose ranks
   * @param size samples of the data set
   * @param seed equal on all ranks
   */
  public Sampler(Comm comm, long size, long seed) {
    this(comm.size(), comm.rank(), size, seed, true, false);
  }

  /**
   * Deals a data set out to ranks.
   *
   * @param worldSize number of ranks
   * @param rank this one
   * @param size samples of the data set
   * @param seed equal on all ranks; taken as 64 bits without a sign
   * @param shuffle false: in the order of the data set
   * @param dropLast true: drop the tail instead of repeating samples from the front
   */
  public Sampler(
      int worldSize, int rank, long size, long seed, boolean shuffle, boolean dropLast) {
    super(create(worldSize, rank, size, seed, shuffle, dropLast), Raw::sampler_destroy);
  }

  private static long create(
      int worldSize, int rank, long size, long seed, boolean shuffle, boolean dropLast) {
    Loader.load();
    return Raw.sampler_create(worldSize, rank, size, seed, !shuffle, dropLast);
  }

  /**
   * Chooses the epoch's order. A forgotten call repeats the same order.
   *
   * @param epoch at least 0
   */
  public void setEpoch(long epoch) {
    try {
      Raw.sampler_set_epoch(number(), epoch);
    } finally {
      Reference.reachabilityFence(this);
    }
  }

  /**
   * Samples of this rank per epoch.
   *
   * @return equal on all ranks
   */
  public long length() {
    try {
      return Raw.sampler_length(number());
    } finally {
      Reference.reachabilityFence(this);
    }
  }

  /**
   * Throws on all ranks of a communicator a {@link MismatchException} with the first difference,
   * unless their samplers belong together: the same data set, seed, order and epoch, another part
   * for each. Collective.
   *
   * @param comm whose ranks
   */
  public void check(Comm comm) {
    try {
      Raw.sampler_check(number(), comm.number());
    } finally {
      Reference.reachabilityFence(this);
      Reference.reachabilityFence(comm);
    }
  }

  /**
   * A range of this rank's sample indices.
   *
   * @param first position in [0, length]
   * @param count with first + count &lt;= length
   * @return indices into the data set
   */
  public long[] indices(long first, int count) {
    try {
      // What dt refuses needs no memory.
      if (count <= SLICE || first < 0 || first > length() - count) {
        byte[] packed = Raw.sampler_indices(number(), first, count);
        long[] indices = new long[packed.length / 8];
        Packing.read(packed).asLongBuffer().get(indices);
        return indices;
      }
      long[] indices = new long[count];
      for (int done = 0; done < count; ) {
        int part = Math.min(count - done, SLICE);
        byte[] packed = Raw.sampler_indices(number(), first + done, part);
        Packing.read(packed).asLongBuffer().get(indices, done, part);
        done += part;
      }
      return indices;
    } finally {
      Reference.reachabilityFence(this);
    }
  }

  /**
   * All of this rank's sample indices of the epoch.
   *
   * @return indices into the data set
   */
  public long[] indices() {
    return indices(0, Math.toIntExact(length()));
  }
}
