// SPDX-License-Identifier: Apache-2.0
package io.dt;

import java.nio.Buffer;
import java.util.function.LongConsumer;

/** Operations on addresses and direct buffers with a count and an offset for each rank. */
abstract class OffsetBlocks extends CountedBufferBlocks {
  OffsetBlocks(long number, LongConsumer destroy, CommShared shared) {
    super(number, destroy, shared);
  }

  /**
   * As alltoallv without offsets, with parts that lie anywhere in their buffer.
   * Returns when the result is there, or on a GPU when it is ordered on the stream.
   *
   * <p>The memory is the caller's to keep. Collective: the same order on all ranks.
   *
   * @param send the parts for all ranks
   * @param sendCounts elements for each rank
   * @param sendOffsets in {@code send}, in elements, where the part for each rank begins; null: one
   *     behind the other
   * @param recv the parts of all ranks; another buffer
   * @param recvCounts elements of each rank
   * @param recvOffsets in {@code recv}, in elements, where the part of each rank goes; no two parts
   *     overlap, and what lies between them stays as it is; null: one behind the other
   * @param dtype of the elements
   * @param stream CUDA stream of the buffers; ignored on a host communicator
   */
  public void alltoallv(
      long send, long[] sendCounts, long[] sendOffsets, long recv, long[] recvCounts,
      long[] recvOffsets, Dtype dtype, long stream) {
    Counts to = Counts.of("alltoallv", "sendCounts", sendCounts, sendOffsets, ranks());
    Counts from = Counts.of("alltoallv", "recvCounts", recvCounts, recvOffsets, ranks());
    move(Move.ALLTOALLV, send, recv, 0, to.packed(from), dtype, 0, stream, null, null);
  }

  /**
   * As alltoallv, without waiting. The memory must stay until the work is done.
   *
   * @param send the parts for all ranks
   * @param sendCounts elements for each rank
   * @param sendOffsets in {@code send}, in elements, where the part for each rank begins; null: one
   *     behind the other
   * @param recv the parts of all ranks; another buffer
   * @param recvCounts elements of each rank
   * @param recvOffsets in {@code recv}, in elements, where the part of each rank goes; no two parts
   *     overlap, and what lies between them stays as it is; null: one behind the other
   * @param dtype of the elements
   * @param stream CUDA stream of the buffers; ignored on a host communicator
   * @return the operation under way
   */
  public Work alltoallvAsync(
      long send, long[] sendCounts, long[] sendOffsets, long recv, long[] recvCounts,
      long[] recvOffsets, Dtype dtype, long stream) {
    Counts to = Counts.of("alltoallv", "sendCounts", sendCounts, sendOffsets, ranks());
    Counts from = Counts.of("alltoallv", "recvCounts", recvCounts, recvOffsets, ranks());
    return moveAsync(Move.ALLTOALLV, send, recv, 0, to.packed(from), dtype, 0, stream, null, null);
  }

  /**
   * As gatherv without offsets, with parts that lie anywhere in their buffer.
   * Returns when the result is there, or on a GPU when it is ordered on the stream.
   *
   * <p>The memory is the caller's to keep. Collective: the same order on all ranks.
   *
   * @param send what this rank gives
   * @param sendCount elements of this rank
   * @param recv on {@code root}, the parts of all ranks; ignored elsewhere, may be 0 there
   * @param counts on {@code root}, elements of each rank; ignored elsewhere, may be null there
   * @param offsets on {@code root}, in {@code recv}, in elements, where the part of each rank goes;
   *     no two parts overlap, and what lies between them stays as it is; null: one behind the
   *     other; ignored elsewhere, may be null there
   * @param dtype of the elements
   * @param root rank in the communicator
   * @param stream CUDA stream of the buffers; ignored on a host communicator
   */
  public void gatherv(
      long send, long sendCount, long recv, long[] counts, long[] offsets, Dtype dtype, int root,
      long stream) {
    byte[] packed = onRoot("gatherv", counts, offsets, root);
    move(Move.GATHERV, send, recv, sendCount, packed, dtype, root, stream, null, null);
  }

