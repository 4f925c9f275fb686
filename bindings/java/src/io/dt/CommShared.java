// SPDX-License-Identifier: Apache-2.0
package io.dt;

import io.dt.raw.Raw;
import java.util.ArrayList;
import java.util.List;

/** What all handles of one communicator share: its operations under way, and its open group. */
final class CommShared {
  private boolean watched;
  private Pending head;
  private Pending tail;

  private final Object group = new Object();
  /** Odd: inside a group. Written under group, and before the group begins. */
  private volatile int turn;
  /** Operations of the open group that were called without a work; group_end waits for them. */
  private List<Pending> members = new ArrayList<>();
  private List<Long> streams = new ArrayList<>();

  /** For an operation that is about to begin on `comm`. */
  Pending prepare(long comm, Object first, Object second) {
    synchronized (this) {
      if (!watched) {
        watch(comm);
        watched = true;
      }
    }
    return new Pending(this, first, second);
  }

  private static void watch(long comm) {
    try {
      CompletionPoller.watch(comm);
    } catch (DtException e) {
      throw e;
    } catch (RuntimeException e) {
      Raw.comm_rank(comm); // closed by another thread meanwhile, its eventfd with it: dt says so
      throw e;
    }
  }

  void add(Pending pending) {
    boolean queued;
    synchronized (this) {
      queued = head != null || !pending.poll();
      if (queued) {
        if (head == null) {
          head = pending;
          CompletionPoller.activate(this);
        } else {
          tail.next = pending;
          pending.previous = tail;
        }
        tail = pending;
      }
    }
    if (!queued) {
      pending.finish(); // nobody can have a handler on it yet
    } else if (pending.poll()) {
      CompletionPoller.wake(); // it may have slept through this end
    }
  }

  /** Called by the poller alone. */
  void drain() {
    for (Pending ended = takeEnded(); ended != null; ) {
      Pending next = ended.next;
      ended.next = null;
      try {
        ended.finish();
      } catch (Throwable e) {
        CompletionPoller.survive(e);
      }
      ended = next;
    }
  }

  /**
   * All that have ended, as a list in the order of their calls. The last is asked first: of two
   * that end in their order the earlier one is then never left behind.
   */
  private synchronized Pending takeEnded() {
    Pending ended = null;
    for (Pending each = tail; each != null; ) {
      Pending before = each.previous;
      if (ended(each)) {
        unlink(each);
        each.next = ended;
        ended = each;
      }
      each = before;
    }
    if (ended != null && head == null) CompletionPoller.deactivate(this);
    return ended;
  }

  /** Those that were taken before must not be lost. */
  private static boolean ended(Pending pending) {
    try {
      return pending.poll();
    } catch (Throwable e) {
      CompletionPoller.survive(e);
      CompletionPoller.wake(); // asked again
      return false;
    }
  }

  private void unlink(Pending pending) {
    if (pending.previous == null) {
      head = pending.next;
    } else {
      pending.previous.next = pending.next;
    }
    if (pending.next == null) {
      tail = pending.previous;
    } else {
      pending.next.previous = pending.previous;
    }
    pending.previous = null;
  }

  // ---- Groups ----

  boolean grouped() {
    return grouped(turn);
  }

  static boolean grouped(int turn) {
    return (turn & 1) != 0;
  }

  /** Before a call that waits, for settle(). */
  int turn() {
    return turn;
  }

  /**
   * After a call outside a group, by the turn before it: it returned at once if another thread has
   * begun a group meanwhile, and its memory is in use until the group's end.
   */
  void settle(int before) {
    int now = turn; // maybe some groups later
    if (now != before && grouped(now)) awaitEnd(now);
  }

  private void awaitEnd(int open) {
    boolean interrupted = false;
    synchronized (group) {
      while (turn == open) {
        try {
          group.wait();
        } catch (InterruptedException e) {
          interrupted = true;
        }
      }
    }
    if (interrupted) Thread.currentThread().interrupt();
  }

  void beginGroup(long comm) {
    synchronized (group) {
      if (grouped()) {
        Raw.group_begin(comm); // dt says what is wrong
        return;
      }
      nextTurn();
      boolean begun = false;
      try {
        Raw.group_begin(comm);
        begun = true;
      } finally {
        if (!begun) nextTurn();
      }
    }
  }

  private void nextTurn() {
    synchronized (group) {
      turn = turn + 1;
      group.notifyAll();
    }
  }

  /** An operation without a work inside the group. */
  void join(Pending pending, long stream) {
    synchronized (group) {
      if (grouped()) {
        members.add(pending);
        streams.add(stream);
        return;
      }
    }
    pending.waitStream(stream); // another thread has ended the group meanwhile
  }

  void endGroup(long comm) {
    List<Pending> ended;
    List<Long> order;
    DtException first = null;
    synchronized (group) {
      try {
        Raw.group_end(comm);
      } catch (DtException e) {
        // Through a closed communicator, or outside a group: this call has ended none.
        if (e.status() == Status.INVALID_ARGUMENT || !grouped()) throw e;
        first = e;
      }
      ended = members;
      order = streams;
      members = new ArrayList<>();
      streams = new ArrayList<>();
      if (grouped()) nextTurn();
    }
    for (int i = 0; i < ended.size(); i++) {
      try {
        ended.get(i).waitStream(order.get(i));
      } catch (DtException e) {
        if (first == null) first = e;
      }
    }
    if (first != null) throw first;
  }
}
