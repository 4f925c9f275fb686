// SPDX-License-Identifier: Apache-2.0
package io.dt;

import java.nio.Buffer;
import java.util.function.LongConsumer;

/**
 * Operations on direct buffers: the elements between position and limit, which stay as they are.
 * A buffer's type says what its elements are, or a Dtype does.
 */
abstract class BufferCollectives extends AddressBlocks {
  BufferCollectives(long number, LongConsumer destroy, CommShared shared) {
    super(number, destroy, shared);
  }

  /**
   * Reduces over all ranks; every rank ends with the same bits.
   * The type of the buffer says the type of its elements.
   *
   * @param send direct; what this rank gives
   * @param recv direct; the result, as long as {@code send}; may be the same
   * @param op how values become one
   */
  public void allreduce(Buffer send, Buffer recv, ReduceOp op) {
    allreduce(send, recv, Buffers.dtype("allreduce", "send", send), op);
  }

  /**
   * Reduces over all ranks; every rank ends with the same bits.
   *
   * @param send direct; what this rank gives
   * @param recv direct; the result, as long as {@code send}; may be the same
   * @param dtype of the elements; F16 and BF16 are those of a ShortBuffer or ByteBuffer
   * @param op how values become one
   */
  public void allreduce(Buffer send, Buffer recv, Dtype dtype, ReduceOp op) {
    long sent = Buffers.count("allreduce", "send", send, dtype);
    long received = Buffers.writableCount("allreduce", "recv", recv, dtype);
    Buffers.wanted("allreduce", "recv", received, sent);
    allreduce(
        Buffers.address(send), Buffers.address(recv), sent, dtype, op, 0, send, recv);
  }

  /**
   * As allreduce, without waiting.
   * The type of the buffer says the type of its elements.
   *
   * @param send direct; what this rank gives
   * @param recv direct; the result, as long as {@code send}; may be the same
   * @param op how values become one
   * @return the operation under way; it keeps the buffers until it is done
   */
  public Work allreduceAsync(Buffer send, Buffer recv, ReduceOp op) {
    return allreduceAsync(send, recv, Buffers.dtype("allreduce", "send", send), op);
  }

  /**
   * As allreduce, without waiting.
   *
   * @param send direct; what this rank gives
   * @param recv direct; the result, as long as {@code send}; may be the same
   * @param dtype of the elements; F16 and BF16 are those of a ShortBuffer or ByteBuffer
   * @param op how values become one
   * @return the operation under way; it keeps the buffers until it is done
   */
  public Work allreduceAsync(Buffer send, Buffer recv, Dtype dtype, ReduceOp op) {
    long sent = Buffers.count("allreduce", "send", send, dtype);
    long received = Buffers.writableCount("allreduce", "recv", recv, dtype);
    Buffers.wanted("allreduce", "recv", received, sent);
    return allreduceAsync(
        Buffers.address(send), Buffers.address(recv), sent, dtype, op, 0, send, recv);
  }

  /**
   * Reduces over all ranks; the result is on {@code root} alone.
   * The type of the buffer says the type of its elements.
   *
   * @param send direct; what this rank gives
   * @param recv direct; the result, on {@code root}; ignored elsewhere, may be null there
   * @param op how values become one
   * @param root rank in the communicator
   */
  public void reduce(Buffer send, Buffer recv, ReduceOp op, int root) {
    reduce(send, recv, Buffers.dtype("reduce", "send", send), op, root);
  }

  /**
   * Reduces over all ranks; the result is on {@code root} alone.
   *
   * @param send direct; what this rank gives
   * @param recv direct; the result, on {@code root}; ignored elsewhere, may be null there
   * @param dtype of the elements; F16 and BF16 are those of a ShortBuffer or ByteBuffer
   * @param op how values become one
   * @param root rank in the communicator
   */
  public void reduce(Buffer send, Buffer recv, Dtype dtype, ReduceOp op, int root) {
    long count = Buffers.count("reduce", "send", send, dtype);
    boolean result = root == self();
    if (result) {
      Buffers.wanted("reduce", "recv", Buffers.writableCount("reduce", "recv", recv, dtype), count);
    }
    reduce(
        Buffers.address(send), result ? Buffers.address(recv) : 0, count, dtype, op, root, 0, send,
        recv);
  }

