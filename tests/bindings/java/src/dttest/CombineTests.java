// SPDX-License-Identifier: Apache-2.0
package dttest;

import static dttest.Check.equal;
import static dttest.Check.test;
import static dttest.Check.that;
import static dttest.Check.thrown;

import io.dt.Blocks;
import io.dt.Combine;
import io.dt.Comm;
import io.dt.DataType;
import io.dt.DtException;
import io.dt.InvalidArgumentException;
import io.dt.Job;
import io.dt.Tensor;
import io.dt.Work;
import java.lang.ref.WeakReference;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.IntBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CompletionException;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BiConsumer;

/** Reductions by functions of Java. */
final class CombineTests {
  private static final int COUNT = 60_000; // several parts
  private static final Combine ADD = Combine.of(CombineTests::add);

  private CombineTests() {}

  static void add() {
    for (int size : new int[] {1, 2, 3}) {
      test("combine: all operations of " + size, () -> Ranks.run(size, CombineTests::all));
      test("combine: pairs of " + size, () -> Ranks.run(size, CombineTests::pairs));
    }
    test("combine: what a function throws", CombineTests::throwing);
    test("combine: on dt's own threads, while garbage is collected", CombineTests::collected);
    test("combine: what a function keeps is its own", () -> Ranks.run(2, CombineTests::kept));
    test("combine: a function goes with its operation", () -> Ranks.run(2, CombineTests::gone));
    test("combine: what is refused", () -> SafetyTests.alone((job, comm) -> refused(comm)));
  }

  private static void add(ByteBuffer in, ByteBuffer inOut) {
    that(in.order() == ByteOrder.nativeOrder() && in.remaining() == inOut.remaining(), "alike");
    for (int i = 0; i < in.limit(); i += 4) inOut.putInt(i, inOut.getInt(i) + in.getInt(i));
  }

  private static int[] mine(int rank, int count) {
    int[] values = new int[count];
    for (int i = 0; i < count; i++) values[i] = 1000 * rank + i;
    return values;
  }

  private static IntBuffer direct(int rank, int count) {
    return Ranks.bytes(4 * count).asIntBuffer().put(0, mine(rank, count));
  }

  private static int sum(int size, int i) {
    return 1000 * (size * (size - 1) / 2) + size * i;
  }

  private static void all(Job job, Comm world) {
    int size = world.size();
    int[] array = mine(world.rank(), COUNT);
    world.allReduce(Tensor.of(array), ADD);
    List<IntBuffer> buffers = new ArrayList<>();
    List<Work> works = new ArrayList<>();
    for (int i = 0; i < 4; i++) {
      buffers.add(direct(world.rank(), COUNT));
      works.add(world.allReduceAsync(Tensor.of(buffers.get(i)), ADD));
    }
    for (Work each : works) each.await();
    IntBuffer grouped = direct(world.rank(), COUNT);
    world.groupBegin();
    world.allReduce(Tensor.of(grouped), ADD);
    world.groupEnd();
    IntBuffer streamed = direct(world.rank(), COUNT);
    world.allReduceAsync(Tensor.of(streamed), ADD).waitStream(0);
    IntBuffer reduced = direct(0, COUNT);
    world.reduce(Tensor.of(direct(world.rank(), COUNT)), Tensor.of(reduced), ADD, size - 1);
    int share = COUNT / size;
    int[] part = new int[share];
    world.reduceScatter(
        Tensor.of(mine(world.rank(), share * size)), Tensor.of(part), ADD);
    long[] counts = new long[size];
    Arrays.fill(counts, share);
    IntBuffer block = direct(0, share);
    world.reduceScatterAsync(
            Tensor.of(direct(world.rank(), share * size)), Blocks.of(counts), Tensor.of(block), ADD)
        .await();
    for (int i = 0; i < COUNT; i++) {
      equal(array[i], sum(size, i));
      for (IntBuffer each : buffers) equal(each.get(i), sum(size, i));
      equal(grouped.get(i), sum(size, i));
      equal(streamed.get(i), sum(size, i));
      if (world.rank() == size - 1) equal(reduced.get(i), sum(size, i));
      if (i < share) equal(part[i], sum(size, world.rank() * share + i));
      if (i < share) equal(block.get(i), sum(size, world.rank() * share + i));
    }
  }

  /** Pairs of a value and an index: the one with the greater value stays. */
  private static void greatest(ByteBuffer in, ByteBuffer inOut) {
    for (int i = 0; i < in.limit(); i += 16) {
      if (in.getDouble(i) > inOut.getDouble(i)) inOut.put(i, in, i, 16);
    }
  }

  private static void pairs(Job job, Comm world) {
    int size = world.size();
    int rank = world.rank();
    Combine op = Combine.of(2, CombineTests::greatest);
    double[] values = new double[2 * 5000];
    for (int i = 0; i < 5000; i++) {
      values[2 * i] = (i + rank) % size;
      values[2 * i + 1] = rank;
    }
    long[] counts = new long[size];
    Arrays.fill(counts, 2);
    double[] own = new double[2];
    world.reduceScatter(
        Tensor.of(values).slice(0, 2 * size), Blocks.of(counts), Tensor.of(own), op);
    world.allReduce(Tensor.of(values), op);
    for (int i = 0; i < 5000; i++) {
      equal(values[2 * i], size - 1.0);
      equal(values[2 * i + 1], (double) ((size - 1 - i % size + size) % size));
    }
    equal(own[1], values[2 * rank + 1]);
  }

