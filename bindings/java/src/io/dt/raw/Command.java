// SPDX-License-Identifier: Apache-2.0
package io.dt.raw;

import java.io.IOException;
import java.lang.reflect.Proxy;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;

/**
 * What {@code java -jar dt.jar run -n 4 java ...} starts: the command {@code dt} of the jar, with
 * the terminal, the files and the exit code of this process. A virtual machine cannot become another
 * program, so it waits. A terminal's Control-C reaches both, because both belong to one group of
 * processes, and the command decides what it means. Whatever else ends this process ends the
 * command by SIGTERM, which dt passes on to the ranks, and this process ends after it.
 */
final class Command {
  private static final List<String> FILES = List.of("libdt.so.0", "dt-bench-worker", "dt");
  private static final int CANNOT_START = 126; // what a shell says
  private static final int INTERRUPTED = 130;

  private final String[] arguments;
  private final Object lock = new Object();
  private final CountDownLatch ended = new CountDownLatch(1);
  /** Guarded by lock, as the next: whether a process may not be started any more. */
  private boolean ending;
  private Process process;
  private int exitCode;

  private Command(String[] arguments) {
    this.arguments = arguments;
  }

  public static void main(String[] arguments) {
    Command command = new Command(arguments);
    Runtime.getRuntime().addShutdownHook(new Thread(command::end, "dt-end"));
    onInterrupt(command::interrupt);
    String failure;
    try {
      failure = NativeFiles.use(FILES, "cannot start the command dt", command::run);
    } finally {
      command.ended.countDown(); // the copies are removed
    }
    if (failure != null) {
      System.err.println(failure);
      command.exitCode = CANNOT_START;
    }
    System.exit(command.exitCode);
  }

  /** Null when it ran, or why it could not be started. */
  private String run(Path folder) {
    Path dt = folder.resolve("dt");
    for (String each : List.of("dt", "dt-bench-worker")) {
      if (!folder.resolve(each).toFile().setExecutable(true)) return "cannot make it executable";
    }
    List<String> words = new ArrayList<>();
    words.add(dt.toString());
    words.addAll(List.of(arguments));
    Process started;
    synchronized (lock) {
      if (ending) return null;
      try {
        started = new ProcessBuilder(words).inheritIO().start();
      } catch (IOException e) {
        return e.getMessage();
      }
      process = started;
    }
    exitCode = waitFor(started);
    return null;
  }

  private void interrupt() {
    synchronized (lock) {
      if (process != null && isForeground()) return; // the command has it from the terminal
    }
    System.exit(INTERRUPTED);
  }

  /** Whether the terminal sends Control-C to the group of this process. */
  private static boolean isForeground() {
    try {
      String line = Files.readString(Path.of("/proc/self/stat"));
      // State, parent, group, session, terminal, the terminal's foreground group; see proc(5).
      String[] fields = line.substring(line.lastIndexOf(')') + 2).split(" ");
      return fields[2].equals(fields[5]);
    } catch (IOException e) {
      return false;
    }
  }

  /** By reflection, because the compiler refuses to name classes of jdk.unsupported. */
  private static void onInterrupt(Runnable action) {
    try {
      Class<?> signal = Class.forName("sun.misc.Signal");
      Class<?> handler = Class.forName("sun.misc.SignalHandler");
      Object calls =
          Proxy.newProxyInstance(
              handler.getClassLoader(), new Class<?>[] {handler},
              (self, method, arguments) -> {
                if (method.getName().equals("handle")) action.run();
                return null;
              });
      signal
          .getMethod("handle", signal, handler)
          .invoke(null, signal.getConstructor(String.class).newInstance("INT"), calls);
    } catch (ReflectiveOperationException e) {
      // Without that module, or with -Xrs: then Control-C ends the command as SIGTERM does.
    }
  }

  /** Runs while the virtual machine ends, also after the command has. */
  private void end() {
    synchronized (lock) {
      ending = true;
      if (process != null) process.destroy();
    }
    boolean interrupted = true;
    while (interrupted) {
      try {
        ended.await();
        interrupted = false;
      } catch (InterruptedException e) {
        // Nobody interrupts this thread.
      }
    }
  }

  private static int waitFor(Process process) {
    while (true) {
      try {
        return process.waitFor();
      } catch (InterruptedException e) {
        // Nobody interrupts the first thread.
      }
    }
  }
}
