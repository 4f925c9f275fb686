// SPDX-License-Identifier: Apache-2.0
package dttest;

import static dttest.Check.equal;
import static dttest.Check.near;
import static dttest.Check.test;
import static dttest.Check.that;
import static dttest.Check.thrown;
import static dttest.Ranks.floats;

import io.dt.BatchGradientSums;
import io.dt.BatchMoments;
import io.dt.BatchNorm;
import io.dt.Comm;
import io.dt.Config;
import io.dt.DataType;
import io.dt.DtException;
import io.dt.DtTimeoutException;
import io.dt.InvalidArgumentException;
import io.dt.InvalidStateException;
import io.dt.Job;
import io.dt.JobStatistics;
import io.dt.LogLevel;
import io.dt.MismatchException;
import io.dt.OperationKind;
import io.dt.OperationStatistics;
import io.dt.Param;
import io.dt.PowerSgd;
import io.dt.ReduceOp;
import io.dt.Reducer;
import io.dt.ReducerOptions;
import io.dt.ReducerStatistics;
import io.dt.Sampler;
import io.dt.Shard;
import io.dt.ShardOptions;
import io.dt.Store;
import io.dt.StoreServer;
import io.dt.Tensor;
import io.dt.Wire;
import io.dt.Work;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/** Store, reducer, log sink. */
final class JobTests {
  private JobTests() {}

  static void add() {
    test("the store keeps any bytes", () -> Ranks.run(2, (job, world) -> store(job)));
    test("a reducer by pointer gives the mean", () ->
        Ranks.run(2, (job, world) -> reduce(world, false)));
    test("a reducer in place gives the mean", () ->
        Ranks.run(3, (job, world) -> reduce(world, true)));
    test("passes and parts are summed", () -> Ranks.run(2, (job, world) -> accumulate(world)));
    test("the wire, users and the norm", () -> Ranks.run(2, (job, world) -> norm(world)));
    test("a function reduces the buckets", () -> Ranks.run(2, (job, world) -> hook(world)));
    test("a hook returns works that have ended", () ->
        Ranks.run(2, (job, world) -> endedWorks(world)));
    test("PowerSGD", () -> Ranks.run(2, (job, world) -> powerSgd(world)));
    test("errors of 8 bits", () -> Ranks.run(2, (job, world) -> errors(world)));
    test("a gradient as rows", () -> Ranks.run(2, (job, world) -> rows(world)));
    test("gradients in memory of one's own", () -> Ranks.run(2, (job, world) -> inOwnMemory(world)));
    test("what a rank does not use", () -> Ranks.run(2, (job, world) -> unused(world)));
    test("a reducer names what is missing", () -> Ranks.run(2, (job, world) -> missing(world)));
    test("gradients are kept while garbage is collected", () ->
        Ranks.run(2, (job, world) -> kept(world)));
    test("data, samplers and parameters that differ", () ->
        Ranks.run(3, (job, world) -> differ(world)));
    test("votes, pauses and stops", () -> Ranks.run(3, (job, world) -> votes(job)));
    test("operations are counted", () -> Ranks.run(2, (job, world) -> counts(job, world)));
    test("a log sink receives, and may throw", JobTests::sink);
  }

  private static void votes(Job job) throws Exception {
    int rank = job.place().rank();
    that(job.agree(true), "all agree");
    that(!job.agree(rank != 1), "one does not");
    thrown(InvalidArgumentException.class, () -> job.busyBegin("checkpoint", Duration.ZERO));
    job.busyBegin(null, Duration.ofSeconds(1));
    job.busyBegin("checkpoint \u20ac", Duration.ofMinutes(1));
    job.busyEnd();
    that(!job.stopRequested(), "nobody asked");
    if (rank == 2) job.requestStop();
    that(job.stopRequested(), "one asked");
    thrown(InvalidArgumentException.class, () -> job.traceDump(null));
    Path folder = Files.createTempDirectory("dt");
    job.traceDump(folder.toString());
    Files.delete(folder.resolve("rank-0000" + rank + ".dttrace"));
    Files.delete(folder);
  }

