// SPDX-License-Identifier: Apache-2.0
package dttest;

import static dttest.Check.equal;
import static dttest.Check.near;
import static dttest.Check.test;
import static dttest.Check.that;
import static dttest.Check.thrown;
import static dttest.Ranks.floats;

import io.dt.AbortedException;
import io.dt.ClosedException;
import io.dt.Config;
import io.dt.ConfigException;
import io.dt.DtTimeoutException;
import io.dt.InvalidArgumentException;
import io.dt.InvalidStateException;
import io.dt.MismatchException;
import io.dt.Ps;
import io.dt.PsInitial;
import io.dt.PsOptimizer;
import io.dt.PsOptions;
import io.dt.PsPlace;
import io.dt.PsRole;
import io.dt.PsServer;
import io.dt.PsServerOptions;
import io.dt.PsServerStatistics;
import io.dt.PsSpec;
import io.dt.PsVariable;
import io.dt.Tensor;
import io.dt.Work;
import java.lang.ref.WeakReference;
import java.nio.FloatBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;

/** Parameter servers of this process, and workers that are its threads. */
final class PsTests {
  private static final Duration LIMIT = Duration.ofMillis(Ranks.DEADLINE_MS);
  private static final int ROWS = 10;
  private static final int COLUMNS = 3;

  private PsTests() {}

  static void add() {
    test("ps: two workers and two servers", PsTests::together);
    test("ps: optimizers, initial values and checkpoints", PsTests::specs);
    test("ps: futures, and what is dropped goes on", PsTests::works);
    test("ps: the clock, leaving and closing", PsTests::ends);
    test("ps: what is refused", PsTests::refusals);
  }

  /** The servers of a job. */
  private static final class Servers implements AutoCloseable {
    final List<PsServer> all = new ArrayList<>();
    final Config config = new Config();

    Servers(int count, int workers, PsServerOptions options) {
      String[] addresses = new String[count];
      Arrays.fill(addresses, "127.0.0.1:0");
      String any = String.join(",", addresses);
      for (int i = 0; i < count; i++) {
        try (Config own = new Config()) {
          own.set("ps.servers", any).set("ps.index", "" + i).set("ps.workers", "" + workers);
          all.add(new PsServer(own, options));
        }
        addresses[i] = "127.0.0.1:" + all.get(i).port();
      }
      config.set("ps.servers", String.join(",", addresses)).set("ps.workers", "" + workers);
    }

    @Override
    public void close() {
      for (PsServer each : all) each.close();
      config.close();
    }
  }

  private static Ps connect(Servers servers, int worker) {
    return new Ps(
        servers.config, new PsOptions(worker, Ranks.DEADLINE_MS, Ranks.DEADLINE_MS, 1 << 20));
  }

  private static void together() throws Exception {
    AtomicReference<Throwable> failure = new AtomicReference<>();
    try (Servers servers = new Servers(2, 2, PsServerOptions.DEFAULT)) {
      equal(Ps.info(servers.config), new PsPlace(PsRole.WORKER, 0, 2, 2, 0));
      Thread[] threads = new Thread[2];
      CyclicBarrier connected = new CyclicBarrier(2); // the clock waits for nobody else
      for (int i = 0; i < 2; i++) {
        int worker = i;
        threads[i] = new Thread(() -> {
          try (Ps ps = connect(servers, worker)) {
            connected.await(30, TimeUnit.SECONDS);
            train(ps, worker);
            ps.leave();
          } catch (Throwable e) {
            failure.compareAndSet(null, e);
          }
        });
        threads[i].setDaemon(true);
        threads[i].start();
      }
      for (Thread each : threads) {
        each.join(Ranks.DEADLINE_MS);
        that(!each.isAlive(), "a worker hangs");
      }
      if (failure.get() != null) throw new AssertionError("a worker failed", failure.get());
      long pushed = 0;
      for (PsServer each : servers.all) {
        that(each.await(LIMIT), "all have left");
        each.await();
        PsServerStatistics seen = each.statistics();
        pushed += seen.pushedRows();
        equal(seen.workers(), 0);
      }
      equal(pushed, 2L * (ROWS + 3 + 1)); // of equal rows one, and of a set
    }
  }

