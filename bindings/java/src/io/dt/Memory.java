// SPDX-License-Identifier: Apache-2.0
package io.dt;

import io.dt.raw.Raw;
import java.lang.ref.Reference;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/**
 * Memory from dt, which reductions read where it lies. As long as a buffer of it, or a view of one,
 * can be reached, it stays, also when it is closed or its communicator and job are.
 */
public final class Memory implements AutoCloseable {
  private final State state;
  private final long bytes;
  private volatile boolean closed;

  Memory(Comm comm, long bytes) {
    long number = comm.number();
    this.bytes = bytes;
    // Freed through the communicator, so that stays as long.
    if (!comm.state().retain()) throw DtException.invalidArgument("dt_mem_alloc: comm is closed");
    State made = null;
    try {
      made = new State(number, Raw.mem_alloc(number, bytes), comm.state());
    } finally {
      if (made == null) comm.state().release();
      Reference.reachabilityFence(comm);
    }
    state = made;
    Handle.CLEANER.register(this, made::ownerGone);
  }

  /**
   * Where it lies, for libraries that take addresses. The address keeps nothing.
   *
   * @return aligned to 4096 bytes, on a GPU to 256
   */
  public long address() {
    open();
    return state.address;
  }

  /**
   * Its size.
   *
   * @return as it was asked for
   */
  public long bytes() {
    return bytes;
  }

  /**
   * All of it, in native order, if it is not more than 2 GiB.
   *
   * @return a buffer with its own position and limit
   */
  public ByteBuffer buffer() {
    return buffer(0, Foreign.size("Memory.buffer", bytes));
  }

  /**
   * A part of it, in native order.
   *
   * @param offset in bytes
   * @param size in bytes
   * @return a buffer with its own position and limit
   */
  public ByteBuffer buffer(long offset, int size) {
    open();
    if (offset < 0 || size < 0 || offset > bytes - size) {
      throw DtException.invalidArgument(
          "Memory.buffer: offset " + offset + " and size " + size + " are not inside its " + bytes
              + " bytes; give a part of it");
    }
    return state.lease(offset, size);
  }

  /**
   * Frees it, at once if it never gave a buffer, else when no view can be reached any more. An
   * operation that uses its address must be done. May be repeated.
   */
  @Override
  public void close() {
    closed = true;
    state.ownerGone();
  }

  private void open() {
    if (closed) throw DtException.invalidArgument("Memory: it is closed");
  }

  /** What must be undone; cleaners know it, so it refers to no buffer. */
  private static final class State {
    private final long commNumber;
    private final long address;
    private final Handle.State comm;
    private int users = 1; // the owner, and each buffer
    private boolean ownerGone;

    State(long commNumber, long address, Handle.State comm) {
      this.commNumber = commNumber;
      this.address = address;
      this.comm = comm;
    }

    /** Of a closed communicator nobody takes more buffers. */
    ByteBuffer lease(long offset, int size) {
      synchronized (this) {
        if (ownerGone || !comm.retain()) {
          throw DtException.invalidArgument("Memory.buffer: it or its communicator is closed");
        }
        users++;
      }
      ByteBuffer root = Foreign.buffer(address + offset, size);
      if (root == null) {
        release();
        comm.release();
        throw Foreign.onDevice("Memory.buffer");
      }
      Handle.CLEANER.register(root, this::bufferGone);
      // A view keeps the root reachable.
      return root.duplicate().order(ByteOrder.nativeOrder());
    }

    void ownerGone() {
      synchronized (this) {
        if (ownerGone) return;
        ownerGone = true;
      }
      release();
    }

    private void bufferGone() {
      release();
      comm.release();
    }

    private void release() {
      synchronized (this) {
        if (--users > 0) return;
      }
      try {
        Raw.mem_free(commNumber, address);
      } catch (DtException e) {
        // The job went before, and the memory with it.
      } finally {
        comm.release();
      }
    }
  }
}
