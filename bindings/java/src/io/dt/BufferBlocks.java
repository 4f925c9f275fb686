// SPDX-License-Identifier: Apache-2.0
package io.dt;

import java.nio.Buffer;
import java.util.function.LongConsumer;

/** Operations on direct buffers in which elements only change their place. */
abstract class BufferBlocks extends BufferCollectives {
  BufferBlocks(long number, LongConsumer destroy, CommShared shared) {
    super(number, destroy, shared);
  }

  /** Elements for each pair of ranks. */
  private long exchanged(Buffer send, Buffer recv, Dtype dtype) {
    long sent = Buffers.count("alltoall", "send", send, dtype);
    return Counts.exchanged(
        sent, Buffers.writableCount("alltoall", "recv", recv, dtype), ranks());
  }

  /** Elements of each rank. */
  private long gathered(Buffer send, Buffer recv, Dtype dtype, int root) {
    long sent = Buffers.count("gather", "send", send, dtype);
    if (root == self()) {
      long received = Buffers.writableCount("gather", "recv", recv, dtype);
      Buffers.wanted("gather", "recv", received, sent * ranks());
    }
    return sent;
  }

  /** Elements for each rank. */
  private long scattered(Buffer send, Buffer recv, Dtype dtype, int root) {
    long received = Buffers.writableCount("scatter", "recv", recv, dtype);
    if (root == self()) {
      long sent = Buffers.count("scatter", "send", send, dtype);
      Buffers.wanted("scatter", "send", sent, received * ranks());
    }
    return received;
  }

  /**
   * Gives each rank its part of {@code send}, and gathers everybody's part for this rank.
   * The type of the buffer says the type of its elements.
   *
   * @param send direct; a part for each rank, in rank order
   * @param recv direct; a part of each rank, in rank order; as long as {@code send}; another buffer
   */
  public void alltoall(Buffer send, Buffer recv) {
    alltoall(send, recv, Buffers.dtype("alltoall", "send", send));
  }

  /**
   * Gives each rank its part of {@code send}, and gathers everybody's part for this rank.
   *
   * @param send direct; a part for each rank, in rank order
   * @param recv direct; a part of each rank, in rank order; as long as {@code send}; another buffer
   * @param dtype of the elements; F16 and BF16 are those of a ShortBuffer or ByteBuffer
   */
  public void alltoall(Buffer send, Buffer recv, Dtype dtype) {
    long count = exchanged(send, recv, dtype);
    move(
        Move.ALLTOALL, Buffers.address(send), Buffers.address(recv), count, Counts.NONE, dtype, 0,
        0, send, recv);
  }

  /**
   * As alltoall, without waiting.
   * The type of the buffer says the type of its elements.
   *
   * @param send direct; a part for each rank, in rank order
   * @param recv direct; a part of each rank, in rank order; as long as {@code send}; another buffer
   * @return the operation under way; it keeps the buffers until it is done
   */
  public Work alltoallAsync(Buffer send, Buffer recv) {
    return alltoallAsync(send, recv, Buffers.dtype("alltoall", "send", send));
  }

  /**
   * As alltoall, without waiting.
   *
   * @param send direct; a part for each rank, in rank order
   * @param recv direct; a part of each rank, in rank order; as long as {@code send}; another buffer
   * @param dtype of the elements; F16 and BF16 are those of a ShortBuffer or ByteBuffer
   * @return the operation under way; it keeps the buffers until it is done
   */
  public Work alltoallAsync(Buffer send, Buffer recv, Dtype dtype) {
    long count = exchanged(send, recv, dtype);
    return moveAsync(
        Move.ALLTOALL, Buffers.address(send), Buffers.address(recv), count, Counts.NONE, dtype, 0,
        0, send, recv);
  }

  /**
   * Gathers everybody's elements, in rank order, on {@code root}.
   * The type of the buffer says the type of its elements.
   *
   * @param send direct; what this rank gives
   * @param recv direct; on {@code root}, size times as long: the elements of rank r from r * count
   *     on; ignored elsewhere, may be null there
   * @param root rank in the communicator
   */
  public void gather(Buffer send, Buffer recv, int root) {
    gather(send, recv, Buffers.dtype("gather", "send", send), root);
  }

