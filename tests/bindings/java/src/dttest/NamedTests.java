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
import io.dt.Combine;
import io.dt.Comm;
import io.dt.DataType;
import io.dt.InvalidArgumentException;
import io.dt.Job;
import io.dt.MismatchException;
import io.dt.Named;
import io.dt.NamedOptions;
import io.dt.Outer;
import io.dt.OuterFormat;
import io.dt.OuterOptions;
import io.dt.OuterParam;
import io.dt.ReduceOp;
import io.dt.SystemException;
import io.dt.Tensor;
import io.dt.UnsupportedException;
import io.dt.Work;
import java.lang.ref.WeakReference;
import java.nio.ByteBuffer;
import java.nio.FloatBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/** Operations by name, and parameters that come together now and then. */
final class NamedTests {
  private static final Duration LIMIT = Duration.ofSeconds(30);

  private NamedTests() {}

  static void add() {
    for (int size : new int[] {1, 2, 3}) {
      test("named: all kinds in an order of each rank, " + size + " ranks", () ->
          Ranks.run(size, (job, world) -> kinds(world)));
    }
    test("named: futures and groups", () -> Ranks.run(2, (job, world) -> groups(world)));
    test("named: what is dropped goes on", () -> Ranks.run(2, NamedTests::dropped));
    test("named: join and report", () -> Ranks.run(2, NamedTests::join));
    test("named: what is refused", () -> Ranks.run(2, NamedTests::refusals));
    test("outer: the mean of the parameters, DiLoCo, and files", () ->
        Ranks.run(2, (job, world) -> outer(world)));
    test("outer: memory, and what is refused", () ->
        SafetyTests.alone((job, world) -> outerRefusals(world)));
  }

  private static Tensor ints(long... values) {
    var buffer = Ranks.bytes(8 * values.length).asLongBuffer().put(values).flip();
    return Tensor.of(buffer);
  }

  private static void kinds(Comm world) {
    int rank = world.rank();
    int size = world.size();
    try (Named named = new Named(world)) {
      for (int step = 0; step < 3; step++) {
        List<Integer> order = new ArrayList<>();
        for (int i = 0; i < 40; i++) order.add(i);
        Collections.shuffle(order, new Random(rank));
        List<Work> works = new ArrayList<>();
        List<Runnable> checks = new ArrayList<>();
        for (int i : order) {
          Comm by = named.under("tensor " + i);
          FloatBuffer data = floats(size);
          FloatBuffer result = floats(size);
          for (int r = 0; r < size; r++) data.put(r, 100 * rank + i + r);
          Tensor send = Tensor.of(data);
          Tensor recv = Tensor.of(result);
          float sum = 100f * size * (size - 1) / 2 + size * (i + rank);
          works.add(switch (i % 5) {
            case 0 -> by.allReduceAsync(send, recv, ReduceOp.SUM);
            case 1 -> by.broadcastAsync(send, size - 1);
            case 2 -> by.allGatherAsync(send.slice(0, 1), recv);
            case 3 -> by.reduceScatterAsync(send, recv.slice(0, 1), ReduceOp.SUM);
            default -> by.allToAllAsync(send, recv);
          });
          checks.add(() -> equal(switch (i % 5) {
            case 0 -> result.get(rank);
            case 1 -> data.get(0);
            case 2, 4 -> result.get(size - 1);
            default -> result.get(0);
          }, switch (i % 5) {
            case 0, 3 -> sum;
            case 1, 2 -> 100f * (size - 1) + i;
            default -> 100f * (size - 1) + i + rank;
          }));
        }
        for (Work each : works) that(each.await(LIMIT), "it ends");
        checks.forEach(Runnable::run);
      }
      equal(named.statistics().tensors(), 120L);
      equal(named.statistics().cacheHits(), 80L);
      float[] array = {rank, 1};
      named.under("an array").withTimeout(LIMIT).allReduce(Tensor.of(array), ReduceOp.MAX);
      equal(array[0], size - 1f);
    }
  }

