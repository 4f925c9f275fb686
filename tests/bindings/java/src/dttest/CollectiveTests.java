// SPDX-License-Identifier: Apache-2.0
package dttest;

import static dttest.Check.equal;
import static dttest.Check.test;
import static dttest.Check.that;
import static dttest.Check.thrown;
import static dttest.Ranks.bytes;
import static dttest.Ranks.floats;
import static dttest.Ranks.pattern;

import io.dt.ClosedException;
import io.dt.Comm;
import io.dt.DataType;
import io.dt.DtTimeoutException;
import io.dt.InvalidArgumentException;
import io.dt.Job;
import io.dt.ReduceOp;
import io.dt.Tensor;
import io.dt.Work;
import java.nio.Buffer;
import java.nio.ByteBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.nio.LongBuffer;
import java.nio.ShortBuffer;
import java.time.Duration;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.List;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.locks.LockSupport;

/** What MatrixTests does not vary: types, windows, groups, communicators. */
final class CollectiveTests {
  private CollectiveTests() {}

  static void add() {
    for (int n : new int[] {1, 2, 3}) {
      test("dtypes of " + n + " ranks", () -> Ranks.run(n, (job, world) -> dtypes(world)));
    }
    test("position and limit are respected", () -> Ranks.run(2, (job, world) -> window(world)));
    test("names, limits and streams of calls", () -> Ranks.run(2, CollectiveTests::views));
    test("arrays beside another thread's groups", () -> Ranks.run(2, CollectiveTests::beside));
    test("send and recv, and groups", () -> Ranks.run(2, (job, world) -> transfers(world)));
    test("members alone", () -> Ranks.run(3, CollectiveTests::membersAlone));
    test("split", () -> Ranks.run(3, (job, world) -> split(world)));
  }

  private static void dtypes(Comm world) throws Exception {
    int n = world.size();
    int rank = world.rank();
    for (DataType dtype : EnumSet.range(DataType.I8, DataType.F64)) {
      ByteBuffer buffer = bytes(3 * dtype.bytes());
      for (int i = 0; i < 3; i++) put(buffer, dtype, i, rank + 1 + i);
      allReduce(world, buffer, dtype, ReduceOp.SUM);
      for (int i = 0; i < 3; i++) {
        equal(get(buffer, dtype, i), (double) (n * (n + 1) / 2 + n * i));
      }
      put(buffer, dtype, 0, rank + 1);
      allReduce(world, buffer, dtype, ReduceOp.PROD);
      equal(get(buffer, dtype, 0), (double) (n == 3 ? 6 : n));
      put(buffer, dtype, 0, rank + 1);
      allReduce(world, buffer, dtype, ReduceOp.MIN);
      equal(get(buffer, dtype, 0), 1.0);
      put(buffer, dtype, 0, 6);
      allReduce(world, buffer, dtype, ReduceOp.AVG);
      boolean coarse = dtype == DataType.BF16 || dtype == DataType.F16;
      Check.near(get(buffer, dtype, 0), 6.0, coarse ? 0.05 : 1e-6);
    }
    ShortBuffer shorts = bytes(2).asShortBuffer();
    shorts.put(0, (short) (rank == 0 ? 0x700f : 0x7031));
    allReduce(world, shorts, DataType.I16, ReduceOp.BAND);
    equal(shorts.get(0), (short) (n == 1 ? 0x700f : 0x7001));
    shorts.put(0, (short) (rank == 0 ? -1 : 1));
    allReduce(world, shorts, DataType.U16, ReduceOp.MAX);
    equal(shorts.get(0), (short) -1);
    ByteBuffer truth = bytes(1).put(0, (byte) (rank == 0 ? 1 : 0));
    allReduce(world, truth, DataType.BOOL, ReduceOp.SUM);
    equal(truth.get(0), (byte) 1);
    thrown(
        InvalidArgumentException.class,
        () -> allReduce(world, truth, DataType.F8E4M3, ReduceOp.SUM),
        "sum of f8e4m3: 8-bit floats are moved only; convert them");
    ShortBuffer halves = bytes(2).asShortBuffer();
    halves.put(0, (short) 0x3c00); // 1 in binary16
    allReduce(world, halves, DataType.F16, ReduceOp.SUM);
    equal(halves.get(0), (short) (n == 1 ? 0x3c00 : n == 2 ? 0x4000 : 0x4200));
    IntBuffer ints = bytes(4).asIntBuffer();
    ints.put(0, -1);
    allReduce(world, ints, DataType.U32, ReduceOp.MAX);
    equal(ints.get(0), -1);
    LongBuffer longs = bytes(8).asLongBuffer();
    longs.put(0, rank == 0 ? -1 : 1);
    allReduce(world, longs, DataType.U64, ReduceOp.MIN);
    equal(longs.get(0), n == 1 ? -1L : 1L);
  }

