// SPDX-License-Identifier: Apache-2.0
package io.dt;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/**
 * How many elements of a {@link Tensor} belong to each rank, and where they lie. Make it once and
 * use it again.
 */
public final class Blocks {
  /** What the native layer gets where this rank needs none. */
  static final byte[] NONE = {};

  private final long[] counts;
  private final long[] offsets; // null: one behind the other
  private final long total;
  private final byte[] packed;

  private Blocks(long[] counts, long[] offsets) {
    this.counts = counts;
    this.offsets = offsets;
    long sum = 0;
    for (long count : counts) sum = behind(sum, count);
    total = sum;
    packed = offsets == null ? joined(counts) : joined(counts, offsets);
  }

  /**
   * Blocks that lie one behind the other, in rank order.
   *
   * @param counts elements of each rank of the communicator; copied
   * @return to be used as often as wanted
   */
  public static Blocks of(long... counts) {
    return new Blocks(checked("counts", counts), null);
  }

  /**
   * Blocks that lie anywhere. Those that are received may not overlap; what lies between them stays
   * as it is.
   *
   * @param counts elements of each rank of the communicator; copied
   * @param offsets in elements, where the block of each rank begins; copied
   * @return to be used as often as wanted
   */
  public static Blocks of(long[] counts, long[] offsets) {
    Blocks made = new Blocks(checked("counts", counts), checked("offsets", offsets));
    if (offsets.length == counts.length) return made;
    throw Checks.refused(
        "Blocks.of", "offsets", "has " + offsets.length + " elements, counts " + counts.length,
        "give one for each rank in both");
  }

  private static long[] checked(String name, long[] values) {
    long[] copy = Checks.notNull("Blocks.of", name, values).clone();
    for (int rank = 0; rank < copy.length; rank++) {
      Checks.atLeast("Blocks.of", name + "[" + rank + "]", copy[rank], 0);
    }
    return copy;
  }

  private static long behind(long offset, long count) {
    return count > Long.MAX_VALUE - offset ? Long.MAX_VALUE : offset + count;
  }

  /** They are one for each rank, and lie in a tensor; without offsets they fill it. */
  void check(String method, String name, int ranks, String tensorName, long has) {
    if (counts.length != ranks) {
      throw Checks.refused(
          method, name,
          "has " + counts.length + " counts, but the communicator has " + ranks + " ranks",
          "give one for each rank");
    }
    if (offsets == null) {
      if (has == total) return;
      throw Checks.refused(
          method, name, "has " + total + " elements together, but " + tensorName + " has " + has,
          "give a tensor of as many");
    }
    for (int rank = 0; rank < ranks; rank++) {
      // An empty block may be anywhere.
      if (counts[rank] == 0 || offsets[rank] <= has - counts[rank]) continue;
      throw Checks.refused(
          method, "the block of rank " + rank + " in " + name,
          "does not lie in " + tensorName + ": it has " + counts[rank] + " elements from "
              + offsets[rank] + " on, but " + tensorName + " has " + has,
          "give a smaller offset or a larger tensor");
    }
  }

  /** The block of this rank is what its own tensor has. */
  void checkOwn(String method, String name, int rank, String tensorName, long has) {
    if (has == counts[rank]) return;
    throw Checks.refused(
        method, name + "[" + rank + "], which is this rank's,",
        "is " + counts[rank] + ", but " + tensorName + " has " + has + " elements",
        "give a tensor of as many");
  }

  /** As the native layer wants it; not to be changed. */
  byte[] packed() {
    return packed;
  }

  /** These, and then the others; offsets of both where one has some. */
  byte[] packed(Blocks others) {
    if (offsets == null && others.offsets == null) return joined(counts, others.counts);
    return joined(counts, others.counts, offsets(), others.offsets());
  }

  private long[] offsets() {
    if (offsets != null) return offsets;
    long[] made = new long[counts.length];
    for (int rank = 1; rank < made.length; rank++) {
      made[rank] = behind(made[rank - 1], counts[rank - 1]);
    }
    return made;
  }

  private static byte[] joined(long[]... lists) {
    int numbers = 0;
    for (long[] list : lists) numbers += list.length;
    ByteBuffer bytes = ByteBuffer.allocate(numbers * Long.BYTES).order(ByteOrder.nativeOrder());
    for (long[] list : lists) {
      for (long number : list) bytes.putLong(number);
    }
    return bytes.array();
  }
}