  /**
   * As gatherv, without waiting. The memory must stay until the work is done.
   *
   * @param send what this rank gives
   * @param sendCount elements of this rank
   * @param recv on {@code root}, the parts of all ranks; ignored elsewhere, may be 0 there
   * @param counts on {@code root}, elements of each rank; ignored elsewhere, may be null there
   * @param offsets on {@code root}, in {@code recv}, in elements, where the part of each rank goes;
   *     no two parts overlap, and what lies between them stays as it is; null: one behind the
   *     other; ignored elsewhere, may be null there
   * @param dtype of the elements
   * @param root rank in the communicator
   * @param stream CUDA stream of the buffers; ignored on a host communicator
   * @return the operation under way
   */
  public Work gathervAsync(
      long send, long sendCount, long recv, long[] counts, long[] offsets, Dtype dtype, int root,
      long stream) {
    byte[] packed = onRoot("gatherv", counts, offsets, root);
    return moveAsync(Move.GATHERV, send, recv, sendCount, packed, dtype, root, stream, null, null);
  }

  /**
   * As scatterv without offsets, with parts that lie anywhere in their buffer.
   * Returns when the result is there, or on a GPU when it is ordered on the stream.
   *
   * <p>The memory is the caller's to keep. Collective: the same order on all ranks.
   *
   * @param send on {@code root}, the parts for all ranks; ignored elsewhere, may be 0 there
   * @param counts on {@code root}, elements for each rank; ignored elsewhere, may be null there
   * @param offsets on {@code root}, in {@code send}, in elements, where the part for each rank
   *     begins; null: one behind the other; ignored elsewhere, may be null there
   * @param recv the part of this rank
   * @param recvCount elements for this rank
   * @param dtype of the elements
   * @param root rank in the communicator
   * @param stream CUDA stream of the buffers; ignored on a host communicator
   */
  public void scatterv(
      long send, long[] counts, long[] offsets, long recv, long recvCount, Dtype dtype, int root,
      long stream) {
    byte[] packed = onRoot("scatterv", counts, offsets, root);
    move(Move.SCATTERV, send, recv, recvCount, packed, dtype, root, stream, null, null);
  }

  /**
   * As scatterv, without waiting. The memory must stay until the work is done.
   *
   * @param send on {@code root}, the parts for all ranks; ignored elsewhere, may be 0 there
   * @param counts on {@code root}, elements for each rank; ignored elsewhere, may be null there
   * @param offsets on {@code root}, in {@code send}, in elements, where the part for each rank
   *     begins; null: one behind the other; ignored elsewhere, may be null there
   * @param recv the part of this rank
   * @param recvCount elements for this rank
   * @param dtype of the elements
   * @param root rank in the communicator
   * @param stream CUDA stream of the buffers; ignored on a host communicator
   * @return the operation under way
   */
  public Work scattervAsync(
      long send, long[] counts, long[] offsets, long recv, long recvCount, Dtype dtype, int root,
      long stream) {
    byte[] packed = onRoot("scatterv", counts, offsets, root);
    return moveAsync(Move.SCATTERV, send, recv, recvCount, packed, dtype, root, stream, null, null);
  }

  /**
   * As allgatherv without offsets, with parts that lie anywhere in their buffer.
   * Returns when the result is there, or on a GPU when it is ordered on the stream.
   *
   * <p>The memory is the caller's to keep. Collective: the same order on all ranks.
   *
   * @param send what this rank gives: as many as its count says
   * @param recv the parts of all ranks
   * @param counts elements of each rank
   * @param offsets in {@code recv}, in elements, where the part of each rank goes; no two parts
   *     overlap, and what lies between them stays as it is; null: one behind the other; may differ
   *     between ranks
   * @param dtype of the elements
   * @param stream CUDA stream of the buffers; ignored on a host communicator
   */
  public void allgatherv(
      long send, long recv, long[] counts, long[] offsets, Dtype dtype, long stream) {
    byte[] packed = Counts.of("allgatherv", "counts", counts, offsets, ranks()).packed();
    move(Move.ALLGATHERV, send, recv, 0, packed, dtype, 0, stream, null, null);
  }

  /**
   * As allgatherv, without waiting. The memory must stay until the work is done.
   *
   * @param send what this rank gives: as many as its count says
   * @param recv the parts of all ranks
   * @param counts elements of each rank
   * @param offsets in {@code recv}, in elements, where the part of each rank goes; no two parts
   *     overlap, and what lies between them stays as it is; null: one behind the other; may differ
   *     between ranks
   * @param dtype of the elements
   * @param stream CUDA stream of the buffers; ignored on a host communicator
   * @return the operation under way
   */
  public Work allgathervAsync(
      long send, long recv, long[] counts, long[] offsets, Dtype dtype, long stream) {
    byte[] packed = Counts.of("allgatherv", "counts", counts, offsets, ranks()).packed();
    return moveAsync(Move.ALLGATHERV, send, recv, 0, packed, dtype, 0, stream, null, null);
  }

