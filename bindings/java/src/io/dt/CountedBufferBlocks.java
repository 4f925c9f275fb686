// SPDX-License-Identifier: Apache-2.0
package io.dt;

import java.nio.Buffer;
import java.util.function.LongConsumer;

/** Operations on direct buffers with a count for each rank. */
abstract class CountedBufferBlocks extends BufferBlocks {
  CountedBufferBlocks(long number, LongConsumer destroy, CommShared shared) {
    super(number, destroy, shared);
  }

  final byte[] exchanged(
      Buffer send, long[] sendCounts, long[] sendOffsets, Buffer recv, long[] recvCounts,
      long[] recvOffsets, Dtype dtype) {
    long sent = Buffers.count("alltoallv", "send", send, dtype);
    long received = Buffers.writableCount("alltoallv", "recv", recv, dtype);
    return Counts.exchanged(
        sendCounts, sendOffsets, sent, recvCounts, recvOffsets, received, ranks());
  }

  final byte[] gathered(
      long sent, Buffer recv, long[] counts, long[] offsets, Dtype dtype, int root) {
    if (root != self()) return Counts.NONE;
    long received = Buffers.writableCount("gatherv", "recv", recv, dtype);
    return Counts.parts(
        "gatherv", counts, offsets, ranks(), self(), "recv", received, "send", sent);
  }

  final byte[] scattered(
      Buffer send, long[] counts, long[] offsets, long received, Dtype dtype, int root) {
    if (root != self()) return Counts.NONE;
    long sent = Buffers.count("scatterv", "send", send, dtype);
    return Counts.parts(
        "scatterv", counts, offsets, ranks(), self(), "send", sent, "recv", received);
  }

  final byte[] gathered(
      Buffer send, Buffer recv, long[] counts, long[] offsets, Dtype dtype) {
    long sent = Buffers.count("allgatherv", "send", send, dtype);
    long received = Buffers.writableCount("allgatherv", "recv", recv, dtype);
    return Counts.parts(
        "allgatherv", counts, offsets, ranks(), self(), "recv", received, "send", sent);
  }

  /**
   * As alltoall, with a count for each pair of ranks. Where a rank expects another count than its
   * peer gives, all ranks throw a {@link MismatchException}.
   * The type of the buffer says the type of its elements.
   *
   * @param send direct; the parts for all ranks, one behind the other
   * @param sendCounts elements for each rank
   * @param recv direct; the parts of all ranks, one behind the other; another buffer
   * @param recvCounts elements of each rank
   */
  public void alltoallv(Buffer send, long[] sendCounts, Buffer recv, long[] recvCounts) {
    alltoallv(send, sendCounts, recv, recvCounts, Buffers.dtype("alltoallv", "send", send));
  }

  /**
   * As alltoall, with a count for each pair of ranks. Where a rank expects another count than its
   * peer gives, all ranks throw a {@link MismatchException}.
   *
   * @param send direct; the parts for all ranks, one behind the other
   * @param sendCounts elements for each rank
   * @param recv direct; the parts of all ranks, one behind the other; another buffer
   * @param recvCounts elements of each rank
   * @param dtype of the elements; F16 and BF16 are those of a ShortBuffer or ByteBuffer
   */
  public void alltoallv(
      Buffer send, long[] sendCounts, Buffer recv, long[] recvCounts, Dtype dtype) {
    byte[] counts = exchanged(send, sendCounts, null, recv, recvCounts, null, dtype);
    move(
        Move.ALLTOALLV, Buffers.address(send), Buffers.address(recv), 0, counts, dtype, 0, 0, send,
        recv);
  }

  /**
   * As alltoallv, without waiting.
   * The type of the buffer says the type of its elements.
   *
   * @param send direct; the parts for all ranks, one behind the other
   * @param sendCounts elements for each rank
   * @param recv direct; the parts of all ranks, one behind the other; another buffer
   * @param recvCounts elements of each rank
   * @return the operation under way; it keeps the buffers until it is done
   */
  public Work alltoallvAsync(Buffer send, long[] sendCounts, Buffer recv, long[] recvCounts) {
    return alltoallvAsync(
        send, sendCounts, recv, recvCounts, Buffers.dtype("alltoallv", "send", send));
  }