  private static void groups(Comm world) throws Exception {
    int rank = world.rank();
    try (Named named = new Named(world, NamedOptions.DEFAULT)) {
      List<FloatBuffer> buffers = new ArrayList<>();
      List<Work> works = named.group(group -> {
        for (int i = 0; i < 10; i++) {
          FloatBuffer buffer = floats(3).put(2, rank + i);
          buffers.add(buffer);
          Work work = group.under("w" + i).allReduceAsync(Tensor.of(buffer), ReduceOp.AVG);
          refused(InvalidArgumentException.class, work::test, "its group is not submitted");
        }
        refused(
            InvalidArgumentException.class, () -> group.under("x").allReduce(ints(1)),
            "allReduce: the call waits", "call allReduceAsync");
      });
      if (rank == 1) Collections.reverse(works);
      for (Work each : works) each.future().get(30, TimeUnit.SECONDS);
      for (int i = 0; i < 10; i++) equal(buffers.get(i).get(2), i + 0.5f);
      equal(named.statistics().operations(), 1L);
      equal(named.group(group -> {}).size(), 0);
      Tensor memory = world.allocate(1, DataType.F32);
      List<CompletableFuture<Void>> futures = new ArrayList<>();
      var own = thrown(IllegalStateException.class, () -> named.group(group -> {
        futures.add(group.under("y").allReduceAsync(memory).future());
        throw new IllegalStateException();
      }));
      failed(futures, own);
      memory.close(); // which nothing uses
      thrown(ClosedException.class, () -> named.under("z").allReduceAsync(memory));
    }
  }

  /** Of a group that was not submitted. */
  private static void failed(List<CompletableFuture<Void>> futures, Throwable cause) {
    for (CompletableFuture<Void> each : futures) {
      that(each.isCompletedExceptionally(), "it has ended");
      equal(each.handle((nothing, e) -> e).join(), cause);
    }
  }

  /** Inside a lambda that throws nothing checked. */
  private static void refused(Class<? extends Throwable> type, Check.Body body, String... parts) {
    try {
      thrown(type, body, parts);
    } catch (Exception e) {
      throw new AssertionError(e);
    }
  }

  private static void dropped(Job job, Comm world) throws Exception {
    if (world.rank() == 1) {
      try (Named named = new Named(world)) {
        job.store().get("dropped");
        named.under("w").allReduce(Tensor.of(new float[1]));
        job.store().get("seen");
      }
      return;
    }
    WeakReference<FloatBuffer> buffer = forgotten(new Named(world));
    for (int i = 0; i < 20; i++) System.gc();
    that(buffer.get() != null, "it is kept until the work is done");
    job.store().set("dropped", new byte[0]);
    for (int i = 0; i < 10_000 && buffer.get() != null; i++) System.gc();
    that(buffer.get() == null, "it is let go of");
    job.store().set("seen", new byte[0]);
  }

  private static WeakReference<FloatBuffer> forgotten(Named named) {
    FloatBuffer buffer = floats(1);
    named.under("w").allReduceAsync(Tensor.of(buffer));
    return new WeakReference<>(buffer);
  }

  private static void join(Job job, Comm world) throws Exception {
    try (Named named = new Named(world)) {
      if (world.rank() == 1) {
        job.store().get("reported");
        that(named.join(Duration.ZERO) <= 0, "not this rank");
        while (named.join(Duration.ofSeconds(1)) < 0) {}
        return;
      }
      Work work = named.under("tail").allReduceAsync(ints(5));
      that(
          named.report(LIMIT).contains("\"tail\" (allreduce i64 sum x 1) was submitted by rank 0"),
          "the report");
      job.store().set("reported", new byte[0]);
      work.await();
      equal(named.join(LIMIT), 0);
    }
  }

  private static void refusals(Job job, Comm world) throws Exception {
    Named named = new Named(world);
    Comm by = named.under("a name");
    thrown(
        MismatchException.class, () -> by.allReduce(Tensor.of(new float[1 + world.rank()])),
        "\"a name\"");
    thrown(UnsupportedException.class, by::barrier, "by name go allreduce");
    Combine custom = Combine.of((in, inOut) -> {});
    thrown(UnsupportedException.class, () -> by.allReduce(ints(1), custom), "of the caller");
    thrown(
        InvalidArgumentException.class, () -> by.allReduceAsync(Tensor.of(new float[1])),
        "allReduce: send is an array");
    thrown(InvalidArgumentException.class, () -> named.under("").allReduce(ints(1)), "name");
    thrown(InvalidArgumentException.class, () -> named.under(null), "Named.under: name is null");
    thrown(
        InvalidArgumentException.class, () -> named.under("x".repeat(1001)).allReduce(ints(1)),
        "Named.under: name has 1001 bytes");
    thrown(
        InvalidArgumentException.class,
        () -> new Named(world, new NamedOptions(1, 1, -1, 1)), "new Named: stallMs is -1");
    List<CompletableFuture<Void>> futures = new ArrayList<>();
    var refusal = thrown(InvalidArgumentException.class, () -> named.group(group -> {
      for (int i = 0; i < 2; i++) {
        futures.add(group.under("twice").allReduceAsync(ints(1)).future());
      }
    }), "Named.group: names[1] is \"twice\"");
    failed(futures, refusal);
    Work pending = world.rank() == 0 ? named.under("never").allReduceAsync(ints(1)) : null;
    world.barrier();
    named.close();
    named.close();
    if (pending != null) thrown(AbortedException.class, pending::await);
    thrown(ClosedException.class, () -> by.allReduce(ints(1)), "Named is closed");
    thrown(ClosedException.class, () -> by.allReduceAsync(ints(1)), "Named is closed");
    thrown(ClosedException.class, () -> named.under("x"), "Named is closed");
    thrown(ClosedException.class, () -> named.join(LIMIT), "Named is closed");
    thrown(ClosedException.class, () -> named.group(group -> {}), "Named is closed");
    world.barrier(); // the communicator is whole
  }

