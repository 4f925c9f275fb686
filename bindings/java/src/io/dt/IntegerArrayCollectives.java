// SPDX-License-Identifier: Apache-2.0
package io.dt;

import java.util.function.LongConsumer;

/** Blocking operations on arrays of integers and bytes, which are copied there and back. */
abstract class IntegerArrayCollectives extends ArrayCollectives {
  IntegerArrayCollectives(long number, LongConsumer destroy, CommShared shared) {
    super(number, destroy, shared);
  }

  /**
   * Reduces over all ranks; every rank ends with the same bits.
   *
   * @param send what this rank gives
   * @param recv the result, as long as {@code send}; may be the same
   * @param op how values become one
   */
  public void allreduce(int[] send, int[] recv, ReduceOp op) {
    if (send == null) throw absent("allreduce", "send");
    if (recv == null) throw absent("allreduce", "recv");
    allreduceArray(
        send, send.length, recv, recv.length, Dtype.I32, op);
  }

  /**
   * Reduces over all ranks; the result is on {@code root} alone.
   *
   * @param send what this rank gives
   * @param recv the result, on {@code root}; ignored elsewhere, may be null there
   * @param op how values become one
   * @param root rank in the communicator
   */
  public void reduce(int[] send, int[] recv, ReduceOp op, int root) {
    if (send == null) throw absent("reduce", "send");
    reduceArray(
        send, send.length, recv,
        recv == null ? -1 : recv.length, Dtype.I32, op, root);
  }

  /**
   * Copies the buffer of {@code root} into everybody's.
   *
   * @param buffer read on {@code root}, written elsewhere
   * @param root rank in the communicator
   */
  public void broadcast(int[] buffer, int root) {
    if (buffer == null) throw absent("broadcast", "buffer");
    broadcastArray(
        buffer, buffer.length, Dtype.I32, root);
  }

  /**
   * Gathers everybody's elements, in rank order, on every rank.
   *
   * @param send what this rank gives
   * @param recv size times as long: the elements of rank r from r * count on
   */
  public void allgather(int[] send, int[] recv) {
    if (send == null) throw absent("allgather", "send");
    if (recv == null) throw absent("allgather", "recv");
    allgatherArray(
        send, send.length, recv, recv.length, Dtype.I32);
  }

  /**
   * Reduces over all ranks and leaves the r-th part on rank r.
   *
   * @param send size times as long as {@code recv}
   * @param recv the part of this rank
   * @param op how values become one
   */
  public void reduceScatter(int[] send, int[] recv, ReduceOp op) {
    if (send == null) throw absent("reduceScatter", "send");
    if (recv == null) throw absent("reduceScatter", "recv");
    reduceScatterArray(
        send, send.length, recv, recv.length, Dtype.I32, op);
  }

  /**
   * Sends to one peer, which receives as many elements of the same type.
   *
   * @param buffer what is sent
   * @param peer rank in the communicator, not this one
   */
  public void send(int[] buffer, int peer) {
    if (buffer == null) throw absent("send", "buffer");
    sendArray(
        buffer, buffer.length, Dtype.I32, peer);
  }

  /**
   * Receives what a peer sends.
   *
   * @param buffer written
   * @param peer rank in the communicator, not this one
   */
  public void recv(int[] buffer, int peer) {
    if (buffer == null) throw absent("recv", "buffer");
    recvArray(
        buffer, buffer.length, Dtype.I32, peer);
  }

  /**
   * Reduces over all ranks; every rank ends with the same bits.
   *
   * @param send what this rank gives
   * @param recv the result, as long as {@code send}; may be the same
   * @param op how values become one
   */
  public void allreduce(long[] send, long[] recv, ReduceOp op) {
    if (send == null) throw absent("allreduce", "send");
    if (recv == null) throw absent("allreduce", "recv");
    allreduceArray(
        send, send.length, recv, recv.length, Dtype.I64, op);
  }

  /**
   * Reduces over all ranks; the result is on {@code root} alone.
   *
   * @param send what this rank gives
   * @param recv the result, on {@code root}; ignored elsewhere, may be null there
   * @param op how values become one
   * @param root rank in the communicator
   */
  public void reduce(long[] send, long[] recv, ReduceOp op, int root) {
    if (send == null) throw absent("reduce", "send");
    reduceArray(
        send, send.length, recv,
        recv == null ? -1 : recv.length, Dtype.I64, op, root);
  }

  /**
   * Copies the buffer of {@code root} into everybody's.
   *
   * @param buffer read on {@code root}, written elsewhere
   * @param root rank in the communicator
   */
  public void broadcast(long[] buffer, int root) {
    if (buffer == null) throw absent("broadcast", "buffer");
    broadcastArray(
        buffer, buffer.length, Dtype.I64, root);
  }

  /**
   * Gathers everybody's elements, in rank order, on every rank.
   *
   * @param send what this rank gives
   * @param recv size times as long: the elements of rank r from r * count on
   */
  public void allgather(long[] send, long[] recv) {
    if (send == null) throw absent("allgather", "send");
    if (recv == null) throw absent("allgather", "recv");
    allgatherArray(
        send, send.length, recv, recv.length, Dtype.I64);
  }

