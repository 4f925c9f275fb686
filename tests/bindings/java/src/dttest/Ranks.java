// SPDX-License-Identifier: Apache-2.0
package dttest;

import io.dt.Comm;
import io.dt.Config;
import io.dt.Job;
import io.dt.StoreServer;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.time.Duration;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.atomic.AtomicReference;

/** Ranks as threads of this process. */
final class Ranks {
  static final long DEADLINE_MS = 60_000;

  interface Body {
    void run(Job job, Comm world) throws Exception;
  }

  private Ranks() {}

  static StoreServer serve(int worldSize) {
    try (Config config = new Config()) {
      config.set("job.id", "test").set("job.world_size", Integer.toString(worldSize));
      return new StoreServer(config);
    }
  }

  static Config config(int rank, int worldSize, int port) {
    return new Config()
        .set("job.id", "test")
        .set("job.rank", Integer.toString(rank))
        .set("job.world_size", Integer.toString(worldSize))
        .set("job.master_addr", "127.0.0.1")
        .set("job.master_port", Integer.toString(port))
        .set("job.store_served", "true")
        .set("reducer.check_steps", "1")
        .set("rendezvous.timeout_ms", "30000")
        .set("collective.timeout_ms", "30000");
  }

  /** Runs the body as each rank, between Job.init and Job.leave. */
  static void run(int worldSize, Body body) throws Exception {
    run(worldSize, Thread::new, body);
  }

  static void run(int worldSize, ThreadFactory factory, Body body) throws Exception {
    AtomicReference<Throwable> failure = new AtomicReference<>();
    try (StoreServer server = serve(worldSize)) {
      Thread[] threads = new Thread[worldSize];
      for (int r = 0; r < worldSize; r++) {
        int rank = r;
        threads[r] =
            factory.newThread(() -> rank(rank, worldSize, server.port(), body, failure));
        threads[r].setDaemon(true);
        threads[r].start();
      }
      for (Thread each : threads) {
        each.join(DEADLINE_MS);
        Check.that(!each.isAlive(), "a rank hangs");
      }
    }
    if (failure.get() != null) throw new AssertionError("a rank failed", failure.get());
  }

  private static void rank(
      int rank, int worldSize, int port, Body body, AtomicReference<Throwable> failure) {
    try (Config config = config(rank, worldSize, port);
        Job job = Job.init(config)) {
      try (Comm world = job.world()) {
        body.run(job, world);
        job.leave(Duration.ofSeconds(30));
      } catch (Throwable e) {
        if (failure.compareAndSet(null, e)) job.abort("rank " + rank + " failed its test: " + e);
      }
    } catch (Throwable e) {
      failure.compareAndSet(null, e);
    }
  }

  static ByteBuffer bytes(int size) {
    return ByteBuffer.allocateDirect(size).order(ByteOrder.nativeOrder());
  }

  static FloatBuffer floats(int count) {
    return bytes(4 * count).asFloatBuffer();
  }

  /** Element i differs on each rank and at each index. */
  static FloatBuffer pattern(int rank, int count) {
    FloatBuffer buffer = floats(count);
    for (int i = 0; i < count; i++) buffer.put(i, rank + 1 + 0.5f * i);
    return buffer;
  }
}
