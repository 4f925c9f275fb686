// SPDX-License-Identifier: Apache-2.0
package io.dt;

import io.dt.raw.Raw;
import java.lang.ref.Reference;
import java.util.function.LongConsumer;

/** Operations on addresses. Those of buffers and arrays come down to these. */
abstract class AddressCollectives extends AddressTransfers {
  AddressCollectives(long number, LongConsumer destroy, CommShared shared) {
    super(number, destroy, shared);
  }

  /**
   * Reduces over all ranks; every rank ends with the same bits.
   * Returns when the result is there, or on a GPU when it is ordered on the stream.
   *
   * <p>The memory is the caller's to keep. Collective: the same order on all ranks.
   *
   * @param send what this rank gives
   * @param recv the result; may be the same
   * @param count elements
   * @param dtype of the elements
   * @param op how values become one
   * @param stream CUDA stream of the buffers; ignored on a host communicator
   */
  public void allreduce(
      long send, long recv, long count, Dtype dtype, ReduceOp op, long stream) {
    allreduce(send, recv, count, dtype, op, stream, null, null);
  }

  final void allreduce(
      long send, long recv, long count, Dtype dtype, ReduceOp op, long stream,
      Object keep, Object keepToo) {
    int turn = shared.turn();
    if (CommShared.grouped(turn)) {
      shared.join(
          allreduceAsync(send, recv, count, dtype, op, stream, keep, keepToo).pending(), stream);
      return;
    }
    try {
      Raw.allreduce(number(), send, recv, count, dtype.number(), op.number(), stream);
      shared.settle(turn);
    } finally {
      Reference.reachabilityFence(keep);
      Reference.reachabilityFence(keepToo);
      Reference.reachabilityFence(this);
    }
  }

  /**
   * As allreduce, without waiting. The memory must stay until the work is done.
   *
   * @param send what this rank gives
   * @param recv the result; may be the same
   * @param count elements
   * @param dtype of the elements
   * @param op how values become one
   * @param stream CUDA stream of the buffers; ignored on a host communicator
   * @return the operation under way
   */
  public Work allreduceAsync(
      long send, long recv, long count, Dtype dtype, ReduceOp op, long stream) {
    return allreduceAsync(send, recv, count, dtype, op, stream, null, null);
  }

  final Work allreduceAsync(
      long send, long recv, long count, Dtype dtype, ReduceOp op, long stream,
      Object keep, Object keepToo) {
    try {
      Pending pending = shared.prepare(number(), keep, keepToo);
      Work work = new Work(pending);
      pending.issued(
          Raw.allreduce_async(number(), send, recv, count, dtype.number(), op.number(), stream));
      return work;
    } finally {
      Reference.reachabilityFence(this);
    }
  }

  /**
   * Reduces over all ranks; the result is on {@code root} alone.
   * Returns when the result is there, or on a GPU when it is ordered on the stream.
   *
   * <p>The memory is the caller's to keep. Collective: the same order on all ranks.
   *
   * @param send what this rank gives
   * @param recv the result, on {@code root}; ignored elsewhere, may be 0 there
   * @param count elements
   * @param dtype of the elements
   * @param op how values become one
   * @param root rank in the communicator
   * @param stream CUDA stream of the buffers; ignored on a host communicator
   */
  public void reduce(
      long send, long recv, long count, Dtype dtype, ReduceOp op, int root, long stream) {
    reduce(send, recv, count, dtype, op, root, stream, null, null);
  }

  final void reduce(
      long send, long recv, long count, Dtype dtype, ReduceOp op, int root, long stream,
      Object keep, Object keepToo) {
    int turn = shared.turn();
    if (CommShared.grouped(turn)) {
      shared.join(
          reduceAsync(send, recv, count, dtype, op, root, stream, keep, keepToo).pending(), stream);
      return;
    }
    try {
      Raw.reduce(number(), send, recv, count, dtype.number(), op.number(), root, stream);
      shared.settle(turn);
    } finally {
      Reference.reachabilityFence(keep);
      Reference.reachabilityFence(keepToo);
      Reference.reachabilityFence(this);
    }
  }