  private static void counts(Job job, Comm world) throws Exception {
    long before = job.statistics().operations().get(OperationKind.ALLREDUCE).operations();
    Tensor values = Tensor.of(new float[250]);
    for (int i = 0; i < 3; i++) world.allReduce(values);
    JobStatistics statistics = job.statistics();
    equal(statistics.restarts(), 0);
    equal(statistics.hiddenShare(), 1.0);
    equal(statistics.operations().size(), 16);
    OperationStatistics allreduces = statistics.operations().get(OperationKind.ALLREDUCE);
    equal(allreduces.operations(), before + 3);
    equal(allreduces.failures(), 0L);
    equal(allreduces.bytes(), 3000L);
    equal(allreduces.busBytes(), 3000L);
    that(allreduces.busyNs() > 0 && allreduces.busbwGbs() > 0, "they took some time");
    equal(job.peerStatistics(job.place().rank()).waits(), 0L);
    thrown(InvalidArgumentException.class, () -> job.peerStatistics(2));
  }

  private static void store(Job job) throws Exception {
    Store store = job.store().withTimeout(Duration.ofSeconds(30));
    int rank = job.place().rank();
    byte[] odd = new byte[70_000];
    for (int i = 0; i < odd.length; i++) odd[i] = (byte) (i * 7);
    if (rank == 0) store.set("odd", odd);
    that(Arrays.equals(store.get("odd"), odd), "as it was set");
    store.add("sum", rank + 1);
    store.barrier("added", 0);
    equal(store.add("sum", 0), 3L);
    store.barrier("read", 2);
    if (rank == 1) return;
    store.set("empty", new byte[0]);
    equal(store.get("empty").length, 0);
    that(store.compareSet("new", null, new byte[] {0}), "it was absent");
    that(!store.compareSet("new", null, new byte[] {1}), "it is there");
    that(!store.compareSet("new", new byte[] {9}, new byte[] {1}), "another value");
    that(store.compareSet("new", new byte[] {0}, new byte[] {0, 1}), "the expected value");
    store.multiSet(Map.of("a/1", new byte[] {1}, "a/2", new byte[] {0, 2}));
    List<byte[]> values = store.multiGet(List.of("a/2", "a/none", "a/1", "empty"));
    equal(values.size(), 4);
    equal(values.get(0)[1], (byte) 2);
    that(values.get(1) == null, "absent");
    equal(values.get(3).length, 0);
    equal(store.list("a/"), List.of("a/1", "a/2"));
    store.await(List.of("a/1", "new"));
    that(store.delete("a/1"), "it was there");
    that(!store.delete("a/1"), "it is gone");
    thrown(DtTimeoutException.class,
        () -> store.withTimeout(Duration.ofMillis(1)).get("never"), "never");
    thrown(InvalidArgumentException.class, () -> store.set("", odd), "key");
    thrown(InvalidArgumentException.class, () -> store.set("a", null), "null");
    thrown(InvalidArgumentException.class, () -> store.add("odd", 1), "odd");
  }

  private static void unused(Comm world) throws Exception {
    List<Param> params = new ArrayList<>();
    for (int i = 0; i < 3; i++) params.add(new Param("p" + i, 4, DataType.F32));
    try (Reducer reducer = new Reducer(world, params)) {
      thrown(InvalidStateException.class, () -> reducer.unused(0), "p0", "find_unused");
    }
    try (Reducer reducer = new Reducer(world, params, ReducerOptions.DEFAULT.withUnused())) {
      usedInEachStep(world, reducer);
      equal(reducer.active(), 2);
    }
    try (Reducer reducer = new Reducer(world, params, ReducerOptions.DEFAULT.withStaticGraph())) {
      usedInEachStep(world, reducer);
    }
  }

