// SPDX-License-Identifier: Apache-2.0
package io.dt;

import io.dt.raw.Raw;
import java.lang.reflect.Array;
import java.util.function.LongConsumer;

/**
 * Blocking operations in which elements only change their place, on arrays, which are copied there
 * and back: here those of floating-point numbers, and what all have in common.
 */
abstract class ArrayBlocks extends IntegerArrayCollectives {
  ArrayBlocks(long number, LongConsumer destroy, CommShared shared) {
    super(number, destroy, shared);
  }

  /** Of a byte[] the elements of dtype that it holds. */
  private static long elements(String operation, String name, Object array, Dtype dtype) {
    if (array == null) throw absent(operation, name);
    int length = Array.getLength(array);
    return array instanceof byte[] ? length(operation, name, length, dtype.bytes()) : length;
  }

  private void moveArrays(
      Move move, Object send, long sent, Object recv, long received, long count, byte[] counts,
      Dtype dtype, int root) {
    moveArrays(move, send, sent, recv, received, false, count, counts, dtype, root);
  }

  /** `send` or `recv` may be null, with 0 elements; with gaps, parts of `recv` may stay. */
  private void moveArrays(
      Move move, Object send, long sent, Object recv, long received, boolean gaps, long count,
      byte[] counts, Dtype dtype, int root) {
    long bytes = sent * dtype.bytes();
    int turn = shared.turn();
    long copy = enter(move.operation(), turn, bytes + received * dtype.bytes());
    try {
      if (send != null) Raw.copy_in(send, copy, bytes);
      if (gaps) Raw.copy_in(recv, copy + bytes, received * dtype.bytes());
      move.run(number(), copy, copy + bytes, count, counts, dtype.number(), root, 0);
      shared.settle(turn);
      if (recv != null) Raw.copy_out(copy + bytes, recv, received * dtype.bytes());
    } finally {
      leave(copy);
    }
  }

  final void alltoallArray(Object send, Object recv, Dtype dtype) {
    long sent = elements("alltoall", "send", send, dtype);
    long received = elements("alltoall", "recv", recv, dtype);
    long count = Counts.exchanged(sent, received, ranks());
    moveArrays(
        Move.ALLTOALL, send, sent, recv, received, count, Counts.NONE, dtype, 0);
  }

  final void gatherArray(Object send, Object recv, Dtype dtype, int root) {
    long sent = elements("gather", "send", send, dtype);
    if (root != self()) {
      moveArrays(Move.GATHER, send, sent, null, 0, sent, Counts.NONE, dtype, root);
      return;
    }
    long received = elements("gather", "recv", recv, dtype);
    Buffers.wanted("gather", "recv", received, sent * ranks());
    moveArrays(Move.GATHER, send, sent, recv, received, sent, Counts.NONE, dtype, root);
  }

  final void scatterArray(Object send, Object recv, Dtype dtype, int root) {
    long received = elements("scatter", "recv", recv, dtype);
    if (root != self()) {
      moveArrays(Move.SCATTER, null, 0, recv, received, received, Counts.NONE, dtype, root);
      return;
    }
    long sent = elements("scatter", "send", send, dtype);
    Buffers.wanted("scatter", "send", sent, received * ranks());
    moveArrays(Move.SCATTER, send, sent, recv, received, received, Counts.NONE, dtype, root);
  }

  final void alltoallvArray(
      Object send, long[] sendCounts, Object recv, long[] recvCounts, Dtype dtype) {
    alltoallvArray(send, sendCounts, null, recv, recvCounts, null, dtype);
  }

  final void alltoallvArray(
      Object send, long[] sendCounts, long[] sendOffsets, Object recv, long[] recvCounts,
      long[] recvOffsets, Dtype dtype) {
    long sent = elements("alltoallv", "send", send, dtype);
    long received = elements("alltoallv", "recv", recv, dtype);
    byte[] counts =
        Counts.exchanged(
            sendCounts, sendOffsets, sent, recvCounts, recvOffsets, received, ranks());
    moveArrays(
        Move.ALLTOALLV, send, sent, recv, received, recvOffsets != null, 0, counts, dtype, 0);
  }

  final void gathervArray(Object send, Object recv, long[] counts, Dtype dtype, int root) {
    gathervArray(send, recv, counts, null, dtype, root);
  }

