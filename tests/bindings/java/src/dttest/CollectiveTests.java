// SPDX-License-Identifier: Apache-2.0
package dttest;

import static dttest.Check.equal;
import static dttest.Check.test;
import static dttest.Check.that;
import static dttest.Ranks.bytes;
import static dttest.Ranks.floats;
import static dttest.Ranks.pattern;

import io.dt.Comm;
import io.dt.Dtype;
import io.dt.InvalidArgumentException;
import io.dt.Job;
import io.dt.ReduceOp;
import io.dt.Work;
import java.nio.ByteBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.nio.LongBuffer;
import java.nio.ShortBuffer;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.locks.LockSupport;

/** Every collective, in each of its forms, against a closed form. */
final class CollectiveTests {
  private CollectiveTests() {}

  static void add() {
    for (int n : new int[] {1, 2, 3}) {
      for (int count : new int[] {0, 1, 5, 4099}) {
        test(
            "collectives of " + n + " ranks with " + count + " elements",
            () -> Ranks.run(n, (job, world) -> all(world, count)));
      }
      test("arrays of " + n + " ranks", () -> Ranks.run(n, (job, world) -> arrays(world)));
      test("dtypes of " + n + " ranks", () -> Ranks.run(n, (job, world) -> dtypes(world)));
    }
    test("position and limit are respected", () -> Ranks.run(2, (job, world) -> window(world)));
    test("raw addresses", () -> Ranks.run(2, (job, world) -> addresses(world)));
    test("arrays beside another thread's groups", () -> Ranks.run(2, CollectiveTests::beside));
    test("send and recv, and groups", () -> Ranks.run(2, (job, world) -> transfers(world)));
    test("split", () -> Ranks.run(3, (job, world) -> split(world)));
  }

  /** Blocking, or by a work, a future or a time. */
  static void each(int form, Runnable blocking, java.util.function.Supplier<Work> async)
      throws Exception {
    if (form == 0) {
      blocking.run();
      return;
    }
    try (Work work = async.get()) {
      if (form == 1) work.await();
      if (form == 2) work.future().get(30, TimeUnit.SECONDS);
      if (form == 3) that(work.await(Duration.ofSeconds(30)), "it takes too long");
      if (form == 4) work.waitStream(0);
      that(work.test(), "a waited work is done");
      that(work.error() == null, "no error");
    }
  }

  private static void all(Comm world, int count) throws Exception {
    int n = world.size();
    int rank = world.rank();
    double ranks = n * (n + 1) / 2.0;
    for (int form = 0; form < 5; form++) {
      FloatBuffer send = pattern(rank, count);
      FloatBuffer recv = floats(count);
      each(form, () -> world.allreduce(send, recv, ReduceOp.SUM),
          () -> world.allreduceAsync(send, recv, ReduceOp.SUM));
      for (int i = 0; i < count; i++) equal(recv.get(i), (float) (ranks + n * 0.5 * i));

      int root = n - 1;
      FloatBuffer result = rank == root ? floats(count) : null;
      each(form, () -> world.reduce(send, result, ReduceOp.MAX, root),
          () -> world.reduceAsync(send, result, ReduceOp.MAX, root));
      if (rank == root) {
        for (int i = 0; i < count; i++) equal(result.get(i), n + 0.5f * i);
      }

      FloatBuffer copy = pattern(rank, count);
      each(form, () -> world.broadcast(copy, root), () -> world.broadcastAsync(copy, root));
      for (int i = 0; i < count; i++) equal(copy.get(i), n + 0.5f * i);

      FloatBuffer whole = floats(n * count);
      each(form, () -> world.allgather(send, whole), () -> world.allgatherAsync(send, whole));
      for (int i = 0; i < n * count; i++) equal(whole.get(i), i / count + 1 + 0.5f * (i % count));

      FloatBuffer parts = pattern(rank, n * count);
      FloatBuffer part = floats(count);
      each(form, () -> world.reduceScatter(parts, part, ReduceOp.SUM),
          () -> world.reduceScatterAsync(parts, part, ReduceOp.SUM));
      for (int i = 0; i < count; i++) {
        equal(part.get(i), (float) (ranks + n * 0.5 * (rank * count + i)));
      }
      each(form, world::barrier, world::barrierAsync);
    }
  }

