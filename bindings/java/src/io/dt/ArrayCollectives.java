// SPDX-License-Identifier: Apache-2.0
package io.dt;

import io.dt.raw.Raw;
import java.lang.ref.Reference;
import java.util.function.LongConsumer;

/** Blocking operations on arrays of floating-point numbers, which are copied there and back. */
abstract class ArrayCollectives extends OffsetBlocks {
  ArrayCollectives(long number, LongConsumer destroy, CommShared shared) {
    super(number, destroy, shared);
  }

  final void allreduceArray(
      Object send, long sent, Object recv, long received, Dtype dtype, ReduceOp op) {
    Buffers.wanted("allreduce", "recv", received, sent);
    long bytes = sent * dtype.bytes();
    int turn = shared.turn();
    long copy = enter("allreduce", turn, bytes);
    try {
      Raw.copy_in(send, copy, bytes);
      Raw.allreduce(number(), copy, copy, sent, dtype.number(), op.number(), 0);
      shared.settle(turn);
      Raw.copy_out(copy, recv, bytes);
    } finally {
      leave(copy);
    }
  }

  final void reduceArray(
      Object send, long sent, Object recv, long received, Dtype dtype, ReduceOp op, int root) {
    boolean result = root == self();
    if (result && recv == null) throw absent("reduce", "recv");
    if (result) Buffers.wanted("reduce", "recv", received, sent);
    long bytes = sent * dtype.bytes();
    int turn = shared.turn();
    long copy = enter("reduce", turn, bytes);
    try {
      Raw.copy_in(send, copy, bytes);
      Raw.reduce(number(), copy, copy, sent, dtype.number(), op.number(), root, 0);
      shared.settle(turn);
      if (result) Raw.copy_out(copy, recv, bytes);
    } finally {
      leave(copy);
    }
  }

  final void broadcastArray(Object buffer, long count, Dtype dtype, int root) {
    long bytes = count * dtype.bytes();
    int turn = shared.turn();
    long copy = enter("broadcast", turn, bytes);
    try {
      boolean source = root == self();
      if (source) Raw.copy_in(buffer, copy, bytes);
      Raw.broadcast(number(), copy, count, dtype.number(), root, 0);
      shared.settle(turn);
      if (!source) Raw.copy_out(copy, buffer, bytes);
    } finally {
      leave(copy);
    }
  }

  final void allgatherArray(
      Object send, long sent, Object recv, long received, Dtype dtype) {
    Buffers.wanted("allgather", "recv", received, sent * ranks());
    long bytes = sent * dtype.bytes();
    int turn = shared.turn();
    long copy = enter("allgather", turn, bytes + received * dtype.bytes());
    try {
      Raw.copy_in(send, copy, bytes);
      Raw.allgather(number(), copy, copy + bytes, sent, dtype.number(), 0);
      shared.settle(turn);
      Raw.copy_out(copy + bytes, recv, received * dtype.bytes());
    } finally {
      leave(copy);
    }
  }

  final void reduceScatterArray(
      Object send, long sent, Object recv, long received, Dtype dtype, ReduceOp op) {
    Buffers.wanted("reduceScatter", "send", sent, received * ranks());
    long bytes = sent * dtype.bytes();
    int turn = shared.turn();
    long copy = enter("reduceScatter", turn, bytes + received * dtype.bytes());
    try {
      Raw.copy_in(send, copy, bytes);
      Raw.reduce_scatter(
          number(), copy, copy + bytes, received, dtype.number(), op.number(), 0);
      shared.settle(turn);
      Raw.copy_out(copy + bytes, recv, received * dtype.bytes());
    } finally {
      leave(copy);
    }
  }

  final void sendArray(Object buffer, long count, Dtype dtype, int peer) {
    long bytes = count * dtype.bytes();
    int turn = shared.turn();
    long copy = enter("send", turn, bytes);
    try {
      Raw.copy_in(buffer, copy, bytes);
      Raw.send(number(), copy, count, dtype.number(), peer, 0);
      shared.settle(turn);
    } finally {
      leave(copy);
    }
  }

  final void recvArray(Object buffer, long count, Dtype dtype, int peer) {
    long bytes = count * dtype.bytes();
    int turn = shared.turn();
    long copy = enter("recv", turn, bytes);
    try {
      Raw.recv(number(), copy, count, dtype.number(), peer, 0);
      shared.settle(turn);
      Raw.copy_out(copy, buffer, bytes);
    } finally {
      leave(copy);
    }
  }

  /** Memory for one call, which needs it no longer when it has settled. */
  final long enter(String operation, int turn, long bytes) {
    if (CommShared.grouped(turn)) {
      throw Buffers.refused(
          operation, "an array", "cannot wait for the end of the group", "give a direct buffer");
    }
    return Raw.copy_allocate(bytes);
  }

  final void leave(long copy) {
    Raw.copy_free(copy);
    Reference.reachabilityFence(this);
  }

  static long length(String operation, String name, int length, int elementBytes) {
    if (length % elementBytes == 0) return length / elementBytes;
    throw Buffers.refused(
        operation, name, "has " + length + " bytes, which are no whole elements", "give another");
  }

  static DtException absent(String operation, String name) {
    return Buffers.refused(operation, name, "is null", "give an array");
  }

  /**
   * Reduces over all ranks; every rank ends with the same bits.
   *
   * @param send what this rank gives
   * @param recv the result, as long as {@code send}; may be the same
   * @param op how values become one
   */
  public void allreduce(float[] send, float[] recv, ReduceOp op) {
    if (send == null) throw absent("allreduce", "send");
    if (recv == null) throw absent("allreduce", "recv");
    allreduceArray(
        send, send.length, recv, recv.length, Dtype.F32, op);
  }

