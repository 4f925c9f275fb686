// SPDX-License-Identifier: Apache-2.0
package io.dt;

import io.dt.raw.Raw;
import java.lang.ref.Reference;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * Memory that dt gave, freed when it is closed and its last user is gone: an operation or a buffer.
 * It does not refer to its tensors or buffers, whose cleaners know it.
 */
final class Memory {
  private final long comm;
  private final long address;
  private final Handle.State commState;
  /** The owner and all users; plus MIN_VALUE once it is closed. */
  private final AtomicInteger users = new AtomicInteger(1);

  private Memory(long comm, long address, Handle.State commState) {
    this.comm = comm;
    this.address = address;
    this.commState = commState;
  }

  /** It is freed through the communicator, whose handle therefore stays as long. */
  static Memory allocate(Comm comm, long bytes) {
    long number = comm.number();
    comm.hold();
    Memory made = null;
    try {
      made = new Memory(number, Raw.mem_alloc(number, bytes), comm.state());
      return made;
    } finally {
      if (made == null) comm.letGo();
      Reference.reachabilityFence(comm);
    }
  }

  long address() {
    return address;
  }

  /** False when it is closed already. */
  boolean retain() {
    for (int now = users.get(); now > 0; now = users.get()) {
      if (users.compareAndSet(now, now + 1)) return true;
    }
    return false;
  }

  void release() {
    if (users.decrementAndGet() == Integer.MIN_VALUE) free();
  }

  /** The owner is gone; may be repeated. */
  void close() {
    for (int now = users.get(); now > 0; now = users.get()) {
      if (!users.compareAndSet(now, Integer.MIN_VALUE + now)) continue;
      release();
      return;
    }
  }

  boolean closed() {
    return users.get() < 0;
  }

  /** A buffer is a user until no view of it can be reached. The caller has retained it. */
  ByteBuffer buffer(long address, int bytes) {
    ByteBuffer root = null;
    try {
      root = foreign("Tensor.buffer", address, bytes);
    } finally {
      if (root == null) release();
    }
    return leased(root, this::release);
  }

  /** Memory behind a handle, which it keeps while a view can be reached; then giveBack runs. */
  static ByteBuffer behind(
      Handle handle, String method, long address, long bytes, Runnable giveBack) {
    int size = Checks.size(method, bytes);
    Handle.State state = handle.state();
    if (!state.retain()) throw new ClosedException(handle.getClass().getSimpleName(), null);
    ByteBuffer root = null;
    try {
      root = foreign(method, address, size);
    } finally {
      if (root == null) state.release();
    }
    return leased(
        root,
        () -> {
          giveBack.run();
          state.release();
        });
  }

  /** A view of a buffer over foreign memory, which is given back when no view can be reached. */
  private static ByteBuffer leased(ByteBuffer root, Runnable giveBack) {
    Handle.CLEANER.register(root, giveBack);
    return root.duplicate().order(ByteOrder.nativeOrder()); // which keeps the root reachable
  }

  /** Refuses what this process cannot read, as on a GPU. */
  private static ByteBuffer foreign(String method, long address, int bytes) {
    if (bytes > 0 && !readable(method, address)) {
      throw Checks.refused(
          method, "the memory", "is a GPU's", "take its address for a library that can use it");
    }
    return (ByteBuffer) Raw.direct(address, bytes);
  }

  private static boolean readable(String method, long address) {
    try {
      return Raw.readable(address);
    } catch (RuntimeException e) {
      throw DtException.system(
          method + ": the pipe that checks whether this process can read the memory cannot be made: "
              + e.getMessage() + "; close files, or raise their limit (ulimit -n)",
          e);
    }
  }

  private void free() {
    try {
      Raw.mem_free(comm, address);
    } catch (DtException e) {
      // The job went before, and the memory with it.
    } finally {
      commState.release();
    }
  }
}
