// SPDX-License-Identifier: Apache-2.0
package io.dt;

import static io.dt.OperationKind.*;
import static io.dt.ReduceOp.SUM;

import io.dt.raw.Raw;

/** The operations of {@link Comm}: two short methods for each, which name its kind. */
abstract class Collectives extends Handle {
  /** The state of the communicator. Views of it whose operations go by name share it. */
  final CommState state;
  final Launcher launcher;
  private final int rank;
  private final int size;

  Collectives(long number, CommState state) {
    super(number, Raw::comm_destroy);
    this.state = state;
    rank = Raw.comm_rank(number);
    size = Raw.comm_size(number);
    launcher = new Launcher(this, state, null, 0, 0, null);
  }

  /** A view; {@code by} null: operations do not go by name. */
  Collectives(Collectives of, Named by, long stream, long timeoutMs, byte[] name) {
    super(of);
    state = of.state;
    rank = of.rank;
    size = of.size;
    CommState operations = by == null ? state : by.operations;
    launcher = new Launcher(this, operations, by, stream, timeoutMs, name);
  }

  /**
   * This rank's index in the communicator.
   *
   * @return in [0, size)
   */
  public int rank() {
    number();
    return rank;
  }

  /**
   * Number of ranks in the communicator.
   *
   * @return at least 1
   */
  public int size() {
    number();
    return size;
  }

  /**
   * Sums over all ranks, in place; every rank ends with the same bits.
   * @param tensor what this rank gives, and the result
   */
  public void allReduce(Tensor tensor) {
    launcher.run(ALLREDUCE, SUM, 0, tensor, null, tensor, null);
  }

  /**
   * As {@link #allReduce(Tensor)}, without waiting.
   * @param tensor what this rank gives, and the result
   * @return the operation under way
   */
  public Work allReduceAsync(Tensor tensor) {
    return launcher.start(ALLREDUCE, SUM, 0, tensor, null, tensor, null);
  }

  /**
   * Reduces over all ranks, in place; every rank ends with the same bits.
   * @param tensor what this rank gives, and the result
   * @param op how values become one
   */
  public void allReduce(Tensor tensor, Reduction op) {
    launcher.run(ALLREDUCE, op, 0, tensor, null, tensor, null);
  }

  /**
   * As {@link #allReduce(Tensor, Reduction)}, without waiting.
   * @param tensor what this rank gives, and the result
   * @param op how values become one
   * @return the operation under way
   */
  public Work allReduceAsync(Tensor tensor, Reduction op) {
    return launcher.start(ALLREDUCE, op, 0, tensor, null, tensor, null);
  }

  /**
   * Reduces over all ranks; every rank ends with the same bits.
   * @param send what this rank gives
   * @param recv the result, as many elements; may be the same
   * @param op how values become one
   */
  public void allReduce(Tensor send, Tensor recv, Reduction op) {
    launcher.run(ALLREDUCE, op, 0, send, null, recv, null);
  }

  /**
   * As {@link #allReduce(Tensor, Tensor, Reduction)}, without waiting.
   * @param send what this rank gives
   * @param recv the result, as many elements; may be the same
   * @param op how values become one
   * @return the operation under way
   */
  public Work allReduceAsync(Tensor send, Tensor recv, Reduction op) {
    return launcher.start(ALLREDUCE, op, 0, send, null, recv, null);
  }

  /**
   * Reduces over all ranks; the result is on the root alone.
   * @param send what this rank gives
   * @param recv the result, on the root; may be the same; elsewhere ignored, may be null
   * @param op how values become one
   * @param root rank in the communicator
   */
  public void reduce(Tensor send, Tensor recv, Reduction op, int root) {
    launcher.run(REDUCE, op, root, send, null, recv, null);
  }

  /**
   * As {@link #reduce(Tensor, Tensor, Reduction, int)}, without waiting.
   * @param send what this rank gives
   * @param recv the result, on the root; may be the same; elsewhere ignored, may be null
   * @param op how values become one
   * @param root rank in the communicator
   * @return the operation under way
   */
  public Work reduceAsync(Tensor send, Tensor recv, Reduction op, int root) {
    return launcher.start(REDUCE, op, root, send, null, recv, null);
  }

  /**
   * Copies the root's elements into everybody's tensor.
   * @param tensor read on the root, written elsewhere
   * @param root rank in the communicator
   */
  public void broadcast(Tensor tensor, int root) {
    launcher.run(BROADCAST, SUM, root, tensor, null, tensor, null);
  }

  /**
   * As {@link #broadcast(Tensor, int)}, without waiting.
   * @param tensor read on the root, written elsewhere
   * @param root rank in the communicator
   * @return the operation under way
   */
  public Work broadcastAsync(Tensor tensor, int root) {
    return launcher.start(BROADCAST, SUM, root, tensor, null, tensor, null);
  }

  /**
   * Gathers everybody's elements, in rank order, on every rank.
   * @param send what this rank gives; may be its part of {@code recv}
   * @param recv size times as many elements
   */
  public void allGather(Tensor send, Tensor recv) {
    launcher.run(ALLGATHER, SUM, 0, send, null, recv, null);
  }