  /**
   * As alltoallv without offsets, with parts that lie anywhere in their buffer.
   *
   * @param send direct; the parts for all ranks
   * @param sendCounts elements for each rank
   * @param sendOffsets in {@code send}, in elements, where the part for each rank begins; null: one
   *     behind the other
   * @param recv direct; the parts of all ranks; another buffer
   * @param recvCounts elements of each rank
   * @param recvOffsets in {@code recv}, in elements, where the part of each rank goes; no two parts
   *     overlap, and what lies between them stays as it is; null: one behind the other
   * @param dtype of the elements; F16 and BF16 are those of a ShortBuffer or ByteBuffer
   */
  public void alltoallv(
      Buffer send, long[] sendCounts, long[] sendOffsets, Buffer recv, long[] recvCounts,
      long[] recvOffsets, Dtype dtype) {
    byte[] packed =
        exchanged(send, sendCounts, sendOffsets, recv, recvCounts, recvOffsets, dtype);
    move(
        Move.ALLTOALLV, Buffers.address(send), Buffers.address(recv), 0, packed, dtype, 0, 0, send,
        recv);
  }

  /**
   * As alltoallv, without waiting.
   *
   * @param send direct; the parts for all ranks
   * @param sendCounts elements for each rank
   * @param sendOffsets in {@code send}, in elements, where the part for each rank begins; null: one
   *     behind the other
   * @param recv direct; the parts of all ranks; another buffer
   * @param recvCounts elements of each rank
   * @param recvOffsets in {@code recv}, in elements, where the part of each rank goes; no two parts
   *     overlap, and what lies between them stays as it is; null: one behind the other
   * @param dtype of the elements; F16 and BF16 are those of a ShortBuffer or ByteBuffer
   * @return the operation under way; it keeps the buffers until it is done
   */
  public Work alltoallvAsync(
      Buffer send, long[] sendCounts, long[] sendOffsets, Buffer recv, long[] recvCounts,
      long[] recvOffsets, Dtype dtype) {
    byte[] packed =
        exchanged(send, sendCounts, sendOffsets, recv, recvCounts, recvOffsets, dtype);
    return moveAsync(
        Move.ALLTOALLV, Buffers.address(send), Buffers.address(recv), 0, packed, dtype, 0, 0, send,
        recv);
  }

  /**
   * As gatherv without offsets, with parts that lie anywhere in their buffer.
   *
   * @param send direct; what this rank gives
   * @param recv direct; on {@code root}, the parts of all ranks; ignored elsewhere, may be null
   *     there
   * @param counts on {@code root}, elements of each rank; ignored elsewhere, may be null there
   * @param offsets on {@code root}, in {@code recv}, in elements, where the part of each rank goes;
   *     no two parts overlap, and what lies between them stays as it is; null: one behind the
   *     other; ignored elsewhere, may be null there
   * @param dtype of the elements; F16 and BF16 are those of a ShortBuffer or ByteBuffer
   * @param root rank in the communicator
   */
  public void gatherv(
      Buffer send, Buffer recv, long[] counts, long[] offsets, Dtype dtype, int root) {
    long count = Buffers.count("gatherv", "send", send, dtype);
    byte[] packed = gathered(count, recv, counts, offsets, dtype, root);
    move(
        Move.GATHERV, Buffers.address(send), root == self() ? Buffers.address(recv) : 0, count,
        packed, dtype, root, 0, send, recv);
  }

  /**
   * As gatherv, without waiting.
   *
   * @param send direct; what this rank gives
   * @param recv direct; on {@code root}, the parts of all ranks; ignored elsewhere, may be null
   *     there
   * @param counts on {@code root}, elements of each rank; ignored elsewhere, may be null there
   * @param offsets on {@code root}, in {@code recv}, in elements, where the part of each rank goes;
   *     no two parts overlap, and what lies between them stays as it is; null: one behind the
   *     other; ignored elsewhere, may be null there
   * @param dtype of the elements; F16 and BF16 are those of a ShortBuffer or ByteBuffer
   * @param root rank in the communicator
   * @return the operation under way; it keeps the buffers until it is done
   */
  public Work gathervAsync(
      Buffer send, Buffer recv, long[] counts, long[] offsets, Dtype dtype, int root) {
    long count = Buffers.count("gatherv", "send", send, dtype);
    byte[] packed = gathered(count, recv, counts, offsets, dtype, root);
    return moveAsync(
        Move.GATHERV, Buffers.address(send), root == self() ? Buffers.address(recv) : 0, count,
        packed, dtype, root, 0, send, recv);
  }

