// SPDX-License-Identifier: Apache-2.0
package dttest;

import static dttest.Check.equal;
import static dttest.Check.test;
import static dttest.Check.that;
import static dttest.Check.thrown;
import static dttest.Ranks.floats;

import io.dt.AbortedException;
import io.dt.ClosedException;
import io.dt.Comm;
import io.dt.Config;
import io.dt.ConfigException;
import io.dt.DataType;
import io.dt.Dt;
import io.dt.DtException;
import io.dt.DtTimeoutException;
import io.dt.InvalidArgumentException;
import io.dt.InvalidStateException;
import io.dt.Job;
import io.dt.MismatchException;
import io.dt.Named;
import io.dt.Param;
import io.dt.PeerLostException;
import io.dt.ReduceOp;
import io.dt.Reducer;
import io.dt.ReducerOptions;
import io.dt.Sampler;
import io.dt.Status;
import io.dt.StoreServer;
import io.dt.Tensor;
import io.dt.Work;
import java.lang.ref.Reference;
import java.lang.ref.WeakReference;
import java.nio.ByteBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;

/** Wrong calls are exceptions, never crashes. */
final class SafetyTests {
  private SafetyTests() {}

  interface Use {
    void run(Job job, Comm comm) throws Exception;
  }

  static void add() {
    test("version and ABI", SafetyTests::version);
    test("a bad argument says what, where and why", SafetyTests::badArgument);
    test("text is UTF-8 both ways", SafetyTests::text);
    test("allreduce at world size 1", () -> alone((job, comm) -> {
      FloatBuffer value = floats(1).put(0, 3);
      comm.allReduce(Tensor.of(value), ReduceOp.AVG);
      equal(value.get(0), 3f);
      equal(job.place().worldSize(), 1);
      equal(job.place().launcher(), "single");
    }));
    test("a closed handle", SafetyTests::closed);
    test("any order of closing", SafetyTests::order);
    test("a group outlives the handle that began it", () -> alone(SafetyTests::group));
    test("a refused finish keeps the gradients", () -> alone((job, comm) -> refusedFinish(comm)));
    test("a group is that of all handles of a communicator", () ->
        Ranks.run(2, SafetyTests::sameGroup));
    for (boolean closed : new boolean[] {true, false}) {
      test("a reducer in a step lets go of its gradients when it is "
          + (closed ? "closed" : "collected"), () -> releasedInStep(closed));
    }
    test("a rebuild beside rows, and buffers of one rank", () ->
        Ranks.run(2, (job, comm) -> rebuildBesideRows(comm)));
    test("a hook closes its reducer", () -> Ranks.run(2, (job, comm) -> closedByHook(comm)));
    test("use after leave", SafetyTests::afterLeave);
    test("many threads on racing handles", SafetyTests::races);
    test("ranks that disagree get MismatchException", () -> Ranks.run(2, (job, comm) -> {
      Tensor tensor = some(4 + job.place().rank());
      MismatchException e = thrown(MismatchException.class, () -> comm.allReduce(tensor));
      equal(e.status(), Status.MISMATCH);
      equal(e.operation(), "allreduce");
      thrown(MismatchException.class, comm::check);
    }));
    test("a work that fails fails its future", () -> Ranks.run(2, (job, comm) -> {
      if (job.place().rank() == 1) {
        job.store().await(List.of("failed"));
        return;
      }
      comm.setTimeout(Duration.ofMillis(100));
      Work work = comm.allReduceAsync(some(4), some(4), ReduceOp.SUM);
      thrown(DtTimeoutException.class, work::await, "allreduce");
      try {
        work.future().join();
        throw new AssertionError("it did not fail");
      } catch (java.util.concurrent.CompletionException e) {
        that(e.getCause() instanceof DtTimeoutException, "of the class of the failure: " + e);
      }
      thrown(DtTimeoutException.class, work::test);
      equal(work.error().status(), Status.TIMEOUT);
      job.store().set("failed", new byte[0]);
    }));
    test("a broken communicator fails all its futures", SafetyTests::broken);
    test("abort ends the waits of all ranks", SafetyTests::abort);
  }

  private static Tensor some(int count) {
    return Tensor.of(floats(count));
  }

  static void alone(Use use) throws Exception {
    try (Job job = Job.init(); Comm comm = job.world()) {
      use.run(job, comm);
      job.leave();
    }
  }

  private static void version() {
    that(Dt.version().matches("\\d+\\.\\d+\\.\\d+"), Dt.version());
    equal(Dt.abiVersion(), 0);
    that(Dt.buildInfo().contains("compiler: "), Dt.buildInfo());
    equal(Dt.statusName(22), "DT_ERR_PEER_LOST");
  }

