// SPDX-License-Identifier: Apache-2.0
package io.dt;

import io.dt.raw.Poller;
import java.util.LinkedHashSet;
import java.util.Set;

/** One daemon thread that completes the futures of all works; begun by the first of them. */
final class CompletionPoller {
  /** Never deleted: the thread sleeps in it until the process ends. */
  private static final Poller POLLER = new Poller();
  /** With operations under way. Guarded by itself, and taken inside a CommShared's lock. */
  private static final Set<CommShared> ACTIVE = new LinkedHashSet<>();

  static {
    Thread thread = new Thread(CompletionPoller::run, "dt-poller");
    thread.setDaemon(true);
    thread.setContextClassLoader(null);
    thread.start();
  }

  private CompletionPoller() {}

  static void watch(long comm) {
    POLLER.watch(comm);
  }

  static void wake() {
    POLLER.wake();
  }

  static void activate(CommShared shared) {
    synchronized (ACTIVE) {
      ACTIVE.add(shared);
    }
  }

  static void deactivate(CommShared shared) {
    synchronized (ACTIVE) {
      ACTIVE.remove(shared);
    }
  }

  private static void run() {
    for (;;) {
      try {
        POLLER.wait(-1);
        CommShared[] all;
        synchronized (ACTIVE) {
          all = ACTIVE.toArray(new CommShared[0]);
        }
        for (CommShared each : all) each.drain();
      } catch (Throwable e) {
        // Of one user's handler, or for lack of memory: the others still want their completions.
        System.err.println("dt: the thread of completions goes on after " + e);
        POLLER.wake();
      }
    }
  }
}
