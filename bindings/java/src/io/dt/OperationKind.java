// SPDX-License-Identifier: Apache-2.0
package io.dt;

/** Operations of a {@link Comm}, in the order of dt_kind. */
public enum OperationKind {
  /** {@link Comm#allReduce}. */
  ALLREDUCE("allReduce", Holds.COUNT, Holds.COUNT, Peer.NONE),
  /** {@link Comm#reduce}. */
  REDUCE("reduce", Holds.COUNT, Holds.COUNT, Peer.ROOT_RECEIVES),
  /** {@link Comm#broadcast}. */
  BROADCAST("broadcast", Holds.COUNT, Holds.COUNT, Peer.ROOT_SENDS),
  /** {@link Comm#allGather(Tensor, Tensor)}. */
  ALLGATHER("allGather", Holds.COUNT, Holds.COUNT_PER_RANK, Peer.NONE),
  /** {@link Comm#reduceScatter(Tensor, Tensor, ReduceOp)}. */
  REDUCE_SCATTER("reduceScatter", Holds.COUNT_PER_RANK, Holds.COUNT, Peer.NONE),
  /** {@link Comm#barrier}. */
  BARRIER("barrier", Holds.NOTHING, Holds.NOTHING, Peer.NONE),
  /** {@link Comm#send}. */
  SEND("send", Holds.COUNT, Holds.NOTHING, Peer.OTHER),
  /** {@link Comm#recv}. */
  RECV("recv", Holds.NOTHING, Holds.COUNT, Peer.OTHER),
  /** {@link Comm#allToAll(Tensor, Tensor)}. */
  ALLTOALL("allToAll", Holds.COUNT_PER_RANK, Holds.COUNT_PER_RANK, Peer.NONE),
  /** {@link Comm#allToAll(Tensor, Blocks, Tensor, Blocks)}. */
  ALLTOALLV("allToAll", Holds.BLOCKS, Holds.BLOCKS, Peer.NONE),
  /** {@link Comm#gather(Tensor, Tensor, int)}. */
  GATHER("gather", Holds.COUNT, Holds.COUNT_PER_RANK, Peer.ROOT_RECEIVES),
  /** {@link Comm#gather(Tensor, Tensor, Blocks, int)}. */
  GATHERV("gather", Holds.COUNT, Holds.BLOCKS, Peer.ROOT_RECEIVES),
  /** {@link Comm#scatter(Tensor, Tensor, int)}. */
  SCATTER("scatter", Holds.COUNT_PER_RANK, Holds.COUNT, Peer.ROOT_SENDS),
  /** {@link Comm#scatter(Tensor, Blocks, Tensor, int)}. */
  SCATTERV("scatter", Holds.BLOCKS, Holds.COUNT, Peer.ROOT_SENDS),
  /** {@link Comm#allGather(Tensor, Tensor, Blocks)}. */
  ALLGATHERV("allGather", Holds.OWN_BLOCK, Holds.BLOCKS, Peer.NONE),
  /** {@link Comm#reduceScatter(Tensor, Blocks, Tensor, ReduceOp)}; counted as its reduces. */
  REDUCE_SCATTERV("reduceScatter", Holds.BLOCKS, Holds.OWN_BLOCK, Peer.NONE);

  /** How many elements a tensor of the operation has. */
  enum Holds {
    NOTHING,
    COUNT,
    COUNT_PER_RANK,
    BLOCKS,
    /** That of this rank in the blocks of the other tensor. */
    OWN_BLOCK
  }

  /** What the number of another rank means. */
  private enum Peer {
    NONE,
    /** Only the root's {@code send} is read. */
    ROOT_SENDS,
    /** Only the root's {@code recv} is written. */
    ROOT_RECEIVES,
    OTHER
  }

  private final String method;
  private final Holds send;
  private final Holds recv;
  private final Peer peer;

  OperationKind(String method, Holds send, Holds recv, Peer peer) {
    this.method = method;
    this.send = send;
    this.recv = recv;
    this.peer = peer;
  }

  /** Of {@link Comm}, for messages. */
  String method() {
    return method;
  }

  boolean hasBlocks() {
    return send == Holds.BLOCKS || recv == Holds.BLOCKS;
  }

  /** Sends and receives that follow one another end in any order. */
  boolean isTransfer() {
    return peer == Peer.OTHER;
  }

  /** The result may lie where the input is. */
  boolean sameSize() {
    return send == Holds.COUNT && recv == Holds.COUNT;
  }