  /**
   * As reduce, without waiting.
   * The type of the buffer says the type of its elements.
   *
   * @param send direct; what this rank gives
   * @param recv direct; the result, on {@code root}; ignored elsewhere, may be null there
   * @param op how values become one
   * @param root rank in the communicator
   * @return the operation under way; it keeps the buffers until it is done
   */
  public Work reduceAsync(Buffer send, Buffer recv, ReduceOp op, int root) {
    return reduceAsync(send, recv, Buffers.dtype("reduce", "send", send), op, root);
  }

  /**
   * As reduce, without waiting.
   *
   * @param send direct; what this rank gives
   * @param recv direct; the result, on {@code root}; ignored elsewhere, may be null there
   * @param dtype of the elements; F16 and BF16 are those of a ShortBuffer or ByteBuffer
   * @param op how values become one
   * @param root rank in the communicator
   * @return the operation under way; it keeps the buffers until it is done
   */
  public Work reduceAsync(Buffer send, Buffer recv, Dtype dtype, ReduceOp op, int root) {
    long count = Buffers.count("reduce", "send", send, dtype);
    boolean result = root == self();
    if (result) {
      Buffers.wanted("reduce", "recv", Buffers.writableCount("reduce", "recv", recv, dtype), count);
    }
    return reduceAsync(
        Buffers.address(send), result ? Buffers.address(recv) : 0, count, dtype, op, root, 0, send,
        recv);
  }

  /**
   * Copies the buffer of {@code root} into everybody's.
   * The type of the buffer says the type of its elements.
   *
   * @param buffer direct; read on {@code root}, written elsewhere
   * @param root rank in the communicator
   */
  public void broadcast(Buffer buffer, int root) {
    broadcast(buffer, Buffers.dtype("broadcast", "buffer", buffer), root);
  }

  /**
   * Copies the buffer of {@code root} into everybody's.
   *
   * @param buffer direct; read on {@code root}, written elsewhere
   * @param dtype of the elements; F16 and BF16 are those of a ShortBuffer or ByteBuffer
   * @param root rank in the communicator
   */
  public void broadcast(Buffer buffer, Dtype dtype, int root) {
    long count =
        root == self()
            ? Buffers.count("broadcast", "buffer", buffer, dtype)
            : Buffers.writableCount("broadcast", "buffer", buffer, dtype);
    broadcast(Buffers.address(buffer), count, dtype, root, 0, buffer);
  }

  /**
   * As broadcast, without waiting.
   * The type of the buffer says the type of its elements.
   *
   * @param buffer direct; read on {@code root}, written elsewhere
   * @param root rank in the communicator
   * @return the operation under way; it keeps the buffers until it is done
   */
  public Work broadcastAsync(Buffer buffer, int root) {
    return broadcastAsync(buffer, Buffers.dtype("broadcast", "buffer", buffer), root);
  }

  /**
   * As broadcast, without waiting.
   *
   * @param buffer direct; read on {@code root}, written elsewhere
   * @param dtype of the elements; F16 and BF16 are those of a ShortBuffer or ByteBuffer
   * @param root rank in the communicator
   * @return the operation under way; it keeps the buffers until it is done
   */
  public Work broadcastAsync(Buffer buffer, Dtype dtype, int root) {
    long count =
        root == self()
            ? Buffers.count("broadcast", "buffer", buffer, dtype)
            : Buffers.writableCount("broadcast", "buffer", buffer, dtype);
    return broadcastAsync(Buffers.address(buffer), count, dtype, root, 0, buffer);
  }

  /**
   * Gathers everybody's elements, in rank order, on every rank.
   * The type of the buffer says the type of its elements.
   *
   * @param send direct; what this rank gives
   * @param recv direct; size times as long: the elements of rank r from r * count on
   */
  public void allgather(Buffer send, Buffer recv) {
    allgather(send, recv, Buffers.dtype("allgather", "send", send));
  }