  private static void usedInEachStep(Comm world, Reducer reducer) throws Exception {
    FloatBuffer both = floats(4);
    FloatBuffer one = floats(4);
    for (int step = 0; step < 3; step++) {
      both.put(0, 6);
      one.put(0, 6);
      reducer.ready(0, Tensor.of(both));
      if (world.rank() == 1) {
        reducer.ready(1, Tensor.of(one));
      } else {
        reducer.unused(1, Tensor.of(one), 0);
      }
      reducer.finish(); // nobody has the third
      equal(both.get(0), 6f);
      equal(one.get(0), 3f);
      that(reducer.used(1), "used by one");
      that(!reducer.used(2), "used by nobody");
    }
  }

  private static void rows(Comm world) throws Exception {
    List<Param> params = List.of(new Param("table", 20, DataType.F32));
    ReducerOptions options = ReducerOptions.DEFAULT.withRowElements(new long[] {2});
    try (Reducer reducer = new Reducer(world, params, options)) {
      float[] values = {1, 2, 10, 20, 3, 4};
      reducer.readyRows(0, new long[] {3, world.rank(), 3}, Tensor.of(values));
      reducer.finish();
      Reducer.Rows found = reducer.rows(0);
      equal(Arrays.toString(found.indices()), "[0, 1, 3]");
      equal(found.values().getFloat(4), 10f);
      equal(found.values().getFloat(16), 4f);
      thrown(InvalidArgumentException.class,
          () -> reducer.readyRows(0, new long[1], Tensor.of(values)), "6 elements", "1 rows of 2");
    }
  }

  private static void inOwnMemory(Comm world) throws Exception {
    List<Param> params = List.of(new Param("p0", 4, DataType.F32), new Param("p1", 2, DataType.F32));
    FloatBuffer flat = floats(6);
    List<Tensor> places = List.of(Tensor.of(flat).slice(0, 4), Tensor.of(flat).slice(4, 2));
    ReducerOptions options = ReducerOptions.DEFAULT.withGradients(places);
    try (Reducer reducer = new Reducer(world, params, options)) {
      for (int step = 0; step < 3; step++) {
        for (int i = 0; i < 6; i++) flat.put(i, world.rank() + step);
        reducer.ready(1);
        reducer.ready(0);
        reducer.finish();
        equal(flat.get(0), step + 0.5f);
        equal(flat.get(5), step + 0.5f);
      }
      equal(reducer.statistics().memoryBytes(), 0L);
    }
    thrown(InvalidArgumentException.class,
        () -> new Reducer(world, params, options.withGradients(List.of(places.get(0), places.get(0)))),
        "options.gradients[1]", "has 4 elements of F32", "give 2 of F32");
    List<Tensor> shared = List.of(places.get(0), Tensor.of(flat).slice(3, 2));
    thrown(InvalidArgumentException.class,
        () -> new Reducer(world, params, options.withGradients(shared)), "share memory");
    thrown(InvalidArgumentException.class,
        () -> new Shard(world, params, ShardOptions.DEFAULT.withReducer(options)),
        "options.reducer", "has gradients of your own");
  }

  private static void accumulate(Comm world) throws Exception {
    List<Param> params =
        List.of(new Param("p0", 2, DataType.F32), new Param("p1", 3, DataType.F32, 2));
    try (Reducer reducer = new Reducer(world, params)) {
      FloatBuffer once = floats(2);
      FloatBuffer twice = floats(3);
      once.put(0, world.rank());
      twice.put(0, 1);
      reducer.accumulate(true);
      reducer.ready(0, Tensor.of(once));
      for (int i = 0; i < world.rank(); i++) reducer.ready(1, Tensor.of(twice));
      thrown(InvalidStateException.class, reducer::finish, "accumulate");
      reducer.accumulate(false);
      reducer.ready(0, Tensor.of(once));
      reducer.ready(1, Tensor.of(twice));
      reducer.ready(1, Tensor.of(twice));
      reducer.finish();
      equal(once.get(0), 1f);
      equal(twice.get(0), 2.5f);
    }
  }

