// SPDX-License-Identifier: Apache-2.0
package io.dt;

import java.lang.ref.Cleaner;
import java.util.function.LongConsumer;

/**
 * Owns one handle of dt. Closing destroys it, and so does the garbage collector. A closed handle's
 * number stays: dt looks it up and says that it was destroyed.
 */
abstract class Handle implements AutoCloseable {
  static final Cleaner CLEANER = Cleaner.create();

  private final State state;

  /** {@code destroy} must not refer to this object. */
  Handle(long number, LongConsumer destroy) {
    state = new State(number, destroy);
    CLEANER.register(this, state);
  }

  /** For a call; the caller keeps this object reachable until the call is over. */
  final long number() {
    if (state.refused) {
      throw DtException.invalidArgument(
          getClass().getSimpleName() + " is closed; its memory or a buffer of it is still in use");
    }
    return state.number;
  }

  /** For what must not go before its user is gone, too. */
  final State state() {
    return state;
  }

  /** Destroys the handle; later calls are refused. Never waits for other ranks; may be repeated. */
  @Override
  public void close() {
    state.run();
  }

  /** Counts the owner and those who use memory behind the handle. */
  static final class State implements Runnable {
    private final long number;
    private final LongConsumer destroy;
    private int users = 1;
    private boolean closed;
    /** Closed, but still used: calls are refused here, as dt would accept the number. */
    private volatile boolean refused;

    State(long number, LongConsumer destroy) {
      this.number = number;
      this.destroy = destroy;
    }

    /** False when it is closed already. */
    synchronized boolean retain() {
      if (closed) return false;
      users++;
      return true;
    }

    void release() {
      synchronized (this) {
        if (--users > 0) return;
        refused = false;
      }
      destroy.accept(number);
    }

    /** The owner is gone. */
    @Override
    public void run() {
      synchronized (this) {
        if (closed) return;
        closed = true;
        refused = users > 1;
      }
      release();
    }
  }
}