  private static void arrays(Comm world) {
    int n = world.size();
    int rank = world.rank();
    float[] f = {rank + 1, 2};
    world.allreduce(f, f, ReduceOp.SUM);
    equal(f[0], n * (n + 1) / 2f);
    double[] d = {rank + 1};
    double[] best = new double[1];
    world.reduce(d, rank == 0 ? best : null, ReduceOp.MAX, 0);
    if (rank == 0) equal(best[0], (double) n);
    int[] i = {rank, 10};
    int[] all = new int[2 * n];
    world.allgather(i, all);
    for (int r = 0; r < n; r++) equal(all[2 * r], r);
    long[] parts = new long[n];
    for (int r = 0; r < n; r++) parts[r] = 100L * r + rank;
    long[] part = new long[1];
    world.reduceScatter(parts, part, ReduceOp.SUM);
    equal(part[0], 100L * rank * n + n * (n - 1) / 2);
    byte[] text = rank == 0 ? new byte[] {1, 2, 3, 4} : new byte[4];
    world.broadcast(text, Dtype.U8, 0);
    equal(text[3], (byte) 4);
    byte[] words = {1, 0, 0, 0};
    world.allreduce(words, words, Dtype.I32, ReduceOp.SUM);
    equal(words[0], (byte) n);
    if (n < 2) return;
    if (rank == 0) world.send(new float[] {7, 8}, 1);
    if (rank == 1) {
      float[] got = new float[2];
      world.recv(got, 0);
      equal(got[1], 8f);
    }
  }

  private static void dtypes(Comm world) {
    int n = world.size();
    int rank = world.rank();
    for (Dtype dtype : Dtype.values()) {
      ByteBuffer buffer = bytes(3 * dtype.bytes());
      for (int i = 0; i < 3; i++) put(buffer, dtype, i, rank + 1 + i);
      world.allreduce(buffer, buffer, dtype, ReduceOp.SUM);
      for (int i = 0; i < 3; i++) {
        equal(get(buffer, dtype, i), (double) (n * (n + 1) / 2 + n * i));
      }
      put(buffer, dtype, 0, rank + 1);
      world.allreduce(buffer, buffer, dtype, ReduceOp.PROD);
      equal(get(buffer, dtype, 0), (double) (n == 3 ? 6 : n));
      put(buffer, dtype, 0, rank + 1);
      world.allreduce(buffer, buffer, dtype, ReduceOp.MIN);
      equal(get(buffer, dtype, 0), 1.0);
      put(buffer, dtype, 0, 6);
      world.allreduce(buffer, buffer, dtype, ReduceOp.AVG);
      boolean coarse = dtype == Dtype.BF16 || dtype == Dtype.F16;
      Check.near(get(buffer, dtype, 0), 6.0, coarse ? 0.05 : 1e-6);
    }
    ShortBuffer halves = bytes(2).asShortBuffer();
    halves.put(0, (short) 0x3c00); // 1 in binary16
    world.allreduce(halves, halves, Dtype.F16, ReduceOp.SUM);
    equal(halves.get(0), (short) (n == 1 ? 0x3c00 : n == 2 ? 0x4000 : 0x4200));
    IntBuffer ints = bytes(4).asIntBuffer();
    ints.put(0, -1);
    world.allreduce(ints, ints, Dtype.U32, ReduceOp.MAX);
    equal(ints.get(0), -1);
    LongBuffer longs = bytes(8).asLongBuffer();
    longs.put(0, rank == 0 ? -1 : 1);
    world.allreduce(longs, longs, Dtype.U64, ReduceOp.MIN);
    equal(longs.get(0), n == 1 ? -1L : 1L);
  }

  private static void put(ByteBuffer buffer, Dtype dtype, int i, int value) {
    switch (dtype) {
      case I8: case U8: buffer.put(i, (byte) value); break;
      case I32: case U32: buffer.putInt(4 * i, value); break;
      case I64: case U64: buffer.putLong(8 * i, value); break;
      case F16: buffer.putShort(2 * i, half(value)); break;
      case BF16: buffer.putShort(2 * i, (short) (Float.floatToRawIntBits(value) >>> 16)); break;
      case F32: buffer.putFloat(4 * i, value); break;
      default: buffer.putDouble(8 * i, value); break;
    }
  }

  private static double get(ByteBuffer buffer, Dtype dtype, int i) {
    switch (dtype) {
      case I8: case U8: return buffer.get(i);
      case I32: case U32: return buffer.getInt(4 * i);
      case I64: case U64: return buffer.getLong(8 * i);
      case F16: {
        int bits = buffer.getShort(2 * i) & 0xffff;
        return (1 + (bits & 0x3ff) / 1024.0) * Math.pow(2, (bits >> 10) - 15);
      }
      case BF16: return Float.intBitsToFloat(buffer.getShort(2 * i) << 16);
      case F32: return buffer.getFloat(4 * i);
      default: return buffer.getDouble(8 * i);
    }
  }