  /**
   * As alltoallv, without waiting.
   *
   * @param send direct; the parts for all ranks, one behind the other
   * @param sendCounts elements for each rank
   * @param recv direct; the parts of all ranks, one behind the other; another buffer
   * @param recvCounts elements of each rank
   * @param dtype of the elements; F16 and BF16 are those of a ShortBuffer or ByteBuffer
   * @return the operation under way; it keeps the buffers until it is done
   */
  public Work alltoallvAsync(
      Buffer send, long[] sendCounts, Buffer recv, long[] recvCounts, Dtype dtype) {
    byte[] counts = exchanged(send, sendCounts, null, recv, recvCounts, null, dtype);
    return moveAsync(
        Move.ALLTOALLV, Buffers.address(send), Buffers.address(recv), 0, counts, dtype, 0, 0, send,
        recv);
  }

  /**
   * As gather, with a count for each rank. Where a rank gives another count than {@code root}
   * expects, all ranks throw a {@link MismatchException}.
   * The type of the buffer says the type of its elements.
   *
   * @param send direct; what this rank gives
   * @param recv direct; on {@code root}, the parts of all ranks, one behind the other; ignored
   *     elsewhere, may be null there
   * @param counts on {@code root}, elements of each rank; ignored elsewhere, may be null there
   * @param root rank in the communicator
   */
  public void gatherv(Buffer send, Buffer recv, long[] counts, int root) {
    gatherv(send, recv, counts, Buffers.dtype("gatherv", "send", send), root);
  }

  /**
   * As gather, with a count for each rank. Where a rank gives another count than {@code root}
   * expects, all ranks throw a {@link MismatchException}.
   *
   * @param send direct; what this rank gives
   * @param recv direct; on {@code root}, the parts of all ranks, one behind the other; ignored
   *     elsewhere, may be null there
   * @param counts on {@code root}, elements of each rank; ignored elsewhere, may be null there
   * @param dtype of the elements; F16 and BF16 are those of a ShortBuffer or ByteBuffer
   * @param root rank in the communicator
   */
  public void gatherv(Buffer send, Buffer recv, long[] counts, Dtype dtype, int root) {
    long count = Buffers.count("gatherv", "send", send, dtype);
    byte[] packed = gathered(count, recv, counts, null, dtype, root);
    move(
        Move.GATHERV, Buffers.address(send), root == self() ? Buffers.address(recv) : 0, count,
        packed, dtype, root, 0, send, recv);
  }

  /**
   * As gatherv, without waiting.
   * The type of the buffer says the type of its elements.
   *
   * @param send direct; what this rank gives
   * @param recv direct; on {@code root}, the parts of all ranks, one behind the other; ignored
   *     elsewhere, may be null there
   * @param counts on {@code root}, elements of each rank; ignored elsewhere, may be null there
   * @param root rank in the communicator
   * @return the operation under way; it keeps the buffers until it is done
   */
  public Work gathervAsync(Buffer send, Buffer recv, long[] counts, int root) {
    return gathervAsync(send, recv, counts, Buffers.dtype("gatherv", "send", send), root);
  }

  /**
   * As gatherv, without waiting.
   *
   * @param send direct; what this rank gives
   * @param recv direct; on {@code root}, the parts of all ranks, one behind the other; ignored
   *     elsewhere, may be null there
   * @param counts on {@code root}, elements of each rank; ignored elsewhere, may be null there
   * @param dtype of the elements; F16 and BF16 are those of a ShortBuffer or ByteBuffer
   * @param root rank in the communicator
   * @return the operation under way; it keeps the buffers until it is done
   */
  public Work gathervAsync(Buffer send, Buffer recv, long[] counts, Dtype dtype, int root) {
    long count = Buffers.count("gatherv", "send", send, dtype);
    byte[] packed = gathered(count, recv, counts, null, dtype, root);
    return moveAsync(
        Move.GATHERV, Buffers.address(send), root == self() ? Buffers.address(recv) : 0, count,
        packed, dtype, root, 0, send, recv);
  }

  /**
   * As scatter, with a count for each rank. Where a rank expects another count than {@code root}
   * has for it, all ranks throw a {@link MismatchException}.
   * The type of the buffer says the type of its elements.
   *
   * @param send direct; on {@code root}, the parts for all ranks, one behind the other; ignored
   *     elsewhere, may be null there
   * @param counts on {@code root}, elements for each rank; ignored elsewhere, may be null there
   * @param recv direct; the part of this rank
   * @param root rank in the communicator
   */
  public void scatterv(Buffer send, long[] counts, Buffer recv, int root) {
    scatterv(send, counts, recv, Buffers.dtype("scatterv", "recv", recv), root);
  }

