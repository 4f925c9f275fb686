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
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.util.Arrays;
import java.util.function.IntFunction;
import java.util.function.IntUnaryOperator;
import java.util.stream.IntStream;

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
      test("blocks at offsets of " + n + " ranks", () -> Ranks.run(n, (job, world) -> {
        for (int root = 0; root < n; root++) {
          for (int form = 0; form < FORMS; form++) placed(world, root, form);
          placedArrays(world, root);
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
    test("blocks at offsets by addresses",
        () -> Ranks.run(2, (job, world) -> placedAddresses(world)));
    test("blocks at wrong offsets", () -> Ranks.run(2, (job, world) -> refusedOffsets(world)));
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

  /** Offsets of blocks in reverse order, with two elements before each. */
  private static long[] backwards(long[] counts) {
    long[] offsets = new long[counts.length];
    long end = 0;
    for (int r = counts.length - 1; r >= 0; r--) {
      offsets[r] = end + 2;
      end += 2 + counts[r];
    }
    return offsets;
  }

  private static float[] gaps(long[] counts) {
    long end = 2 * counts.length;
    for (long count : counts) end += count;
    float[] values = new float[(int) end];
    Arrays.fill(values, -1);
    return values;
  }

  private static long[] counts(int n, IntUnaryOperator of) {
    return IntStream.range(0, n).map(of).asLongStream().toArray();
  }

  /** The parts of all ranks where backwards() says, -1 between them. */
  private static float[] spread(long[] counts, IntFunction<float[]> part) {
    float[] values = gaps(counts);
    long[] offsets = backwards(counts);
    for (int r = 0; r < counts.length; r++) {
      System.arraycopy(part.apply(r), 0, values, (int) offsets[r], (int) counts[r]);
    }
    return values;
  }

  private static void placed(Comm world, int root, int form) throws Exception {
    int n = world.size();
    int rank = world.rank();
    boolean atRoot = rank == root;
    long[] to = counts(n, r -> uneven(rank, r));
    long[] from = counts(n, r -> uneven(r, rank));
    FloatBuffer send = of(spread(to, r -> part(rank, r, uneven(rank, r))));
    float[] received = spread(from, r -> part(r, rank, uneven(r, rank)));
    FloatBuffer recv = of(gaps(from));
    each(form,
        () -> world.alltoallv(send, to, backwards(to), recv, from, backwards(from), Dtype.F32),
        () -> world.alltoallvAsync(
            send, to, backwards(to), recv, from, backwards(from), Dtype.F32));
    holds(recv, received);

    long[] ofRoot = counts(n, r -> uneven(r, root));
    float[] everything = spread(ofRoot, r -> part(r, root, uneven(r, root)));
    long[] counts = atRoot ? ofRoot : null;
    long[] offsets = atRoot ? backwards(ofRoot) : null;
    FloatBuffer mine = of(part(rank, root, uneven(rank, root)));
    FloatBuffer whole = atRoot ? of(gaps(ofRoot)) : null;
    each(form, () -> world.gatherv(mine, whole, counts, offsets, Dtype.F32, root),
        () -> world.gathervAsync(mine, whole, counts, offsets, Dtype.F32, root));
    if (atRoot) holds(whole, everything);

    FloatBuffer back = floats(mine.remaining());
    each(form, () -> world.scatterv(whole, counts, offsets, back, Dtype.F32, root),
        () -> world.scattervAsync(whole, counts, offsets, back, Dtype.F32, root));
    holds(back, part(rank, root, uneven(rank, root)));

    FloatBuffer all = of(gaps(ofRoot));
    each(form, () -> world.allgatherv(mine, all, ofRoot, backwards(ofRoot), Dtype.F32),
        () -> world.allgathervAsync(mine, all, ofRoot, backwards(ofRoot), Dtype.F32));
    holds(all, everything);
  }

  private static double[] doubles(float[] values) {
    return IntStream.range(0, values.length).mapToDouble(i -> values[i]).toArray();
  }

  private static int[] ints(float[] values) {
    return IntStream.range(0, values.length).map(i -> (int) values[i]).toArray();
  }

  private static long[] longs(float[] values) {
    return IntStream.range(0, values.length).mapToLong(i -> (long) values[i]).toArray();
  }

  /** As bytes, for Dtype.I32. */
  private static byte[] words(float[] values) {
    ByteBuffer bytes = ByteBuffer.allocate(4 * values.length).order(ByteOrder.nativeOrder());
    for (float value : values) bytes.putInt((int) value);
    return bytes.array();
  }

  private static void placedArrays(Comm world, int root) {
    int n = world.size();
    int rank = world.rank();
    boolean atRoot = rank == root;
    long[] to = counts(n, r -> uneven(rank, r));
    long[] from = counts(n, r -> uneven(r, rank));
    long[] toPlaces = backwards(to);
    long[] places = backwards(from);
    float[] sent = spread(to, r -> part(rank, r, uneven(rank, r)));
    float[] received = spread(from, r -> part(r, rank, uneven(r, rank)));
    float[] f = gaps(from);
    world.alltoallv(sent, to, toPlaces, f, from, places);
    equal(Arrays.toString(f), Arrays.toString(received));
    f = gaps(from);
    world.alltoallv(sent(rank, n, -1), to, null, f, from, places);
    equal(Arrays.toString(f), Arrays.toString(received));
    f = new float[received(rank, n, -1).length];
    world.alltoallv(sent, to, toPlaces, f, from, null);
    equal(Arrays.toString(f), Arrays.toString(received(rank, n, -1)));
    double[] d = doubles(gaps(from));
    world.alltoallv(doubles(sent), to, toPlaces, d, from, places);
    equal(Arrays.toString(d), Arrays.toString(doubles(received)));
    int[] i = ints(gaps(from));
    world.alltoallv(ints(sent), to, toPlaces, i, from, places);
    equal(Arrays.toString(i), Arrays.toString(ints(received)));
    long[] l = longs(gaps(from));
    world.alltoallv(longs(sent), to, toPlaces, l, from, places);
    equal(Arrays.toString(l), Arrays.toString(longs(received)));
    byte[] b = words(gaps(from));
    world.alltoallv(words(sent), to, toPlaces, b, from, places, Dtype.I32);
    equal(Arrays.toString(b), Arrays.toString(words(received)));
    rootedArrays(world, root, atRoot ? counts(n, r -> uneven(r, root)) : null);

    long[] all = counts(n, r -> uneven(r, root));
    float[] everything = spread(all, r -> part(r, root, uneven(r, root)));
    float[] mine = part(rank, root, uneven(rank, root));
    f = gaps(all);
    world.allgatherv(mine, f, all, backwards(all));
    equal(Arrays.toString(f), Arrays.toString(everything));
    d = doubles(gaps(all));
    world.allgatherv(doubles(mine), d, all, backwards(all));
    equal(Arrays.toString(d), Arrays.toString(doubles(everything)));
    i = ints(gaps(all));
    world.allgatherv(ints(mine), i, all, backwards(all));
    equal(Arrays.toString(i), Arrays.toString(ints(everything)));
    l = longs(gaps(all));
    world.allgatherv(longs(mine), l, all, backwards(all));
    equal(Arrays.toString(l), Arrays.toString(longs(everything)));
    b = words(gaps(all));
    world.allgatherv(words(mine), b, all, backwards(all), Dtype.I32);
    equal(Arrays.toString(b), Arrays.toString(words(everything)));
  }

  /** gatherv there and scatterv back; counts is null elsewhere than on root. */
  private static void rootedArrays(Comm world, int root, long[] counts) {
    boolean atRoot = counts != null;
    long[] offsets = atRoot ? backwards(counts) : null;
    float[] whole = atRoot ? gaps(counts) : null;
    float[] all = atRoot ? spread(counts, r -> part(r, root, uneven(r, root))) : null;
    float[] mine = part(world.rank(), root, uneven(world.rank(), root));
    world.gatherv(mine, whole, counts, offsets, root);
    float[] f = new float[mine.length];
    world.scatterv(whole, counts, offsets, f, root);
    equal(Arrays.toString(f), Arrays.toString(mine));
    double[] d = atRoot ? doubles(gaps(counts)) : null;
    world.gatherv(doubles(mine), d, counts, offsets, root);
    double[] dBack = new double[mine.length];
    world.scatterv(d, counts, offsets, dBack, root);
    equal(Arrays.toString(dBack), Arrays.toString(doubles(mine)));
    int[] i = atRoot ? ints(gaps(counts)) : null;
    world.gatherv(ints(mine), i, counts, offsets, root);
    int[] iBack = new int[mine.length];
    world.scatterv(i, counts, offsets, iBack, root);
    equal(Arrays.toString(iBack), Arrays.toString(ints(mine)));
    long[] l = atRoot ? longs(gaps(counts)) : null;
    world.gatherv(longs(mine), l, counts, offsets, root);
    long[] lBack = new long[mine.length];
    world.scatterv(l, counts, offsets, lBack, root);
    equal(Arrays.toString(lBack), Arrays.toString(longs(mine)));
    byte[] b = atRoot ? words(gaps(counts)) : null;
    world.gatherv(words(mine), b, counts, offsets, Dtype.I32, root);
    byte[] bBack = new byte[4 * mine.length];
    world.scatterv(b, counts, offsets, bBack, Dtype.I32, root);
    equal(Arrays.toString(bBack), Arrays.toString(words(mine)));
    if (!atRoot) return;
    equal(Arrays.toString(whole), Arrays.toString(all));
    equal(Arrays.toString(d), Arrays.toString(doubles(all)));
    equal(Arrays.toString(i), Arrays.toString(ints(all)));
    equal(Arrays.toString(l), Arrays.toString(longs(all)));
    equal(Arrays.toString(b), Arrays.toString(words(all)));
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

  /** Rank 1's block of one element at 1, rank 0's of three from 3 on; what is between stays -7. */
  private static void placedAddresses(Comm world) {
    int rank = world.rank();
    boolean atRoot = rank == 0;
    long[] counts = {3, 1};
    long[] offsets = {3, 1};
    long[] reversed = {1, 0}; // of what is sent, where blocks may overlap
    long[] mine = atRoot ? new long[] {1, 3} : new long[] {0, 1};
    long[] theirs = atRoot ? new long[] {1, 0} : new long[] {3, 1};
    long[] ofRoot = atRoot ? counts : null;
    try (Memory memory = world.allocate(4096)) {
      FloatBuffer values = memory.buffer().asFloatBuffer();
      values.put(0, part(rank, 0, 4));
      long send = memory.address();
      long recv = send + 2048;
      float[] first = {-7, value(1, 0, 0), -7, 0, 1, 2};
      clear(values);
      world.allgatherv(send, recv, counts, offsets, Dtype.F32, 0);
      begins(values, first);
      clear(values);
      world.allgathervAsync(send, recv, counts, offsets, Dtype.F32, 0).await();
      begins(values, first);
      clear(values);
      world.gatherv(send, counts[rank], recv, ofRoot, offsets, Dtype.F32, 0, 0);
      if (atRoot) begins(values, first);
      clear(values);
      world.gathervAsync(send, counts[rank], recv, ofRoot, offsets, Dtype.F32, 0, 0).await();
      if (atRoot) begins(values, first);
      clear(values);
      world.scatterv(send, ofRoot, reversed, recv, counts[rank], Dtype.F32, 0, 0);
      begins(values, atRoot ? new float[] {1, 2, 3, -7} : new float[] {0, -7});
      clear(values);
      world.scattervAsync(send, ofRoot, reversed, recv, counts[rank], Dtype.F32, 0, 0).await();
      begins(values, atRoot ? new float[] {1, 2, 3, -7} : new float[] {0, -7});
      clear(values);
      world.alltoallv(send, mine, null, recv, theirs, offsets, Dtype.F32, 0);
      begins(values,
          atRoot ? new float[] {-7, -7, -7, 0, -7}
              : new float[] {-7, value(1, 0, 0), -7, 1, 2, 3, -7});
      clear(values);
      world.alltoallvAsync(send, mine, reversed, recv, theirs, null, Dtype.F32, 0).await();
      begins(values, atRoot ? new float[] {1, -7} : new float[] {0, 1, 2, value(1, 0, 0), -7});
      Class<InvalidArgumentException> refused = InvalidArgumentException.class;
      thrown(refused,
          () -> world.allgatherv(send, recv, counts, new long[] {0, 2}, Dtype.F32, 0),
          "blocks of ranks 0 and 1 overlap in recv: offsets[0] is 0 with 3 elements, "
              + "offsets[1] is 2 with 1");
      long[] most = {Long.MAX_VALUE, Long.MAX_VALUE};
      thrown(refused,
          () -> world.alltoallv(send, most, null, recv, counts, offsets, Dtype.F32, 0),
          "send_counts[0] is 9223372036854775807", "2^63 bytes");
    } catch (Exception e) {
      throw new AssertionError(e);
    }
  }

  private static void clear(FloatBuffer values) {
    for (int i = 0; i < 8; i++) values.put(512 + i, -7);
  }

  private static void begins(FloatBuffer values, float[] wanted) {
    holds(values.slice(512, wanted.length), wanted);
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

  private static void refusedOffsets(Comm world) throws Exception {
    Class<InvalidArgumentException> refused = InvalidArgumentException.class;
    int rank = world.rank();
    FloatBuffer two = floats(2);
    FloatBuffer eight = floats(8);
    FloatBuffer other = floats(8);
    long[] twos = {2, 2};
    long[] inside = {2, 0};
    Dtype f32 = Dtype.F32;
    thrown(refused, () -> world.allgatherv(two, eight, twos, new long[] {0}, f32),
        "allgatherv: offsets has 1 offsets, but the communicator has 2 ranks; give one for each");
    thrown(refused,
        () -> world.alltoallvAsync(eight, twos, inside, other, twos, new long[] {0, -1}, f32),
        "alltoallv: recvOffsets[1] is -1; give an offset of at least 0");
    thrown(refused,
        () -> world.alltoallv(eight, twos, new long[] {0, 7}, other, twos, inside, f32),
        "alltoallv: the block of rank 1 does not lie in send: it has 2 elements and "
            + "sendOffsets[1] is 7, but send has 8; give a smaller offset or a larger buffer");
    long[] far = {0, Long.MAX_VALUE};
    thrown(refused, () -> world.gatherv(two, eight, twos, far, f32, rank),
        "gatherv: the block of rank 1 does not lie in recv",
        "offsets[1] is 9223372036854775807, but recv has 8");
    thrown(refused, () -> world.scatterv(new int[8], new long[] {9, 0}, inside, new int[2], rank),
        "rank 0 does not lie in send: it has 9 elements and offsets[0] is 2");
    thrown(refused, () -> world.allgatherv(two, eight, twos, new long[] {4, 3}, f32),
        "blocks of ranks 1 and 0 overlap in recv: offsets[1] is 3 with 2 elements, "
            + "offsets[0] is 4 with 2");
    thrown(refused, () -> world.allgatherv(eight, other, twos, inside, f32),
        "counts[" + rank + "], which is this rank's, is 2, but send has 8");
    // An empty block may be anywhere, and what is sent may overlap.
    long[] anywhere = {Long.MAX_VALUE / 8, 6};
    world.allgatherv(floats(2 * rank), eight, new long[] {0, 2}, anywhere, f32);
    world.scatterv(eight, twos, new long[] {1, 2}, two, f32, 0);
    world.barrier(); // nothing of all this broke it
  }
}
