// SPDX-License-Identifier: Apache-2.0
package io.dt;

import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.Executor;
import java.util.concurrent.Executors;
import java.util.function.LongConsumer;
import java.util.function.LongFunction;

/**
 * Calls that may wait for other ranks, made by virtual threads (Java 21 and later). A platform
 * thread carries them out: inside native code a virtual thread would keep its carrier, which the
 * rank that it waits for may need.
 */
final class Waiting {
  /** Null before Java 21. */
  private static final MethodHandle IS_VIRTUAL = find();

  private Waiting() {}

  private static final class Pool {
    static final Executor THREADS =
        Executors.newCachedThreadPool(
            call -> {
              Thread thread = new Thread(call, "dt-caller");
              thread.setDaemon(true);
              return thread;
            });
  }

  private static MethodHandle find() {
    try {
      return MethodHandles.publicLookup()
          .findVirtual(Thread.class, "isVirtual", MethodType.methodType(boolean.class));
    } catch (ReflectiveOperationException e) {
      return null;
    }
  }

  /** Whether the calling thread is a virtual one. */
  static boolean virtual() {
    try {
      return IS_VIRTUAL != null && (boolean) IS_VIRTUAL.invokeExact(Thread.currentThread());
    } catch (Throwable e) {
      throw new AssertionError(e); // it throws nothing
    }
  }

  /**
   * Calls a function, on a platform thread if the calling one is virtual. An interrupt does not end
   * it, as in native code.
   *
   * @param number of a handle, say: what the function captures is garbage
   */
  static <T> T call(LongFunction<T> function, long number) {
    if (!virtual()) return function.apply(number);
    try {
      return CompletableFuture.supplyAsync(() -> function.apply(number), Pool.THREADS).join();
    } catch (CompletionException e) {
      if (e.getCause() instanceof DtException failure) throw failure.again();
      if (e.getCause() instanceof RuntimeException failure) throw failure;
      if (e.getCause() instanceof Error failure) throw failure;
      throw e;
    }
  }

  /** As call(), without a result. */
  static void run(LongConsumer function, long number) {
    if (!virtual()) {
      function.accept(number);
      return;
    }
    call(
        given -> {
          function.accept(given);
          return null;
        },
        number);
  }
}
