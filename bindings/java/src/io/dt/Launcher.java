// SPDX-License-Identifier: Apache-2.0
package io.dt;

import io.dt.raw.Raw;
import java.lang.ref.Reference;

/** Runs the operations of one view of a communicator. Calls that wait make no garbage. */
final class Launcher {
  private final Collectives comm;
  private final CommState state;
  /** What operations are submitted to by name; null: the communicator. */
  final Named by;
  final long stream;
  /** 0: the communicator's. */
  final long timeoutMs;
  /** In messages and traces, as UTF-8; null: none. */
  final byte[] name;
  /** Whether the poller has the communicator's eventfd: another one after Comm.shrink(). */
  private volatile boolean watched;

  Launcher(
      Collectives comm, CommState state, Named by, long stream, long timeoutMs, byte[] name) {
    this.comm = comm;
    this.state = state;
    this.by = by;
    this.stream = stream;
    this.timeoutMs = timeoutMs;
    this.name = name;
  }

  /** Returns when the result is there; inside a group at once. */
  void run(
      OperationKind kind, Reduction op, int peer, Tensor send, Blocks sendBlocks, Tensor recv,
      Blocks recvBlocks) {
    long number = comm.number();
    long count =
        kind.check(comm.size(), comm.rank(), op, peer, send, sendBlocks, recv, recvBlocks);
    if (by != null) by.checkWaits(kind);
    byte[] blocks = packed(kind, sendBlocks, recvBlocks);
    int generation = state.generation();
    if (CommState.grouped(generation)) {
      refuseArrays(kind, send, recv, "inside a group");
      state.join(issue(number, kind, op, peer, send, recv, count, blocks).pending(), stream);
    } else if (op instanceof Combine combine) {
      long elements = combine.elements(kind.method(), count);
      byte[] parts = combine.elements(kind.method(), blocks);
      Combination custom = Combination.of(kind, combine, type(send, recv));
      try {
        runHere(number, kind, op, peer, send, recv, elements, parts, custom, generation);
      } finally {
        custom.delete();
      }
      custom.check();
    } else {
      runHere(number, kind, op, peer, send, recv, count, blocks, null, generation);
    }
  }

  private void runHere(
      long number, OperationKind kind, Reduction op, int peer, Tensor send, Tensor recv, long count,
      byte[] blocks, Combination custom, int generation) {
    if (onHeap(send) || onHeap(recv)) {
      runCopied(number, kind, op, peer, send, recv, count, blocks, custom, generation);
      return;
    }
    Tensor.acquire(send, recv);
    try {
      launch(
          number, kind, op, peer, type(send, recv), place(send), place(recv), count, blocks,
          custom);
      state.settle(generation);
    } finally {
      Tensor.release(send);
      Tensor.release(recv);
      fence(send, recv);
    }
  }

  /** Gives the operation under way. */
  Work start(
      OperationKind kind, Reduction op, int peer, Tensor send, Blocks sendBlocks, Tensor recv,
      Blocks recvBlocks) {
    long number = comm.number();
    long count =
        kind.check(comm.size(), comm.rank(), op, peer, send, sendBlocks, recv, recvBlocks);
    refuseArrays(kind, send, recv, "in " + kind.method() + "Async");
    return issue(number, kind, op, peer, send, recv, count, packed(kind, sendBlocks, recvBlocks));
  }

  private Work issue(
      long number, OperationKind kind, Reduction op, int peer, Tensor send, Tensor recv, long count,
      byte[] blocks) {
    DataType type = type(send, recv);
    if (op instanceof Combine combine) {
      count = combine.elements(kind.method(), count);
      blocks = combine.elements(kind.method(), blocks);
    }
    Tensor.acquire(send, recv);
    Combination custom = null;
    boolean begun = false;
    try {
      if (!watched) watch(number);
      // Made before the call: once the operation has begun nothing may fail.
      custom = Combination.of(kind, op, type);
      boolean unordered = by != null || kind.isTransfer() || state.grouped();
      Pending pending = new Pending(send, recv, custom, unordered);
      pending.by = by;
      Work work = new Work(pending);
      if (by != null && by.batch != null) {
        by.batch.add(
            work, name, kind.ordinal(), type.number(), ReduceOp.number(op), peer, place(send),
            place(recv), count, timeoutMs, upcall(custom), bytes(custom));
        begun = true; // so the group lets go of the tensors where it fails
        return work;
      }
      pending.issued(
          blocks == null
              ? Raw.launch_async(
                  number, named(), kind.ordinal(), type.number(), ReduceOp.number(op), peer,
                  place(send), place(recv), count, stream, timeoutMs, name, upcall(custom),
                  bytes(custom))
              : Raw.launch_blocks_async(
                  number, named(), kind.ordinal(), type.number(), ReduceOp.number(op), peer,
                  place(send), place(recv), count, blocks, stream, timeoutMs, name, upcall(custom),
                  bytes(custom)));
      begun = true;
      state.outstanding.add(pending);
      return work;
    } catch (InvalidArgumentException e) {
      throw refused(e);
    } finally {
      if (!begun) {
        Tensor.release(send);
        Tensor.release(recv);
        Combination.delete(custom);
      }
      fence(send, recv);
    }
  }

