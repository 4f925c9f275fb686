// SPDX-License-Identifier: Apache-2.0
package io.dt;

import io.dt.raw.Raw;
import io.dt.raw.Upcall;
import java.lang.ref.Reference;
import java.lang.ref.WeakReference;

/** What dt calls for a {@link BucketHook}, on a thread inside ready, unused or finish. */
final class HookCalls extends Upcall {
  static {
    LogRelay.stopAtEnd();
  }

  final long number = Raw.upcall_number(this);
  /** Weak, because the cleaner of the reducer keeps this; the reducer itself keeps the hook. */
  private final WeakReference<BucketHook> hook;
  private volatile Throwable thrown;

  HookCalls(BucketHook hook) {
    this.hook = new WeakReference<>(hook);
    Pending.HOOKS.incrementAndGet();
  }

  @Override
  public int call(long bucket, long stage, long outWork) {
    Work work = null;
    try {
      work = hook.get().reduce(Bucket.at(bucket), (int) stage);
      if (work != null) Raw.bucket_give(outWork, Raw.work_share(work.pending().handle()));
      return 0;
    } catch (Throwable e) {
      thrown = e;
      return Status.ABORTED.number();
    } finally {
      Reference.reachabilityFence(work);
    }
  }

  /** What the hook has thrown, if it has, instead of what dt says of it. */
  static RuntimeException of(HookCalls calls, RuntimeException error) {
    Throwable own = calls == null ? null : calls.thrown;
    if (own == null) return error;
    calls.thrown = null;
    if (own instanceof Error e) throw e;
    return own instanceof RuntimeException e ? e : new IllegalStateException(own);
  }

  /** Null: none. */
  static void delete(HookCalls one) {
    if (one == null) return;
    Pending.endHook();
    one.delete();
  }
}