  private static void norm(Comm world) throws Exception {
    List<Param> params =
        List.of(new Param("p0", 4, DataType.F32), new Param("p1", 2, DataType.F32));
    ReducerOptions options =
        ReducerOptions.DEFAULT.withUsersOnly().withWire(Wire.BF16).withPredivide(2);
    try (Reducer reducer = new Reducer(world, params, options)) {
      FloatBuffer both = floats(4);
      FloatBuffer one = floats(2);
      for (int i = 0; i < 4; i++) both.put(i, 3);
      for (int i = 0; i < 2; i++) one.put(i, 5);
      reducer.ready(0, Tensor.of(both));
      if (world.rank() == 1) {
        reducer.ready(1, Tensor.of(one));
      } else {
        reducer.unused(1, Tensor.of(one), 0);
      }
      reducer.finish();
      equal(both.get(0), 3f);
      equal(one.get(0), 5f);
      double norm = Math.sqrt(4 * 9 + 2 * 25);
      that(Math.abs(reducer.clipNorm(1) - norm) < 1e-4, "the norm");
      that(Math.abs(one.get(1) - 5 / norm) < 1e-4, "it is clipped");
      equal((float) reducer.clipNorm(1, Double.POSITIVE_INFINITY), one.get(0));
    }
    ReducerOptions ordered = ReducerOptions.DEFAULT.withOrder(new int[] {0, 1});
    try (Reducer reducer = new Reducer(world, params, ordered)) {
      that(java.util.Arrays.equals(reducer.order(), new int[] {0, 1}), "the order");
    }
    ReducerOptions wrong = ReducerOptions.DEFAULT.withPredivide(-1);
    thrown(
        InvalidArgumentException.class, () -> new Reducer(world, params, wrong), "predivide");
  }

  private static void powerSgd(Comm world) throws Exception {
    List<Param> params =
        List.of(new Param("p0", 64, DataType.F32), new Param("p1", 3, DataType.F32));
    try (Reducer reducer = new Reducer(world, params)) {
      reducer.powerSgd(new long[] {8, 0}, new PowerSgd(1));
      FloatBuffer matrix = floats(64);
      for (int i = 0; i < 64; i++) matrix.put(i, (i / 8 + 1) * (i % 8 - 3) * (world.rank() + 1));
      reducer.ready(0, Tensor.of(matrix));
      reducer.ready(1, Tensor.of(floats(3)));
      reducer.finish();
      for (int i = 0; i < 64; i++) {
        that(Math.abs(matrix.get(i) - (i / 8 + 1) * (i % 8 - 3) * 1.5) < 1e-3, "of rank 1");
      }
      reducer.powerSgd(new long[] {8, 0}, new PowerSgd(1).withWire(Wire.BF16));
      FloatBuffer vector = floats(3);
      vector.put(2, 1.001F);
      reducer.ready(0, Tensor.of(matrix));
      reducer.ready(1, Tensor.of(vector));
      reducer.finish();
      equal(vector.get(2), 1F);
      thrown(
          InvalidArgumentException.class,
          () -> reducer.powerSgd(new long[] {8}, new PowerSgd(1)), "1 numbers for 2 parameters");
    }
  }

  private static float lastOfStep(Reducer reducer, int rank) {
    FloatBuffer gradient = floats(70);
    for (int i = 0; i < 70; i++) gradient.put(i, 1 + i / 7F + rank);
    reducer.ready(0, Tensor.of(gradient));
    reducer.finish();
    return gradient.get(68);
  }

  private static void errors(Comm world) throws Exception {
    List<Param> params = List.of(new Param("p0", 70, DataType.F32));
    ReducerOptions options = ReducerOptions.DEFAULT.withWire(Wire.BITS8);
    Path path = Files.createTempFile("dt", "errors");
    try (Reducer reducer = new Reducer(world, params, options);
        Reducer resumed = new Reducer(world, params, options);
        Reducer plain = new Reducer(world, params)) {
      lastOfStep(reducer, world.rank());
      reducer.save(path);
      resumed.load(path);
      that(
          lastOfStep(reducer, world.rank()) == lastOfStep(resumed, world.rank()),
          "the same bits behind load()");
      thrown(MismatchException.class, () -> plain.load(path), "with compression \"8 bits\"");
    } finally {
      Files.delete(path);
    }
  }