  private static void allReduce(Comm world, Buffer buffer, DataType dtype, ReduceOp op) {
    world.allReduce(Tensor.of(buffer, dtype), op);
  }

  private static void put(ByteBuffer buffer, DataType dtype, int i, int value) {
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

  private static double get(ByteBuffer buffer, DataType dtype, int i) {
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
    world.allReduce(Tensor.of(buffer));
    equal(buffer.position(), 2);
    float[] wanted = {0, 1, 4, 6, 4, 5};
    buffer.clear();
    for (int i = 0; i < 6; i++) equal(buffer.get(i), wanted[i]);
    FloatBuffer slice = buffer.position(1).slice();
    world.allReduce(Tensor.of(slice));
    equal(buffer.get(0), 0f);
    equal(buffer.get(5), 10f);
    ByteBuffer raw = bytes(12);
    raw.putFloat(4, 1).position(4).limit(8);
    allReduce(world, raw, DataType.F32, ReduceOp.SUM);
    equal(raw.getFloat(4), 2f);
  }

  /** A view differs only in what it adds to its calls. */
  private static void views(Job job, Comm world) throws Exception {
    float[] one = {world.rank()};
    Comm loss = world.named("loss k\u00e4se").withTimeout(Duration.ofMillis(200)).on(0);
    equal(loss.rank(), world.rank());
    loss.allReduce(Tensor.of(one));
    equal(one[0], 1f);
    loss.withTimeout(Duration.ZERO).named(null).allReduceAsync(Tensor.of(floats(1))).await();
    loss.withTimeout(Duration.ofSeconds(-1)).barrier();
    if (world.rank() == 0) {
      Check.thrown(
          DtTimeoutException.class, () -> loss.allReduce(Tensor.of(one)), "loss k\u00e4se");
      job.store().set("timed out", new byte[0]);
    } else {
      job.store().get("timed out");
    }
    Comm again = job.world();
    Comm view = again.named("a");
    view.close(); // one handle
    Check.thrown(ClosedException.class, again::size, "closed");
    Check.thrown(ClosedException.class, view::barrier, "closed");
    Check.thrown(InvalidArgumentException.class, () -> world.named("a\0"), "Comm.named: name");
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
    Tensor tensor = Tensor.of(array);
    try {
      for (int i = 0; i < 100; ) {
        Arrays.fill(array, world.rank() + i);
        try {
          world.allReduce(tensor);
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
      Tensor out = Tensor.of(pattern(world.rank(), 5));
      FloatBuffer received = floats(5);
      Tensor in = Tensor.of(received);
      if (round == 0) {
        Work sent = world.sendAsync(out, peer);
        world.recv(in, peer);
        sent.await();
      } else if (round == 1) {
        world.groupBegin();
        world.send(out, peer);
        world.recv(in, peer);
        world.groupEnd();
      } else {
        world.groupBegin();
        List<Work> works = List.of(world.sendAsync(out, peer), world.recvAsync(in, peer));
        world.groupEnd();
        works.forEach(Work::await);
      }
      for (int i = 0; i < 5; i++) equal(received.get(i), peer + 1 + 0.5f * i);
    }
  }

  private static void membersAlone(Job job, Comm world) throws Exception {
    thrown(
        InvalidArgumentException.class,
        () -> job.createComm(new int[] {3}, null),
        "Job.createComm: ranks[0] is 3");
    if (world.rank() == 1) return;
    try (Comm pair = job.createComm(new int[] {2, 0}, "pair");
        Comm host = pair.host()) {
      equal(host.rank(), world.rank() == 2 ? 0 : 1);
      equal(host.worldRank(0), 2);
      int[] one = {world.rank()};
      host.allReduce(Tensor.of(one));
      equal(one[0], 2);
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
      pair.allReduce(Tensor.of(one));
      equal(one[0], 2);
    }
  }
}
