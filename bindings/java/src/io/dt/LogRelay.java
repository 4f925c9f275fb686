// SPDX-License-Identifier: Apache-2.0
package io.dt;

import io.dt.raw.Raw;
import java.util.ArrayList;
import java.util.List;

/** Between dt's threads and a user's sink. */
final class LogRelay extends io.dt.raw.LogSink {
  /** How long a call that never returns may hold up the end of the virtual machine. */
  private static final long END_MS = 2000;

  /** dt may log until the process ends. */
  private static final List<LogRelay> KEPT = new ArrayList<>();
  /** Whether stop() will be called. Guarded by KEPT. */
  private static boolean stopped;

  private final LogSink sink;

  private LogRelay(LogSink sink) {
    this.sink = sink;
  }

  static LogRelay keep(LogSink sink) {
    LogRelay relay = new LogRelay(sink);
    synchronized (KEPT) {
      stopAtEnd();
      KEPT.add(relay);
    }
    return relay;
  }

  /** Before native code may call Java. */
  static void stopAtEnd() {
    synchronized (KEPT) {
      if (!stopped) Runtime.getRuntime().addShutdownHook(new Thread(LogRelay::stop));
      stopped = true;
    }
  }

  /** After this no thread of dt enters the virtual machine, which is about to go. */
  private static void stop() {
    Thread waiting = new Thread(Raw::stop_upcalls, "dt-stop-upcalls");
    waiting.setDaemon(true);
    waiting.start();
    try {
      waiting.join(END_MS);
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
    }
  }

  @Override
  public void log(int level, String message) {
    try {
      sink.log(LogLevel.of(level), message);
    } catch (Throwable e) {
      String what = e.toString().replace('\n', ' ').replace('\r', ' ');
      System.err.println("dt: the log sink failed: " + what);
    }
  }
}