  /**
   * Reduces over all ranks and leaves the r-th part on rank r.
   *
   * @param send size times as long as {@code recv}
   * @param recv the part of this rank
   * @param op how values become one
   */
  public void reduceScatter(long[] send, long[] recv, ReduceOp op) {
    if (send == null) throw absent("reduceScatter", "send");
    if (recv == null) throw absent("reduceScatter", "recv");
    reduceScatterArray(
        send, send.length, recv, recv.length, Dtype.I64, op);
  }

  /**
   * Sends to one peer, which receives as many elements of the same type.
   *
   * @param buffer what is sent
   * @param peer rank in the communicator, not this one
   */
  public void send(long[] buffer, int peer) {
    if (buffer == null) throw absent("send", "buffer");
    sendArray(
        buffer, buffer.length, Dtype.I64, peer);
  }

  /**
   * Receives what a peer sends.
   *
   * @param buffer written
   * @param peer rank in the communicator, not this one
   */
  public void recv(long[] buffer, int peer) {
    if (buffer == null) throw absent("recv", "buffer");
    recvArray(
        buffer, buffer.length, Dtype.I64, peer);
  }

  /**
   * Reduces over all ranks; every rank ends with the same bits.
   *
   * @param send what this rank gives
   * @param recv the result, as long as {@code send}; may be the same
   * @param dtype of the elements that the bytes are
   * @param op how values become one
   */
  public void allreduce(byte[] send, byte[] recv, Dtype dtype, ReduceOp op) {
    if (send == null) throw absent("allreduce", "send");
    if (recv == null) throw absent("allreduce", "recv");
    allreduceArray(
        send,
        length("allreduce", "send", send.length, dtype.bytes()), recv,
        length("allreduce", "recv", recv.length, dtype.bytes()), dtype, op);
  }

  /**
   * Reduces over all ranks; the result is on {@code root} alone.
   *
   * @param send what this rank gives
   * @param recv the result, on {@code root}; ignored elsewhere, may be null there
   * @param dtype of the elements that the bytes are
   * @param op how values become one
   * @param root rank in the communicator
   */
  public void reduce(byte[] send, byte[] recv, Dtype dtype, ReduceOp op, int root) {
    if (send == null) throw absent("reduce", "send");
    reduceArray(
        send,
        length("reduce", "send", send.length, dtype.bytes()), recv,
        recv == null ? -1 : length("reduce", "recv", recv.length, dtype.bytes()), dtype, op, root);
  }

  /**
   * Copies the buffer of {@code root} into everybody's.
   *
   * @param buffer read on {@code root}, written elsewhere
   * @param dtype of the elements that the bytes are
   * @param root rank in the communicator
   */
  public void broadcast(byte[] buffer, Dtype dtype, int root) {
    if (buffer == null) throw absent("broadcast", "buffer");
    broadcastArray(
        buffer, length("broadcast", "buffer", buffer.length, dtype.bytes()), dtype, root);
  }

  /**
   * Gathers everybody's elements, in rank order, on every rank.
   *
   * @param send what this rank gives
   * @param recv size times as long: the elements of rank r from r * count on
   * @param dtype of the elements that the bytes are
   */
  public void allgather(byte[] send, byte[] recv, Dtype dtype) {
    if (send == null) throw absent("allgather", "send");
    if (recv == null) throw absent("allgather", "recv");
    allgatherArray(
        send,
        length("allgather", "send", send.length, dtype.bytes()), recv,
        length("allgather", "recv", recv.length, dtype.bytes()), dtype);
  }

  /**
   * Reduces over all ranks and leaves the r-th part on rank r.
   *
   * @param send size times as long as {@code recv}
   * @param recv the part of this rank
   * @param dtype of the elements that the bytes are
   * @param op how values become one
   */
  public void reduceScatter(byte[] send, byte[] recv, Dtype dtype, ReduceOp op) {
    if (send == null) throw absent("reduceScatter", "send");
    if (recv == null) throw absent("reduceScatter", "recv");
    reduceScatterArray(
        send,
        length("reduceScatter", "send", send.length, dtype.bytes()), recv,
        length("reduceScatter", "recv", recv.length, dtype.bytes()), dtype, op);
  }

  /**
   * Sends to one peer, which receives as many elements of the same type.
   *
   * @param buffer what is sent
   * @param dtype of the elements that the bytes are
   * @param peer rank in the communicator, not this one
   */
  public void send(byte[] buffer, Dtype dtype, int peer) {
    if (buffer == null) throw absent("send", "buffer");
    sendArray(
        buffer, length("send", "buffer", buffer.length, dtype.bytes()), dtype, peer);
  }

  /**
   * Receives what a peer sends.
   *
   * @param buffer written
   * @param dtype of the elements that the bytes are
   * @param peer rank in the communicator, not this one
   */
  public void recv(byte[] buffer, Dtype dtype, int peer) {
    if (buffer == null) throw absent("recv", "buffer");
    recvArray(
        buffer, length("recv", "buffer", buffer.length, dtype.bytes()), dtype, peer);
  }
}