  private void watch(long number) {
    try {
      CompletionPoller.watch(Raw.work_fd(number));
      watched = true;
    } catch (DtException e) {
      throw e;
    } catch (RuntimeException e) {
      Raw.comm_rank(number); // closed by another thread meanwhile, its eventfd with it: dt says so
      throw e;
    }
  }

  /**
   * With copies of arrays: a call that waits must not hold an array, or no thread could collect
   * garbage, not even one that is a rank this one waits for.
   */
  private void runCopied(
      long number, OperationKind kind, Reduction op, int peer, Tensor send, Tensor recv, long count,
      byte[] blocks, Combination custom, int generation) {
    long sendBytes = onHeap(send) ? send.bytes() : 0;
    long recvBytes = onHeap(recv) ? recv.bytes() : 0;
    long recvOffset = kind.sameSize() && sendBytes == recvBytes ? 0 : sendBytes;
    Tensor.acquire(send, recv);
    long copy = 0;
    try {
      copy = Raw.copy_allocate(recvOffset + recvBytes);
      long sendPlace = onHeap(send) ? copy : place(send);
      long recvPlace = onHeap(recv) ? copy + recvOffset : place(recv);
      boolean writes = onHeap(recv) && kind.receives(comm.rank(), peer);
      if (onHeap(send) && kind.sends(comm.rank(), peer)) send.copyIn(sendPlace);
      // What lies between blocks stays as it is.
      if (writes && blocks != null) recv.copyIn(recvPlace);
      launch(
          number, kind, op, peer, type(send, recv), sendPlace, recvPlace, count, blocks, custom);
      state.settle(generation);
      if (writes) recv.copyOut(recvPlace);
    } finally {
      Raw.copy_free(copy);
      Tensor.release(send);
      Tensor.release(recv);
      fence(send, recv);
    }
  }

  private void launch(
      long number, OperationKind kind, Reduction op, int peer, DataType type, long send, long recv,
      long count, byte[] blocks, Combination custom) {
    if (Waiting.virtual()) {
      Waiting.run(
          on -> launchHere(on, kind, op, peer, type, send, recv, count, blocks, custom), number);
    } else {
      launchHere(number, kind, op, peer, type, send, recv, count, blocks, custom);
    }
  }

  private void launchHere(
      long number, OperationKind kind, Reduction op, int peer, DataType type, long send, long recv,
      long count, byte[] blocks, Combination custom) {
    try {
      if (blocks == null) {
        Raw.launch(
            number, named(), kind.ordinal(), type.number(), ReduceOp.number(op), peer, send, recv,
            count, stream, timeoutMs, name, upcall(custom), bytes(custom));
      } else {
        Raw.launch_blocks(
            number, named(), kind.ordinal(), type.number(), ReduceOp.number(op), peer, send, recv,
            count, blocks, stream, timeoutMs, name, upcall(custom), bytes(custom));
      }
    } catch (InvalidArgumentException e) {
      throw refused(e);
    }
  }

  private long named() {
    return by == null ? 0 : by.number();
  }

  private RuntimeException refused(InvalidArgumentException e) {
    RuntimeException refusal = comm.refused(e);
    return refusal == e && by != null ? by.refused(e) : refusal;
  }

  /** Null for a kind without blocks. */
  private byte[] packed(OperationKind kind, Blocks sendBlocks, Blocks recvBlocks) {
    if (!kind.hasBlocks()) return null;
    if (kind == OperationKind.ALLTOALLV) return sendBlocks.packed(recvBlocks);
    Blocks blocks = sendBlocks != null ? sendBlocks : recvBlocks;
    return blocks == null ? Blocks.NONE : blocks.packed();
  }

  private static boolean onHeap(Tensor tensor) {
    return tensor != null && tensor.onHeap();
  }

  private static void refuseArrays(OperationKind kind, Tensor send, Tensor recv, String where) {
    if (!onHeap(send) && !onHeap(recv)) return;
    throw Checks.refused(
        kind.method(), onHeap(send) ? "send" : "recv",
        "is an array, which may not be used " + where, "give a direct buffer");
  }

  private static long place(Tensor tensor) {
    return tensor == null ? 0 : tensor.place();
  }

  /** The element type; a barrier has none, and any type will do. */
  private static DataType type(Tensor send, Tensor recv) {
    return send != null ? send.type() : recv != null ? recv.type() : DataType.U8;
  }

  private static long upcall(Combination custom) {
    return custom == null ? 0 : custom.number;
  }

  private static long bytes(Combination custom) {
    return custom == null ? 0 : custom.elementBytes;
  }

  private void fence(Tensor send, Tensor recv) {
    Reference.reachabilityFence(send);
    Reference.reachabilityFence(recv);
    Reference.reachabilityFence(comm);
    Reference.reachabilityFence(by);
  }
}
