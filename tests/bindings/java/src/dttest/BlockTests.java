// SPDX-License-Identifier: Apache-2.0
package dttest;

import static dttest.Check.equal;
import static dttest.Check.test;
import static dttest.Check.thrown;
import static dttest.CollectiveTests.each;
import static dttest.Ranks.bytes;
import static dttest.Ranks.floats;

import io.dt.Comm;
import io.dt.Dtype;
import io.dt.InvalidArgumentException;
import io.dt.Job;
import io.dt.Memory;
import io.dt.MismatchException;
import io.dt.OperationKind;
import java.nio.ByteBuffer;
import java.nio.FloatBuffer;
import java.util.Arrays;

/** Operations that move blocks, in each of their forms, against closed forms. */
final class BlockTests {
  private static final int FORMS = 5;

  private BlockTests() {}

  static void add() {
    for (int n : new int[] {1, 2, 3}) {
      test("blocks of " + n + " ranks", () -> Ranks.run(n, (job, world) -> {
        for (int count : new int[] {0, 1, 4099}) {
          for (int form = 0; form < FORMS; form++) all(world, count, form);
        }
      }));
      test("counted blocks of " + n + " ranks", () -> Ranks.run(n, (job, world) -> {
        for (int root = 0; root < n; root++) {
          for (int form = 0; form < FORMS; form++) counted(world, root, form);
        }
      }));
      test("arrays of blocks of " + n + " ranks", () -> Ranks.run(n, (job, world) -> {
        arrays(world);
        countedArrays(world);
      }));
    }
    test("blocks by addresses", () -> Ranks.run(2, (job, world) -> addresses(world)));
    test("blocks in groups, and their statistics", () -> Ranks.run(3, BlockTests::groups));
    test("wrong blocks of 2 ranks", () -> Ranks.run(2, (job, world) -> refused(world)));
    test("counts that differ name both sides", () -> Ranks.run(2, (job, world) -> {
      int rank = world.rank();
      FloatBuffer recv = rank == 0 ? floats(4) : null;
      long[] counts = rank == 0 ? new long[] {2, 2} : null;
      MismatchException e =
          thrown(MismatchException.class, () -> world.gatherv(floats(2 + rank), recv, counts, 0),
              "2", "3");
      equal(e.operation(), "gatherv");
    }));
  }

  /** What one rank has for another one. */
  private static float value(int sender, int receiver, int i) {
    return 100 * sender + 10 * receiver + i;
  }

  /** Counts that differ for each pair, zero among them. */
  private static int uneven(int sender, int receiver) {
    return (sender + 2 * receiver + 1) % 4;
  }

  private static FloatBuffer of(float... values) {
    return floats(values.length).put(0, values);
  }

  private static float[] part(int sender, int receiver, int count) {
    float[] values = new float[count];
    for (int i = 0; i < count; i++) values[i] = value(sender, receiver, i);
    return values;
  }

  private static float[] joined(float[]... parts) {
    int count = 0;
    for (float[] part : parts) count += part.length;
    float[] all = new float[count];
    int at = 0;
    for (float[] part : parts) {
      System.arraycopy(part, 0, all, at, part.length);
      at += part.length;
    }
    return all;
  }

  /** From one rank to each, `count` elements or as many as uneven() says, which is -1. */
  private static float[] sent(int sender, int n, int count) {
    float[][] parts = new float[n][];
    for (int r = 0; r < n; r++) parts[r] = part(sender, r, count < 0 ? uneven(sender, r) : count);
    return joined(parts);
  }

  private static float[] received(int receiver, int n, int count) {
    float[][] parts = new float[n][];
    for (int r = 0; r < n; r++) {
      parts[r] = part(r, receiver, count < 0 ? uneven(r, receiver) : count);
    }
    return joined(parts);
  }

  private static void holds(FloatBuffer got, float[] wanted) {
    float[] values = new float[got.remaining()];
    got.get(got.position(), values);
    equal(Arrays.toString(values), Arrays.toString(wanted));
  }

  private static void all(Comm world, int count, int form) throws Exception {
    int n = world.size();
    int rank = world.rank();
    int root = n - 1;
    FloatBuffer to = of(sent(rank, n, count));
    FloatBuffer from = floats(n * count);
    each(form, () -> world.alltoall(to, from), () -> world.alltoallAsync(to, from));
    holds(from, received(rank, n, count));

    FloatBuffer mine = of(part(rank, root, count));
    FloatBuffer whole = rank == root ? floats(n * count) : null;
    each(form, () -> world.gather(mine, whole, root), () -> world.gatherAsync(mine, whole, root));
    if (rank == root) holds(whole, received(root, n, count));

    FloatBuffer split = rank == root ? of(sent(root, n, count)) : null;
    FloatBuffer got = floats(count);
    each(form, () -> world.scatter(split, got, root), () -> world.scatterAsync(split, got, root));
    holds(got, part(root, rank, count));
  }