  /**
   * As reduce, without waiting. The memory must stay until the work is done.
   *
   * @param send what this rank gives
   * @param recv the result, on {@code root}; ignored elsewhere, may be 0 there
   * @param count elements
   * @param dtype of the elements
   * @param op how values become one
   * @param root rank in the communicator
   * @param stream CUDA stream of the buffers; ignored on a host communicator
   * @return the operation under way
   */
  public Work reduceAsync(
      long send, long recv, long count, Dtype dtype, ReduceOp op, int root, long stream) {
    return reduceAsync(send, recv, count, dtype, op, root, stream, null, null);
  }

  final Work reduceAsync(
      long send, long recv, long count, Dtype dtype, ReduceOp op, int root, long stream,
      Object keep, Object keepToo) {
    try {
      Pending pending = shared.prepare(number(), keep, keepToo);
      Work work = new Work(pending);
      pending.issued(
          Raw.reduce_async(number(), send, recv, count, dtype.number(), op.number(), root, stream));
      return work;
    } finally {
      Reference.reachabilityFence(this);
    }
  }

  /**
   * Copies the buffer of {@code root} into everybody's.
   * Returns when the result is there, or on a GPU when it is ordered on the stream.
   *
   * <p>The memory is the caller's to keep. Collective: the same order on all ranks.
   *
   * @param buffer read on {@code root}, written elsewhere
   * @param count elements
   * @param dtype of the elements
   * @param root rank in the communicator
   * @param stream CUDA stream of the buffers; ignored on a host communicator
   */
  public void broadcast(
      long buffer, long count, Dtype dtype, int root, long stream) {
    broadcast(buffer, count, dtype, root, stream, null);
  }

  final void broadcast(
      long buffer, long count, Dtype dtype, int root, long stream,
      Object keep) {
    int turn = shared.turn();
    if (CommShared.grouped(turn)) {
      shared.join(
          broadcastAsync(buffer, count, dtype, root, stream, keep).pending(), stream);
      return;
    }
    try {
      Raw.broadcast(number(), buffer, count, dtype.number(), root, stream);
      shared.settle(turn);
    } finally {
      Reference.reachabilityFence(keep);
      Reference.reachabilityFence(this);
    }
  }

  /**
   * As broadcast, without waiting. The memory must stay until the work is done.
   *
   * @param buffer read on {@code root}, written elsewhere
   * @param count elements
   * @param dtype of the elements
   * @param root rank in the communicator
   * @param stream CUDA stream of the buffers; ignored on a host communicator
   * @return the operation under way
   */
  public Work broadcastAsync(
      long buffer, long count, Dtype dtype, int root, long stream) {
    return broadcastAsync(buffer, count, dtype, root, stream, null);
  }

  final Work broadcastAsync(
      long buffer, long count, Dtype dtype, int root, long stream,
      Object keep) {
    try {
      Pending pending = shared.prepare(number(), keep, null);
      Work work = new Work(pending);
      pending.issued(
          Raw.broadcast_async(number(), buffer, count, dtype.number(), root, stream));
      return work;
    } finally {
      Reference.reachabilityFence(this);
    }
  }

  /**
   * Gathers everybody's elements, in rank order, on every rank.
   * Returns when the result is there, or on a GPU when it is ordered on the stream.
   *
   * <p>The memory is the caller's to keep. Collective: the same order on all ranks.
   *
   * @param send what this rank gives
   * @param recv size * count elements: those of rank r from r * count on
   * @param count elements per rank
   * @param dtype of the elements
   * @param stream CUDA stream of the buffers; ignored on a host communicator
   */
  public void allgather(
      long send, long recv, long count, Dtype dtype, long stream) {
    allgather(send, recv, count, dtype, stream, null, null);
  }