  /**
   * As scatterv without offsets, with parts that lie anywhere in their buffer.
   *
   * @param send direct; on {@code root}, the parts for all ranks; ignored elsewhere, may be null
   *     there
   * @param counts on {@code root}, elements for each rank; ignored elsewhere, may be null there
   * @param offsets on {@code root}, in {@code send}, in elements, where the part for each rank
   *     begins; null: one behind the other; ignored elsewhere, may be null there
   * @param recv direct; the part of this rank
   * @param dtype of the elements; F16 and BF16 are those of a ShortBuffer or ByteBuffer
   * @param root rank in the communicator
   */
  public void scatterv(
      Buffer send, long[] counts, long[] offsets, Buffer recv, Dtype dtype, int root) {
    long count = Buffers.writableCount("scatterv", "recv", recv, dtype);
    byte[] packed = scattered(send, counts, offsets, count, dtype, root);
    move(
        Move.SCATTERV, root == self() ? Buffers.address(send) : 0, Buffers.address(recv), count,
        packed, dtype, root, 0, send, recv);
  }

  /**
   * As scatterv, without waiting.
   *
   * @param send direct; on {@code root}, the parts for all ranks; ignored elsewhere, may be null
   *     there
   * @param counts on {@code root}, elements for each rank; ignored elsewhere, may be null there
   * @param offsets on {@code root}, in {@code send}, in elements, where the part for each rank
   *     begins; null: one behind the other; ignored elsewhere, may be null there
   * @param recv direct; the part of this rank
   * @param dtype of the elements; F16 and BF16 are those of a ShortBuffer or ByteBuffer
   * @param root rank in the communicator
   * @return the operation under way; it keeps the buffers until it is done
   */
  public Work scattervAsync(
      Buffer send, long[] counts, long[] offsets, Buffer recv, Dtype dtype, int root) {
    long count = Buffers.writableCount("scatterv", "recv", recv, dtype);
    byte[] packed = scattered(send, counts, offsets, count, dtype, root);
    return moveAsync(
        Move.SCATTERV, root == self() ? Buffers.address(send) : 0, Buffers.address(recv), count,
        packed, dtype, root, 0, send, recv);
  }

  /**
   * As allgatherv without offsets, with parts that lie anywhere in their buffer.
   *
   * @param send direct; what this rank gives: as many as its count says
   * @param recv direct; the parts of all ranks
   * @param counts elements of each rank
   * @param offsets in {@code recv}, in elements, where the part of each rank goes; no two parts
   *     overlap, and what lies between them stays as it is; null: one behind the other; may differ
   *     between ranks
   * @param dtype of the elements; F16 and BF16 are those of a ShortBuffer or ByteBuffer
   */
  public void allgatherv(Buffer send, Buffer recv, long[] counts, long[] offsets, Dtype dtype) {
    byte[] packed = gathered(send, recv, counts, offsets, dtype);
    move(
        Move.ALLGATHERV, Buffers.address(send), Buffers.address(recv), 0, packed, dtype, 0, 0, send,
        recv);
  }

  /**
   * As allgatherv, without waiting.
   *
   * @param send direct; what this rank gives: as many as its count says
   * @param recv direct; the parts of all ranks
   * @param counts elements of each rank
   * @param offsets in {@code recv}, in elements, where the part of each rank goes; no two parts
   *     overlap, and what lies between them stays as it is; null: one behind the other; may differ
   *     between ranks
   * @param dtype of the elements; F16 and BF16 are those of a ShortBuffer or ByteBuffer
   * @return the operation under way; it keeps the buffers until it is done
   */
  public Work allgathervAsync(
      Buffer send, Buffer recv, long[] counts, long[] offsets, Dtype dtype) {
    byte[] packed = gathered(send, recv, counts, offsets, dtype);
    return moveAsync(
        Move.ALLGATHERV, Buffers.address(send), Buffers.address(recv), 0, packed, dtype, 0, 0, send,
        recv);
  }
}
