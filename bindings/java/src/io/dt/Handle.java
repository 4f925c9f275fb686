// SPDX-License-Identifier: Apache-2.0
package io.dt;

import java.lang.ref.Cleaner;
import java.lang.ref.Reference;
import java.util.function.LongConsumer;
import java.util.function.LongFunction;

/** One handle of dt, which is destroyed by closing it or by the garbage collector. */
abstract class Handle implements AutoCloseable {
  static final Cleaner CLEANER = Cleaner.create();

  private final State state;
  /** The handle that a view belongs to; a view keeps it reachable. */
  private final Handle owner;

  /** {@code destroy} must not refer to this object. */
  Handle(long number, LongConsumer destroy) {
    state = new State(number, destroy);
    owner = this;
    CLEANER.register(this, state);
  }

  /** A view, which is closed with its owner. */
  Handle(Handle owner) {
    this.owner = owner.owner;
    state = owner.state;
  }

  /** For a call; the caller keeps this object reachable until the call is over. */
  final long number() {
    if (state.closed) throw closed(null);
    return state.number;
  }

  /** For what must outlive this object. */
  final State state() {
    return state;
  }

  /** Calls dt with the number. */
  final <T> T call(LongFunction<T> function) {
    try {
      return Waiting.call(function, number());
    } catch (InvalidArgumentException e) {
      throw refused(e);
    } finally {
      Reference.reachabilityFence(this);
    }
  }

  /** As call(), without a result. */
  final void run(LongConsumer function) {
    try {
      Waiting.run(function, number());
    } catch (InvalidArgumentException e) {
      throw refused(e);
    } finally {
      Reference.reachabilityFence(this);
    }
  }

  /** Until letGo(), a close by another thread destroys neither the handle nor what belongs to it. */
  final void hold() {
    if (!state.retain()) throw closed(null);
  }

  final void letGo() {
    state.release();
  }

  /** As call(), between hold() and letGo(). */
  final <T> T use(LongFunction<T> function) {
    hold();
    try {
      return call(function);
    } finally {
      letGo();
    }
  }

  /** As use(), without a result. */
  final void useFor(LongConsumer function) {
    hold();
    try {
      run(function);
    } finally {
      letGo();
    }
  }

  /** What to throw when dt refused a call: another thread may have closed this meanwhile. */
  final RuntimeException refused(InvalidArgumentException refusal) {
    return state.closed ? closed(refusal) : refusal;
  }

  private ClosedException closed(Throwable cause) {
    return new ClosedException(getClass().getSimpleName(), cause);
  }

  /**
   * Destroys the handle; later calls are refused. Does not wait for other ranks, but for some
   * seconds at most where they still use memory of yours; may be repeated.
   */
  @Override
  public void close() {
    state.run();
  }

  /** Counts the owner and the users of memory behind the handle. */
  static final class State implements Runnable {
    private final long number;
    private final LongConsumer destroy;
    private int users = 1;
    private volatile boolean closed;

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
      }
      Waiting.run(destroy, number); // which may wait for some seconds: see close()
    }

    /** The owner is gone. */
    @Override
    public void run() {
      synchronized (this) {
        if (closed) return;
        closed = true;
      }
      release();
    }
  }
}
