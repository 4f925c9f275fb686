// SPDX-License-Identifier: Apache-2.0
package io.dt;

import io.dt.raw.Raw;
import java.lang.ref.Cleaner;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;

/**
 * An operation under way, with the tensors that dt uses until it is done. Whoever sees its end sets
 * the outcome; its handle is destroyed afterwards, so a call that loses against that finds the
 * outcome. While a hook is set the handle stays as long as the work, which the hook may return. The
 * value is null, DONE, or the DtException of a failure.
 */
final class Pending extends AtomicReference<Object> {
  private static final long serialVersionUID = 1L;
  private static final Object DONE = new Object();
  /** How many hooks of reducers are set: each may return works whose operations have ended. */
  static final AtomicInteger HOOKS = new AtomicInteger();

  final transient CompletableFuture<Void> future = new CompletableFuture<>();
  /** Whether it may end before an operation that was called earlier. */
  final boolean unordered;
  private transient Tensor send;
  private transient Tensor recv;
  /** Null: a reduction of dt's, or none. */
  private final transient Combination custom;
  /** Of a group: its operations that were called without a work. */
  private final transient List<Pending> members;
  private transient long handle;
  /** Null once it has ended. */
  transient Work work;
  /** Must not go to the garbage collector meanwhile, which would abort this; null: none. */
  transient Handle by;
  /** In a list of {@link Outstanding}. */
  transient Pending next;

  /** Made before the call: once the operation has begun nothing may fail. */
  Pending(Tensor send, Tensor recv, Combination custom, boolean unordered) {
    this(send, recv, custom, unordered, List.of());
  }

  /** Of a group. */
  Pending(List<Pending> members) {
    this(null, null, null, true, members);
  }

  private Pending(
      Tensor send, Tensor recv, Combination custom, boolean unordered, List<Pending> members) {
    this.send = send;
    this.recv = recv;
    this.custom = custom;
    this.unordered = unordered;
    this.members = members;
  }

  void issued(long work) {
    handle = work;
  }

  /** Whether it has ended, well or not. */
  boolean poll() {
    if (get() != null) return true;
    try {
      if (!Raw.work_test(handle)) return false;
      done();
    } catch (DtException e) {
      compareAndSet(null, e);
    }
    return true;
  }

  private void done() {
    DtException failure = thrown();
    for (int i = 0; i < members.size() && failure == null; i++) failure = members.get(i).thrown();
    compareAndSet(null, failure == null ? DONE : failure);
  }

  /** By a function of a Combine; null: nothing. */
  private DtException thrown() {
    return custom == null ? null : custom.failure();
  }

  /** Waits until it has ended, well or not. */
  void awaitEnd() {
    try {
      await(-1);
    } catch (DtException e) {
      // Whoever has the work sees it.
    }
  }

  /** As dt_work_wait(). */
  boolean await(long timeoutMs) {
    if (get() == null) {
      try {
        boolean done =
            Waiting.virtual()
                ? Waiting.call(number -> Raw.work_wait(number, timeoutMs), handle)
                : Raw.work_wait(handle, timeoutMs);
        if (!done) return false;
        done();
      } catch (DtException e) {
        if (compareAndSet(null, e)) throw e;
      }
    }
    rethrow();
    return true;
  }

  void waitStream(long stream) {
    if (get() == null) {
      try {
        if (Waiting.virtual()) {
          Waiting.run(number -> Raw.work_wait_stream(number, stream), handle);
        } else {
          Raw.work_wait_stream(handle, stream);
        }
        if ((custom == null && members.isEmpty()) || !poll()) return;
      } catch (DtException e) {
        if (get() == null) throw e;
      }
    }
    rethrow();
  }

  /** Null unless it failed. */
  DtException failure() {
    return get() instanceof DtException failure ? failure : null;
  }

  long handle() {
    return handle;
  }

  /** The end, once: only of what poll() found ended, and by who took it off the list. */
  void finish() {
    letGo();
    long number = handle;
    if (HOOKS.get() == 0) {
      Raw.work_destroy(number);
    } else {
      KeptHandle kept = new KeptHandle(work, number);
      if (HOOKS.get() == 0) kept.end();
    }
    work = null;
    DtException failure = failure();
    if (failure == null) {
      future.complete(null);
    } else {
      future.completeExceptionally(failure);
    }
  }

  /**
   * The handle of an ended work, which a hook may still return, also a closed one: until the work is
   * collected or no hook is left. It keeps the job.
   */
  private static final class KeptHandle implements Runnable {
    private static final Set<KeptHandle> ALL = ConcurrentHashMap.newKeySet();

    private final long number;
    private final Cleaner.Cleanable cleanable;

    KeptHandle(Work work, long number) {
      this.number = number;
      cleanable = Handle.CLEANER.register(work, this);
      ALL.add(this);
    }

    @Override
    public void run() {
      ALL.remove(this);
      Raw.work_destroy(number);
    }

    /** May be repeated. */
    void end() {
      cleanable.clean();
    }
  }

  /** For a hook that is gone. */
  static void endHook() {
    if (HOOKS.decrementAndGet() == 0) KeptHandle.ALL.forEach(KeptHandle::end);
  }

  /** The end of an operation that was never issued. */
  void fail(Throwable cause) {
    letGo();
    future.completeExceptionally(cause);
  }

  /** Releases the tensors, which dt no longer uses. */
  private void letGo() {
    Tensor.release(send);
    Tensor.release(recv);
    Combination.delete(custom);
    send = null;
    recv = null;
    by = null;
  }

  private void rethrow() {
    DtException failure = failure();
    if (failure != null) throw failure.again();
  }
}