  private static void counted(Comm world, int root, int form) throws Exception {
    int n = world.size();
    int rank = world.rank();
    boolean atRoot = rank == root;
    long[] to = new long[n];
    long[] from = new long[n];
    long[] ofRoot = new long[n]; // what root gets of each
    for (int r = 0; r < n; r++) {
      to[r] = uneven(rank, r);
      from[r] = uneven(r, rank);
      ofRoot[r] = uneven(r, root);
    }
    FloatBuffer send = of(sent(rank, n, -1));
    FloatBuffer recv = floats(received(rank, n, -1).length);
    each(form, () -> world.alltoallv(send, to, recv, from),
        () -> world.alltoallvAsync(send, to, recv, from));
    holds(recv, received(rank, n, -1));

    float[] everything = received(root, n, -1);
    long[] counts = atRoot ? ofRoot : null;
    FloatBuffer mine = of(part(rank, root, uneven(rank, root)));
    FloatBuffer whole = atRoot ? floats(everything.length) : null;
    each(form, () -> world.gatherv(mine, whole, counts, root),
        () -> world.gathervAsync(mine, whole, counts, root));
    if (atRoot) holds(whole, everything);

    FloatBuffer split = atRoot ? of(everything) : null;
    FloatBuffer back = floats(mine.remaining());
    each(form, () -> world.scatterv(split, counts, back, root),
        () -> world.scattervAsync(split, counts, back, root));
    holds(back, part(rank, root, uneven(rank, root)));

    FloatBuffer all = floats(everything.length);
    each(form, () -> world.allgatherv(mine, all, ofRoot),
        () -> world.allgathervAsync(mine, all, ofRoot));
    holds(all, everything);
  }

  private static void arrays(Comm world) {
    int n = world.size();
    int rank = world.rank();
    float[] f = sent(rank, n, 2);
    world.alltoall(f, f); // arrays are copied: the same one will do
    equal(Arrays.toString(f), Arrays.toString(received(rank, n, 2)));
    double[] d = new double[n];
    double[] gathered = rank == 0 ? new double[n] : null;
    world.gather(new double[] {rank + 0.5}, gathered, 0);
    for (int r = 0; r < n; r++) d[r] = r + 0.5;
    if (rank == 0) equal(Arrays.toString(gathered), Arrays.toString(d));
    long[] l = rank == 0 ? new long[n] : null;
    for (int r = 0; rank == 0 && r < n; r++) l[r] = 10L * r;
    long[] mine = new long[1];
    world.scatter(l, mine, 0);
    equal(mine[0], 10L * rank);
    int[] turned = new int[n];
    int[] own = new int[n];
    Arrays.fill(own, rank);
    world.alltoall(own, turned);
    for (int r = 0; r < n; r++) equal(turned[r], r);
    byte[] words = new byte[4];
    words[0] = (byte) (rank + 1);
    byte[] text = rank == 0 ? new byte[4 * n] : null;
    world.gather(words, text, Dtype.I32, 0);
    if (rank == 0) equal(text[4 * (n - 1)], (byte) n);
  }

  private static void countedArrays(Comm world) {
    int n = world.size();
    int rank = world.rank();
    long[] counts = new long[n]; // rank r has r elements
    long[] ones = new long[n];
    Arrays.fill(ones, 1);
    for (int r = 0; r < n; r++) counts[r] = r;
    int all = n * (n - 1) / 2;
    double[] mine = new double[rank];
    Arrays.fill(mine, rank);
    double[] whole = new double[all];
    world.allgatherv(mine, whole, counts);
    int[] numbers = rank == 0 ? new int[all] : null;
    int[] own = new int[rank];
    Arrays.fill(own, rank);
    world.gatherv(own, numbers, rank == 0 ? counts : null, 0);
    for (int r = 0, at = 0; r < n; at += r++) {
      for (int i = 0; i < r; i++) {
        equal(whole[at + i], (double) r);
        if (rank == 0) equal(numbers[at + i], r);
      }
    }
    Arrays.fill(own, -1);
    world.scatterv(numbers, rank == 0 ? counts : null, own, 0);
    for (int each : own) equal(each, rank);
    byte[] from = new byte[n];
    byte[] to = new byte[n];
    Arrays.fill(to, (byte) rank);
    world.alltoallv(to, ones, from, ones, Dtype.I8);
    for (int r = 0; r < n; r++) equal(from[r], (byte) r);
  }