  /**
   * As scatter, with a count for each rank. Where a rank expects another count than {@code root}
   * has for it, all ranks throw a {@link MismatchException}.
   *
   * @param send direct; on {@code root}, the parts for all ranks, one behind the other; ignored
   *     elsewhere, may be null there
   * @param counts on {@code root}, elements for each rank; ignored elsewhere, may be null there
   * @param recv direct; the part of this rank
   * @param dtype of the elements; F16 and BF16 are those of a ShortBuffer or ByteBuffer
   * @param root rank in the communicator
   */
  public void scatterv(Buffer send, long[] counts, Buffer recv, Dtype dtype, int root) {
    long count = Buffers.writableCount("scatterv", "recv", recv, dtype);
    byte[] packed = scattered(send, counts, null, count, dtype, root);
    move(
        Move.SCATTERV, root == self() ? Buffers.address(send) : 0, Buffers.address(recv), count,
        packed, dtype, root, 0, send, recv);
  }

  /**
   * As scatterv, without waiting.
   * The type of the buffer says the type of its elements.
   *
   * @param send direct; on {@code root}, the parts for all ranks, one behind the other; ignored
   *     elsewhere, may be null there
   * @param counts on {@code root}, elements for each rank; ignored elsewhere, may be null there
   * @param recv direct; the part of this rank
   * @param root rank in the communicator
   * @return the operation under way; it keeps the buffers until it is done
   */
  public Work scattervAsync(Buffer send, long[] counts, Buffer recv, int root) {
    return scattervAsync(send, counts, recv, Buffers.dtype("scatterv", "recv", recv), root);
  }

  /**
   * As scatterv, without waiting.
   *
   * @param send direct; on {@code root}, the parts for all ranks, one behind the other; ignored
   *     elsewhere, may be null there
   * @param counts on {@code root}, elements for each rank; ignored elsewhere, may be null there
   * @param recv direct; the part of this rank
   * @param dtype of the elements; F16 and BF16 are those of a ShortBuffer or ByteBuffer
   * @param root rank in the communicator
   * @return the operation under way; it keeps the buffers until it is done
   */
  public Work scattervAsync(Buffer send, long[] counts, Buffer recv, Dtype dtype, int root) {
    long count = Buffers.writableCount("scatterv", "recv", recv, dtype);
    byte[] packed = scattered(send, counts, null, count, dtype, root);
    return moveAsync(
        Move.SCATTERV, root == self() ? Buffers.address(send) : 0, Buffers.address(recv), count,
        packed, dtype, root, 0, send, recv);
  }

  /**
   * As allgather, with a count for each rank. All ranks name the same counts, or all throw a {@link
   * MismatchException}.
   * The type of the buffer says the type of its elements.
   *
   * @param send direct; what this rank gives: as many as its count says
   * @param recv direct; the parts of all ranks, one behind the other
   * @param counts elements of each rank
   */
  public void allgatherv(Buffer send, Buffer recv, long[] counts) {
    allgatherv(send, recv, counts, Buffers.dtype("allgatherv", "send", send));
  }

  /**
   * As allgather, with a count for each rank. All ranks name the same counts, or all throw a {@link
   * MismatchException}.
   *
   * @param send direct; what this rank gives: as many as its count says
   * @param recv direct; the parts of all ranks, one behind the other
   * @param counts elements of each rank
   * @param dtype of the elements; F16 and BF16 are those of a ShortBuffer or ByteBuffer
   */
  public void allgatherv(Buffer send, Buffer recv, long[] counts, Dtype dtype) {
    byte[] packed = gathered(send, recv, counts, null, dtype);
    move(
        Move.ALLGATHERV, Buffers.address(send), Buffers.address(recv), 0, packed, dtype, 0, 0, send,
        recv);
  }

  /**
   * As allgatherv, without waiting.
   * The type of the buffer says the type of its elements.
   *
   * @param send direct; what this rank gives: as many as its count says
   * @param recv direct; the parts of all ranks, one behind the other
   * @param counts elements of each rank
   * @return the operation under way; it keeps the buffers until it is done
   */
  public Work allgathervAsync(Buffer send, Buffer recv, long[] counts) {
    return allgathervAsync(send, recv, counts, Buffers.dtype("allgatherv", "send", send));
  }

  /**
   * As allgatherv, without waiting.
   *
   * @param send direct; what this rank gives: as many as its count says
   * @param recv direct; the parts of all ranks, one behind the other
   * @param counts elements of each rank
   * @param dtype of the elements; F16 and BF16 are those of a ShortBuffer or ByteBuffer
   * @return the operation under way; it keeps the buffers until it is done
   */
  public Work allgathervAsync(Buffer send, Buffer recv, long[] counts, Dtype dtype) {
    byte[] packed = gathered(send, recv, counts, null, dtype);
    return moveAsync(
        Move.ALLGATHERV, Buffers.address(send), Buffers.address(recv), 0, packed, dtype, 0, 0, send,
        recv);
  }
}