  /**
   * As {@link #allGather(Tensor, Tensor)}, without waiting.
   * @param send what this rank gives; may be its part of {@code recv}
   * @param recv size times as many elements
   * @return the operation under way
   */
  public Work allGatherAsync(Tensor send, Tensor recv) {
    return launcher.start(ALLGATHER, SUM, 0, send, null, recv, null);
  }

  /**
   * Gathers different numbers of elements on every rank.
   * @param send what this rank gives: as many as its block
   * @param recv the blocks of all ranks
   * @param recvBlocks where they go; counts are the same on all ranks
   */
  public void allGather(Tensor send, Tensor recv, Blocks recvBlocks) {
    launcher.run(ALLGATHERV, SUM, 0, send, null, recv, recvBlocks);
  }

  /**
   * As {@link #allGather(Tensor, Tensor, Blocks)}, without waiting.
   * @param send what this rank gives: as many as its block
   * @param recv the blocks of all ranks
   * @param recvBlocks where they go; counts are the same on all ranks
   * @return the operation under way
   */
  public Work allGatherAsync(Tensor send, Tensor recv, Blocks recvBlocks) {
    return launcher.start(ALLGATHERV, SUM, 0, send, null, recv, recvBlocks);
  }

  /**
   * Reduces over all ranks and leaves the r-th part on rank r.
   * @param send size times as many elements as {@code recv}
   * @param recv the part of this rank; may be that part of {@code send}
   * @param op how values become one
   */
  public void reduceScatter(Tensor send, Tensor recv, Reduction op) {
    launcher.run(REDUCE_SCATTER, op, 0, send, null, recv, null);
  }

  /**
   * As {@link #reduceScatter(Tensor, Tensor, Reduction)}, without waiting.
   * @param send size times as many elements as {@code recv}
   * @param recv the part of this rank; may be that part of {@code send}
   * @param op how values become one
   * @return the operation under way
   */
  public Work reduceScatterAsync(Tensor send, Tensor recv, Reduction op) {
    return launcher.start(REDUCE_SCATTER, op, 0, send, null, recv, null);
  }

  /**
   * Reduces over all ranks and leaves the r-th block on rank r.
   * @param send the blocks for all ranks
   * @param sendBlocks where they lie; counts are the same on all ranks
   * @param recv the block of this rank; may be that block of {@code send}
   * @param op how values become one
   */
  public void reduceScatter(Tensor send, Blocks sendBlocks, Tensor recv, Reduction op) {
    launcher.run(REDUCE_SCATTERV, op, 0, send, sendBlocks, recv, null);
  }

  /**
   * As {@link #reduceScatter(Tensor, Blocks, Tensor, Reduction)}, without waiting.
   * @param send the blocks for all ranks
   * @param sendBlocks where they lie; counts are the same on all ranks
   * @param recv the block of this rank; may be that block of {@code send}
   * @param op how values become one
   * @return the operation under way
   */
  public Work reduceScatterAsync(Tensor send, Blocks sendBlocks, Tensor recv, Reduction op) {
    return launcher.start(REDUCE_SCATTERV, op, 0, send, sendBlocks, recv, null);
  }

  /**
   * Gives the r-th part to rank r, and gets one from each.
   * @param send a part for each rank
   * @param recv the parts of all ranks, as many elements; other memory
   */
  public void allToAll(Tensor send, Tensor recv) {
    launcher.run(ALLTOALL, SUM, 0, send, null, recv, null);
  }

  /**
   * As {@link #allToAll(Tensor, Tensor)}, without waiting.
   * @param send a part for each rank
   * @param recv the parts of all ranks, as many elements; other memory
   * @return the operation under way
   */
  public Work allToAllAsync(Tensor send, Tensor recv) {
    return launcher.start(ALLTOALL, SUM, 0, send, null, recv, null);
  }

  /**
   * Gives a block to each rank, and gets one from each.
   * @param send the blocks for all ranks
   * @param sendBlocks where they lie
   * @param recv the blocks of all ranks; other memory
   * @param recvBlocks where they go
   */
  public void allToAll(Tensor send, Blocks sendBlocks, Tensor recv, Blocks recvBlocks) {
    launcher.run(ALLTOALLV, SUM, 0, send, sendBlocks, recv, recvBlocks);
  }

  /**
   * As {@link #allToAll(Tensor, Blocks, Tensor, Blocks)}, without waiting.
   * @param send the blocks for all ranks
   * @param sendBlocks where they lie
   * @param recv the blocks of all ranks; other memory
   * @param recvBlocks where they go
   * @return the operation under way
   */
  public Work allToAllAsync(Tensor send, Blocks sendBlocks, Tensor recv, Blocks recvBlocks) {
    return launcher.start(ALLTOALLV, SUM, 0, send, sendBlocks, recv, recvBlocks);
  }