  private static void hook(Comm world) throws Exception {
    List<Param> params =
        List.of(new Param("p0", 4, DataType.F32), new Param("p1", 2, DataType.F32));
    List<String> calls = new ArrayList<>();
    try (Reducer reducer = new Reducer(world, params)) {
      reducer.setHook(
          (bucket, stage) -> {
            calls.add(bucket.index() + " " + bucket.last() + " " + bucket.params() + " " + stage);
            return stage == 1 ? null : world.allReduceAsync(bucket.data(), ReduceOp.SUM);
          });
      FloatBuffer weight = floats(4);
      FloatBuffer bias = floats(2);
      for (int i = 0; i < 4; i++) weight.put(i, 1 + world.rank());
      reducer.ready(1, Tensor.of(bias));
      reducer.ready(0, Tensor.of(weight));
      reducer.finish();
      equal(weight.get(3), 3f);
      equal(calls, List.of("0 true [1, 0] 0", "0 true [1, 0] 1"));
      for (int i = 0; i < 500; i++) { // a work may have ended before the hook gives it away
        reducer.ready(1, Tensor.of(bias));
        reducer.ready(0, Tensor.of(weight));
        reducer.finish();
      }
      reducer.setHook(
          (bucket, stage) -> {
            if (world.rank() == 0) throw new java.io.IOException("no more");
            return stage == 1 ? null : world.allReduceAsync(bucket.data(), ReduceOp.SUM);
          });
      reducer.ready(1, Tensor.of(bias));
      if (world.rank() == 0) {
        thrown(IllegalStateException.class, () -> reducer.ready(0, Tensor.of(weight)), "no more");
      } else {
        String text = "hook failed on rank 0, bucket 0, stage 0: it returned DT_ERR_ABORTED";
        thrown(
            DtException.class,
            () -> {
              reducer.ready(0, Tensor.of(weight));
              reducer.finish();
            },
            text);
      }
    }
  }

  /** Whoever has issued them, and whenever. */
  private static void endedWorks(Comm world) throws Exception {
    List<Param> params = List.of(new Param("p", 2, DataType.F32));
    try (Reducer reducer = new Reducer(world, params)) {
      reducer.setHook(
          (bucket, stage) -> {
            if (stage == 1) return null;
            Work work =
                CompletableFuture.supplyAsync(() -> world.allReduceAsync(bucket.data())).join();
            work.future().join();
            return work;
          });
      equal(step(reducer), 2f);
      Work[] both = new Work[2];
      reducer.setHook(
          (bucket, stage) -> {
            for (int i = 0; stage == 0 && i < 2; i++) {
              both[i] = world.allReduceAsync(bucket.data());
            }
            if (stage == 0) both[1].future().join();
            return stage == 2 ? null : both[stage];
          });
      equal(step(reducer), 4f);
      reducer.setHook(
          (bucket, stage) -> {
            if (stage == 1) return null;
            world.groupBegin();
            world.allReduce(bucket.data());
            Work work = world.groupEndAsync();
            work.future().join();
            return work;
          });
      equal(step(reducer), 2f);
      try (Reducer inner = new Reducer(world, params)) {
        inner.setHook((bucket, stage) -> null);
        reducer.setHook(
            (bucket, stage) -> {
              if (stage == 1) return null;
              Work work = world.allReduceAsync(bucket.data());
              step(inner);
              work.future().join();
              return work;
            });
        equal(step(reducer), 2f);
      }
    }
  }

  /** Each rank gives 1. */
  private static float step(Reducer reducer) {
    FloatBuffer gradient = floats(2).put(0, 1);
    reducer.ready(0, Tensor.of(gradient));
    reducer.finish();
    return gradient.get(0);
  }