  /**
   * Reduces over all ranks; the result is on {@code root} alone.
   *
   * @param send what this rank gives
   * @param recv the result, on {@code root}; ignored elsewhere, may be null there
   * @param op how values become one
   * @param root rank in the communicator
   */
  public void reduce(float[] send, float[] recv, ReduceOp op, int root) {
    if (send == null) throw absent("reduce", "send");
    reduceArray(
        send, send.length, recv, recv == null ? -1 : recv.length, Dtype.F32, op, root);
  }

  /**
   * Copies the buffer of {@code root} into everybody's.
   *
   * @param buffer read on {@code root}, written elsewhere
   * @param root rank in the communicator
   */
  public void broadcast(float[] buffer, int root) {
    if (buffer == null) throw absent("broadcast", "buffer");
    broadcastArray(
        buffer, buffer.length, Dtype.F32, root);
  }

  /**
   * Gathers everybody's elements, in rank order, on every rank.
   *
   * @param send what this rank gives
   * @param recv size times as long: the elements of rank r from r * count on
   */
  public void allgather(float[] send, float[] recv) {
    if (send == null) throw absent("allgather", "send");
    if (recv == null) throw absent("allgather", "recv");
    allgatherArray(
        send, send.length, recv, recv.length, Dtype.F32);
  }

  /**
   * Reduces over all ranks and leaves the r-th part on rank r.
   *
   * @param send size times as long as {@code recv}
   * @param recv the part of this rank
   * @param op how values become one
   */
  public void reduceScatter(float[] send, float[] recv, ReduceOp op) {
    if (send == null) throw absent("reduceScatter", "send");
    if (recv == null) throw absent("reduceScatter", "recv");
    reduceScatterArray(
        send, send.length, recv, recv.length, Dtype.F32, op);
  }

  /**
   * Sends to one peer, which receives as many elements of the same type.
   *
   * @param buffer what is sent
   * @param peer rank in the communicator, not this one
   */
  public void send(float[] buffer, int peer) {
    if (buffer == null) throw absent("send", "buffer");
    sendArray(
        buffer, buffer.length, Dtype.F32, peer);
  }

  /**
   * Receives what a peer sends.
   *
   * @param buffer written
   * @param peer rank in the communicator, not this one
   */
  public void recv(float[] buffer, int peer) {
    if (buffer == null) throw absent("recv", "buffer");
    recvArray(
        buffer, buffer.length, Dtype.F32, peer);
  }

  /**
   * Reduces over all ranks; every rank ends with the same bits.
   *
   * @param send what this rank gives
   * @param recv the result, as long as {@code send}; may be the same
   * @param op how values become one
   */
  public void allreduce(double[] send, double[] recv, ReduceOp op) {
    if (send == null) throw absent("allreduce", "send");
    if (recv == null) throw absent("allreduce", "recv");
    allreduceArray(
        send, send.length, recv, recv.length, Dtype.F64, op);
  }

  /**
   * Reduces over all ranks; the result is on {@code root} alone.
   *
   * @param send what this rank gives
   * @param recv the result, on {@code root}; ignored elsewhere, may be null there
   * @param op how values become one
   * @param root rank in the communicator
   */
  public void reduce(double[] send, double[] recv, ReduceOp op, int root) {
    if (send == null) throw absent("reduce", "send");
    reduceArray(
        send, send.length, recv, recv == null ? -1 : recv.length, Dtype.F64, op, root);
  }

  /**
   * Copies the buffer of {@code root} into everybody's.
   *
   * @param buffer read on {@code root}, written elsewhere
   * @param root rank in the communicator
   */
  public void broadcast(double[] buffer, int root) {
    if (buffer == null) throw absent("broadcast", "buffer");
    broadcastArray(
        buffer, buffer.length, Dtype.F64, root);
  }

  /**
   * Gathers everybody's elements, in rank order, on every rank.
   *
   * @param send what this rank gives
   * @param recv size times as long: the elements of rank r from r * count on
   */
  public void allgather(double[] send, double[] recv) {
    if (send == null) throw absent("allgather", "send");
    if (recv == null) throw absent("allgather", "recv");
    allgatherArray(
        send, send.length, recv, recv.length, Dtype.F64);
  }

  /**
   * Reduces over all ranks and leaves the r-th part on rank r.
   *
   * @param send size times as long as {@code recv}
   * @param recv the part of this rank
   * @param op how values become one
   */
  public void reduceScatter(double[] send, double[] recv, ReduceOp op) {
    if (send == null) throw absent("reduceScatter", "send");
    if (recv == null) throw absent("reduceScatter", "recv");
    reduceScatterArray(
        send, send.length, recv, recv.length, Dtype.F64, op);
  }

  /**
   * Sends to one peer, which receives as many elements of the same type.
   *
   * @param buffer what is sent
   * @param peer rank in the communicator, not this one
   */
  public void send(double[] buffer, int peer) {
    if (buffer == null) throw absent("send", "buffer");
    sendArray(
        buffer, buffer.length, Dtype.F64, peer);
  }

  /**
   * Receives what a peer sends.
   *
   * @param buffer written
   * @param peer rank in the communicator, not this one
   */
  public void recv(double[] buffer, int peer) {
    if (buffer == null) throw absent("recv", "buffer");
    recvArray(
        buffer, buffer.length, Dtype.F64, peer);
  }
}
