// SPDX-License-Identifier: Apache-2.0
package io.dt;

import io.dt.raw.Loader;
import io.dt.raw.Raw;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;

/**
 * One asynchronous operation. Its tensors are kept and belong to dt until it is done, also when
 * this object is closed or dropped before; closing is optional. Works of one communicator end in
 * the order of their calls, but sends and receives that follow one another each on its own. Any
 * thread may use it.
 */
public final class Work implements AutoCloseable {
  private final Pending pending;
  private volatile boolean closed;

  Work(Pending pending) {
    this.pending = pending;
    pending.work = this;
  }

  /**
   * Whether the operation is done.
   *
   * @return false while it runs
   * @throws DtException once it failed
   */
  public boolean test() {
    open();
    return pending.poll() && pending.await(0);
  }

  /** Blocks until the operation is done, as long as its own limit. Not ended by an interrupt. */
  public void await() {
    open();
    pending.await(-1);
  }

  /**
   * Blocks until the operation is done or the time is over, which cancels nothing.
   *
   * @param timeout negative: as long as the operation's own limit
   * @return false when the time was over first
   */
  public boolean await(Duration timeout) {
    open();
    return pending.await(Checks.milliseconds("Work.await", timeout));
  }

  /**
   * Orders the operation before later work of a CUDA stream, and returns at once. On a host
   * communicator it is {@link #await()}.
   *
   * @param stream a cudaStream_t
   */
  public void waitStream(long stream) {
    open();
    pending.waitStream(stream);
  }

  /**
   * A future that completes with the operation, or with its {@link DtException}; in a
   * {@link Named#group} that is not submitted, with what that has thrown. It is the same at each
   * call. Its handlers run on dt's one poller thread (a daemon), or at once where it is complete;
   * those added inside a group may run on the thread that calls group, before it returns. They
   * should be quick and must not block; use the *Async methods with an executor for what is not.
   * Cancelling or completing it does not touch the operation.
   *
   * @return also of a closed work
   */
  public CompletableFuture<Void> future() {
    return pending.future;
  }

  /**
   * How the operation failed.
   *
   * @return null while it runs and when it succeeded
   */
  public DtException error() {
    open();
    return pending.poll() ? pending.failure() : null;
  }

  /** Later calls are refused. The operation goes on and keeps its tensors. May be repeated. */
  @Override
  public void close() {
    closed = true;
  }

  /**
   * Blocks until one of several works is done, successfully or not.
   *
   * @param works of any communicators and jobs, 1 to 65536
   * @param timeout negative: no limit
   * @return index of the first that is done, in the order of the list; -1 when the time was over
   */
  public static int awaitAny(List<Work> works, Duration timeout) {
    Loader.load();
    long timeoutMs = Checks.milliseconds("Work.awaitAny", timeout);
    int count = Checks.notNull("Work.awaitAny", "works", works).size();
    ByteBuffer packed = ByteBuffer.allocate(count * 8).order(ByteOrder.nativeOrder());
    for (Work each : works) {
      Checks.notNull("Work.awaitAny", "a work", each).open();
      packed.putLong(each.pending.handle());
    }
    int ended = firstEnded(works);
    if (ended >= 0) return ended;
    try {
      return Waiting.call(limit -> Raw.work_wait_any(packed.array(), limit), timeoutMs);
    } catch (DtException e) {
      ended = firstEnded(works); // the handle of one that has ended is gone
      if (ended < 0) throw e;
      return ended;
    }
  }

  Pending pending() {
    return pending;
  }

  private static int firstEnded(List<Work> works) {
    for (int i = 0; i < works.size(); i++) {
      if (works.get(i).pending.poll()) return i;
    }
    return -1;
  }

  private void open() {
    if (closed) throw new ClosedException("Work", null);
    if (pending.handle() != 0) return;
    throw Checks.refused("Work", "its group", "is not submitted", "use the work after the group");
  }
}
