// SPDX-License-Identifier: Apache-2.0
package io.dt;

import io.dt.raw.Raw;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.locks.ReentrantLock;

/** What all handles of one communicator share: its operations under way, and its open group. */
final class CommState {
  final Outstanding outstanding = new Outstanding();

  private final Object lock = new Object();
  /** Grows when a group begins and when it ends; odd inside one. Written under the lock. */
  private volatile int generation;
  /** Operations of the open group that were called without a work; groupEnd waits for them. */
  private List<Pending> members = new ArrayList<>();
  private List<Long> streams = new ArrayList<>();
  /** Groups that have ended, and whose operations are under way. Guarded by the lock. */
  private final List<Ended> ended = new ArrayList<>();

  private record Ended(int generation, Pending whole) {}

  /** The state of the world communicator of a job, which is another communicator once it shrank. */
  static final class World {
    /** Held while dt is asked, so that handle and state are of the same communicator. */
    private final ReentrantLock lock = new ReentrantLock();
    private CommState now; // under the lock; null: no handle was made yet
    private boolean single; // under the lock: a job of one rank, where shrink replaces nothing

    Comm open(long job) {
      lock.lock();
      try {
        CommState state = now == null ? new CommState() : now;
        Comm made = new Comm(Raw.job_world(job), state, this);
        if (now == null) single = made.size() == 1;
        now = state;
        return made;
      } finally {
        lock.unlock();
      }
    }

    /** Shrinks a communicator of all ranks: the job's present one, or one from before a shrink. */
    Comm shrink(long comm, CommState state) {
      lock.lock();
      try {
        long made = Raw.comm_shrink(comm);
        CommState own = new CommState();
        if (single || state != now) return new Comm(made, own, null);
        now = own;
        return new Comm(made, own, this);
      } finally {
        lock.unlock();
      }
    }
  }

  static boolean grouped(int generation) {
    return (generation & 1) != 0;
  }

  boolean grouped() {
    return grouped(generation);
  }

  /** Before a call that waits, for settle(). */
  int generation() {
    return generation;
  }

  /**
   * After a call outside a group, with the generation before it: the call returned at once if
   * another thread has begun a group meanwhile, and its memory is in use until the group's end, or
   * until the work of the group is done.
   */
  void settle(int before) {
    int now = generation; // maybe some groups later
    if (now == before) return;
    if (grouped(now)) Waiting.run(this::awaitEnd, now); // a monitor keeps carriers before Java 24
    List<Ended> later;
    synchronized (lock) {
      later = ended.stream().filter(each -> each.generation > before).toList();
    }
    for (Ended each : later) each.whole.awaitEnd();
  }

  private void awaitEnd(long open) {
    boolean interrupted = false;
    synchronized (lock) {
      while (generation == open) {
        try {
          lock.wait();
        } catch (InterruptedException e) {
          interrupted = true;
        }
      }
    }
    if (interrupted) Thread.currentThread().interrupt();
  }

  void beginGroup(long comm) {
    synchronized (lock) {
      if (grouped()) {
        Raw.group_begin(comm); // dt says what is wrong
        return;
      }
      // First, because a call that waits must not miss it.
      nextGeneration();
      boolean begun = false;
      try {
        Raw.group_begin(comm);
        begun = true;
      } finally {
        if (!begun) nextGeneration();
      }
    }
  }

  private void nextGeneration() {
    synchronized (lock) {
      generation = generation + 1;
      lock.notifyAll();
    }
  }

  /** An operation without a work inside the group. */
  void join(Pending pending, long stream) {
    synchronized (lock) {
      if (grouped()) {
        members.add(pending);
        streams.add(stream);
        return;
      }
    }
    pending.waitStream(stream); // another thread has ended the group meanwhile
  }

  void endGroup(long comm) {
    List<Pending> waited;
    List<Long> order;
    DtException first = null;
    synchronized (lock) {
      try {
        Raw.group_end(comm);
      } catch (DtException e) {
        // Through a closed communicator, or outside a group: this call has ended none.
        if (e.status() == Status.INVALID_ARGUMENT || !grouped()) throw e;
        first = e;
      }
      waited = members;
      order = streams;
      leave();
    }
    for (int i = 0; i < waited.size(); i++) {
      try {
        waited.get(i).waitStream(order.get(i));
      } catch (DtException e) {
        if (first == null) first = e;
      }
    }
    if (first != null) throw first;
  }

  Work endGroupAsync(long comm) {
    Pending whole;
    Work work;
    synchronized (lock) {
      whole = new Pending(members);
      work = new Work(whole);
      ended.removeIf(each -> each.whole.poll());
      ended.add(new Ended(generation + 1, whole));
      boolean begun = false;
      try {
        whole.issued(Raw.group_end_async(comm));
        begun = true;
      } catch (DtException e) {
        // As in endGroup(). The operations go on; each has a work.
        if (e.status() != Status.INVALID_ARGUMENT && grouped()) leave();
        throw e;
      } finally {
        if (!begun) ended.remove(ended.size() - 1);
      }
      leave();
    }
    outstanding.add(whole);
    return work;
  }

  /** With the lock held: no group is open any more. */
  private void leave() {
    members = new ArrayList<>();
    streams = new ArrayList<>();
    if (grouped()) nextGeneration();
  }
}