  private static void badArgument() throws Exception {
    try (Config config = new Config()) {
      ConfigException e =
          thrown(ConfigException.class, () -> config.set("collective.timeout_mss", "1"),
              "collective.timeout_mss", "collective.timeout_ms");
      equal(e.status(), Status.CONFIG);
      equal(e.statusNumber(), 11);
      equal(e.rank(), -1);
      config.set("job.id", "a");
      equal(config.get("job.id"), "a");
      that(config.dump().contains("\"job.id\""), "a dump has the keys");
      thrown(InvalidArgumentException.class, () -> config.set("job.id", "a\0b"), "NUL");
      thrown(InvalidArgumentException.class, () -> config.set("job.id", null), "null");
    }
    thrown(ConfigException.class, () -> new Config(java.nio.file.Path.of("/no/such.toml")),
        "/no/such.toml");
    thrown(
        InvalidArgumentException.class, () -> new Sampler(2, 2, 10, 0, true, false, false), "rank");
  }

  private static void text() throws Exception {
    String odd = "k\u00e4se \u20ac \ud83d\ude00";
    alone((job, comm) -> {
      job.store().set(odd, odd.getBytes("UTF-8"));
      equal(job.store().list("k"), List.of(odd));
      equal(new String(job.store().get(odd), "UTF-8"), odd);
    });
    try (Config config = new Config()) {
      thrown(ConfigException.class, () -> config.set(odd, "x"), odd);
      // Half of a pair is no text; Java writes it as '?'.
      thrown(ConfigException.class, () -> config.set("a\ud83d", "x"), "a?");
    }
  }

  private static void closed() throws Exception {
    Job job = Job.init();
    Comm comm = job.world();
    Reducer reducer = new Reducer(comm, List.of(new Param("w", 4, DataType.F32)));
    Sampler sampler = new Sampler(comm, 10, 0);
    Tensor memory = comm.allocate(64, DataType.U8);
    Work work = comm.barrierAsync();
    Config config = new Config();
    StoreServer server = Ranks.serve(1);
    for (AutoCloseable each :
        List.of(work, reducer, sampler, memory, comm, job, config, server)) {
      each.close();
      each.close();
    }
    Tensor four = some(4);
    for (Check.Body each : List.<Check.Body>of(
        comm::rank, () -> comm.allReduce(four), () -> comm.allReduceAsync(four), comm::groupBegin,
        () -> comm.allocate(4, DataType.F32), job::place, job::world, () -> job.store().get("a"),
        () -> job.leave(), reducer::finish, () -> reducer.gradient(0), sampler::length,
        memory::buffer, memory::address, () -> comm.on(1).barrier(), work::await,
        () -> Work.awaitAny(List.of(work), Duration.ZERO), config::dump, () -> Job.init(config),
        server::port)) {
      thrown(ClosedException.class, each, "is closed; use it before close()");
    }
    that(IllegalStateException.class.isAssignableFrom(ClosedException.class), "a misuse of state");
  }

  private static void order() {
    for (int first = 0; first < 5; first++) {
      Job job = Job.init();
      Comm comm = job.world();
      Reducer reducer = new Reducer(comm, List.of(new Param("", 4, DataType.F32)));
      Tensor tensor = comm.allocate(16, DataType.F32);
      FloatBuffer memory = tensor.buffer().asFloatBuffer();
      Work work = comm.allReduceAsync(tensor);
      FloatBuffer gradient = reducer.gradient(0).asFloatBuffer();
      AutoCloseable[] all = {job, comm, reducer, work, tensor};
      try {
        for (int i = 0; i < 5; i++) all[(first + i) % 5].close();
      } catch (Exception e) {
        throw new AssertionError(e);
      }
      // Views keep what they look at.
      for (int i = 0; i < 16; i++) memory.put(i, 1);
      for (int i = 0; i < 4; i++) gradient.put(i, 1);
      equal(memory.get(7) + gradient.get(2), 2f);
    }
  }

  private static void group(Job job, Comm comm) throws Exception {
    Class<InvalidArgumentException> refused = InvalidArgumentException.class;
    Tensor array = Tensor.of(new float[] {3});
    Comm other = job.world();
    other.groupBegin();
    other.close();
    thrown(ClosedException.class, other::groupEnd, "closed");
    thrown(refused, () -> comm.allReduce(array), "group");
    comm.groupEnd();
    comm.allReduce(array);
    thrown(InvalidStateException.class, comm::groupEnd, "group");
    thrown(InvalidStateException.class, comm::groupEndAsync, "group");
    comm.groupBegin();
    that(comm.groupEndAsync().test(), "of no operations");
  }