  final void allgather(
      long send, long recv, long count, Dtype dtype, long stream,
      Object keep, Object keepToo) {
    int turn = shared.turn();
    if (CommShared.grouped(turn)) {
      shared.join(
          allgatherAsync(send, recv, count, dtype, stream, keep, keepToo).pending(), stream);
      return;
    }
    try {
      Raw.allgather(number(), send, recv, count, dtype.number(), stream);
      shared.settle(turn);
    } finally {
      Reference.reachabilityFence(keep);
      Reference.reachabilityFence(keepToo);
      Reference.reachabilityFence(this);
    }
  }

  /**
   * As allgather, without waiting. The memory must stay until the work is done.
   *
   * @param send what this rank gives
   * @param recv size * count elements: those of rank r from r * count on
   * @param count elements per rank
   * @param dtype of the elements
   * @param stream CUDA stream of the buffers; ignored on a host communicator
   * @return the operation under way
   */
  public Work allgatherAsync(
      long send, long recv, long count, Dtype dtype, long stream) {
    return allgatherAsync(send, recv, count, dtype, stream, null, null);
  }

  final Work allgatherAsync(
      long send, long recv, long count, Dtype dtype, long stream,
      Object keep, Object keepToo) {
    try {
      Pending pending = shared.prepare(number(), keep, keepToo);
      Work work = new Work(pending);
      pending.issued(
          Raw.allgather_async(number(), send, recv, count, dtype.number(), stream));
      return work;
    } finally {
      Reference.reachabilityFence(this);
    }
  }

  /**
   * Reduces over all ranks and leaves the r-th part on rank r.
   * Returns when the result is there, or on a GPU when it is ordered on the stream.
   *
   * <p>The memory is the caller's to keep. Collective: the same order on all ranks.
   *
   * @param send size * count elements
   * @param recv the part of this rank
   * @param count elements per rank of the result
   * @param dtype of the elements
   * @param op how values become one
   * @param stream CUDA stream of the buffers; ignored on a host communicator
   */
  public void reduceScatter(
      long send, long recv, long count, Dtype dtype, ReduceOp op, long stream) {
    reduceScatter(send, recv, count, dtype, op, stream, null, null);
  }

  final void reduceScatter(
      long send, long recv, long count, Dtype dtype, ReduceOp op, long stream,
      Object keep, Object keepToo) {
    int turn = shared.turn();
    if (CommShared.grouped(turn)) {
      shared.join(
          reduceScatterAsync(send, recv, count, dtype, op, stream, keep, keepToo).pending(),
          stream);
      return;
    }
    try {
      Raw.reduce_scatter(number(), send, recv, count, dtype.number(), op.number(), stream);
      shared.settle(turn);
    } finally {
      Reference.reachabilityFence(keep);
      Reference.reachabilityFence(keepToo);
      Reference.reachabilityFence(this);
    }
  }

  /**
   * As reduceScatter, without waiting. The memory must stay until the work is done.
   *
   * @param send size * count elements
   * @param recv the part of this rank
   * @param count elements per rank of the result
   * @param dtype of the elements
   * @param op how values become one
   * @param stream CUDA stream of the buffers; ignored on a host communicator
   * @return the operation under way
   */
  public Work reduceScatterAsync(
      long send, long recv, long count, Dtype dtype, ReduceOp op, long stream) {
    return reduceScatterAsync(send, recv, count, dtype, op, stream, null, null);
  }

  final Work reduceScatterAsync(
      long send, long recv, long count, Dtype dtype, ReduceOp op, long stream,
      Object keep, Object keepToo) {
    try {
      Pending pending = shared.prepare(number(), keep, keepToo);
      Work work = new Work(pending);
      pending.issued(
          Raw.reduce_scatter_async(
              number(), send, recv, count, dtype.number(), op.number(), stream));
      return work;
    } finally {
      Reference.reachabilityFence(this);
    }
  }
}