  private static void reduce(Comm world, boolean inPlace) {
    int n = world.size();
    int[] counts = {1000, 1, 7, 3000};
    List<Param> params = new ArrayList<>();
    for (int i = 0; i < counts.length; i++) params.add(new Param("p" + i, counts[i], DataType.F32));
    ReducerOptions options = ReducerOptions.DEFAULT.withBucketBytes(2048, 2048);
    try (Reducer reducer = new Reducer(world, params, options)) {
      for (int step = 0; step < 4; step++) {
        FloatBuffer[] gradients = new FloatBuffer[counts.length];
        for (int order = counts.length; order-- > 0; ) {
          int i = inPlace ? counts.length - 1 - order : order; // not as the first plan expects
          gradients[i] = inPlace ? reducer.gradient(i).asFloatBuffer() : floats(counts[i]);
          for (int k = 0; k < counts[i]; k++) {
            gradients[i].put(k, (world.rank() + 1) * (k + 1) + step);
          }
          if (inPlace) {
            reducer.ready(i);
          } else {
            reducer.ready(i, Tensor.of(gradients[i]));
          }
        }
        reducer.finish();
        for (int i = 0; i < counts.length; i++) {
          for (int k = 0; k < counts[i]; k++) {
            near(gradients[i].get(k), (n + 1) / 2.0 * (k + 1) + step, 1e-3 * (k + 1));
          }
        }
        if (inPlace && step == 0) {
          that(reducer.rebuild(), "they came in another order");
          System.gc();
          // Old buffers hold nothing of use, and do no harm.
          for (FloatBuffer old : gradients) old.clear().put(new float[old.capacity()]);
        }
      }
      ReducerStatistics statistics = reducer.statistics();
      equal(statistics.steps(), 4L);
      equal(statistics.bytes(), 4008L * 4);
      equal(statistics.totalBytes(), 4 * 4008L * 4);
      that(statistics.bucketCount() >= 2, "two buckets");
      that(statistics.hiddenShare() >= 0 && statistics.hiddenShare() <= 1, "a share");
      that(reducer.bucket(0) >= 0 && reducer.bucket(0) < statistics.bucketCount(), "a bucket");
    }
    try (Reducer tuned = new Reducer(world, params, options.withTuneSteps(3))) {
      while (!tuned.statistics().tuned()) {
        for (int i = 0; i < counts.length; i++) tuned.ready(i, Tensor.of(floats(counts[i])));
        tuned.finish();
      }
      that(tuned.statistics().steps() <= 12, "four sizes at most");
      that(2048 * 4 % tuned.statistics().bucketCapBytes() == 0, "the size that was found");
    }
    try (Reducer sums =
        new Reducer(world, params.subList(2, 3), options.withSum().withKeptPlan())) {
      FloatBuffer gradient = floats(7).put(6, 2);
      sums.ready(0, Tensor.of(gradient));
      sums.finish();
      equal(gradient.get(6), 2f * n);
    }
  }

  private static void missing(Comm world) throws Exception {
    List<Param> params =
        List.of(new Param("first", 4, DataType.F32), new Param("käse", 4, DataType.F32));
    try (Reducer reducer = new Reducer(world, params)) {
      reducer.ready(0, Tensor.of(floats(4)));
      if (world.rank() == 0) reducer.ready(1, Tensor.of(floats(4)));
      thrown(InvalidStateException.class, reducer::finish, "käse", "rank");
    }
  }