  private static void train(Ps ps, int worker) {
    long[] rows = {7, 2, 7, 0};
    PsSpec spec = new PsSpec(PsOptimizer.SGD, 0.5).withInitial(PsInitial.CONSTANT, 1, 0);
    PsVariable weight = ps.variable("w", ROWS, COLUMNS, spec);
    float[] whole = new float[ROWS * COLUMNS];
    float[] wanted = new float[ROWS * COLUMNS];
    for (int i = 0; i < whole.length; i++) {
      whole[i] = i;
      wanted[i] = 1 - 2 * 0.5f * i;
    }
    weight.push(Tensor.of(whole));
    float[] some = new float[rows.length * COLUMNS];
    Arrays.fill(some, worker + 1);
    weight.push(Tensor.of(some), rows, 1);
    ps.clock(0);
    for (long row : rows) {
      for (int c = 0; c < COLUMNS; c++) wanted[(int) row * COLUMNS + c] -= 1 + 2;
    }
    weight.pull(Tensor.of(whole));
    that(Arrays.equals(whole, wanted), "all rows");
    FloatBuffer two = floats(2 * COLUMNS);
    weight.pull(Tensor.of(two), new long[] {9, 2});
    for (int c = 0; c < COLUMNS; c++) {
      equal(two.get(c), wanted[9 * COLUMNS + c]);
      equal(two.get(COLUMNS + c), wanted[2 * COLUMNS + c]);
    }
    weight.pull(Tensor.of(new float[0]), new long[0]);
    ps.clock(0);
    weight.set(Tensor.of(whole).slice(0, COLUMNS), new long[] {worker});
    weight.pull(Tensor.of(some).slice(COLUMNS, COLUMNS), new long[] {worker});
    equal(some[COLUMNS + 1], whole[1]);
    equal(ps.statistics().clock(), 2L);
    equal(ps.statistics().pushedRows(), ROWS + 4L + 1);
    equal(ps.statistics().pulledRows(), ROWS + 2L + 1);
    equal(weight.toString(), "PsVariable \"w\" of 10 rows, 3 columns");
    equal(weight.rows() * weight.columns(), 30L);
  }

  private static float only(PsVariable variable, float gradient) {
    variable.push(Tensor.of(new float[] {gradient}));
    float[] value = new float[1];
    variable.pull(Tensor.of(value));
    return value[0];
  }

  private static void specs() throws Exception {
    Path folder = Files.createTempDirectory("dt-ps");
    PsServerOptions options = new PsServerOptions(folder);
    PsSpec uniform =
        new PsSpec(PsOptimizer.SGD, 1).withInitial(PsInitial.UNIFORM, 0.5, -1);
    float[] first = new float[100];
    try (Servers servers = new Servers(1, 1, options); Ps ps = connect(servers, 0)) {
      // 2 * 3 / sqrt(3 * 3)
      near(only(ps.variable("a", 1, 1, new PsSpec(PsOptimizer.ADAGRAD, 2)), 3), -2, 1e-6);
      PsSpec momentum =
          new PsSpec(
              PsOptimizer.MOMENTUM, 1, 0.5, true, 0.9, 0.999, 1e-8, PsInitial.CONSTANT, 0, 0);
      near(only(ps.variable("m", 1, 1, momentum), 1), -1.5, 0);
      near(only(ps.variable("d", 1, 1, new PsSpec(PsOptimizer.ADAM, 1)), 4), -1, 1e-6);
      ps.variable("u", 50, 2, uniform).pull(Tensor.of(first));
      for (float each : first) near(each, 0, 0.5);
      that(first[0] != first[1], "numbers");
      thrown(
          MismatchException.class, () -> ps.variable("u", 50, 3, uniform),
          "columns is 2 there and 3 here");
      ps.save();
      that(servers.all.get(0).statistics().saves() >= 1, "a checkpoint");
      ps.leave();
    }
    Path file = folder.resolve("server-0-of-1.safetensors");
    that(Files.exists(file), "the checkpoint");
    try (Servers servers = new Servers(1, 1, options); Ps ps = connect(servers, 0)) {
      float[] again = new float[100];
      ps.variable("u", 50, 2, uniform).pull(Tensor.of(again));
      that(Arrays.equals(again, first), "of the checkpoint");
      ps.leave();
    }
    Files.delete(file);
    Files.delete(folder);
  }

  @SuppressWarnings("try") // closed early on purpose
  private static void works() throws Exception {
    try (Servers servers = new Servers(2, 1, PsServerOptions.DEFAULT);
        Ps ps = connect(servers, 0)) {
      PsVariable weight = ps.variable("w", ROWS, COLUMNS, new PsSpec(PsOptimizer.SGD, 1));
      List<Work> works = new ArrayList<>();
      float[] ones = new float[ROWS * COLUMNS];
      Arrays.fill(ones, -1);
      for (int i = 0; i < 5; i++) works.add(weight.pushAsync(Tensor.of(ones), null, -1));
      works.add(weight.setAsync(Tensor.of(new float[] {8, 8, 8}), new long[] {3}));
      FloatBuffer out = floats(ROWS * COLUMNS);
      works.add(weight.pullAsync(Tensor.of(out), null));
      for (Work each : works) each.future().get(30, TimeUnit.SECONDS);
      for (int i = 0; i < ROWS * COLUMNS; i++) equal(out.get(i), i / COLUMNS == 3 ? 8f : 5f);
      equal(Work.awaitAny(works, Duration.ZERO), 0);
      thrown(
          InvalidArgumentException.class, () -> weight.pullAsync(Tensor.of(ones), null),
          "PsVariable.pullAsync: values is an array");
      that(ps.workFd() >= 0, "an eventfd");

      List<WeakReference<FloatBuffer>> dropped = new ArrayList<>();
      for (int i = 0; i < 20; i++) dropped.add(forgotten(weight));
      weight.pull(Tensor.of(ones));
      for (WeakReference<FloatBuffer> each : dropped) {
        for (int i = 0; i < 10_000 && each.get() != null; i++) System.gc();
        that(each.get() == null, "it is let go of");
      }
      // What has no answer yet ends with its worker.
      for (PsServer each : servers.all) each.close();
      Work last = weight.pullAsync(Tensor.of(out), null);
      ps.close();
      Throwable cause =
          thrown(ExecutionException.class, () -> last.future().get(30, TimeUnit.SECONDS))
              .getCause();
      that(cause instanceof AbortedException, "aborted");
      thrown(AbortedException.class, last::await);
    }
  }