  /**
   * Gathers everybody's elements, in rank order, on the root.
   * @param send what this rank gives
   * @param recv on the root, size times as many; elsewhere ignored, may be null
   * @param root rank in the communicator
   */
  public void gather(Tensor send, Tensor recv, int root) {
    launcher.run(GATHER, SUM, root, send, null, recv, null);
  }

  /**
   * As {@link #gather(Tensor, Tensor, int)}, without waiting.
   * @param send what this rank gives
   * @param recv on the root, size times as many; elsewhere ignored, may be null
   * @param root rank in the communicator
   * @return the operation under way
   */
  public Work gatherAsync(Tensor send, Tensor recv, int root) {
    return launcher.start(GATHER, SUM, root, send, null, recv, null);
  }

  /**
   * Gathers different numbers of elements on the root.
   * @param send what this rank gives
   * @param recv on the root, the blocks of all ranks; elsewhere ignored, may be null
   * @param recvBlocks on the root, where they go; elsewhere ignored, may be null
   * @param root rank in the communicator
   */
  public void gather(Tensor send, Tensor recv, Blocks recvBlocks, int root) {
    launcher.run(GATHERV, SUM, root, send, null, recv, recvBlocks);
  }

  /**
   * As {@link #gather(Tensor, Tensor, Blocks, int)}, without waiting.
   * @param send what this rank gives
   * @param recv on the root, the blocks of all ranks; elsewhere ignored, may be null
   * @param recvBlocks on the root, where they go; elsewhere ignored, may be null
   * @param root rank in the communicator
   * @return the operation under way
   */
  public Work gatherAsync(Tensor send, Tensor recv, Blocks recvBlocks, int root) {
    return launcher.start(GATHERV, SUM, root, send, null, recv, recvBlocks);
  }

  /**
   * Gives the r-th part of the root's elements to rank r.
   * @param send on the root, a part for each rank; elsewhere ignored, may be null
   * @param recv the part of this rank
   * @param root rank in the communicator
   */
  public void scatter(Tensor send, Tensor recv, int root) {
    launcher.run(SCATTER, SUM, root, send, null, recv, null);
  }

  /**
   * As {@link #scatter(Tensor, Tensor, int)}, without waiting.
   * @param send on the root, a part for each rank; elsewhere ignored, may be null
   * @param recv the part of this rank
   * @param root rank in the communicator
   * @return the operation under way
   */
  public Work scatterAsync(Tensor send, Tensor recv, int root) {
    return launcher.start(SCATTER, SUM, root, send, null, recv, null);
  }

  /**
   * Gives each rank its block of the root's elements.
   * @param send on the root, the blocks for all ranks; elsewhere ignored, may be null
   * @param sendBlocks on the root, where they lie; elsewhere ignored, may be null
   * @param recv the block of this rank
   * @param root rank in the communicator
   */
  public void scatter(Tensor send, Blocks sendBlocks, Tensor recv, int root) {
    launcher.run(SCATTERV, SUM, root, send, sendBlocks, recv, null);
  }

  /**
   * As {@link #scatter(Tensor, Blocks, Tensor, int)}, without waiting.
   * @param send on the root, the blocks for all ranks; elsewhere ignored, may be null
   * @param sendBlocks on the root, where they lie; elsewhere ignored, may be null
   * @param recv the block of this rank
   * @param root rank in the communicator
   * @return the operation under way
   */
  public Work scatterAsync(Tensor send, Blocks sendBlocks, Tensor recv, int root) {
    return launcher.start(SCATTERV, SUM, root, send, sendBlocks, recv, null);
  }

  /**
   * Sends to one peer, which receives as many elements of the same type.
   * @param tensor what is sent
   * @param peer rank in the communicator, not this one
   */
  public void send(Tensor tensor, int peer) {
    launcher.run(SEND, SUM, peer, tensor, null, null, null);
  }

  /**
   * As {@link #send(Tensor, int)}, without waiting.
   * @param tensor what is sent
   * @param peer rank in the communicator, not this one
   * @return the operation under way
   */
  public Work sendAsync(Tensor tensor, int peer) {
    return launcher.start(SEND, SUM, peer, tensor, null, null, null);
  }

  /**
   * Receives what a peer sends.
   * @param tensor written
   * @param peer rank in the communicator, not this one
   */
  public void recv(Tensor tensor, int peer) {
    launcher.run(RECV, SUM, peer, null, null, tensor, null);
  }

  /**
   * As {@link #recv(Tensor, int)}, without waiting.
   * @param tensor written
   * @param peer rank in the communicator, not this one
   * @return the operation under way
   */
  public Work recvAsync(Tensor tensor, int peer) {
    return launcher.start(RECV, SUM, peer, null, null, tensor, null);
  }

  /** Returns when every rank has called it. */
  public void barrier() {
    launcher.run(BARRIER, SUM, 0, null, null, null, null);
  }

  /**
   * As {@link #barrier()}, without waiting.
   * @return the operation under way
   */
  public Work barrierAsync() {
    return launcher.start(BARRIER, SUM, 0, null, null, null, null);
  }
}
