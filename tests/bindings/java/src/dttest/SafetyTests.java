// SPDX-License-Identifier: Apache-2.0
package dttest;

import static dttest.Check.equal;
import static dttest.Check.test;
import static dttest.Check.that;
import static dttest.Check.thrown;
import static dttest.Ranks.bytes;
import static dttest.Ranks.floats;

import io.dt.AbortedException;
import io.dt.Comm;
import io.dt.Config;
import io.dt.ConfigException;
import io.dt.Dt;
import io.dt.DtException;
import io.dt.DtTimeoutException;
import io.dt.Dtype;
import io.dt.InvalidArgumentException;
import io.dt.InvalidStateException;
import io.dt.Job;
import io.dt.Memory;
import io.dt.MismatchException;
import io.dt.Param;
import io.dt.ReduceOp;
import io.dt.Reducer;
import io.dt.Sampler;
import io.dt.Status;
import io.dt.StoreServer;
import io.dt.Work;
import java.lang.ref.WeakReference;
import java.nio.ByteBuffer;
import java.nio.CharBuffer;
import java.nio.FloatBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;

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
      comm.allreduce(value, value, ReduceOp.AVG);
      equal(value.get(0), 3f);
      equal(job.place().worldSize(), 1);
      equal(job.place().launcher(), "single");
    }));
    test("a closed handle", SafetyTests::closed);
    test("any order of closing", SafetyTests::order);
    test("wrong buffers", () -> alone((job, comm) -> buffers(comm)));
    test("a group outlives the handle that began it", () -> alone(SafetyTests::group));
    test("a refused finish keeps the gradients", () -> alone((job, comm) -> refusedFinish(comm)));
    test("wrong sizes of 2 ranks", () -> Ranks.run(2, (job, comm) -> sizes(comm)));
    test("use after leave", SafetyTests::afterLeave);
    test("many threads on racing handles", SafetyTests::races);
    test("ranks that disagree get MismatchException", () -> Ranks.run(2, (job, comm) -> {
      FloatBuffer buffer = floats(4 + job.place().rank());
      MismatchException e =
          thrown(MismatchException.class, () -> comm.allreduce(buffer, buffer, ReduceOp.SUM));
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
      Work work = comm.allreduceAsync(floats(4), floats(4), ReduceOp.SUM);
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
    thrown(InvalidArgumentException.class, () -> new Sampler(2, 2, 10, 0, true, false, false), "rank");
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
    Reducer reducer = new Reducer(comm, List.of(new Param("w", 4, Dtype.F32)));
    Sampler sampler = new Sampler(comm, 10, 0);
    Memory memory = comm.allocate(64);
    Work work = comm.barrierAsync();
    Config config = new Config();
    StoreServer server = Ranks.serve(1);
    for (AutoCloseable each :
        List.of(work, reducer, sampler, memory, comm, job, config, server)) {
      each.close();
      each.close();
    }
    FloatBuffer four = floats(4);
    thrown(InvalidArgumentException.class, comm::rank, "dt_comm_rank", "closed");
    thrown(InvalidArgumentException.class, () -> comm.allreduce(four, four, ReduceOp.SUM),
        "dt_allreduce", "closed");
    thrown(InvalidArgumentException.class, () -> comm.allreduceAsync(four, four, ReduceOp.SUM),
        "closed");
    thrown(InvalidArgumentException.class, comm::groupBegin, "closed");
    thrown(InvalidArgumentException.class, () -> comm.allocate(4), "closed");
    thrown(InvalidArgumentException.class, job::place, "closed");
    thrown(InvalidArgumentException.class, job::world, "closed");
    thrown(InvalidArgumentException.class, () -> job.store().get("a"), "closed");
    thrown(InvalidArgumentException.class, () -> job.leave(), "closed");
    thrown(InvalidArgumentException.class, reducer::finish, "closed");
    thrown(InvalidArgumentException.class, () -> reducer.gradient(0), "closed");
    thrown(InvalidArgumentException.class, sampler::length, "closed");
    thrown(InvalidArgumentException.class, memory::buffer, "closed");
    thrown(InvalidArgumentException.class, memory::address, "closed");
    thrown(InvalidArgumentException.class, work::await, "closed");
    thrown(InvalidArgumentException.class, () -> Work.awaitAny(List.of(work), Duration.ZERO));
    thrown(InvalidArgumentException.class, config::dump, "closed");
    thrown(InvalidArgumentException.class, () -> Job.init(config), "closed");
    thrown(InvalidArgumentException.class, server::port, "closed");
  }

  private static void order() {
    for (int first = 0; first < 4; first++) {
      Job job = Job.init();
      Comm comm = job.world();
      Reducer reducer = new Reducer(comm, List.of(new Param("", 4, Dtype.F32)));
      FloatBuffer memory = comm.allocate(64).buffer().asFloatBuffer();
      Work work = comm.allreduceAsync(memory, memory, ReduceOp.SUM);
      FloatBuffer gradient = reducer.gradient(0).asFloatBuffer();
      AutoCloseable[] all = {job, comm, reducer, work};
      try {
        for (int i = 0; i < 4; i++) all[(first + i) % 4].close();
      } catch (Exception e) {
        throw new AssertionError(e);
      }
      // Views keep what they look at.
      for (int i = 0; i < 16; i++) memory.put(i, 1);
      for (int i = 0; i < 4; i++) gradient.put(i, 1);
      equal(memory.get(7) + gradient.get(2), 2f);
    }
  }

  private static void buffers(Comm comm) throws Exception {
    FloatBuffer four = floats(4);
    Class<InvalidArgumentException> refused = InvalidArgumentException.class;
    FloatBuffer heap = FloatBuffer.allocate(4);
    thrown(refused, () -> comm.allreduceAsync(heap, heap, ReduceOp.SUM), "send", "heap", "direct");
    thrown(refused, () -> comm.allreduce(heap, heap, ReduceOp.SUM), "heap");
    thrown(refused, () -> comm.broadcastAsync(heap, 0), "heap");
    thrown(refused, () -> comm.allreduce(four, four.asReadOnlyBuffer(), ReduceOp.SUM), "recv",
        "read-only");
    thrown(refused, () -> comm.recv(four.asReadOnlyBuffer(), 0), "read-only");
    thrown(refused, () -> comm.allreduce(four, floats(3), ReduceOp.SUM), "recv", "3", "4");
    thrown(refused, () -> comm.allreduceAsync(four, floats(5), ReduceOp.SUM), "5");
    thrown(refused, () -> comm.allreduce(four, four, Dtype.F64, ReduceOp.SUM), "FloatBuffer");
    thrown(refused, () -> comm.allreduce(four, bytes(16).asIntBuffer(), ReduceOp.SUM), "recv");
    ByteBuffer big = ByteBuffer.allocateDirect(16);
    thrown(refused, () -> comm.allreduce(big, big, Dtype.F32, ReduceOp.SUM), "BIG_ENDIAN");
    thrown(refused, () -> comm.allreduce(big.asFloatBuffer(), four, ReduceOp.SUM), "order");
    comm.allreduce(big, big, Dtype.U8, ReduceOp.SUM); // a byte has no order
    ByteBuffer odd = bytes(7);
    thrown(refused, () -> comm.allreduce(odd, odd, Dtype.F32, ReduceOp.SUM), "7");
    thrown(refused, () -> comm.allreduce(odd, odd, ReduceOp.SUM), "Dtype");
    CharBuffer chars = bytes(8).asCharBuffer();
    thrown(refused, () -> comm.allreduce(chars, chars, Dtype.F16, ReduceOp.SUM), "CharBuffer");
    thrown(refused, () -> comm.allreduce((FloatBuffer) null, null, ReduceOp.SUM), "null");
    thrown(refused, () -> comm.allreduce((float[]) null, null, ReduceOp.SUM), "null");
    thrown(refused, () -> comm.reduce(new float[1], null, ReduceOp.SUM, 0), "null");
    thrown(refused, () -> comm.allreduce(new byte[3], new byte[3], Dtype.F32, ReduceOp.SUM), "3");
    thrown(refused, () -> comm.allreduce(0, 0, 4, Dtype.F32, ReduceOp.SUM, 0), "NULL");
    thrown(refused, () -> comm.allreduce(0, 0, -4, Dtype.F32, ReduceOp.SUM, 0), "count");
    thrown(refused, () -> comm.broadcast(four, 1), "root");
    thrown(refused, () -> comm.allocate(0), "bytes");
    try (Memory memory = comm.allocate(64)) {
      thrown(refused, () -> memory.buffer(60, 8), "60");
      thrown(refused, () -> memory.buffer(-1, 8), "-1");
    }
    try (Memory memory = comm.allocate(3L << 30)) {
      thrown(refused, memory::buffer, "parts");
      equal(memory.buffer((3L << 30) - 4, 4).getInt(0), 0);
    }
    comm.groupBegin();
    thrown(refused, () -> comm.allreduce(new float[1], new float[1], ReduceOp.SUM), "group");
    thrown(InvalidStateException.class, comm::groupBegin, "group");
    comm.groupEnd();
    thrown(InvalidStateException.class, comm::groupEnd, "group");
    comm.allreduce(four, four, ReduceOp.SUM);
    try (Reducer reducer = new Reducer(comm, List.of(new Param("w", 4, Dtype.F32)))) {
      thrown(refused, () -> reducer.ready(0, floats(3)), "gradient", "3");
      thrown(refused, () -> reducer.ready(0, heap), "heap");
      thrown(refused, () -> reducer.ready(0, bytes(32).asDoubleBuffer()), "DoubleBuffer");
      thrown(refused, () -> reducer.ready(1, four), "index");
      thrown(refused, () -> reducer.gradient(-1), "index");
      reducer.ready(0, four);
      thrown(InvalidStateException.class, () -> reducer.ready(0, four), "ready");
      reducer.finish();
    }
  }

  private static void group(Job job, Comm comm) throws Exception {
    Class<InvalidArgumentException> refused = InvalidArgumentException.class;
    float[] array = {3};
    Comm other = job.world();
    other.groupBegin();
    other.close();
    thrown(refused, other::groupEnd, "closed");
    thrown(refused, () -> comm.allreduce(array, array, ReduceOp.SUM), "group");
    comm.groupEnd();
    comm.allreduce(array, array, ReduceOp.SUM);
    thrown(InvalidStateException.class, comm::groupEnd, "group");
  }

  private static void refusedFinish(Comm comm) throws Exception {
    try (Reducer reducer = new Reducer(comm, List.of(new Param("w", 4, Dtype.F32)))) {
      FloatBuffer gradient = floats(4);
      WeakReference<FloatBuffer> known = new WeakReference<>(gradient);
      reducer.ready(0, gradient);
      gradient = null;
      comm.groupBegin();
      thrown(InvalidStateException.class, reducer::finish, "group");
      comm.groupEnd();
      System.gc();
      that(known.get() != null, "finish will write it");
      reducer.finish();
    }
  }

  private static void sizes(Comm comm) throws Exception {
    Class<InvalidArgumentException> refused = InvalidArgumentException.class;
    thrown(refused, () -> comm.allgather(floats(4), floats(4)), "recv", "8 are wanted");
    thrown(refused, () -> comm.allgatherAsync(floats(4), floats(7)), "recv");
    thrown(refused, () -> comm.reduceScatter(floats(4), floats(4), ReduceOp.SUM), "send", "8");
    thrown(refused, () -> comm.allgather(new int[2], new int[3]), "recv");
    thrown(refused, () -> comm.send(floats(1), comm.rank()), "peer");
    comm.barrier();
  }

  private static void afterLeave() throws Exception {
    try (Job job = Job.init(); Comm comm = job.world()) {
      ByteBuffer memory = comm.allocate(4096).buffer();
      Reducer reducer = new Reducer(comm, List.of(new Param("w", 4, Dtype.F32)));
      ByteBuffer gradient = reducer.gradient(0);
      job.leave();
      job.leave();
      memory.putInt(0, 1);
      gradient.putInt(0, 1);
      thrown(InvalidStateException.class, () -> comm.allreduce(floats(1), floats(1), ReduceOp.SUM));
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
        FloatBuffer buffer = floats(64);
        Thread thread = new Thread(() -> {
          try {
            for (;;) {
              comm.allreduce(buffer, buffer, ReduceOp.SUM);
              comm.allreduceAsync(buffer, buffer, ReduceOp.SUM).await();
              job.place();
              sampler.length();
            }
          } catch (InvalidArgumentException e) {
            return; // closed
          } catch (Throwable e) {
            synchronized (wrong) {
              wrong.add(e);
            }
          }
        });
        thread.start();
        threads.add(thread);
      }
      FloatBuffer last = floats(64);
      for (int i = 0; i < 50; i++) comm.allreduce(last, last, ReduceOp.SUM);
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
        works.add(comm.allreduceAsync(floats(8), floats(8), ReduceOp.SUM));
      }
      job.store().set("issued", new byte[0]);
      for (Work each : works) {
        var failed = each.future().handle((nothing, e) -> e).get(30, TimeUnit.SECONDS);
        that(failed instanceof DtTimeoutException || failed instanceof AbortedException,
            "each fails: " + failed);
      }
      thrown(DtException.class, comm::check);
      thrown(DtException.class, () -> comm.allreduceAsync(floats(8), floats(8), ReduceOp.SUM));
      job.store().set("failed", new byte[0]);
    });
  }

  private static void abort() throws Exception {
    try (StoreServer server = Ranks.serve(2)) {
      Thread other = new Thread(() -> {
        try (Config config = Ranks.config(1, 2, server.port()); Job job = Job.init(config)) {
          job.store().get("joined");
          job.abort("no more \u20ac");
        }
      });
      other.start();
      try (Config config = Ranks.config(0, 2, server.port()); Job job = Job.init(config);
          Comm comm = job.world()) {
        job.store().set("joined", new byte[0]);
        DtException e =
            thrown(AbortedException.class,
                () -> comm.allreduce(floats(1), floats(1), ReduceOp.SUM), "no more \u20ac");
        equal(e.rank(), 1);
        that(!e.host().isEmpty() && e.pid() > 0, "who aborted");
      }
      other.join(Ranks.DEADLINE_MS);
    }
  }
}
