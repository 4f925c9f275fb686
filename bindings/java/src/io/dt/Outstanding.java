// SPDX-License-Identifier: Apache-2.0
package io.dt;

/**
 * The operations of one communicator that are under way. Threads that issue add to a list of new
 * ones; the poller takes these over into a list of its own, which it scans without a lock.
 */
final class Outstanding {
  /** Whether both lists are empty. Guarded by this. */
  private boolean idle = true;
  /** Guarded by this. */
  private Pending newHead;
  private Pending newTail;
  /** The poller's alone, in the order of the calls. */
  private Pending head;
  private Pending tail;

  void add(Pending pending) {
    boolean queued;
    boolean first;
    synchronized (this) {
      first = idle;
      queued = !idle || !pending.poll();
      if (queued) {
        if (newHead == null) {
          newHead = pending;
        } else {
          newTail.next = pending;
        }
        newTail = pending;
        if (idle) CompletionPoller.activate(this);
        idle = false;
      }
    }
    if (!queued) {
      pending.finish(); // nobody can have a handler on it yet, except inside Named.group
    } else if ((first || pending.unordered) && pending.poll()) {
      // The poller may have slept through this end. Any other comes after an earlier operation's.
      CompletionPoller.wake();
    }
  }

  /** Called by the poller alone: completes what has ended, in the order of the calls. */
  void drain() {
    takeOver();
    Pending before = null; // the last one that goes on
    for (Pending each = head; each != null; ) {
      Pending next = each.next;
      // They end in order, except that transfers which follow one another overtake each other.
      if (before != null && !each.unordered) break;
      if (ended(each)) {
        if (before == null) {
          head = next;
        } else {
          before.next = next;
        }
        if (next == null) tail = before;
        each.next = null;
        finish(each);
      } else {
        before = each;
        if (!each.unordered) break;
      }
      each = next;
    }
    if (head != null) return;
    synchronized (this) {
      if (newHead != null) {
        CompletionPoller.wake();
        return;
      }
      idle = true;
      CompletionPoller.deactivate(this);
    }
  }

  private synchronized void takeOver() {
    if (newHead == null) return;
    if (head == null) {
      head = newHead;
    } else {
      tail.next = newHead;
    }
    tail = newTail;
    newHead = null;
    newTail = null;
  }

  /** The others still want their completions. */
  private static boolean ended(Pending pending) {
    try {
      return pending.poll();
    } catch (Throwable e) {
      CompletionPoller.survive(e);
      CompletionPoller.wake(); // asked again
      return false;
    }
  }

  private static void finish(Pending pending) {
    try {
      pending.finish();
    } catch (Throwable e) {
      CompletionPoller.survive(e);
    }
  }
}
