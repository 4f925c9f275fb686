// SPDX-License-Identifier: Apache-2.0
package io.dt;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/**
 * A count for each rank, of one operation: a copy, which is checked, so that no other thread
 * changes what dt reads.
 */
final class Counts {
  /** What the native layer gets where this rank needs no counts. */
  static final byte[] NONE = {};

  private final String operation;
  private final String name;
  private final long[] values;
  private long total;

  private Counts(String operation, String name, long[] values) {
    this.operation = operation;
    this.name = name;
    this.values = values;
  }

  static Counts of(String operation, String name, long[] counts, int ranks) {
    if (counts == null) {
      throw Buffers.refused(
          operation, name, "is null", "give a count for each of the " + ranks + " ranks");
    }
    Counts made = new Counts(operation, name, counts.clone());
    made.check(ranks);
    return made;
  }

  private void check(int ranks) {
    if (values.length != ranks) {
      throw Buffers.refused(
          operation, name,
          "has " + values.length + " counts, but the communicator has " + ranks + " ranks",
          "give one for each rank");
    }
    for (int rank = 0; rank < ranks; rank++) {
      if (values[rank] < 0) {
        throw Buffers.refused(
            operation, name + "[" + rank + "]", "is " + values[rank], "give a count of at least 0");
      }
      total = values[rank] > Long.MAX_VALUE - total ? Long.MAX_VALUE : total + values[rank];
    }
  }

  /** They divide a buffer of `has` elements. */
  private void divide(String buffer, long has) {
    if (has == total) return;
    throw Buffers.refused(
        operation, name, "are " + total + " elements together, but " + buffer + " has " + has,
        "give a buffer of as many elements");
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
    return packed(null);
  }

  /** These, and then the others. */
  byte[] packed(Counts others) {
    int all = values.length + (others == null ? 0 : others.values.length);
    ByteBuffer bytes = ByteBuffer.allocate(all * Long.BYTES).order(ByteOrder.nativeOrder());
    for (long value : values) bytes.putLong(value);
    if (others != null) {
      for (long value : others.values) bytes.putLong(value);
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
      long[] sendCounts, long sent, long[] recvCounts, long received, int ranks) {
    Counts to = of("alltoallv", "sendCounts", sendCounts, ranks);
    to.divide("send", sent);
    Counts from = of("alltoallv", "recvCounts", recvCounts, ranks);
    from.divide("recv", received);
    return to.packed(from);
  }

  /** Of a buffer that has the parts of all ranks, beside one with this rank's. */
  static byte[] parts(
      String operation, long[] counts, int ranks, int self, String whole, long wholeHas,
      String part, long partHas) {
    Counts made = of(operation, "counts", counts, ranks);
    made.divide(whole, wholeHas);
    made.own(self, part, partHas);
    return made.packed();
  }
}