  /** Rank 0 has (1, 10), rank 1 nothing, rank 2 (3, 30). */
  private static void batchStatistics(Comm world) throws Exception {
    float[][] rows = {{1, 10}, {}, {3, 30}};
    Tensor own = Tensor.of(rows[world.rank()]);
    Tensor four = Tensor.of(new float[4]);
    BatchMoments moments = BatchNorm.moments(world, own, 2, 1);
    equal(Arrays.toString(moments.mean()), "[2.0, 20.0]");
    equal(Arrays.toString(moments.variance()), "[1.0, 100.0]");
    equal(moments.count(), 2L);
    BatchGradientSums sums = BatchNorm.gradientSums(world, own, own, moments, 1, 0);
    equal(Arrays.toString(sums.sum()), "[4.0, 40.0]");
    equal(Arrays.toString(sums.product()), "[2.0, 20.0]");
    thrown(
        InvalidArgumentException.class, () -> BatchNorm.moments(world, four, 3, 1),
        "has 4 elements, which are no whole samples of 3 channels x 1");
    thrown(
        InvalidArgumentException.class, () -> BatchNorm.moments(world, four, 0, 1),
        "channels is 0");
    thrown(
        InvalidArgumentException.class,
        () -> BatchNorm.gradientSums(
            world, Tensor.of(new float[2]), Tensor.of(new float[4]), moments, 1, 0),
        "gradient has 4 elements of F32, but input 2 of F32");
    thrown(
        InvalidArgumentException.class,
        () -> BatchNorm.gradientSums(world, own, own, moments, 1, -1), "epsilon is -1");
    batchStatisticsInTensors(world, moments);
  }

  /** The same elements in 16 bits; results in arrays and in direct buffers. */
  private static void batchStatisticsInTensors(Comm world, BatchMoments moments) throws Exception {
    short[][] rows = {{0x3f80, 0x4120}, {}, {0x4040, 0x41f0}};
    ByteBuffer bits = ByteBuffer.allocateDirect(2 * rows[world.rank()].length);
    bits.order(ByteOrder.nativeOrder()).asShortBuffer().put(rows[world.rank()]);
    Tensor own = Tensor.of(bits, DataType.BF16);
    double[] mean = new double[2];
    double[] variance = new double[2];
    ByteBuffer count = ByteBuffer.allocateDirect(8).order(ByteOrder.nativeOrder());
    Tensor means = Tensor.of(mean);
    Tensor variances = Tensor.of(variance);
    Tensor counts = Tensor.of(count, DataType.I64);
    BatchNorm.moments(world.on(0), own, 2, 1, means, variances, counts);
    equal(Arrays.toString(mean), Arrays.toString(moments.mean()));
    equal(Arrays.toString(variance), Arrays.toString(moments.variance()));
    equal(count.getLong(0), moments.count());
    double[] sum = new double[2];
    double[] product = new double[2];
    BatchNorm.gradientSums(
        world, own, own, means, variances, 1, 0, Tensor.of(sum), Tensor.of(product));
    equal(Arrays.toString(sum), "[4.0, 40.0]");
    equal(Arrays.toString(product), "[2.0, 20.0]");
    thrown(
        InvalidArgumentException.class, () -> BatchNorm.moments(world, own, 1 << 30, 1),
        world.rank() == 1 ? "channels is 1073741824" : "no whole samples");
    thrown(
        InvalidArgumentException.class,
        () -> BatchNorm.moments(world, own, 2, 1, means, Tensor.of(new double[3]), counts),
        "variance has 3 elements of F64; give 2 of F64");
    thrown(
        InvalidArgumentException.class,
        () -> BatchNorm.moments(world, own, 2, 1, means, variances, Tensor.of(new int[1])),
        "count has 1 elements of I32; give 1 of I64");
    thrown(
        InvalidArgumentException.class,
        () -> BatchNorm.gradientSums(
            world, own, own, means, variances, 1, 0, Tensor.of(new float[2]), Tensor.of(product)),
        "sum has 2 elements of F32; give 2 of F64");
    thrown(
        InvalidArgumentException.class,
        () -> BatchNorm.gradientSums(
            world, own, own, means, variances, 1, 0, Tensor.of(sum),
            Tensor.of(ByteBuffer.allocateDirect(16).order(ByteOrder.nativeOrder())
                .asReadOnlyBuffer().order(ByteOrder.nativeOrder()), DataType.F64)),
        "product is read-only");
    world.barrier();
  }