  boolean sends(int rank, int root) {
    return send != Holds.NOTHING && (peer != Peer.ROOT_SENDS || rank == root);
  }

  boolean receives(int rank, int root) {
    if (this == BROADCAST) return rank != root; // everybody's is the one that root sends
    return recv != Holds.NOTHING && (peer != Peer.ROOT_RECEIVES || rank == root);
  }

  /**
   * Gives the count of elements that dt wants, after all checks. Makes no garbage, and is short
   * enough to be compiled into its caller, like each part of it.
   */
  long check(
      int ranks, int rank, Reduction op, int peerRank, Tensor from, Blocks fromBlocks, Tensor to,
      Blocks toBlocks) {
    if (op == null) throw Checks.refused(method, "op", "is null", "give a ReduceOp or a Combine");
    if (peer != Peer.NONE) checkPeer(ranks, rank, peerRank);
    boolean one = from == to || send == Holds.NOTHING || recv == Holds.NOTHING;
    Tensor sent = sends(rank, peerRank) ? present(one ? "tensor" : "send", from) : null;
    Tensor received = receives(rank, peerRank) ? present(one ? "tensor" : "recv", to) : null;
    if (received != null) checkResult(one ? "tensor" : "recv", sent, received);
    if (send == Holds.COUNT_PER_RANK && recv == Holds.COUNT_PER_RANK) {
      wanted("recv", received, sent.count());
      return part(sent, ranks);
    }
    Tensor part = send == Holds.COUNT && sent != null ? sent : received;
    long count = part == null ? 0 : part.count();
    if (sent != null) checkSide("send", send, sent, "sendBlocks", fromBlocks, ranks, count);
    if (received != null) checkSide("recv", recv, received, "recvBlocks", toBlocks, ranks, count);
    if (hasBlocks()) checkOwn(rank, sent, fromBlocks, received, toBlocks);
    return count;
  }

  private void checkResult(String name, Tensor sent, Tensor received) {
    received.checkWritable(method, name);
    if (sent == null || sent.type() == received.type()) return;
    throw Checks.refused(
        method, "recv", "is of " + received.type() + ", but send of " + sent.type(),
        "give tensors of one type");
  }

  /** The block of this rank is as long as its part. */
  private void checkOwn(
      int rank, Tensor sent, Blocks fromBlocks, Tensor received, Blocks toBlocks) {
    if (sent == null || received == null) return;
    if (send != Holds.BLOCKS) {
      toBlocks.checkOwn(method, "recvBlocks", rank, "send", sent.count());
    } else if (recv != Holds.BLOCKS) {
      fromBlocks.checkOwn(method, "sendBlocks", rank, "recv", received.count());
    }
  }

  private long part(Tensor sent, int ranks) {
    if (sent.count() % ranks == 0) return sent.count() / ranks;
    throw Checks.refused(
        method, "send",
        "has " + sent.count() + " elements, which is no multiple of the " + ranks + " ranks",
        "give equal parts, or blocks");
  }

  private void checkPeer(int ranks, int rank, int peerRank) {
    String name = peer == Peer.OTHER ? "peer" : "root";
    if (peerRank < 0 || peerRank >= ranks) {
      throw Checks.refused(
          method, name, "is " + peerRank + ", but the communicator has " + ranks + " ranks",
          "give one of 0 to " + (ranks - 1));
    }
    if (peer == Peer.OTHER && peerRank == rank) {
      throw Checks.refused(method, name, "is " + peerRank + ", this rank itself", "give another");
    }
  }

  private Tensor present(String name, Tensor tensor) {
    if (tensor == null) throw Checks.refused(method, name, "is null", "give a Tensor");
    return tensor;
  }

  private void checkSide(
      String name, Holds holds, Tensor tensor, String blocksName, Blocks blocks, int ranks,
      long count) {
    if (holds == Holds.COUNT) wanted(name, tensor, count);
    if (holds == Holds.COUNT_PER_RANK) wanted(name, tensor, count * ranks);
    if (holds != Holds.BLOCKS) return;
    if (blocks == null) {
      throw Checks.refused(
          method, blocksName, "is null", "give a count for each of the " + ranks + " ranks");
    }
    blocks.check(method, blocksName, ranks, name, tensor.count());
  }

  private void wanted(String name, Tensor tensor, long wanted) {
    if (tensor.count() == wanted) return;
    throw Checks.refused(
        method, name, "has " + tensor.count() + " elements, but " + wanted + " are wanted",
        "give a tensor of as many");
  }
}
