// SPDX-License-Identifier: Apache-2.0
package io.dt;

import java.lang.ref.Reference;
import java.util.function.LongConsumer;

/** Operations on addresses in which elements only change their place. */
abstract class AddressBlocks extends AddressCollectives {
  AddressBlocks(long number, LongConsumer destroy, CommShared shared) {
    super(number, destroy, shared);
  }

  /** Ranks of the communicator. */
  abstract int ranks();

  /** This rank. */
  abstract int self();

  final void move(
      Move move, long send, long recv, long count, byte[] counts, Dtype dtype, int root,
      long stream, Object keep, Object keepToo) {
    int turn = shared.turn();
    if (CommShared.grouped(turn)) {
      shared.join(
          moveAsync(move, send, recv, count, counts, dtype, root, stream, keep, keepToo).pending(),
          stream);
      return;
    }
    try {
      move.run(number(), send, recv, count, counts, dtype.number(), root, stream);
      shared.settle(turn);
    } finally {
      Reference.reachabilityFence(keep);
      Reference.reachabilityFence(keepToo);
      Reference.reachabilityFence(this);
    }
  }

  final Work moveAsync(
      Move move, long send, long recv, long count, byte[] counts, Dtype dtype, int root,
      long stream, Object keep, Object keepToo) {
    try {
      Pending pending = shared.prepare(number(), keep, keepToo);
      Work work = new Work(pending);
      pending.issued(
          move.start(number(), send, recv, count, counts, dtype.number(), root, stream));
      return work;
    } finally {
      Reference.reachabilityFence(this);
    }
  }

  /** What gatherv and scatterv hand on: nothing but on root. */
  final byte[] onRoot(String operation, long[] counts, long[] offsets, int root) {
    if (root != self()) return Counts.NONE;
    return Counts.of(operation, "counts", counts, offsets, ranks()).packed();
  }

  /**
   * Gives each rank its part of {@code send}, and gathers everybody's part for this rank.
   * Returns when the result is there, or on a GPU when it is ordered on the stream.
   *
   * <p>The memory is the caller's to keep. Collective: the same order on all ranks.
   *
   * @param send a part for each rank, in rank order
   * @param recv a part of each rank, in rank order; as long as {@code send}; another buffer
   * @param count elements for each rank
   * @param dtype of the elements
   * @param stream CUDA stream of the buffers; ignored on a host communicator
   */
  public void alltoall(long send, long recv, long count, Dtype dtype, long stream) {
    move(Move.ALLTOALL, send, recv, count, Counts.NONE, dtype, 0, stream, null, null);
  }

  /**
   * As alltoall, without waiting. The memory must stay until the work is done.
   *
   * @param send a part for each rank, in rank order
   * @param recv a part of each rank, in rank order; as long as {@code send}; another buffer
   * @param count elements for each rank
   * @param dtype of the elements
   * @param stream CUDA stream of the buffers; ignored on a host communicator
   * @return the operation under way
   */
  public Work alltoallAsync(long send, long recv, long count, Dtype dtype, long stream) {
    return moveAsync(Move.ALLTOALL, send, recv, count, Counts.NONE, dtype, 0, stream, null, null);
  }

  /**
   * Gathers everybody's elements, in rank order, on {@code root}.
   * Returns when the result is there, or on a GPU when it is ordered on the stream.
   *
   * <p>The memory is the caller's to keep. Collective: the same order on all ranks.
   *
   * @param send what this rank gives
   * @param recv on {@code root}, size * count elements: the elements of rank r from r * count on;
   *     ignored elsewhere, may be 0 there
   * @param count elements of each rank
   * @param dtype of the elements
   * @param root rank in the communicator
   * @param stream CUDA stream of the buffers; ignored on a host communicator
   */
  public void gather(long send, long recv, long count, Dtype dtype, int root, long stream) {
    move(Move.GATHER, send, recv, count, Counts.NONE, dtype, root, stream, null, null);
  }

  /**
   * As gather, without waiting. The memory must stay until the work is done.
   *
   * @param send what this rank gives
   * @param recv on {@code root}, size * count elements: the elements of rank r from r * count on;
   *     ignored elsewhere, may be 0 there
   * @param count elements of each rank
   * @param dtype of the elements
   * @param root rank in the communicator
   * @param stream CUDA stream of the buffers; ignored on a host communicator
   * @return the operation under way
   */
  public Work gatherAsync(long send, long recv, long count, Dtype dtype, int root, long stream) {
    return moveAsync(Move.GATHER, send, recv, count, Counts.NONE, dtype, root, stream, null, null);
  }