  private static void sameGroup(Job job, Comm world) throws Exception {
    try (Comm host = world.host(); Comm again = host.host()) {
      grouped(world, host);
      grouped(again, world);
    }
    try (Comm before = job.world(); Comm small = world.shrink(); Comm now = job.world();
        Comm host = now.host()) {
      grouped(small, now);
      grouped(host, small);
      try (Comm other = before.shrink(); Comm still = job.world()) { // of what was the world
        grouped(small, still);
        other.groupBegin();
        still.allReduce(Tensor.of(new int[1])); // is in no group
        other.groupEnd();
      }
    }
    try (Named named = new Named(world)) {
      grouped(named.under("x"), world);
      grouped(world, named.under("x").host());
    }
  }

  /** Both are the same communicator. */
  private static void grouped(Comm first, Comm second) throws Exception {
    int[] array = {first.rank()};
    IntBuffer buffer = Ranks.bytes(4).asIntBuffer().put(0, 1 + first.rank());
    first.groupBegin();
    thrown(
        InvalidArgumentException.class, () -> second.allReduce(Tensor.of(array)), "inside a group");
    second.allReduce(Tensor.of(buffer));
    first.groupEnd();
    equal(buffer.get(0), 3);
    second.allReduce(Tensor.of(array));
    equal(array[0], 1);
  }

  private static void refusedFinish(Comm comm) throws Exception {
    try (Reducer reducer = new Reducer(comm, List.of(new Param("w", 4, DataType.F32)))) {
      FloatBuffer gradient = floats(4);
      WeakReference<FloatBuffer> known = new WeakReference<>(gradient);
      reducer.ready(0, Tensor.of(gradient));
      gradient = null;
      comm.groupBegin();
      thrown(InvalidStateException.class, reducer::finish, "group");
      comm.groupEnd();
      System.gc();
      that(known.get() != null, "finish will write it");
      reducer.finish();
    }
  }

  /** Rank 0 ends inside a step: rank 1 hears of it only once no handle of rank 0 is left. */
  private static void releasedInStep(boolean closed) throws Exception {
    try (StoreServer server = Ranks.serve(2)) {
      AtomicReference<Throwable> other = new AtomicReference<>();
      Thread survivor = new Thread(() -> {
        try (Config config = Ranks.config(1, 2, server.port()); Job job = Job.init(config);
            Comm comm = job.world(); Reducer reducer = new Reducer(comm, twoParams())) {
          job.store().set("made", new byte[0]);
          thrown(PeerLostException.class, () -> {
            for (int i = 0; i < 2; i++) reducer.ready(i, some(4));
            reducer.finish();
          });
        } catch (Throwable e) {
          other.set(e);
        }
      });
      survivor.start();
      try (Config config = Ranks.config(0, 2, server.port()); Job job = Job.init(config);
          Comm comm = job.world(); Tensor memory = comm.allocate(8, DataType.F32)) {
        leaveInStep(comm, memory, closed);
        job.store().get("made");
      }
      long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(Ranks.DEADLINE_MS);
      while (survivor.isAlive() && System.nanoTime() < end) System.gc();
      that(!survivor.isAlive(), "rank 1 waits");
      if (other.get() != null) throw new AssertionError("rank 1 failed", other.get());
    }
  }

  private static List<Param> twoParams() {
    return List.of(new Param("a", 4, DataType.F32), new Param("b", 4, DataType.F32));
  }

  /** In a method of its own, after which nothing refers to the reducer. */
  private static void leaveInStep(Comm comm, Tensor memory, boolean closed) {
    Reducer reducer = new Reducer(comm, twoParams());
    reducer.setHook((bucket, stage) -> {
      reducer.close(); // refers to the reducer, which must be collected nevertheless
      return null;
    });
    reducer.watch(1, memory.slice(4, 4));
    reducer.ready(0, memory.slice(0, 4));
    if (closed) reducer.close();
  }

  /** The hook and what is watched are in use until finish returns. */
  private static void closedByHook(Comm comm) throws Exception {
    Reducer reducer =
        new Reducer(
            comm, List.of(new Param("w", 4, DataType.F32)), ReducerOptions.DEFAULT.withUnused());
    List<Integer> stages = new ArrayList<>();
    Tensor watched = comm.allocate(4, DataType.F32);
    reducer.setHook((bucket, stage) -> {
      stages.add(stage);
      reducer.close();
      watched.close();
      return stage == 1 ? null : comm.allReduceAsync(bucket.data());
    });
    reducer.watch(0, watched);
    reducer.finish();
    equal(stages, List.of(0, 1));
    thrown(ClosedException.class, reducer::finish);
  }