  /** Binary16 of a small positive whole number. */
  private static short half(int value) {
    int exponent = 31 - Integer.numberOfLeadingZeros(value);
    return (short) ((exponent + 15) << 10 | (value << (10 - exponent)) & 0x3ff);
  }

  private static void window(Comm world) {
    FloatBuffer buffer = floats(6);
    for (int i = 0; i < 6; i++) buffer.put(i, i);
    buffer.position(2).limit(4);
    world.allreduce(buffer, buffer, ReduceOp.SUM);
    equal(buffer.position(), 2);
    float[] wanted = {0, 1, 4, 6, 4, 5};
    buffer.clear();
    for (int i = 0; i < 6; i++) equal(buffer.get(i), wanted[i]);
    FloatBuffer slice = buffer.position(1).slice();
    world.allreduce(slice, slice, ReduceOp.SUM);
    equal(buffer.get(0), 0f);
    equal(buffer.get(5), 10f);
    ByteBuffer raw = bytes(12);
    raw.putFloat(4, 1).position(4).limit(8);
    world.allreduce(raw, raw, Dtype.F32, ReduceOp.SUM);
    equal(raw.getFloat(4), 2f);
  }

  private static void addresses(Comm world) {
    try (io.dt.Memory memory = world.allocate(4096)) {
      FloatBuffer values = memory.buffer().asFloatBuffer();
      values.put(3, 1.5f);
      long at = memory.address() + 12;
      world.allreduce(at, at, 1, Dtype.F32, ReduceOp.SUM, 0);
      equal(values.get(3), 3f);
      world.allreduceAsync(at, at, 1, Dtype.F32, ReduceOp.SUM, 0).await();
      equal(values.get(3), 6f);
      equal(memory.buffer(12, 4).getFloat(0), 6f);
    }
  }

  /** A call either comes before a group and waits as ever, or inside it and is refused. */
  private static void beside(Job job, Comm world) throws Exception {
    AtomicBoolean stop = new AtomicBoolean();
    Thread grouping = new Thread(() -> {
      while (!stop.get()) {
        world.groupBegin();
        LockSupport.parkNanos(20_000);
        world.groupEnd();
        LockSupport.parkNanos(20_000);
      }
    });
    grouping.start();
    float[] array = new float[1 << 16];
    try {
      for (int i = 0; i < 100; ) {
        Arrays.fill(array, world.rank() + i);
        try {
          world.allreduce(array, array, ReduceOp.SUM);
        } catch (InvalidArgumentException e) {
          that(e.getMessage().contains("group"), e.getMessage());
          continue;
        }
        equal(array[0], 2f * i + 1);
        equal(array[array.length - 1], 2f * i + 1);
        i++;
      }
    } finally {
      stop.set(true);
      grouping.join();
    }
  }

  private static void transfers(Comm world) {
    int peer = 1 - world.rank();
    for (int round = 0; round < 3; round++) {
      FloatBuffer out = pattern(world.rank(), 5);
      FloatBuffer in = floats(5);
      if (round == 0) {
        Work sent = world.sendAsync(out, peer);
        world.recv(in, peer);
        sent.await();
      } else if (round == 1) {
        world.groupBegin();
        world.send(out, peer);
        world.recv(in, peer);
        Check.that(in.remaining() == 5, "nothing moves");
        world.groupEnd();
      } else {
        world.groupBegin();
        List<Work> works = List.of(world.sendAsync(out, peer), world.recvAsync(in, peer));
        world.groupEnd();
        works.forEach(Work::await);
      }
      for (int i = 0; i < 5; i++) equal(in.get(i), peer + 1 + 0.5f * i);
    }
  }

  private static void split(Comm world) {
    try (Comm pair = world.split(world.rank() == 1 ? -1 : 0, -world.rank())) {
      that((pair == null) == (world.rank() == 1), "rank 1 is in none");
      if (pair == null) return;
      equal(pair.size(), 2);
      equal(pair.rank(), world.rank() == 2 ? 0 : 1);
      equal(pair.worldRank(0), 2);
      int[] one = {world.rank()};
      pair.allreduce(one, one, ReduceOp.SUM);
      equal(one[0], 2);
    }
  }
}
