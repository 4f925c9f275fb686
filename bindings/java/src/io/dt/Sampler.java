// SPDX-License-Identifier: Apache-2.0
package io.dt;

import io.dt.raw.Loader;
import io.dt.raw.Raw;
import java.nio.ByteBuffer;
import java.util.Iterator;
import java.util.NoSuchElementException;

/**
 * Which samples of a data set this rank sees, in which order: index for index as PyTorch's
 * DistributedSampler, in shuffled blocks, or drawn by weights. One thread at a time.
 */
public final class Sampler extends Handle {
  /** Indices that are fetched at once: an array of bytes has room for 2^28, and a copy costs. */
  private static final int SLICE = 1 << 20;

  /** Of {@link #next}, which must not come back for more. */
  private static final int LARGEST_BATCH = 1 << 27;

  /**
   * Deals a data set out to the ranks of a communicator, shuffled, the tail filled up from the
   * front.
   *
   * @param comm whose ranks
   * @param size samples of the data set
   * @param seed equal on all ranks
   */
  public Sampler(Comm comm, long size, long seed) {
    this(
        Checks.notNull("Sampler", "comm", comm).size(), comm.rank(), size, seed, true, false,
        false);
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
   * @param wholeBatches true: {@link #next} leaves out a last batch that would be shorter
   */
  public Sampler(
      int worldSize, int rank, long size, long seed, boolean shuffle, boolean dropLast,
      boolean wholeBatches) {
    this(worldSize, rank, size, seed, shuffle, dropLast, wholeBatches, 0, 0, new byte[0], 0);
  }

  private Sampler(
      int worldSize, int rank, long size, long seed, boolean shuffle, boolean dropLast,
      boolean wholeBatches, long block, long window, byte[] weights, long draws) {
    super(
        create(worldSize, rank, size, seed, shuffle, dropLast, wholeBatches, block, window, weights,
            draws),
        Raw::sampler_destroy);
  }

  private static long create(
      int worldSize, int rank, long size, long seed, boolean shuffle, boolean dropLast,
      boolean wholeBatches, long block, long window, byte[] weights, long draws) {
    Loader.load();
    return Raw.sampler_create(
        worldSize, rank, size, seed, !shuffle, dropLast, wholeBatches, block, window, weights,
        draws);
  }

  /**
   * Shuffles blocks of consecutive samples, and the samples within each window: without memory, for
   * any number of samples.
   *
   * @param worldSize number of ranks
   * @param rank this one
   * @param size samples of the data set
   * @param block consecutive samples, at least 1; 1: one shuffle of all samples
   * @param window samples of the order that mix; 0: those of 16 blocks
   * @param seed equal on all ranks; taken as 64 bits without a sign
   * @param dropLast true: drop the tail instead of repeating samples from the front
   * @param wholeBatches true: {@link #next} leaves out a last batch that would be shorter
   * @return a new sampler
   */
  public static Sampler blocks(
      int worldSize, int rank, long size, long block, long window, long seed, boolean dropLast,
      boolean wholeBatches) {
    Checks.atLeast("Sampler.blocks", "block", block, 1);
    return new Sampler(
        worldSize, rank, size, seed, true, dropLast, wholeBatches, block, window, new byte[0], 0);
  }

  /**
   * Draws samples with replacement.
   *
   * @param worldSize number of ranks
   * @param rank this one
   * @param weights of each sample, how often it is drawn; at least 0
   * @param draws of an epoch, over all ranks; 0: as many as samples
   * @param seed equal on all ranks; taken as 64 bits without a sign
   * @param dropLast true: drop the tail instead of repeating draws from the front
   * @param wholeBatches true: {@link #next} leaves out a last batch that would be shorter
   * @return a new sampler
   */
  public static Sampler weighted(
      int worldSize, int rank, double[] weights, long draws, long seed, boolean dropLast,
      boolean wholeBatches) {
    if (weights == null || weights.length == 0 || weights.length > Integer.MAX_VALUE / 8) {
      throw Checks.refused(
          "Sampler.weighted", "weights", "has " + (weights == null ? "no" : weights.length)
              + " elements", "give one for each sample, from 1 to 2^28 - 1");
    }
    byte[] packed = new byte[8 * weights.length];
    Packing.read(packed).asDoubleBuffer().put(weights);
    return new Sampler(
        worldSize, rank, weights.length, seed, true, dropLast, wholeBatches, 0, 0, packed, draws);
  }

  /**
   * Chooses the epoch's order, and goes to its front. The epoch that is chosen already goes on
   * where it is, unless all of it was taken: a resumed job calls this in its loop as ever.
   *
   * @param epoch at least 0
   */
  public void setEpoch(long epoch) {
    run(number -> Raw.sampler_set_epoch(number, epoch));
  }

  /**
   * Samples of this rank in the epoch, or in what was left of it where {@link #resume} set in.
   *
   * @return equal on all ranks
   */
  public long length() {
    return call(Raw::sampler_length);
  }

  /**
   * Throws on all ranks of a communicator a {@link MismatchException} with the first difference,
   * unless their samplers belong together: the same data set, seed, order, epoch and place in it,
   * another part for each. Collective.
   *
   * @param comm whose ranks
   */
  public void check(Comm comm) {
    Checks.notNull("Sampler.check", "comm", comm)
        .run(other -> run(number -> Raw.sampler_check(number, other)));
  }

  /**
   * A range of this rank's sample indices.
   *
   * @param first position in [0, length]
   * @param count with first + count &lt;= length
   * @return indices into the data set
   */
  public long[] indices(long first, int count) {
    // What dt refuses needs no memory.
    if (count <= SLICE || first < 0 || first > length() - count) {
      return longs(call(number -> Raw.sampler_indices(number, first, count)));
    }
    long[] indices = new long[count];
    for (int done = 0; done < count; ) {
      int part = Math.min(count - done, SLICE);
      long from = first + done;
      byte[] packed = call(number -> Raw.sampler_indices(number, from, part));
      Packing.read(packed).asLongBuffer().get(indices, done, part);
      done += part;
    }
    return indices;
  }

  /**
   * This rank's next sample indices: a batch.
   *
   * @param count how many, from 1 to 2^27
   * @return fewer than {@code count} only at the end, never with wholeBatches; none: the epoch has
   *     ended. After that it throws an {@link InvalidStateException} until {@link #setEpoch}
   */
  public long[] next(int count) {
    if (count > LARGEST_BATCH) {
      throw Checks.refused(
          "Sampler.next", "count", "is " + count,
          "at most " + LARGEST_BATCH + " at once, or indices() for more");
    }
    return longs(call(number -> Raw.sampler_next(number, count)));
  }

  /**
   * What {@link #next} gives until the epoch's end.
   *
   * @param size of a batch, but for the last one without wholeBatches
   * @return to be gone through once per epoch; each iterator takes from this sampler
   */
  public Iterable<long[]> batches(int size) {
    return () ->
        new Iterator<>() {
          private long[] batch; // null: not asked for yet; empty: the end

          @Override
          public boolean hasNext() {
            if (batch == null) batch = Sampler.this.next(size);
            return batch.length > 0;
          }

          @Override
          public long[] next() {
            if (!hasNext()) throw new NoSuchElementException("the epoch has ended");
            long[] given = batch;
            batch = null;
            return given;
          }
        };
  }

  /**
   * Where the job is when every rank has taken all that {@link #next} gave on this one.
   *
   * @return for a checkpoint; the state of one rank does for all
   */
  public SamplerState save() {
    return save(-1);
  }

  /**
   * Where the job is when every rank has used as many samples as this one: for a loader that reads
   * ahead.
   *
   * @param taken of {@link #length}; -1: as many as {@link #next} gave
   * @return for a checkpoint; the state of one rank does for all
   */
  public SamplerState save(long taken) {
    ByteBuffer packed = Packing.read(call(number -> Raw.sampler_save(number, taken)));
    return new SamplerState(
        packed.getLong(), packed.getLong(), packed.getLong(), packed.getLong());
  }

  /**
   * Goes on where a job was: what was left of the epoch is dealt out to today's ranks.
   *
   * @param state the same on all ranks
   */
  public void resume(SamplerState state) {
    Checks.notNull("Sampler.resume", "state", state);
    run(
        number ->
            Raw.sampler_resume(
                number, state.epoch(), state.consumed(), state.size(), state.order()));
  }

  /**
   * All of this rank's sample indices of the epoch.
   *
   * @return indices into the data set
   */
  public long[] indices() {
    long length = length();
    if (length > Integer.MAX_VALUE) {
      throw Checks.refused(
          "Sampler.indices", "the epoch", "has " + length + " samples, more than an array can hold",
          "take parts by indices(first, count), or next");
    }
    return indices(0, (int) length);
  }

  private static long[] longs(byte[] packed) {
    long[] values = new long[packed.length / 8];
    Packing.read(packed).asLongBuffer().get(values);
    return values;
  }
}
