// SPDX-License-Identifier: Apache-2.0
package dttest;

import static dttest.Check.equal;
import static dttest.Check.test;
import static dttest.Check.that;
import static dttest.Check.thrown;
import static dttest.Ranks.floats;
import static dttest.Ranks.pattern;

import io.dt.Blocks;
import io.dt.ClosedException;
import io.dt.Comm;
import io.dt.Config;
import io.dt.ConfigException;
import io.dt.DataType;
import io.dt.Job;
import io.dt.MismatchException;
import io.dt.Param;
import io.dt.Ps;
import io.dt.PsOptions;
import io.dt.ReduceOp;
import io.dt.Reducer;
import io.dt.Tensor;
import io.dt.Work;
import java.lang.management.ManagementFactory;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.FloatBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Queue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;

/** Works, futures and the garbage collector. */
final class AsyncTests {
  /** Of security.mode = auth: what each side of a connection sends first. */
  private static final int GREETING_BYTES = 48;

  private AsyncTests() {}

  static void add() {
    test("futures complete in order on the poller thread", () ->
        Ranks.run(2, AsyncTests::order));
    test("a handler may issue", () -> Ranks.run(2, (job, world) -> chain(world)));
    test("a future does not wait for an earlier transfer", () ->
        Ranks.run(3, AsyncTests::overtake));
    test("the eventfd of works", () -> SafetyTests.alone((job, comm) -> {
      that(comm.workFd() >= 0, "a file descriptor");
      equal(comm.workFd(), comm.workFd());
    }));
    test("many works under way", () -> Ranks.run(2, AsyncTests::many));
    test("memory in use outlives its tensor", () -> Ranks.run(2, AsyncTests::closedInUse));
    test("the first of several works", () -> Ranks.run(2, AsyncTests::any));
    test("buffers outlive dropped works while garbage is collected", AsyncTests::collected);
    test("dropped handles release what they hold", AsyncTests::dropped);
    test("memory goes after its communicator", () -> SafetyTests.alone((job, comm) -> late(job)));
    test("a blocking call makes no garbage", AsyncTests::noGarbage);
    if (Runtime.version().feature() >= 21) {
      test("ranks that are virtual threads", AsyncTests::virtualRanks);
      test("ps: workers that are virtual threads", AsyncTests::virtualWorkers);
    }
  }

  private static void order(Job job, Comm world) throws Exception {
    List<Integer> ended = new ArrayList<>();
    List<CompletableFuture<Void>> all = new ArrayList<>();
    List<String> threads = new ArrayList<>();
    // The peer comes later, so none of them is done at once.
    if (world.rank() == 1) job.store().get("issued");
    for (int i = 0; i < 200; i++) {
      int which = i;
      FloatBuffer buffer = pattern(world.rank(), 100);
      Work work = world.allReduceAsync(Tensor.of(buffer));
      all.add(work.future().thenRun(() -> {
        if (buffer.get(99) != 3 + 99f) throw new AssertionError("not reduced");
        synchronized (ended) {
          ended.add(which);
          threads.add(Thread.currentThread().getName());
        }
      }));
      if (world.rank() == 0 && i == 100) job.store().set("issued", new byte[0]);
    }
    CompletableFuture.allOf(all.toArray(new CompletableFuture<?>[0])).get(30, TimeUnit.SECONDS);
    equal(ended.size(), 200);
    for (int i = 0; i < 100; i++) that(ended.contains(i), "all have ended");
    if (world.rank() == 0) {
      List<Integer> first = new ArrayList<>(ended.subList(0, 50));
      List<Integer> sorted = new ArrayList<>(first);
      sorted.sort(null);
      equal(first, sorted);
      that(threads.contains("dt-poller"), "threads: " + threads);
    }
  }

  private static void overtake(Job job, Comm world) throws Exception {
    if (world.rank() == 0) {
      Work first = world.recvAsync(Tensor.of(floats(1)), 1);
      world.recvAsync(Tensor.of(floats(1)), 2).future().get(20, TimeUnit.SECONDS);
      that(!first.future().isDone(), "nobody has sent that");
      job.store().set("overtaken", new byte[0]);
      first.future().get(20, TimeUnit.SECONDS);
    } else {
      if (world.rank() == 1) job.store().get("overtaken");
      world.send(Tensor.of(floats(1)), 0);
    }
  }

  private static void chain(Comm world) throws Exception {
    FloatBuffer buffer = pattern(world.rank(), 3);
    CompletableFuture<Void> end =
        world.allReduceAsync(Tensor.of(buffer)).future()
            .thenCompose(nothing -> world.allReduceAsync(Tensor.of(buffer)).future())
            .thenCompose(nothing -> world.barrierAsync().future());
    end.get(30, TimeUnit.SECONDS);
    equal(buffer.get(0), 6f);
  }