  /**
   * Gathers everybody's elements, in rank order, on every rank.
   *
   * @param send direct; what this rank gives
   * @param recv direct; size times as long: the elements of rank r from r * count on
   * @param dtype of the elements; F16 and BF16 are those of a ShortBuffer or ByteBuffer
   */
  public void allgather(Buffer send, Buffer recv, Dtype dtype) {
    long sent = Buffers.count("allgather", "send", send, dtype);
    long received = Buffers.writableCount("allgather", "recv", recv, dtype);
    Buffers.wanted("allgather", "recv", received, sent * ranks());
    allgather(
        Buffers.address(send), Buffers.address(recv), sent, dtype, 0, send, recv);
  }

  /**
   * As allgather, without waiting.
   * The type of the buffer says the type of its elements.
   *
   * @param send direct; what this rank gives
   * @param recv direct; size times as long: the elements of rank r from r * count on
   * @return the operation under way; it keeps the buffers until it is done
   */
  public Work allgatherAsync(Buffer send, Buffer recv) {
    return allgatherAsync(send, recv, Buffers.dtype("allgather", "send", send));
  }

  /**
   * As allgather, without waiting.
   *
   * @param send direct; what this rank gives
   * @param recv direct; size times as long: the elements of rank r from r * count on
   * @param dtype of the elements; F16 and BF16 are those of a ShortBuffer or ByteBuffer
   * @return the operation under way; it keeps the buffers until it is done
   */
  public Work allgatherAsync(Buffer send, Buffer recv, Dtype dtype) {
    long sent = Buffers.count("allgather", "send", send, dtype);
    long received = Buffers.writableCount("allgather", "recv", recv, dtype);
    Buffers.wanted("allgather", "recv", received, sent * ranks());
    return allgatherAsync(
        Buffers.address(send), Buffers.address(recv), sent, dtype, 0, send, recv);
  }

  /**
   * Reduces over all ranks and leaves the r-th part on rank r.
   * The type of the buffer says the type of its elements.
   *
   * @param send direct; size times as long as {@code recv}
   * @param recv direct; the part of this rank
   * @param op how values become one
   */
  public void reduceScatter(Buffer send, Buffer recv, ReduceOp op) {
    reduceScatter(send, recv, Buffers.dtype("reduceScatter", "send", send), op);
  }

  /**
   * Reduces over all ranks and leaves the r-th part on rank r.
   *
   * @param send direct; size times as long as {@code recv}
   * @param recv direct; the part of this rank
   * @param dtype of the elements; F16 and BF16 are those of a ShortBuffer or ByteBuffer
   * @param op how values become one
   */
  public void reduceScatter(Buffer send, Buffer recv, Dtype dtype, ReduceOp op) {
    long sent = Buffers.count("reduceScatter", "send", send, dtype);
    long received = Buffers.writableCount("reduceScatter", "recv", recv, dtype);
    Buffers.wanted("reduceScatter", "send", sent, received * ranks());
    reduceScatter(
        Buffers.address(send), Buffers.address(recv), received, dtype, op, 0, send, recv);
  }

  /**
   * As reduceScatter, without waiting.
   * The type of the buffer says the type of its elements.
   *
   * @param send direct; size times as long as {@code recv}
   * @param recv direct; the part of this rank
   * @param op how values become one
   * @return the operation under way; it keeps the buffers until it is done
   */
  public Work reduceScatterAsync(Buffer send, Buffer recv, ReduceOp op) {
    return reduceScatterAsync(send, recv, Buffers.dtype("reduceScatter", "send", send), op);
  }

