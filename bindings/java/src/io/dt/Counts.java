// SPDX-License-Identifier: Apache-2.0
package io.dt;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/**
 * A count for each rank, of one operation, and where there are any, offsets: copies, which are
 * checked, so that no other thread changes what dt reads.
 */
final class Counts {
  /** What the native layer gets where this rank needs no counts. */
  static final byte[] NONE = {};

  private final String operation;
  private final String name;
  private final long[] values;
  private final long[] offsets; // null: one behind the other
  private long total;

  private Counts(String operation, String name, long[] values, long[] offsets) {
    this.operation = operation;
    this.name = name;
    this.values = values;
    this.offsets = offsets;
  }

  static Counts of(String operation, String name, long[] counts, int ranks) {
    return of(operation, name, counts, null, ranks);
  }

  static Counts of(String operation, String name, long[] counts, long[] offsets, int ranks) {
    if (counts == null) {
      throw Buffers.refused(
          operation, name, "is null", "give a count for each of the " + ranks + " ranks");
    }
    Counts made =
        new Counts(operation, name, counts.clone(), offsets == null ? null : offsets.clone());
    made.check(made.values, name, "a count", ranks);
    for (long value : made.values) made.total = behind(made.total, value);
    if (offsets != null) made.check(made.offsets, made.offsetsName(), "an offset", ranks);
    return made;
  }

  private String offsetsName() {
    return name.replace("counts", "offsets").replace("Counts", "Offsets");
  }

  private static long behind(long offset, long count) {
    return count > Long.MAX_VALUE - offset ? Long.MAX_VALUE : offset + count;
  }

  /** `one`: how to call one of them, with its article. */
  private void check(long[] all, String called, String one, int ranks) {
    if (all.length != ranks) {
      throw Buffers.refused(
          operation, called,
          "has " + all.length + one.substring(one.indexOf(' ')) + "s, but the communicator has "
              + ranks + " ranks",
          "give one for each rank");
    }
    for (int rank = 0; rank < ranks; rank++) {
      if (all[rank] >= 0) continue;
      throw Buffers.refused(
          operation, called + "[" + rank + "]", "is " + all[rank],
          "give " + one + " of at least 0");
    }
  }

  /** They divide a buffer of `has` elements; with offsets, all blocks lie in it. */
  private void divide(String buffer, long has) {
    if (offsets != null) {
      place(buffer, has);
      return;
    }
    if (has == total) return;
    throw Buffers.refused(
        operation, name, "are " + total + " elements together, but " + buffer + " has " + has,
        "give a buffer of as many elements");
  }

  /** Each block lies in a buffer; an empty one does anywhere. */
  private void place(String buffer, long has) {
    for (int rank = 0; rank < values.length; rank++) {
      if (values[rank] == 0 || offsets[rank] <= has - values[rank]) continue;
      throw Buffers.refused(
          operation, "the block of rank " + rank,
          "does not lie in " + buffer + ": it has " + values[rank] + " elements and "
              + offsetsName() + "[" + rank + "] is " + offsets[rank] + ", but " + buffer + " has "
              + has,
          "give a smaller offset or a larger buffer");
    }
  }

  /** This rank's is what its own buffer has. */
  private void own(int self, String buffer, long has) {
    if (has == values[self]) return;
    throw Buffers.refused(
        operation, name + "[" + self + "], which is this rank's,",
        "is " + values[self] + ", but " + buffer + " has " + has + " elements",
        "give a buffer of as many");
  }

  byte[] packed() {
    return offsets == null ? joined(values) : joined(values, offsets);
  }

  /** These, and then the others; offsets of both where one has some. */
  byte[] packed(Counts others) {
    if (offsets == null && others.offsets == null) return joined(values, others.values);
    return joined(values, others.values, offsets(), others.offsets());
  }

  private long[] offsets() {
    if (offsets != null) return offsets;
    long[] made = new long[values.length];
    for (int rank = 1; rank < made.length; rank++) {
      made[rank] = behind(made[rank - 1], values[rank - 1]);
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

  /** Of alltoall: elements for each pair of ranks. */
  static long exchanged(long sent, long received, int ranks) {
    Buffers.wanted("alltoall", "recv", received, sent);
    if (sent % ranks == 0) return sent / ranks;
    throw Buffers.refused(
        "alltoall", "send",
        "has " + sent + " elements, which is no multiple of the " + ranks + " ranks",
        "give equal parts, or use alltoallv");
  }

  /** Of alltoallv. */
  static byte[] exchanged(
      long[] sendCounts, long[] sendOffsets, long sent, long[] recvCounts, long[] recvOffsets,
      long received, int ranks) {
    Counts to = of("alltoallv", "sendCounts", sendCounts, sendOffsets, ranks);
    to.divide("send", sent);
    Counts from = of("alltoallv", "recvCounts", recvCounts, recvOffsets, ranks);
    from.divide("recv", received);
    return to.packed(from);
  }

  /** Of a buffer that has the parts of all ranks, beside one with this rank's. */
  static byte[] parts(
      String operation, long[] counts, long[] offsets, int ranks, int self, String whole,
      long wholeHas, String part, long partHas) {
    Counts made = of(operation, "counts", counts, offsets, ranks);
    made.divide(whole, wholeHas);
    made.own(self, part, partHas);
    return made.packed();
  }
}