  /**
   * Gives each rank its part of what {@code root} has.
   * Returns when the result is there, or on a GPU when it is ordered on the stream.
   *
   * <p>The memory is the caller's to keep. Collective: the same order on all ranks.
   *
   * @param send on {@code root}, size * count elements: the elements for rank r from r * count on;
   *     ignored elsewhere, may be 0 there
   * @param recv the part of this rank
   * @param count elements for each rank
   * @param dtype of the elements
   * @param root rank in the communicator
   * @param stream CUDA stream of the buffers; ignored on a host communicator
   */
  public void scatter(long send, long recv, long count, Dtype dtype, int root, long stream) {
    move(Move.SCATTER, send, recv, count, Counts.NONE, dtype, root, stream, null, null);
  }

  /**
   * As scatter, without waiting. The memory must stay until the work is done.
   *
   * @param send on {@code root}, size * count elements: the elements for rank r from r * count on;
   *     ignored elsewhere, may be 0 there
   * @param recv the part of this rank
   * @param count elements for each rank
   * @param dtype of the elements
   * @param root rank in the communicator
   * @param stream CUDA stream of the buffers; ignored on a host communicator
   * @return the operation under way
   */
  public Work scatterAsync(long send, long recv, long count, Dtype dtype, int root, long stream) {
    return moveAsync(
        Move.SCATTER, send, recv, count, Counts.NONE, dtype, root, stream, null, null);
  }

  /**
   * As alltoall, with a count for each pair of ranks. Where a rank expects another count than its
   * peer gives, all ranks throw a {@link MismatchException}.
   * Returns when the result is there, or on a GPU when it is ordered on the stream.
   *
   * <p>The memory is the caller's to keep. Collective: the same order on all ranks.
   *
   * @param send the parts for all ranks, one behind the other
   * @param sendCounts elements for each rank
   * @param recv the parts of all ranks, one behind the other; another buffer
   * @param recvCounts elements of each rank
   * @param dtype of the elements
   * @param stream CUDA stream of the buffers; ignored on a host communicator
   */
  public void alltoallv(
      long send, long[] sendCounts, long recv, long[] recvCounts, Dtype dtype, long stream) {
    Counts to = Counts.of("alltoallv", "sendCounts", sendCounts, ranks());
    Counts from = Counts.of("alltoallv", "recvCounts", recvCounts, ranks());
    move(Move.ALLTOALLV, send, recv, 0, to.packed(from), dtype, 0, stream, null, null);
  }

  /**
   * As alltoallv, without waiting. The memory must stay until the work is done.
   *
   * @param send the parts for all ranks, one behind the other
   * @param sendCounts elements for each rank
   * @param recv the parts of all ranks, one behind the other; another buffer
   * @param recvCounts elements of each rank
   * @param dtype of the elements
   * @param stream CUDA stream of the buffers; ignored on a host communicator
   * @return the operation under way
   */
  public Work alltoallvAsync(
      long send, long[] sendCounts, long recv, long[] recvCounts, Dtype dtype, long stream) {
    Counts to = Counts.of("alltoallv", "sendCounts", sendCounts, ranks());
    Counts from = Counts.of("alltoallv", "recvCounts", recvCounts, ranks());
    return moveAsync(Move.ALLTOALLV, send, recv, 0, to.packed(from), dtype, 0, stream, null, null);
  }

  /**
   * As gather, with a count for each rank. Where a rank gives another count than {@code root}
   * expects, all ranks throw a {@link MismatchException}.
   * Returns when the result is there, or on a GPU when it is ordered on the stream.
   *
   * <p>The memory is the caller's to keep. Collective: the same order on all ranks.
   *
   * @param send what this rank gives
   * @param sendCount elements of this rank
   * @param recv on {@code root}, the parts of all ranks, one behind the other; ignored elsewhere,
   *     may be 0 there
   * @param counts on {@code root}, elements of each rank; ignored elsewhere, may be null there
   * @param dtype of the elements
   * @param root rank in the communicator
   * @param stream CUDA stream of the buffers; ignored on a host communicator
   */
  public void gatherv(
      long send, long sendCount, long recv, long[] counts, Dtype dtype, int root, long stream) {
    byte[] packed = onRoot("gatherv", counts, null, root);
    move(Move.GATHERV, send, recv, sendCount, packed, dtype, root, stream, null, null);
  }