  final void gathervArray(
      Object send, Object recv, long[] counts, long[] offsets, Dtype dtype, int root) {
    long sent = elements("gatherv", "send", send, dtype);
    if (root != self()) {
      moveArrays(Move.GATHERV, send, sent, null, 0, sent, Counts.NONE, dtype, root);
      return;
    }
    long received = elements("gatherv", "recv", recv, dtype);
    byte[] packed =
        Counts.parts("gatherv", counts, offsets, ranks(), root, "recv", received, "send", sent);
    moveArrays(
        Move.GATHERV, send, sent, recv, received, offsets != null, sent, packed, dtype, root);
  }

  final void scattervArray(Object send, long[] counts, Object recv, Dtype dtype, int root) {
    scattervArray(send, counts, null, recv, dtype, root);
  }

  final void scattervArray(
      Object send, long[] counts, long[] offsets, Object recv, Dtype dtype, int root) {
    long received = elements("scatterv", "recv", recv, dtype);
    if (root != self()) {
      moveArrays(Move.SCATTERV, null, 0, recv, received, received, Counts.NONE, dtype, root);
      return;
    }
    long sent = elements("scatterv", "send", send, dtype);
    byte[] packed =
        Counts.parts("scatterv", counts, offsets, ranks(), root, "send", sent, "recv", received);
    moveArrays(Move.SCATTERV, send, sent, recv, received, received, packed, dtype, root);
  }

  final void allgathervArray(Object send, Object recv, long[] counts, Dtype dtype) {
    allgathervArray(send, recv, counts, null, dtype);
  }

  final void allgathervArray(
      Object send, Object recv, long[] counts, long[] offsets, Dtype dtype) {
    long sent = elements("allgatherv", "send", send, dtype);
    long received = elements("allgatherv", "recv", recv, dtype);
    byte[] packed =
        Counts.parts(
            "allgatherv", counts, offsets, ranks(), self(), "recv", received, "send", sent);
    moveArrays(
        Move.ALLGATHERV, send, sent, recv, received, offsets != null, 0, packed, dtype, 0);
  }

  /**
   * Gives each rank its part of {@code send}, and gathers everybody's part for this rank.
   *
   * @param send a part for each rank, in rank order
   * @param recv a part of each rank, in rank order; as long as {@code send}; may be the same
   */
  public void alltoall(float[] send, float[] recv) {
    alltoallArray(send, recv, Dtype.F32);
  }

  /**
   * Gathers everybody's elements, in rank order, on {@code root}.
   *
   * @param send what this rank gives
   * @param recv on {@code root}, size times as long: the elements of rank r from r * count on;
   *     ignored elsewhere, may be null there
   * @param root rank in the communicator
   */
  public void gather(float[] send, float[] recv, int root) {
    gatherArray(send, recv, Dtype.F32, root);
  }

  /**
   * Gives each rank its part of what {@code root} has.
   *
   * @param send on {@code root}, size times as long: the elements for rank r from r * count on;
   *     ignored elsewhere, may be null there
   * @param recv the part of this rank
   * @param root rank in the communicator
   */
  public void scatter(float[] send, float[] recv, int root) {
    scatterArray(send, recv, Dtype.F32, root);
  }

  /**
   * As alltoall, with a count for each pair of ranks. Where a rank expects another count than its
   * peer gives, all ranks throw a {@link MismatchException}.
   *
   * @param send the parts for all ranks, one behind the other
   * @param sendCounts elements for each rank
   * @param recv the parts of all ranks, one behind the other
   * @param recvCounts elements of each rank
   */
  public void alltoallv(float[] send, long[] sendCounts, float[] recv, long[] recvCounts) {
    alltoallvArray(send, sendCounts, recv, recvCounts, Dtype.F32);
  }

  /**
   * As gather, with a count for each rank. Where a rank gives another count than {@code root}
   * expects, all ranks throw a {@link MismatchException}.
   *
   * @param send what this rank gives
   * @param recv on {@code root}, the parts of all ranks, one behind the other; ignored elsewhere,
   *     may be null there
   * @param counts on {@code root}, elements of each rank; ignored elsewhere, may be null there
   * @param root rank in the communicator
   */
  public void gatherv(float[] send, float[] recv, long[] counts, int root) {
    gathervArray(send, recv, counts, Dtype.F32, root);
  }