  /**
   * As reduceScatter, without waiting.
   *
   * @param send direct; size times as long as {@code recv}
   * @param recv direct; the part of this rank
   * @param dtype of the elements; F16 and BF16 are those of a ShortBuffer or ByteBuffer
   * @param op how values become one
   * @return the operation under way; it keeps the buffers until it is done
   */
  public Work reduceScatterAsync(Buffer send, Buffer recv, Dtype dtype, ReduceOp op) {
    long sent = Buffers.count("reduceScatter", "send", send, dtype);
    long received = Buffers.writableCount("reduceScatter", "recv", recv, dtype);
    Buffers.wanted("reduceScatter", "send", sent, received * ranks());
    return reduceScatterAsync(
        Buffers.address(send), Buffers.address(recv), received, dtype, op, 0, send, recv);
  }

  /**
   * Sends to one peer, which receives as many elements of the same type.
   * The type of the buffer says the type of its elements.
   *
   * @param buffer direct; what is sent
   * @param peer rank in the communicator, not this one
   */
  public void send(Buffer buffer, int peer) {
    send(buffer, Buffers.dtype("send", "buffer", buffer), peer);
  }

  /**
   * Sends to one peer, which receives as many elements of the same type.
   *
   * @param buffer direct; what is sent
   * @param dtype of the elements; F16 and BF16 are those of a ShortBuffer or ByteBuffer
   * @param peer rank in the communicator, not this one
   */
  public void send(Buffer buffer, Dtype dtype, int peer) {
    long count =
        Buffers.count("send", "buffer", buffer, dtype);
    send(Buffers.address(buffer), count, dtype, peer, 0, buffer);
  }

  /**
   * As send, without waiting.
   * The type of the buffer says the type of its elements.
   *
   * @param buffer direct; what is sent
   * @param peer rank in the communicator, not this one
   * @return the operation under way; it keeps the buffers until it is done
   */
  public Work sendAsync(Buffer buffer, int peer) {
    return sendAsync(buffer, Buffers.dtype("send", "buffer", buffer), peer);
  }

  /**
   * As send, without waiting.
   *
   * @param buffer direct; what is sent
   * @param dtype of the elements; F16 and BF16 are those of a ShortBuffer or ByteBuffer
   * @param peer rank in the communicator, not this one
   * @return the operation under way; it keeps the buffers until it is done
   */
  public Work sendAsync(Buffer buffer, Dtype dtype, int peer) {
    long count =
        Buffers.count("send", "buffer", buffer, dtype);
    return sendAsync(Buffers.address(buffer), count, dtype, peer, 0, buffer);
  }

  /**
   * Receives what a peer sends.
   * The type of the buffer says the type of its elements.
   *
   * @param buffer direct; written
   * @param peer rank in the communicator, not this one
   */
  public void recv(Buffer buffer, int peer) {
    recv(buffer, Buffers.dtype("recv", "buffer", buffer), peer);
  }

  /**
   * Receives what a peer sends.
   *
   * @param buffer direct; written
   * @param dtype of the elements; F16 and BF16 are those of a ShortBuffer or ByteBuffer
   * @param peer rank in the communicator, not this one
   */
  public void recv(Buffer buffer, Dtype dtype, int peer) {
    long count =
        Buffers.writableCount("recv", "buffer", buffer, dtype);
    recv(Buffers.address(buffer), count, dtype, peer, 0, buffer);
  }

  /**
   * As recv, without waiting.
   * The type of the buffer says the type of its elements.
   *
   * @param buffer direct; written
   * @param peer rank in the communicator, not this one
   * @return the operation under way; it keeps the buffers until it is done
   */
  public Work recvAsync(Buffer buffer, int peer) {
    return recvAsync(buffer, Buffers.dtype("recv", "buffer", buffer), peer);
  }

  /**
   * As recv, without waiting.
   *
   * @param buffer direct; written
   * @param dtype of the elements; F16 and BF16 are those of a ShortBuffer or ByteBuffer
   * @param peer rank in the communicator, not this one
   * @return the operation under way; it keeps the buffers until it is done
   */
  public Work recvAsync(Buffer buffer, Dtype dtype, int peer) {
    long count =
        Buffers.writableCount("recv", "buffer", buffer, dtype);
    return recvAsync(Buffers.address(buffer), count, dtype, peer, 0, buffer);
  }
}