  /** Issuing does not wait for the thread that looks at all of them. */
  private static void many(Job job, Comm world) throws Exception {
    int peer = 1 - world.rank();
    for (boolean transfers : new boolean[] {false, true}) {
      int works = transfers ? 2_000 : 20_000; // dt itself looks at all transfers that may be next
      String issued = "issued" + transfers;
      if (world.rank() == 1) job.store().get(issued);
      List<CompletableFuture<Void>> all = new ArrayList<>(works);
      Tensor one = Tensor.of(floats(1));
      long begin = System.nanoTime();
      for (int i = 0; i < works; i++) {
        Work work =
            !transfers ? world.allReduceAsync(one)
                : peer == 1 ? world.recvAsync(one, peer) : world.sendAsync(one, peer);
        all.add(work.future());
      }
      double seconds = (System.nanoTime() - begin) / 1e9;
      if (world.rank() == 0) {
        job.store().set(issued, new byte[0]);
        System.out.printf("%d works issued in %.3f s%n", works, seconds);
        that(seconds < 2, "issuing took " + seconds + " s");
      }
      CompletableFuture.allOf(all.toArray(new CompletableFuture<?>[0])).get(50, TimeUnit.SECONDS);
    }
  }

  private static void closedInUse(Job job, Comm world) throws Exception {
    Tensor memory = world.allocate(1000, DataType.F32);
    FloatBuffer view = memory.buffer().asFloatBuffer();
    view.put(999, world.rank() + 1);
    if (world.rank() == 1) job.store().get("closed");
    Work work = world.allReduceAsync(memory.slice(999, 1));
    memory.close();
    memory.close();
    if (world.rank() == 0) job.store().set("closed", new byte[0]);
    work.future().get(30, TimeUnit.SECONDS);
    equal(view.get(999), 3f);
    thrown(ClosedException.class, () -> world.allReduce(memory), "Tensor is closed");
    thrown(ClosedException.class, memory::buffer, "closed");
    thrown(ClosedException.class, memory::address, "closed");
    world.barrier();
  }

  private static void any(Job job, Comm world) throws Exception {
    try (Comm other = world.split(0, 0)) {
      if (world.rank() == 0) {
        List<Work> works = List.of(other.barrierAsync(), world.barrierAsync());
        equal(Work.awaitAny(works, Duration.ofMillis(20)), -1);
        that(!works.get(0).await(Duration.ofMillis(1)), "not yet");
        that(!works.get(1).test(), "not yet");
        job.store().set("waited", new byte[0]);
        equal(Work.awaitAny(works, Duration.ofSeconds(30)), 1);
        job.store().set("first", new byte[0]);
        equal(Work.awaitAny(List.of(works.get(0)), Duration.ofSeconds(30)), 0);
      } else {
        job.store().get("waited");
        world.barrier();
        job.store().get("first");
        other.barrier();
      }
    }
  }

  private static void collected() throws Exception {
    AtomicBoolean stop = new AtomicBoolean();
    Thread collector = new Thread(() -> {
      while (!stop.get()) System.gc();
    });
    collector.start();
    try {
      Ranks.run(2, (job, world) -> {
        FloatBuffer kept = null;
        CompletableFuture<Void> last = null;
        for (int i = 0; i < 1500; i++) {
          FloatBuffer buffer = pattern(world.rank(), 2000);
          Work work = world.allReduceAsync(Tensor.of(buffer));
          if (i % 3 == 0) work.close();
          if (i % 100 != 99) continue; // dropped: only dt uses its buffer now
          last = work.future();
          kept = buffer;
          last.get(30, TimeUnit.SECONDS);
          for (int k = 0; k < 2000; k++) equal(kept.get(k), 3 + k * 1f);
        }
      });
    } finally {
      stop.set(true);
      collector.join(Ranks.DEADLINE_MS);
    }
  }

  /** Handles that nobody closes go with the garbage, or 17 million of them could not be made. */
  private static void dropped() throws Exception {
    try (Job job = Job.init()) {
      for (int i = 0; i < 2000; i++) {
        Comm comm = job.world();
        comm.allocate(1 << 20, DataType.U8).buffer().putInt(0, 1);
        FloatBuffer buffer = floats(16);
        comm.allReduceAsync(Tensor.of(buffer));
        if (i % 100 == 0) System.gc();
      }
      job.leave();
    }
  }

  private static void late(Job job) throws Exception {
    long before = mappedBytes();
    for (int i = 0; i < 100; i++) {
      Comm comm = job.world();
      Tensor memory = comm.allocate(64 << 20, DataType.U8);
      comm.close();
      thrown(ClosedException.class, comm::rank, "closed");
      memory.close();
    }
    that(mappedBytes() - before < 1L << 30, "not 100 times 64 MiB");
  }

  private static long mappedBytes() throws Exception {
    return Long.parseLong(Files.readString(Path.of("/proc/self/statm")).split(" ")[0]) * 4096;
  }