  private static void differ(Comm world) throws Exception {
    int rank = world.rank();
    batchStatistics(world);
    world.checkEqual(Tensor.of(Ranks.pattern(0, 100)), "weights");
    world.checkEqual(Tensor.of(new float[] {1, 2}), null);
    MismatchException e =
        thrown(
            MismatchException.class,
            () -> world.checkEqual(Tensor.of(new float[] {1, rank == 2 ? 5 : 2}), "käse"),
            "rank 2 (", "käse");
    equal(e.rank(), 2);
    try (Sampler sampler = new Sampler(world, 100, 7);
        Sampler other = new Sampler(world, 100, rank)) {
      sampler.check(world);
      thrown(MismatchException.class, () -> other.check(world), "has seed = 1");
    }
    FloatBuffer weight = Ranks.pattern(0, 10);
    try (Reducer reducer = new Reducer(world, List.of(new Param("weight", 10, DataType.F32)))) {
      reducer.watch(0, Tensor.of(weight));
      reducer.ready(0, Tensor.of(floats(10)));
      reducer.finish();
      if (rank == 1) weight.put(3, 77);
      reducer.ready(0, Tensor.of(floats(10)));
      thrown(MismatchException.class, reducer::finish, "#0 weight", "rank 1 (");
      reducer.watch(0, null);
      reducer.ready(0, Tensor.of(floats(10)));
      reducer.finish();
      thrown(InvalidArgumentException.class, () -> reducer.watch(1, null), "index");
    }
  }

  private static void kept(Comm world) {
    List<Param> params =
        List.of(new Param("a", 5000, DataType.F32), new Param("b", 5000, DataType.F32));
    try (Reducer reducer = new Reducer(world, params)) {
      for (int step = 0; step < 100; step++) {
        FloatBuffer checked = Ranks.pattern(world.rank(), 5000);
        reducer.ready(1, Tensor.of(checked));
        reducer.ready(0, Tensor.of(Ranks.pattern(world.rank(), 5000))); // nobody else has it
        System.gc();
        reducer.finish();
        for (int k = 0; k < 5000; k++) equal(checked.get(k), 1.5f + 0.5f * k);
      }
    }
  }

  /** The store's thread logs each rank that leaves, so the second message comes after the first. */
  private static void sink() throws Exception {
    List<String> messages = Collections.synchronizedList(new ArrayList<>());
    CountDownLatch two = new CountDownLatch(2);
    PrintStream before = System.err;
    ByteArrayOutputStream written = new ByteArrayOutputStream();
    System.setErr(new PrintStream(written, true, "UTF-8"));
    try (Config config = new Config()) {
      config.set("job.id", "test").set("job.world_size", "2").set("log.level", "debug");
      config.setLogSink((level, message) -> {
        messages.add(level + " " + message);
        two.countDown();
        throw new IllegalStateException("of the\nsink");
      });
      try (StoreServer server = new StoreServer(config)) {
        System.gc(); // nobody here refers to the sink any more
        Thread other = new Thread(() -> joinAndLeave(1, server.port()));
        other.start();
        joinAndLeave(0, server.port());
        other.join(Ranks.DEADLINE_MS);
        that(two.await(30, TimeUnit.SECONDS), "two messages: " + messages);
      }
      config.setLogSink(null);
    } finally {
      System.setErr(before);
    }
    that(messages.get(0).startsWith(LogLevel.DEBUG + " store: "), messages.get(0));
    String text = written.toString("UTF-8");
    that(text.contains("dt: the log sink failed: java.lang.IllegalStateException: of the sink\n"),
        text);
    equal(text.lines().filter(line -> !line.startsWith("dt: the log sink failed")).count(), 0L);
  }

  private static void joinAndLeave(int rank, int port) {
    try (Config config = Ranks.config(rank, 2, port); Job job = Job.init(config)) {
      job.leave();
    }
  }
}
