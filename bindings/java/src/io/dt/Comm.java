// SPDX-License-Identifier: Apache-2.0
package io.dt;

import io.dt.raw.Raw;
import java.lang.ref.Reference;
import java.nio.Buffer;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.time.Duration;

/**
 * An ordered set of ranks that runs operations together. Any thread may call it, but the order of
 * operations must match on all ranks: issue them from one thread.
 *
 * <p>Operations take direct buffers, addresses, or (only those that wait) arrays, which are copied.
 * Each comes in two forms: one returns when the result is there, the other, named Async, returns a
 * {@link Work}. A wrong buffer is an {@link InvalidArgumentException} before anything happens.
 *
 * <p>After closing it every call is refused; operations under way go on.
 */
public final class Comm extends OffsetArrayBlocks {
  private int size; // 0: not asked yet
  private int rank = -1;

  Comm(long number, CommShared shared) {
    super(number, Raw::comm_destroy, shared);
  }

  /**
   * This rank's index in the communicator.
   *
   * @return in [0, size)
   */
  public int rank() {
    try {
      return Raw.comm_rank(number());
    } finally {
      Reference.reachabilityFence(this);
    }
  }

  /**
   * Number of ranks in the communicator.
   *
   * @return at least 1
   */
  public int size() {
    try {
      return Raw.comm_size(number());
    } finally {
      Reference.reachabilityFence(this);
    }
  }

  /** It never changes, so two threads that ask at once do no harm. */
  @Override
  int ranks() {
    if (size == 0) size = size();
    return size;
  }

  @Override
  int self() {
    if (rank < 0) rank = rank();
    return rank;
  }

  /**
   * World rank of a rank of this communicator.
   *
   * @param rank in [0, size)
   * @return in [0, world size)
   */
  public int worldRank(int rank) {
    try {
      return Raw.comm_world_rank(number(), rank);
    } finally {
      Reference.reachabilityFence(this);
    }
  }

  /**
   * Limit of each later operation, which then fails naming the ranks that did not come.
   *
   * @param timeout zero: none; negative: as the settings say
   */
  public void setTimeout(Duration timeout) {
    try {
      Raw.comm_set_timeout(number(), Checks.milliseconds(timeout));
    } finally {
      Reference.reachabilityFence(this);
    }
  }

  /**
   * An eventfd for epoll and the like in native code: readable when works of the communicator have
   * completed since it was last read; each completion adds 1. Futures do without it.
   *
   * @return owned by the communicator, the same at every call; not to be closed
   */
  public int workFd() {
    try {
      return Raw.work_fd(number());
    } finally {
      Reference.reachabilityFence(this);
    }
  }

  /** Returns if the communicator is whole, else throws the error that broke it. */
  public void check() {
    try {
      Raw.comm_check(number());
    } finally {
      Reference.reachabilityFence(this);
    }
  }

  /**
   * Ranks with equal colors form a new communicator, ordered by key and rank. Collective.
   *
   * @param color negative: this rank is in none
   * @param key order inside the new communicator
   * @return to be closed; null where the color is negative
   */
  public Comm split(int color, int key) {
    try {
      long number = Raw.comm_split(number(), color, key);
      return number == 0 ? null : new Comm(number, new CommShared());
    } finally {
      Reference.reachabilityFence(this);
    }
  }

  /**
   * The ranks that are left after a failure, as a communicator of their own, in the same order: the
   * job outlives its ranks. Collective over the ranks that live. This one stays broken.
   *
   * @return to be closed
   */
  public Comm shrink() {
    try {
      return new Comm(Raw.comm_shrink(number()), new CommShared());
    } finally {
      Reference.reachabilityFence(this);
    }
  }

  /**
   * Begins a group: operations until {@link #groupEnd} are carried out as one. Those that would
   * wait return at once, and groupEnd waits for them; works may not be waited for before.
   */
  public void groupBegin() {
    try {
      shared.beginGroup(number());
    } finally {
      Reference.reachabilityFence(this);
    }
  }

  /** Ends the group and carries it out; throws the first error of its operations. */
  public void groupEnd() {
    try {
      shared.endGroup(number());
    } finally {
      Reference.reachabilityFence(this);
    }
  }

  /**
   * Throws on all ranks a {@link MismatchException} that names those which differ, unless all hold
   * the same elements between position and limit. Collective; the communicator stays usable.
   *
   * @param data direct
   * @param name what it is, for messages; compared, too
   */
  public void checkEqual(Buffer data, String name) {
    long bytes = Buffers.bytes("checkEqual", "data", data);
    try {
      checkEqual(Buffers.address(data), bytes, name, 0);
    } finally {
      Reference.reachabilityFence(data);
    }
  }

  /**
   * As {@link #checkEqual(Buffer, String)}, of a copy.
   *
   * @param data all of its elements
   * @param name what it is, for messages; compared, too
   */
  public void checkEqual(float[] data, String name) {
    if (data == null) throw DtException.invalidArgument("checkEqual: data is null; give an array");
    ByteBuffer copy =
        ByteBuffer.allocateDirect(Foreign.size("checkEqual", 4L * data.length))
            .order(ByteOrder.nativeOrder());
    copy.asFloatBuffer().put(data);
    checkEqual(copy, name);
  }

  /**
   * As {@link #checkEqual(Buffer, String)} for memory by its address, also a GPU's.
   *
   * @param data the caller's to keep during the call
   * @param bytes at least 0
   * @param name what it is, for messages; compared, too
   * @param stream CUDA stream that produces it; ignored on a host communicator
   */
  public void checkEqual(long data, long bytes, String name, long stream) {
    try {
      Raw.check_equal(
          number(), data, bytes, name == null ? "" : Checks.text("checkEqual", "name", name), stream);
    } finally {
      Reference.reachabilityFence(this);
    }
  }

  /** Returns when every rank has called it. */
  public void barrier() {
    barrier(0);
  }

  /**
   * As {@link #barrier()}, on a GPU ordered on a stream.
   *
   * @param stream CUDA stream; ignored on a host communicator
   */
  public void barrier(long stream) {
    int turn = shared.turn();
    if (CommShared.grouped(turn)) {
      shared.join(barrierAsync(stream).pending(), stream);
      return;
    }
    try {
      Raw.barrier(number(), stream);
      shared.settle(turn);
    } finally {
      Reference.reachabilityFence(this);
    }
  }

  /**
   * A work that is done when every rank has called it.
   *
   * @return the operation under way
   */
  public Work barrierAsync() {
    return barrierAsync(0);
  }

  /**
   * As {@link #barrierAsync()}, on a GPU ordered on a stream.
   *
   * @param stream CUDA stream; ignored on a host communicator
   * @return the operation under way
   */
  public Work barrierAsync(long stream) {
    try {
      Pending pending = shared.prepare(number(), null, null);
      Work work = new Work(pending);
      pending.issued(Raw.barrier_async(number(), stream));
      return work;
    } finally {
      Reference.reachabilityFence(this);
    }
  }

  /**
   * Memory that all ranks of this host can reach, so that reductions read it where it lies; of a
   * communicator over GPUs, memory of this rank's GPU.
   *
   * @param bytes more than 0
   * @return zeroed
   */
  public Memory allocate(long bytes) {
    return new Memory(this, bytes);
  }
}
