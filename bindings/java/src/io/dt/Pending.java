// SPDX-License-Identifier: Apache-2.0
package io.dt;

import io.dt.raw.Raw;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicReference;

/**
 * An operation under way, with the buffers that dt uses until it is done. Whoever sees its end sets
 * the outcome; its handle is destroyed afterwards, so a call that loses against that finds the
 * outcome. The value is null, DONE, or the DtException of a failure.
 */
final class Pending extends AtomicReference<Object> {
  private static final long serialVersionUID = 1L;
  private static final Object DONE = new Object();

  final transient CompletableFuture<Void> future = new CompletableFuture<>();
  private final transient CommShared shared;
  private transient Object first;
  private transient Object second;
  private transient long handle;
  /** In the list of its communicator. */
  transient Pending previous;
  transient Pending next;

  /** Made before the call: once the operation has begun nothing may fail. */
  Pending(CommShared shared, Object first, Object second) {
    this.shared = shared;
    this.first = first;
    this.second = second;
  }

  void issued(long work) {
    handle = work;
    shared.add(this);
  }

  /** Whether it has ended, well or not. */
  boolean poll() {
    if (get() != null) return true;
    try {
      if (!Raw.work_test(handle)) return false;
      compareAndSet(null, DONE);
    } catch (DtException e) {
      compareAndSet(null, e);
    }
    return true;
  }

  /** As dt_work_wait(). */
  boolean await(long timeoutMs) {
    if (get() == null) {
      try {
        if (!Raw.work_wait(handle, timeoutMs)) return false;
        compareAndSet(null, DONE);
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
        Raw.work_wait_stream(handle, stream);
        return;
      } catch (DtException e) {
        if (get() == null) throw e;
      }
    }
    rethrow();
  }

  /** Null unless it failed. */
  DtException failure() {
    Object outcome = get();
    return outcome instanceof DtException ? (DtException) outcome : null;
  }

  long handle() {
    return handle;
  }

  /** The end, once: only of what poll() found ended, and by who took it off the list. */
  void finish() {
    first = null;
    second = null;
    Raw.work_destroy(handle);
    DtException failure = failure();
    if (failure == null) {
      future.complete(null);
    } else {
      future.completeExceptionally(failure);
    }
  }

  private void rethrow() {
    DtException failure = failure();
    if (failure != null) throw failure.again();
  }
}
