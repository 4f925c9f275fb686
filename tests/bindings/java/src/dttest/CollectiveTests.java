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
import java.nio.ByteBuffer;
import java.nio.FloatBuffer;
import java.nio.ShortBuffer;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.locks.LockSupport;

/** What MatrixTests does not vary: types, windows, groups, communicators. */
final class CollectiveTests {
  private CollectiveTests() {}

  static void add() {
    test("what a dtype cannot, and signs", () -> Ranks.run(2, (job, world) -> refused(world)));
    test("large arrays and buffers", () -> Ranks.run(3, (job, world) -> large(world)));
    test("position and limit are respected", () -> Ranks.run(2, (job, world) -> window(world)));
    test("names, limits and streams of calls", () -> Ranks.run(2, CollectiveTests::views));
    test("arrays beside another thread's groups", () -> Ranks.run(2, CollectiveTests::beside));
    test("send and recv, and groups", () -> Ranks.run(2, (job, world) -> transfers(world)));
    test("members alone", () -> Ranks.run(3, CollectiveTests::membersAlone));
    test("split", () -> Ranks.run(3, (job, world) -> split(world)));
  }

  private static void refused(Comm world) throws Exception {
    thrown(
        InvalidArgumentException.class,
        () -> world.allReduce(Tensor.of(bytes(1), DataType.F8E4M3)),
        "sum of f8e4m3: 8-bit floats are moved only; convert them");
    ShortBuffer shorts = bytes(2).asShortBuffer();
    shorts.put(0, (short) (world.rank() == 0 ? -1 : 1));
    world.allReduce(Tensor.of(shorts, DataType.U16), ReduceOp.MAX); // one has no sign
    equal(shorts.get(0), (short) -1);
  }

  private static void large(Comm world) {
    int n = 100_000;
    float[] own = new float[n];
    Arrays.fill(own, world.rank() + 1);
    float[] gathered = new float[3 * n];
    world.allGather(Tensor.of(own), Tensor.of(gathered));
    for (int i = 0; i < 3 * n; i++) equal(gathered[i], i / n + 1f);
    FloatBuffer direct = floats(n).put(0, own);
    world.allReduceAsync(Tensor.of(direct)).await();
    world.allReduce(Tensor.of(own));
    for (int i = 0; i < n; i++) equal(direct.get(i) + own[i], 12f);
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
    world.allReduce(Tensor.of(raw, DataType.F32));
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
      for (boolean waits = true; !stop.get(); waits = !waits) {
        world.groupBegin();
        LockSupport.parkNanos(20_000);
        if (waits) {
          world.groupEnd();
        } else {
          world.groupEndAsync();
        }
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
    for (int round = 0; round < 4; round++) {
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
      } else if (round == 2) {
        world.groupBegin();
        world.send(out, peer);
        Work own = world.recvAsync(in, peer);
        Work whole = world.groupEndAsync();
        that(whole.await(Duration.ofSeconds(60)), "in time");
        that(own.test(), "done with the group");
        whole.future().join();
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