  private static void addresses(Comm world) {
    int rank = world.rank();
    int peer = 1 - rank;
    try (Memory memory = world.allocate(4096)) {
      FloatBuffer values = memory.buffer().asFloatBuffer();
      values.put(0, part(rank, 9, 4));
      long send = memory.address();
      long recv = send + 2048;
      world.alltoall(send, recv, 2, Dtype.F32, 0);
      equal(values.get(512 + 2 * peer), value(peer, 9, 2 * rank));
      world.gatherAsync(send, rank == 1 ? recv : 0, 4, Dtype.F32, 1, 0).await();
      if (rank == 1) equal(values.get(512 + 3), value(0, 9, 3));
      world.scatter(rank == 1 ? send : 0, recv, 2, Dtype.F32, 1, 0);
      equal(values.get(512), value(1, 9, 2 * rank));
      long[] counts = {3, 1};
      long[] mine = rank == 0 ? new long[] {1, 3} : new long[] {0, 1};
      long[] theirs = rank == 0 ? new long[] {1, 0} : new long[] {3, 1};
      world.alltoallvAsync(send, mine, recv, theirs, Dtype.F32, 0).await();
      equal(values.get(512), value(0, 9, rank));
      world.gatherv(send, counts[rank], recv, rank == 0 ? counts : null, Dtype.F32, 0, 0);
      if (rank == 0) equal(values.get(512 + 3), value(1, 9, 0));
      world.scatterv(send, rank == 0 ? counts : null, recv, counts[rank], Dtype.F32, 0, 0);
      equal(values.get(512), value(0, 9, 3 * rank));
      world.allgatherv(send, recv, counts, Dtype.F32, 0);
      equal(values.get(512 + 3), value(1, 9, 0));
      thrown(InvalidArgumentException.class,
          () -> world.allgatherv(send, recv, new long[] {-1, 2}, Dtype.F32, 0), "counts[0] is -1");
    } catch (Exception e) {
      throw new AssertionError(e);
    }
  }

  private static void groups(Job job, Comm world) {
    int n = world.size();
    int rank = world.rank();
    FloatBuffer from = floats(n);
    FloatBuffer whole = rank == 0 ? floats(n) : null;
    world.groupBegin();
    world.alltoall(of(sent(rank, n, 1)), from);
    world.gather(of(rank), whole, 0);
    world.groupEnd();
    holds(from, received(rank, n, 1));
    if (rank == 0) holds(whole, new float[] {0, 1, 2});
    equal(job.statistics().operations().get(OperationKind.ALLTOALL).operations(), 1L);
    equal(job.statistics().operations().get(OperationKind.GATHER).operations(), 1L);
    equal(job.statistics().operations().get(OperationKind.ALLGATHERV).operations(), 0L);
  }

  private static void refused(Comm world) throws Exception {
    Class<InvalidArgumentException> refused = InvalidArgumentException.class;
    int rank = world.rank();
    FloatBuffer three = floats(3);
    FloatBuffer six = floats(6);
    FloatBuffer seven = floats(7);
    long[] whole = {3, 3};
    thrown(refused, () -> world.alltoall(six, seven), "alltoall: recv", "7", "6 are wanted");
    thrown(refused, () -> world.alltoallAsync(seven, floats(7)), "no multiple of the 2 ranks");
    thrown(refused, () -> world.alltoallv(six, new long[] {6}, floats(6), whole),
        "alltoallv: sendCounts has 1 counts, but the communicator has 2 ranks");
    thrown(refused, () -> world.alltoallvAsync(six, whole, floats(6), new long[] {7, -1}),
        "recvCounts[1] is -1");
    thrown(refused, () -> world.alltoallv(six, whole, seven, whole),
        "recvCounts are 6 elements together, but recv has 7");
    thrown(refused, () -> world.allgatherv(three, seven, whole),
        "allgatherv: counts are 6 elements together, but recv has 7");
    thrown(refused, () -> world.allgathervAsync(seven, six, whole),
        "counts[" + rank + "], which is this rank's, is 3, but send has 7");
    thrown(refused, () -> world.gather(six, seven, rank), "recv", "12 are wanted");
    thrown(refused, () -> world.gather(six, null, rank), "recv", "null");
    thrown(refused, () -> world.gatherv(three, six, null, rank), "gatherv: counts is null");
    thrown(refused, () -> world.scatter(six, seven, rank), "send", "14 are wanted");
    thrown(refused, () -> world.scatterv(seven, whole, three, rank),
        "scatterv: counts are 6 elements together, but send has 7");
    thrown(refused, () -> world.gatherAsync(floats(3).asReadOnlyBuffer(), six, 2), "root");
    thrown(refused, () -> world.scatterAsync(six, three.asReadOnlyBuffer(), rank), "read-only");
    thrown(refused, () -> world.allgatherv(new long[2], new long[3], new long[] {2, 2}),
        "counts are 4 elements together, but recv has 3");
    thrown(refused, () -> world.gather(new float[1], null, rank), "null");
    ByteBuffer odd = bytes(7);
    thrown(refused, () -> world.alltoall(odd, odd, Dtype.F32), "7");
    world.barrier(); // nothing of all this broke it
  }
}
