// SPDX-License-Identifier: Apache-2.0
package io.dt;

import java.util.function.LongConsumer;

/** Blocking operations in which elements only change their place, on arrays of integers. */
abstract class IntegerArrayBlocks extends ArrayBlocks {
  IntegerArrayBlocks(long number, LongConsumer destroy, CommShared shared) {
    super(number, destroy, shared);
  }

  /**
   * Gives each rank its part of {@code send}, and gathers everybody's part for this rank.
   *
   * @param send a part for each rank, in rank order
   * @param recv a part of each rank, in rank order; as long as {@code send}; may be the same
   */
  public void alltoall(int[] send, int[] recv) {
    alltoallArray(send, recv, Dtype.I32);
  }

  /**
   * Gathers everybody's elements, in rank order, on {@code root}.
   *
   * @param send what this rank gives
   * @param recv on {@code root}, size times as long: the elements of rank r from r * count on;
   *     ignored elsewhere, may be null there
   * @param root rank in the communicator
   */
  public void gather(int[] send, int[] recv, int root) {
    gatherArray(send, recv, Dtype.I32, root);
  }

  /**
   * Gives each rank its part of what {@code root} has.
   *
   * @param send on {@code root}, size times as long: the elements for rank r from r * count on;
   *     ignored elsewhere, may be null there
   * @param recv the part of this rank
   * @param root rank in the communicator
   */
  public void scatter(int[] send, int[] recv, int root) {
    scatterArray(send, recv, Dtype.I32, root);
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
  public void alltoallv(int[] send, long[] sendCounts, int[] recv, long[] recvCounts) {
    alltoallvArray(send, sendCounts, recv, recvCounts, Dtype.I32);
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
  public void gatherv(int[] send, int[] recv, long[] counts, int root) {
    gathervArray(send, recv, counts, Dtype.I32, root);
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
  public void scatterv(int[] send, long[] counts, int[] recv, int root) {
    scattervArray(send, counts, recv, Dtype.I32, root);
  }

  /**
   * As allgather, with a count for each rank. All ranks name the same counts, or all throw a {@link
   * MismatchException}.
   *
   * @param send what this rank gives: as many as its count says
   * @param recv the parts of all ranks, one behind the other
   * @param counts elements of each rank
   */
  public void allgatherv(int[] send, int[] recv, long[] counts) {
    allgathervArray(send, recv, counts, Dtype.I32);
  }

  /**
   * Gives each rank its part of {@code send}, and gathers everybody's part for this rank.
   *
   * @param send a part for each rank, in rank order
   * @param recv a part of each rank, in rank order; as long as {@code send}; may be the same
   */
  public void alltoall(long[] send, long[] recv) {
    alltoallArray(send, recv, Dtype.I64);
  }

  /**
   * Gathers everybody's elements, in rank order, on {@code root}.
   *
   * @param send what this rank gives
   * @param recv on {@code root}, size times as long: the elements of rank r from r * count on;
   *     ignored elsewhere, may be null there
   * @param root rank in the communicator
   */
  public void gather(long[] send, long[] recv, int root) {
    gatherArray(send, recv, Dtype.I64, root);
  }

  /**
   * Gives each rank its part of what {@code root} has.
   *
   * @param send on {@code root}, size times as long: the elements for rank r from r * count on;
   *     ignored elsewhere, may be null there
   * @param recv the part of this rank
   * @param root rank in the communicator
   */
  public void scatter(long[] send, long[] recv, int root) {
    scatterArray(send, recv, Dtype.I64, root);
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
  public void alltoallv(long[] send, long[] sendCounts, long[] recv, long[] recvCounts) {
    alltoallvArray(send, sendCounts, recv, recvCounts, Dtype.I64);
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
  public void gatherv(long[] send, long[] recv, long[] counts, int root) {
    gathervArray(send, recv, counts, Dtype.I64, root);
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
  public void scatterv(long[] send, long[] counts, long[] recv, int root) {
    scattervArray(send, counts, recv, Dtype.I64, root);
  }

  /**
   * As allgather, with a count for each rank. All ranks name the same counts, or all throw a {@link
   * MismatchException}.
   *
   * @param send what this rank gives: as many as its count says
   * @param recv the parts of all ranks, one behind the other
   * @param counts elements of each rank
   */
  public void allgatherv(long[] send, long[] recv, long[] counts) {
    allgathervArray(send, recv, counts, Dtype.I64);
  }

  /**
   * Gives each rank its part of {@code send}, and gathers everybody's part for this rank.
   *
   * @param send a part for each rank, in rank order
   * @param recv a part of each rank, in rank order; as long as {@code send}; may be the same
   * @param dtype of the elements
   */
  public void alltoall(byte[] send, byte[] recv, Dtype dtype) {
    alltoallArray(send, recv, dtype);
  }

  /**
   * Gathers everybody's elements, in rank order, on {@code root}.
   *
   * @param send what this rank gives
   * @param recv on {@code root}, size times as long: the elements of rank r from r * count on;
   *     ignored elsewhere, may be null there
   * @param dtype of the elements
   * @param root rank in the communicator
   */
  public void gather(byte[] send, byte[] recv, Dtype dtype, int root) {
    gatherArray(send, recv, dtype, root);
  }

  /**
   * Gives each rank its part of what {@code root} has.
   *
   * @param send on {@code root}, size times as long: the elements for rank r from r * count on;
   *     ignored elsewhere, may be null there
   * @param recv the part of this rank
   * @param dtype of the elements
   * @param root rank in the communicator
   */
  public void scatter(byte[] send, byte[] recv, Dtype dtype, int root) {
    scatterArray(send, recv, dtype, root);
  }

  /**
   * As alltoall, with a count for each pair of ranks. Where a rank expects another count than its
   * peer gives, all ranks throw a {@link MismatchException}.
   *
   * @param send the parts for all ranks, one behind the other
   * @param sendCounts elements for each rank
   * @param recv the parts of all ranks, one behind the other
   * @param recvCounts elements of each rank
   * @param dtype of the elements
   */
  public void alltoallv(
      byte[] send, long[] sendCounts, byte[] recv, long[] recvCounts, Dtype dtype) {
    alltoallvArray(send, sendCounts, recv, recvCounts, dtype);
  }

  /**
   * As gather, with a count for each rank. Where a rank gives another count than {@code root}
   * expects, all ranks throw a {@link MismatchException}.
   *
   * @param send what this rank gives
   * @param recv on {@code root}, the parts of all ranks, one behind the other; ignored elsewhere,
   *     may be null there
   * @param counts on {@code root}, elements of each rank; ignored elsewhere, may be null there
   * @param dtype of the elements
   * @param root rank in the communicator
   */
  public void gatherv(byte[] send, byte[] recv, long[] counts, Dtype dtype, int root) {
    gathervArray(send, recv, counts, dtype, root);
  }

  /**
   * As scatter, with a count for each rank. Where a rank expects another count than {@code root}
   * has for it, all ranks throw a {@link MismatchException}.
   *
   * @param send on {@code root}, the parts for all ranks, one behind the other; ignored elsewhere,
   *     may be null there
   * @param counts on {@code root}, elements for each rank; ignored elsewhere, may be null there
   * @param recv the part of this rank
   * @param dtype of the elements
   * @param root rank in the communicator
   */
  public void scatterv(byte[] send, long[] counts, byte[] recv, Dtype dtype, int root) {
    scattervArray(send, counts, recv, dtype, root);
  }

  /**
   * As allgather, with a count for each rank. All ranks name the same counts, or all throw a {@link
   * MismatchException}.
   *
   * @param send what this rank gives: as many as its count says
   * @param recv the parts of all ranks, one behind the other
   * @param counts elements of each rank
   * @param dtype of the elements
   */
  public void allgatherv(byte[] send, byte[] recv, long[] counts, Dtype dtype) {
    allgathervArray(send, recv, counts, dtype);
  }
}