  private static void throwing() throws Exception {
    BiConsumer<ByteBuffer, ByteBuffer> fail =
        (in, inOut) -> {
          throw new IllegalStateException("on purpose");
        };
    for (int size : new int[] {2, 3}) {
      AtomicInteger seen = new AtomicInteger();
      Ranks.run(size, (job, world) -> {
        Combine op = Combine.of(fail);
        meet(seen, () -> world.allReduce(Tensor.of(mine(0, COUNT)), op));
        Work work = world.allReduceAsync(Tensor.of(direct(0, COUNT)), op);
        meet(seen, work::await);
        meet(seen, () -> {
          if (work.error() != null) throw work.error();
        });
        meet(seen, () -> world.allReduceAsync(Tensor.of(direct(0, 5)), op).waitStream(0));
        meet(seen, () -> {
          try {
            world.allReduceAsync(Tensor.of(direct(0, 5)), op).future().join();
          } catch (CompletionException e) {
            throw (DtException) e.getCause();
          }
        });
        world.groupBegin();
        world.allReduce(Tensor.of(direct(0, COUNT)), op);
        meet(seen, world::groupEnd);
        world.groupBegin();
        world.allReduce(Tensor.of(direct(0, COUNT)), op);
        Work whole = world.groupEndAsync();
        meet(seen, whole::await);
        all(job, world); // it stays usable
      });
      that(seen.get() >= 7, "all forms throw where the function ran: " + seen);
    }
  }

  private static void meet(AtomicInteger seen, Check.Body call) throws Exception {
    try {
      call.run();
    } catch (InvalidArgumentException e) {
      that(e.getMessage().contains("allReduce: the function of Combine threw"), e.getMessage());
      that(e.getMessage().contains("on purpose"), e.getMessage());
      Throwable cause = e.getCause() instanceof DtException met ? met.getCause() : e.getCause();
      that(cause instanceof IllegalStateException, "the cause: " + e.getCause());
      seen.incrementAndGet();
    }
  }

  private static void collected() throws Exception {
    AtomicBoolean over = new AtomicBoolean();
    Thread collector = new Thread(() -> {
      while (!over.get()) System.gc();
    });
    collector.start();
    AtomicInteger foreign = new AtomicInteger();
    try {
      Ranks.run(2, (job, world) -> {
        Thread own = Thread.currentThread();
        Combine op = Combine.of((in, inOut) -> {
          if (Thread.currentThread() != own) foreign.incrementAndGet();
          add(in, inOut);
        });
        for (int i = 0; i < 50; i++) {
          IntBuffer buffer = direct(world.rank(), COUNT);
          world.allReduceAsync(Tensor.of(buffer), op).future().join();
          equal(buffer.get(COUNT - 1), sum(2, COUNT - 1));
        }
      });
    } finally {
      over.set(true);
      collector.join();
    }
    that(foreign.get() > 0, "a thread of dt has called the function");
  }

  private static void kept(Job job, Comm world) {
    List<ByteBuffer> buffers = new ArrayList<>();
    List<Integer> values = new ArrayList<>();
    Combine op = Combine.of((in, inOut) -> {
      add(in, inOut);
      synchronized (buffers) {
        buffers.add(inOut);
        values.add(inOut.getInt(0));
      }
    });
    world.allReduceAsync(Tensor.of(direct(world.rank(), COUNT)), op).await();
    world.allReduce(Tensor.of(mine(world.rank() + 5, COUNT)), ADD);
    for (int i = 0; i < buffers.size(); i++) equal(buffers.get(i).getInt(0), values.get(i));
  }

  private static void gone(Job job, Comm world) throws Exception {
    WeakReference<Object> function = forgotten(world);
    world.barrierAsync().await(); // the poller lets go of what is done
    for (int i = 0; i < 1000 && function.get() != null; i++) System.gc();
    that(function.get() == null, "nobody keeps the function");
  }

  private static WeakReference<Object> forgotten(Comm world) {
    int[] state = new int[1];
    BiConsumer<ByteBuffer, ByteBuffer> function = (in, inOut) -> {
      state[0]++;
      add(in, inOut);
    };
    world.allReduceAsync(Tensor.of(direct(world.rank(), COUNT)), Combine.of(function));
    return new WeakReference<>(function);
  }

  private static void refused(Comm comm) throws Exception {
    Tensor three = Tensor.of(new double[3]);
    thrown(InvalidArgumentException.class, () -> Combine.of(null), "function", "null");
    thrown(InvalidArgumentException.class, () -> Combine.of(0, (in, inOut) -> {}), "items", "0");
    thrown(InvalidArgumentException.class,
        () -> comm.allReduce(three, Combine.of(2, CombineTests::greatest)), "3", "2 items");
    thrown(InvalidArgumentException.class,
        () -> comm.allReduce(
            Tensor.of(new byte[4096], DataType.U8), Combine.of(4096, CombineTests::add)),
        "4096 items of U8", "at most 4095");
  }
}
