// SPDX-License-Identifier: Apache-2.0
package io.dt;

import io.dt.raw.Poller;
import java.util.LinkedHashSet;
import java.util.Set;

/** One daemon thread that completes the futures of all works; begun by the first of them. */
final class CompletionPoller {
  /** Never deleted: the thread sleeps in it until the process ends. Null until it is wanted. */
  private static volatile Poller poller;
  /** Whether the thread runs. Guarded by the class. */
  private static boolean started;
  /** With operations under way. Guarded by itself, and taken inside an Outstanding's lock. */
  private static final Set<Outstanding> ACTIVE = new LinkedHashSet<>();

  private CompletionPoller() {}

  static void watch(int fd) {
    started().watch(fd);
  }

  /** What cannot be made for lack of files or threads is tried again at the next call. */
  private static synchronized Poller started() {
    if (poller == null) poller = new Poller();
    if (!started) {
      Thread thread = new Thread(CompletionPoller::run, "dt-poller");
      thread.setDaemon(true);
      thread.setContextClassLoader(null);
      thread.start();
      started = true;
    }
    return poller;
  }

  /** After a watch(). */
  static void wake() {
    poller.wake();
  }

  static void activate(Outstanding operations) {
    synchronized (ACTIVE) {
      ACTIVE.add(operations);
    }
  }

  static void deactivate(Outstanding operations) {
    synchronized (ACTIVE) {
      ACTIVE.remove(operations);
    }
  }

  private static void run() {
    for (;;) {
      try {
        poller.wait(-1);
        Outstanding[] all;
        synchronized (ACTIVE) {
          all = ACTIVE.toArray(new Outstanding[0]);
        }
        for (Outstanding each : all) each.drain();
      } catch (Throwable e) {
        survive(e);
        wake();
      }
    }
  }

  /** Of one user's handler, or for lack of memory: the others still want their completions. */
  static void survive(Throwable e) {
    try {
      System.err.println("dt: the thread of completions goes on after " + e);
    } catch (Throwable again) {
      // No memory even for that.
    }
  }
}