  private static void train(FloatBuffer values, int rank) {
    for (int i = 0; i < values.capacity(); i++) values.put(i, values.get(i) + (rank + 1) * (i + 1));
  }

  private static void outer(Comm world) throws Exception {
    int rank = world.rank();
    FloatBuffer own = floats(2);
    Tensor memory = world.allocate(3, DataType.F32);
    FloatBuffer shared = memory.buffer().asFloatBuffer();
    List<OuterParam> params =
        List.of(new OuterParam("a", Tensor.of(own)), new OuterParam("", memory));
    OuterOptions local = new OuterOptions(2, 1, 0, 0, 1, 0, false, OuterFormat.F32);
    try (Outer outer = new Outer(world, params, local)) {
      memory.close(); // it goes with the last use
      for (int step = 1; step <= 4; step++) {
        train(own, rank);
        train(shared, rank);
        equal(outer.step(), step % 2 == 0);
      }
      for (int i = 0; i < 2; i++) near(own.get(i), 4 * 1.5 * (i + 1), 1e-4);
      for (int i = 0; i < 3; i++) near(shared.get(i), 4 * 1.5 * (i + 1), 1e-4);
    }
    FloatBuffer one = floats(1);
    Path path = Path.of(System.getProperty("java.io.tmpdir"), "dt-outer-" + ProcessHandle.current().pid());
    try (Outer outer =
        new Outer(world, List.of(new OuterParam("w", Tensor.of(one))), new OuterOptions(1))) {
      train(one, rank);
      outer.step();
      double wanted = 0.7 * 1.9 * 1.5; // the first step of Nesterov's momentum
      near(one.get(0), wanted, 1e-5);
      if (rank == 0) outer.save(path);
      world.barrier();
      one.put(0, rank);
      outer.load(path);
      near(one.get(0), wanted, 1e-5);
      equal(outer.steps(), 1L);
      try (Comm part = world.split(0, 0)) {
        outer.move(part);
        train(one, rank);
        outer.sync();
        near(one.get(0), wanted + 0.7 * 1.5 * (1 + 0.9 * 1.9), 1e-5);
      }
    } finally {
      if (rank == 0) Files.deleteIfExists(path);
    }
  }

  private static void outerRefusals(Comm world) throws Exception {
    OuterOptions options = new OuterOptions(1);
    Tensor direct = Tensor.of(floats(1));
    record Case(Tensor data, OuterOptions options, String text) {}
    ByteBuffer readOnly = Ranks.bytes(4).asReadOnlyBuffer().order(java.nio.ByteOrder.nativeOrder());
    for (Case each :
        List.of(
            new Case(Tensor.of(new float[1]), options, "params[0].data is an array"),
            new Case(Tensor.of(readOnly, DataType.F32), options, "params[0].data is read-only"),
            new Case(ints(1), options, "new Outer: params[0].dtype is i64; it must be f32"),
            new Case(direct, new OuterOptions(0), "new Outer: syncEvery is 0"))) {
      thrown(
          InvalidArgumentException.class,
          () -> new Outer(world, List.of(new OuterParam("w", each.data)), each.options), each.text);
    }
    thrown(InvalidArgumentException.class, () -> new Outer(world, List.of(), options), "count is 0");
    Tensor memory = world.allocate(1, DataType.F32);
    Outer outer = new Outer(world, List.of(new OuterParam("", memory)), options);
    memory.close();
    for (int i = 0; i < 3; i++) {
      System.gc();
      that(outer.step(), "its memory is there");
    }
    thrown(SystemException.class, () -> outer.save(Path.of("/nowhere/model")), "/nowhere");
    thrown(InvalidArgumentException.class, () -> outer.load(null), "path is null");
    outer.close();
    outer.close();
    thrown(ClosedException.class, outer::step, "Outer is closed");
    thrown(ClosedException.class, () -> outer.move(world), "Outer is closed");
    thrown(ClosedException.class, () -> outer.load(Path.of("x")), "Outer is closed");
  }
}