  /**
   * Gathers everybody's elements, in rank order, on {@code root}.
   *
   * @param send direct; what this rank gives
   * @param recv direct; on {@code root}, size times as long: the elements of rank r from r * count
   *     on; ignored elsewhere, may be null there
   * @param dtype of the elements; F16 and BF16 are those of a ShortBuffer or ByteBuffer
   * @param root rank in the communicator
   */
  public void gather(Buffer send, Buffer recv, Dtype dtype, int root) {
    long count = gathered(send, recv, dtype, root);
    move(
        Move.GATHER, Buffers.address(send), root == self() ? Buffers.address(recv) : 0, count,
        Counts.NONE, dtype, root, 0, send, recv);
  }

  /**
   * As gather, without waiting.
   * The type of the buffer says the type of its elements.
   *
   * @param send direct; what this rank gives
   * @param recv direct; on {@code root}, size times as long: the elements of rank r from r * count
   *     on; ignored elsewhere, may be null there
   * @param root rank in the communicator
   * @return the operation under way; it keeps the buffers until it is done
   */
  public Work gatherAsync(Buffer send, Buffer recv, int root) {
    return gatherAsync(send, recv, Buffers.dtype("gather", "send", send), root);
  }

  /**
   * As gather, without waiting.
   *
   * @param send direct; what this rank gives
   * @param recv direct; on {@code root}, size times as long: the elements of rank r from r * count
   *     on; ignored elsewhere, may be null there
   * @param dtype of the elements; F16 and BF16 are those of a ShortBuffer or ByteBuffer
   * @param root rank in the communicator
   * @return the operation under way; it keeps the buffers until it is done
   */
  public Work gatherAsync(Buffer send, Buffer recv, Dtype dtype, int root) {
    long count = gathered(send, recv, dtype, root);
    return moveAsync(
        Move.GATHER, Buffers.address(send), root == self() ? Buffers.address(recv) : 0, count,
        Counts.NONE, dtype, root, 0, send, recv);
  }

  /**
   * Gives each rank its part of what {@code root} has.
   * The type of the buffer says the type of its elements.
   *
   * @param send direct; on {@code root}, size times as long: the elements for rank r from r * count
   *     on; ignored elsewhere, may be null there
   * @param recv direct; the part of this rank
   * @param root rank in the communicator
   */
  public void scatter(Buffer send, Buffer recv, int root) {
    scatter(send, recv, Buffers.dtype("scatter", "recv", recv), root);
  }

  /**
   * Gives each rank its part of what {@code root} has.
   *
   * @param send direct; on {@code root}, size times as long: the elements for rank r from r * count
   *     on; ignored elsewhere, may be null there
   * @param recv direct; the part of this rank
   * @param dtype of the elements; F16 and BF16 are those of a ShortBuffer or ByteBuffer
   * @param root rank in the communicator
   */
  public void scatter(Buffer send, Buffer recv, Dtype dtype, int root) {
    long count = scattered(send, recv, dtype, root);
    move(
        Move.SCATTER, root == self() ? Buffers.address(send) : 0, Buffers.address(recv), count,
        Counts.NONE, dtype, root, 0, send, recv);
  }

  /**
   * As scatter, without waiting.
   * The type of the buffer says the type of its elements.
   *
   * @param send direct; on {@code root}, size times as long: the elements for rank r from r * count
   *     on; ignored elsewhere, may be null there
   * @param recv direct; the part of this rank
   * @param root rank in the communicator
   * @return the operation under way; it keeps the buffers until it is done
   */
  public Work scatterAsync(Buffer send, Buffer recv, int root) {
    return scatterAsync(send, recv, Buffers.dtype("scatter", "recv", recv), root);
  }

  /**
   * As scatter, without waiting.
   *
   * @param send direct; on {@code root}, size times as long: the elements for rank r from r * count
   *     on; ignored elsewhere, may be null there
   * @param recv direct; the part of this rank
   * @param dtype of the elements; F16 and BF16 are those of a ShortBuffer or ByteBuffer
   * @param root rank in the communicator
   * @return the operation under way; it keeps the buffers until it is done
   */
  public Work scatterAsync(Buffer send, Buffer recv, Dtype dtype, int root) {
    long count = scattered(send, recv, dtype, root);
    return moveAsync(
        Move.SCATTER, root == self() ? Buffers.address(send) : 0, Buffers.address(recv), count,
        Counts.NONE, dtype, root, 0, send, recv);
  }
}