  /**
   * As gatherv, without waiting. The memory must stay until the work is done.
   *
   * @param send what this rank gives
   * @param sendCount elements of this rank
   * @param recv on {@code root}, the parts of all ranks, one behind the other; ignored elsewhere,
   *     may be 0 there
   * @param counts on {@code root}, elements of each rank; ignored elsewhere, may be null there
   * @param dtype of the elements
   * @param root rank in the communicator
   * @param stream CUDA stream of the buffers; ignored on a host communicator
   * @return the operation under way
   */
  public Work gathervAsync(
      long send, long sendCount, long recv, long[] counts, Dtype dtype, int root, long stream) {
    byte[] packed = onRoot("gatherv", counts, null, root);
    return moveAsync(Move.GATHERV, send, recv, sendCount, packed, dtype, root, stream, null, null);
  }

  /**
   * As scatter, with a count for each rank. Where a rank expects another count than {@code root}
   * has for it, all ranks throw a {@link MismatchException}.
   * Returns when the result is there, or on a GPU when it is ordered on the stream.
   *
   * <p>The memory is the caller's to keep. Collective: the same order on all ranks.
   *
   * @param send on {@code root}, the parts for all ranks, one behind the other; ignored elsewhere,
   *     may be 0 there
   * @param counts on {@code root}, elements for each rank; ignored elsewhere, may be null there
   * @param recv the part of this rank
   * @param recvCount elements for this rank
   * @param dtype of the elements
   * @param root rank in the communicator
   * @param stream CUDA stream of the buffers; ignored on a host communicator
   */
  public void scatterv(
      long send, long[] counts, long recv, long recvCount, Dtype dtype, int root, long stream) {
    byte[] packed = onRoot("scatterv", counts, null, root);
    move(Move.SCATTERV, send, recv, recvCount, packed, dtype, root, stream, null, null);
  }

  /**
   * As scatterv, without waiting. The memory must stay until the work is done.
   *
   * @param send on {@code root}, the parts for all ranks, one behind the other; ignored elsewhere,
   *     may be 0 there
   * @param counts on {@code root}, elements for each rank; ignored elsewhere, may be null there
   * @param recv the part of this rank
   * @param recvCount elements for this rank
   * @param dtype of the elements
   * @param root rank in the communicator
   * @param stream CUDA stream of the buffers; ignored on a host communicator
   * @return the operation under way
   */
  public Work scattervAsync(
      long send, long[] counts, long recv, long recvCount, Dtype dtype, int root, long stream) {
    byte[] packed = onRoot("scatterv", counts, null, root);
    return moveAsync(
        Move.SCATTERV, send, recv, recvCount, packed, dtype, root, stream, null, null);
  }

  /**
   * As allgather, with a count for each rank. All ranks name the same counts, or all throw a {@link
   * MismatchException}.
   * Returns when the result is there, or on a GPU when it is ordered on the stream.
   *
   * <p>The memory is the caller's to keep. Collective: the same order on all ranks.
   *
   * @param send what this rank gives: as many as its count says
   * @param recv the parts of all ranks, one behind the other
   * @param counts elements of each rank
   * @param dtype of the elements
   * @param stream CUDA stream of the buffers; ignored on a host communicator
   */
  public void allgatherv(long send, long recv, long[] counts, Dtype dtype, long stream) {
    byte[] packed = Counts.of("allgatherv", "counts", counts, ranks()).packed();
    move(Move.ALLGATHERV, send, recv, 0, packed, dtype, 0, stream, null, null);
  }

  /**
   * As allgatherv, without waiting. The memory must stay until the work is done.
   *
   * @param send what this rank gives: as many as its count says
   * @param recv the parts of all ranks, one behind the other
   * @param counts elements of each rank
   * @param dtype of the elements
   * @param stream CUDA stream of the buffers; ignored on a host communicator
   * @return the operation under way
   */
  public Work allgathervAsync(long send, long recv, long[] counts, Dtype dtype, long stream) {
    byte[] packed = Counts.of("allgatherv", "counts", counts, ranks()).packed();
    return moveAsync(Move.ALLGATHERV, send, recv, 0, packed, dtype, 0, stream, null, null);
  }
}