  /**
   * As scatter, with a count for each rank. Where a rank expects another count than {@code root}
   * has for it, all ranks throw a {@link MismatchException}.
   *
   * @param send on {@code root}, the parts for all ranks, one behind the other; ignored elsewhere,
   *     may be null there
   * @param counts on {@code root}, elements for each rank; ignored elsewhere, may be null there
   * @param recv the part of this rank
   * @param root rank in the communicator
   */
  public void scatterv(float[] send, long[] counts, float[] recv, int root) {
    scattervArray(send, counts, recv, Dtype.F32, root);
  }

  /**
   * As allgather, with a count for each rank. All ranks name the same counts, or all throw a {@link
   * MismatchException}.
   *
   * @param send what this rank gives: as many as its count says
   * @param recv the parts of all ranks, one behind the other
   * @param counts elements of each rank
   */
  public void allgatherv(float[] send, float[] recv, long[] counts) {
    allgathervArray(send, recv, counts, Dtype.F32);
  }

  /**
   * Gives each rank its part of {@code send}, and gathers everybody's part for this rank.
   *
   * @param send a part for each rank, in rank order
   * @param recv a part of each rank, in rank order; as long as {@code send}; may be the same
   */
  public void alltoall(double[] send, double[] recv) {
    alltoallArray(send, recv, Dtype.F64);
  }

  /**
   * Gathers everybody's elements, in rank order, on {@code root}.
   *
   * @param send what this rank gives
   * @param recv on {@code root}, size times as long: the elements of rank r from r * count on;
   *     ignored elsewhere, may be null there
   * @param root rank in the communicator
   */
  public void gather(double[] send, double[] recv, int root) {
    gatherArray(send, recv, Dtype.F64, root);
  }

  /**
   * Gives each rank its part of what {@code root} has.
   *
   * @param send on {@code root}, size times as long: the elements for rank r from r * count on;
   *     ignored elsewhere, may be null there
   * @param recv the part of this rank
   * @param root rank in the communicator
   */
  public void scatter(double[] send, double[] recv, int root) {
    scatterArray(send, recv, Dtype.F64, root);
  }

  /**
   * As alltoall, with a count for each pair of ranks. Where a rank expects another count than its
   * peer gives, all ranks throw a {@link MismatchException}.
   *
   * @param send the parts for all ranks, one behind the other
   * @param sendCounts elements for each rank
   * @param recv the parts of all ranks, one behind the other
   * @param recvCounts elements of each rank
   */
  public void alltoallv(double[] send, long[] sendCounts, double[] recv, long[] recvCounts) {
    alltoallvArray(send, sendCounts, recv, recvCounts, Dtype.F64);
  }

  /**
   * As gather, with a count for each rank. Where a rank gives another count than {@code root}
   * expects, all ranks throw a {@link MismatchException}.
   *
   * @param send what this rank gives
   * @param recv on {@code root}, the parts of all ranks, one behind the other; ignored elsewhere,
   *     may be null there
   * @param counts on {@code root}, elements of each rank; ignored elsewhere, may be null there
   * @param root rank in the communicator
   */
  public void gatherv(double[] send, double[] recv, long[] counts, int root) {
    gathervArray(send, recv, counts, Dtype.F64, root);
  }

  /**
   * As scatter, with a count for each rank. Where a rank expects another count than {@code root}
   * has for it, all ranks throw a {@link MismatchException}.
   *
   * @param send on {@code root}, the parts for all ranks, one behind the other; ignored elsewhere,
   *     may be null there
   * @param counts on {@code root}, elements for each rank; ignored elsewhere, may be null there
   * @param recv the part of this rank
   * @param root rank in the communicator
   */
  public void scatterv(double[] send, long[] counts, double[] recv, int root) {
    scattervArray(send, counts, recv, Dtype.F64, root);
  }

  /**
   * As allgather, with a count for each rank. All ranks name the same counts, or all throw a {@link
   * MismatchException}.
   *
   * @param send what this rank gives: as many as its count says
   * @param recv the parts of all ranks, one behind the other
   * @param counts elements of each rank
   */
  public void allgatherv(double[] send, double[] recv, long[] counts) {
    allgathervArray(send, recv, counts, Dtype.F64);
  }
}