  private static void rebuildBesideRows(Comm comm) throws Exception {
    List<Param> params =
        List.of(new Param("table", 20, DataType.F32), new Param("plain", 2, DataType.F32));
    ReducerOptions options = ReducerOptions.DEFAULT.withRowElements(new long[] {2, 0});
    try (Reducer reducer = new Reducer(comm, params, options)) {
      ByteBuffer place = comm.rank() == 0 ? reducer.gradient(1) : null;
      FloatBuffer own = place == null ? floats(2) : place.asFloatBuffer();
      for (int step = 0; step < 2; step++) {
        own.put(0, 3 + comm.rank());
        reducer.readyRows(0, new long[] {step}, Tensor.of(new float[] {1, 2}));
        if (place == null) {
          reducer.ready(1, Tensor.of(own));
        } else {
          reducer.ready(1);
        }
        reducer.finish();
        equal(own.get(0), 3.5f);
        if (reducer.rebuild() && place != null) own = reducer.gradient(1).asFloatBuffer();
      }
      Reference.reachabilityFence(place);
    }
  }

  private static void afterLeave() throws Exception {
    try (Job job = Job.init(); Comm comm = job.world()) {
      ByteBuffer memory = comm.allocate(4096, DataType.U8).buffer();
      Reducer reducer = new Reducer(comm, List.of(new Param("w", 4, DataType.F32)));
      ByteBuffer gradient = reducer.gradient(0);
      job.leave();
      job.leave();
      memory.putInt(0, 1);
      gradient.putInt(0, 1);
      thrown(InvalidStateException.class, () -> comm.allReduce(some(1), some(1), ReduceOp.SUM));
      thrown(InvalidStateException.class, () -> comm.barrierAsync());
      thrown(InvalidStateException.class, job::world);
      thrown(InvalidStateException.class, () -> job.store().add("a", 1));
      thrown(InvalidStateException.class, reducer::finish);
    }
  }

  /** Eight threads use one set of handles until another closes them. */
  private static void races() throws Exception {
    for (int round = 0; round < 20; round++) {
      Job job = Job.init();
      Comm comm = job.world();
      Sampler sampler = new Sampler(comm, 100, 0);
      List<Thread> threads = new ArrayList<>();
      List<Throwable> wrong = new ArrayList<>();
      for (int t = 0; t < 8; t++) {
        Tensor buffer = some(64);
        Thread thread = new Thread(() -> {
          try {
            for (;;) {
              comm.allReduce(buffer);
              comm.allReduceAsync(buffer).await();
              job.place();
              sampler.length();
            }
          } catch (ClosedException e) {
            return;
          } catch (Throwable e) {
            synchronized (wrong) {
              wrong.add(e);
            }
          }
        });
        thread.start();
        threads.add(thread);
      }
      Tensor last = some(64);
      for (int i = 0; i < 50; i++) comm.allReduce(last);
      Thread closer = new Thread(comm::close);
      closer.start();
      comm.close();
      sampler.close();
      job.close();
      closer.join(Ranks.DEADLINE_MS);
      for (Thread each : threads) {
        each.join(Ranks.DEADLINE_MS);
        that(!each.isAlive(), "a thread hangs");
      }
      if (!wrong.isEmpty()) throw new AssertionError("another error", wrong.get(0));
    }
  }

  private static void broken() throws Exception {
    Ranks.run(2, (job, comm) -> {
      if (job.place().rank() == 1) {
        job.store().get("issued");
        comm.close(); // the other meets that
        job.store().get("failed");
        return;
      }
      comm.setTimeout(Duration.ofMillis(500));
      List<Work> works = new ArrayList<>();
      for (int i = 0; i < 20; i++) {
        works.add(comm.allReduceAsync(some(8), some(8), ReduceOp.SUM));
      }
      job.store().set("issued", new byte[0]);
      for (Work each : works) {
        var failed = each.future().handle((nothing, e) -> e).get(30, TimeUnit.SECONDS);
        that(failed instanceof DtTimeoutException || failed instanceof AbortedException,
            "each fails: " + failed);
      }
      thrown(DtException.class, comm::check);
      thrown(DtException.class, () -> comm.allReduceAsync(some(8), some(8), ReduceOp.SUM));
      job.store().set("failed", new byte[0]);
    });
  }

  private static void abort() throws Exception {
    try (StoreServer server = Ranks.serve(2)) {
      Thread other = new Thread(() -> {
        try (Config config = Ranks.config(1, 2, server.port()); Job job = Job.init(config)) {
          job.store().get("joined");
          job.abort("no more send_counts \u20ac");
        }
      });
      other.start();
      try (Config config = Ranks.config(0, 2, server.port()); Job job = Job.init(config);
          Comm comm = job.world()) {
        job.store().set("joined", new byte[0]);
        DtException e =
            thrown(AbortedException.class,
                () -> comm.allReduce(some(1), some(1), ReduceOp.SUM),
                "no more send_counts \u20ac");
        equal(e.rank(), 1);
        that(!e.host().isEmpty() && e.pid() > 0, "who aborted");
      }
      other.join(Ranks.DEADLINE_MS);
    }
  }
}