  /** With fewer carriers than ranks a call that kept its carrier would wait for ever. */
  private static void virtualRanks() throws Exception {
    Ranks.run(3, virtualThreads(), (job, world) -> {
      FloatBuffer values = pattern(world.rank(), 100);
      for (int i = 0; i < 20; i++) world.allReduce(Tensor.of(values), ReduceOp.MAX);
      equal(values.get(99), 3 + 0.5f * 99);
      float[] array = {world.rank()};
      world.allReduce(Tensor.of(array));
      equal(array[0], 3f);
      Work work = world.barrierAsync();
      equal(Work.awaitAny(List.of(work), Duration.ofSeconds(30)), 0);
      that(world.barrierAsync().await(Duration.ofSeconds(30)), "in time");
      world.groupBegin();
      world.allReduce(Tensor.of(values));
      world.groupEnd();
      equal(values.get(0), 9f);
      if (world.rank() == 2) job.store().set("key", new byte[0]);
      job.store().get("key");
      job.store().barrier("all", 0);
      try (Comm part = world.split(0, 0);
          Reducer reducer = new Reducer(part, List.of(new Param("a", 1, DataType.F32)))) {
        reducer.ready(0);
        reducer.finish();
        // A hook that waits for the other ranks inside ready.
        reducer.setHook(
            (bucket, stage) -> {
              part.allReduce(bucket.data());
              return null;
            });
        FloatBuffer gradient = floats(1).put(0, 1);
        reducer.ready(0, Tensor.of(gradient));
        reducer.finish();
        equal(gradient.get(0), 3f);
        world.checkEqual(Tensor.of(values), null);
      }
      thrown(MismatchException.class, () ->
          world.allReduce(Tensor.of(floats(1 + world.rank()))));
      Comm left = world.shrink();
      left.barrier();
      left.close();
    });
  }

  /** More of them than there are carriers wait for a server that says nothing. */
  private static void virtualWorkers() throws Exception {
    ThreadFactory virtual = virtualThreads();
    int limitMs = (int) Ranks.DEADLINE_MS / 2;
    PsOptions options = new PsOptions(0, limitMs, limitMs, 1 << 20);
    int carriers = Integer.getInteger("jdk.virtualThreadScheduler.parallelism",
        Runtime.getRuntime().availableProcessors());
    Path token = Files.createTempFile("dt", "token"); // for its user only
    Files.writeString(token, "5".repeat(64));
    List<Socket> connected = new ArrayList<>();
    List<Thread> workers = new ArrayList<>();
    Queue<Throwable> failures = new ConcurrentLinkedQueue<>();
    try (ServerSocket silent = new ServerSocket(0, 0, InetAddress.getLoopbackAddress());
        Config config = new Config()) {
      silent.setSoTimeout(limitMs / 2);
      config.set("ps.servers", "127.0.0.1:" + silent.getLocalPort()).set("ps.workers", "1");
      config.set("security.mode", "auth").set("security.token_file", token.toString());
      for (int i = 0; i <= carriers; i++) {
        Thread worker = virtual.newThread(() -> {
          try {
            thrown(ConfigException.class, () -> new Ps(config, options).close());
          } catch (Throwable e) {
            failures.add(e);
          }
        });
        workers.add(worker);
        worker.start();
      }
      for (int i = 0; i <= carriers; i++) connected.add(silent.accept());
      // Its own greeting, sent back, is not that of a server: a worker gives up at once.
      for (Socket each : connected) {
        each.setSoTimeout(limitMs);
        each.getOutputStream().write(each.getInputStream().readNBytes(GREETING_BYTES));
      }
      for (Thread each : workers) {
        each.join(Ranks.DEADLINE_MS);
        that(!each.isAlive(), "a worker hangs");
      }
    } finally {
      for (Socket each : connected) each.close();
      Files.delete(token);
    }
    for (Throwable each : failures) throw new AssertionError("a worker", each);
  }

  private static ThreadFactory virtualThreads() throws Exception {
    Object builder = Thread.class.getMethod("ofVirtual").invoke(null);
    var make = Class.forName("java.lang.Thread$Builder").getMethod("factory");
    return (ThreadFactory) make.invoke(builder);
  }

  private static void noGarbage() throws Exception {
    var threads = (com.sun.management.ThreadMXBean) ManagementFactory.getThreadMXBean();
    Ranks.run(2, (job, world) -> {
      Tensor buffer = Tensor.of(floats(256));
      Tensor array = Tensor.of(new float[256]);
      Tensor whole = Tensor.of(floats(512));
      Tensor shared = world.allocate(512, DataType.F32);
      Blocks halves = Blocks.of(256, 256);
      Comm named = world.named("a name").withTimeout(Duration.ofSeconds(30));
      long me = Thread.currentThread().getId();
      long bytes = -1;
      // The compiler and the classes need some rounds; afterwards a round makes nothing.
      for (int round = 0; round < 30; round++) {
        long before = threads.getThreadAllocatedBytes(me);
        for (int i = 0; i < 500; i++) {
          world.allReduce(buffer);
          world.allGather(buffer, whole);
          world.allGather(buffer, shared, halves);
          world.broadcast(buffer, 0);
          world.allReduce(array, ReduceOp.MAX);
          named.allReduce(shared);
        }
        bytes = threads.getThreadAllocatedBytes(me) - before;
        if (job.agree(bytes == 0)) return;
      }
      equal(bytes, 0L);
    });
  }
}