  private static WeakReference<FloatBuffer> forgotten(PsVariable weight) {
    FloatBuffer buffer = floats(ROWS * COLUMNS);
    weight.pullAsync(Tensor.of(buffer), null);
    return new WeakReference<>(buffer);
  }

  @SuppressWarnings("try")
  private static void ends() throws Exception {
    try (Servers servers = new Servers(1, 2, PsServerOptions.DEFAULT);
        Ps fast = new Ps(servers.config, new PsOptions(0, 60_000, 2000, 1 << 20));
        Ps slow = connect(servers, 1)) {
      fast.clock(-1);
      fast.clock(2);
      thrown(DtTimeoutException.class, () -> fast.clock(0), "worker 1");
      PsVariable weight = slow.variable("w", 1, 1, PsSpec.DEFAULT);
      slow.leave();
      slow.leave();
      Tensor one = Tensor.of(new float[1]);
      thrown(InvalidStateException.class, () -> weight.push(one), "PsVariable.push", "has left");
      that(!servers.all.get(0).await(Duration.ZERO), "the other one has not left");
      slow.close();
      slow.close();
      thrown(ClosedException.class, () -> weight.push(one), "Ps is closed");
      thrown(ClosedException.class, () -> weight.pullAsync(Tensor.of(floats(1)), null));
      fast.leave();
      fast.close();
      that(servers.all.get(0).await(LIMIT), "all have left");
      servers.all.get(0).close();
      thrown(ClosedException.class, () -> servers.all.get(0).port(), "PsServer is closed");
    }
  }

  private static void refused(Check.Body body, String... parts) throws Exception {
    thrown(InvalidArgumentException.class, body, parts);
  }

  private static void refusals() throws Exception {
    try (Servers servers = new Servers(2, 1, PsServerOptions.DEFAULT);
        Ps ps = connect(servers, 0)) {
      PsVariable weight = ps.variable("w", 4, 2, PsSpec.DEFAULT);
      Tensor eight = Tensor.of(new float[8]);
      refused(
          () -> weight.push(Tensor.of(new float[7])),
          "PsVariable.push: gradients has 7 elements, but there are 4 rows of 2 columns; give");
      refused(() -> weight.push(eight, new long[1]), "there are 1 rows of 2 columns");
      refused(() -> weight.push(eight, null, Double.NaN), "it must be finite, or negative");
      refused(() -> weight.push(null), "PsVariable.push: gradients is null");
      refused(() -> weight.set(Tensor.of(new double[8]), null), "values is not of f32");
      refused(
          () -> weight.pull(Tensor.of(floats(8).asReadOnlyBuffer())),
          "PsVariable.pull: values is read-only");
      refused(
          () -> weight.pull(Tensor.of(new float[2]), new long[] {4}),
          "PsVariable.pull: rows[0] is 4; variable \"w\" has 4 rows");
      refused(() -> ps.variable("v", 0, 1, PsSpec.DEFAULT), "Ps.variable: rows is 0; it must be");
      refused(() -> ps.variable("", 1, 1, PsSpec.DEFAULT), "name has 0 bytes");
      refused(
          () -> ps.variable("v", 1, 1, new PsSpec(PsOptimizer.SGD, -1)),
          "Ps.variable: rate is -1; it must be at least 0");
      refused(() -> ps.variable("v", 1, 1, new PsSpec(null, 1)), "Ps.variable: optimizer is null");
      refused(() -> ps.clock(-2), "Ps.clock: ahead is -2; it must be at least -1");
      refused(
          () -> new Ps(servers.config, new PsOptions(0, 0, 0, 0)),
          "new Ps: queueBytes is 0; it must be at least 1");
      refused(
          () -> new PsServer(null, new PsServerOptions(null, 0, -1, 0)),
          "new PsServer: absentMs is -1; it must be at least 0");
      thrown(InvalidStateException.class, ps::save, "Ps.save: ");
      thrown(
          ConfigException.class, () -> new PsServer(servers.config, PsServerOptions.DEFAULT),
          "new PsServer: this process is no parameter server");
      thrown(ConfigException.class, () -> Ps.info(null), "Ps.info: ", "dt run --servers N");
      ps.leave();
    }
  }
}
