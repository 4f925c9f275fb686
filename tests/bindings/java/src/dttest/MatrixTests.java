// SPDX-License-Identifier: Apache-2.0
package dttest;

import static dttest.Check.equal;
import static dttest.Check.test;
import static dttest.Check.that;

import io.dt.Blocks;
import io.dt.Comm;
import io.dt.OperationKind;
import io.dt.ReduceOp;
import io.dt.Tensor;
import io.dt.Work;
import java.time.Duration;
import java.util.Arrays;
import java.util.concurrent.TimeUnit;
import java.util.function.IntFunction;
import java.util.function.Supplier;

/** Every operation, in each of its forms and with each kind of memory, against a closed form. */
final class MatrixTests {
  private static final int FORMS = 5;
  private static final double UNTOUCHED = -1;

  private MatrixTests() {}

  static void add() {
    for (int n : new int[] {1, 2, 3}) {
      for (int count : new int[] {0, 1, 5, 4099}) {
        test("operations of " + n + " ranks with " + count + " elements", () ->
            Ranks.run(n, (job, world) -> {
              for (int form = 0; form < FORMS; form++) all(world, Storage.FLOATS, count, form);
            }));
      }
      for (Storage storage : Storage.values()) {
        test("operations of " + n + " ranks on " + storage, () ->
            Ranks.run(n, (job, world) -> {
              all(world, storage, 3, 0);
              if (!storage.onHeap()) all(world, storage, 3, 1);
            }));
      }
      test("operations in place of " + n + " ranks", () ->
          Ranks.run(n, (job, world) -> {
            for (Storage storage : Storage.values()) inPlace(world, storage);
          }));
    }
  }

  /** Blocking, or by a work, a future or a time. */
  static void each(int form, Runnable blocking, Supplier<Work> async) throws Exception {
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

  private static void all(Comm world, Storage storage, int count, int form) throws Exception {
    for (int root = 0; root < world.size(); root++) {
      for (OperationKind kind : OperationKind.values()) {
        for (int gaps = 0; gaps < 4; gaps++) {
          boolean blocks = kind.name().endsWith("V") && kind != OperationKind.RECV;
          if (gaps > 0 && !blocks) continue;
          Case one = new Case(kind, world.size(), world.rank(), root, count, gaps);
          try {
            one.run(world, storage, form);
          } catch (AssertionError e) {
            throw new AssertionError(one + " on " + storage + ", form " + form, e);
          }
        }
      }
    }
  }

  /** What rank `sender` has for `receiver`; a whole number that each type holds. */
  static double value(int sender, int receiver, int i) {
    return 100 * sender + 10 * receiver + i;
  }

  /** Counts that differ for each pair, zero among them. */
  static int uneven(int sender, int receiver) {
    return (sender + 2 * receiver + 1) % 4;
  }

  /** The blocks of all ranks, one behind the other, or in reverse order with gaps of two. */
  static double[] joined(long[] counts, boolean gaps, IntFunction<double[]> part) {
    long[] offsets = offsets(counts, gaps);
    int size = (int) Arrays.stream(counts).sum() + (gaps ? 2 * counts.length : 0);
    double[] values = new double[size];
    Arrays.fill(values, UNTOUCHED);
    for (int r = 0; r < counts.length; r++) {
      System.arraycopy(part.apply(r), 0, values, (int) offsets[r], (int) counts[r]);
    }
    return values;
  }

  static long[] offsets(long[] counts, boolean gaps) {
    long[] offsets = new long[counts.length];
    long end = 0;
    for (int i = 0; i < counts.length; i++) {
      int r = gaps ? counts.length - 1 - i : i;
      offsets[r] = end + (gaps ? 2 : 0);
      end = offsets[r] + counts[r];
    }
    return offsets;
  }

  private static double[] part(int sender, int receiver, int count) {
    double[] values = new double[count];
    for (int i = 0; i < count; i++) values[i] = value(sender, receiver, i);
    return values;
  }

  /** One call of one rank. Bit 0 of `gaps`: of what is sent, bit 1: of what is received. */
  private record Case(OperationKind kind, int n, int rank, int root, int count, int gaps) {
    void run(Comm world, Storage storage, int form) throws Exception {
      Storage.Place send = null;
      Storage.Place recv = null;
      if (sent() != null) send = storage.make(world, sent());
      double[] wanted = wanted();
      if (wanted != null) {
        double[] before = kind == OperationKind.BROADCAST && rank == root ? wanted : wanted.clone();
        if (before != wanted) Arrays.fill(before, UNTOUCHED);
        recv = storage.make(world, before);
      }
      Tensor from = send == null ? null : send.tensor();
      Tensor to = recv == null ? null : recv.tensor();
      Blocks sendBlocks = blocks(sendCounts(), (gaps & 1) != 0);
      Blocks recvBlocks = blocks(recvCounts(), (gaps & 2) != 0);
      switch (kind) {
        case ALLREDUCE -> each(form, () -> world.allReduce(from, to, ReduceOp.SUM),
            () -> world.allReduceAsync(from, to, ReduceOp.SUM));
        case REDUCE -> each(form, () -> world.reduce(from, to, ReduceOp.MAX, root),
            () -> world.reduceAsync(from, to, ReduceOp.MAX, root));
        case BROADCAST -> each(form, () -> world.broadcast(to, root),
            () -> world.broadcastAsync(to, root));
        case ALLGATHER -> each(form, () -> world.allGather(from, to),
            () -> world.allGatherAsync(from, to));
        case REDUCE_SCATTER -> each(form, () -> world.reduceScatter(from, to, ReduceOp.SUM),
            () -> world.reduceScatterAsync(from, to, ReduceOp.SUM));
        case BARRIER -> each(form, world::barrier, world::barrierAsync);
        case SEND -> {} // with RECV
        case RECV -> transfer(world, storage, form);
        case ALLTOALL -> each(form, () -> world.allToAll(from, to),
            () -> world.allToAllAsync(from, to));
        case ALLTOALLV -> each(form, () -> world.allToAll(from, sendBlocks, to, recvBlocks),
            () -> world.allToAllAsync(from, sendBlocks, to, recvBlocks));
        case GATHER -> each(form, () -> world.gather(from, to, root),
            () -> world.gatherAsync(from, to, root));
        case GATHERV -> each(form, () -> world.gather(from, to, recvBlocks, root),
            () -> world.gatherAsync(from, to, recvBlocks, root));
        case SCATTER -> each(form, () -> world.scatter(from, to, root),
            () -> world.scatterAsync(from, to, root));
        case SCATTERV -> each(form, () -> world.scatter(from, sendBlocks, to, root),
            () -> world.scatterAsync(from, sendBlocks, to, root));
        case ALLGATHERV -> each(form, () -> world.allGather(from, to, recvBlocks),
            () -> world.allGatherAsync(from, to, recvBlocks));
        case REDUCE_SCATTERV ->
            each(form, () -> world.reduceScatter(from, sendBlocks, to, ReduceOp.SUM),
                () -> world.reduceScatterAsync(from, sendBlocks, to, ReduceOp.SUM));
      }
      if (recv != null) equal(Arrays.toString(recv.read()), Arrays.toString(wanted));
    }

    /** Around a ring; calls that wait begin with rank 0. */
    private void transfer(Comm world, Storage storage, int form) throws Exception {
      if (n == 1) return;
      int left = (rank + n - 1) % n;
      int right = (rank + 1) % n;
      Storage.Place out = storage.make(world, part(rank, right, count));
      Storage.Place in = storage.make(world, new double[count]);
      Work sending = null;
      if (form != 0) sending = world.sendAsync(out.tensor(), right);
      if (form == 0 && rank == 0) world.send(out.tensor(), right);
      each(form, () -> world.recv(in.tensor(), left), () -> world.recvAsync(in.tensor(), left));
      if (form == 0 && rank != 0) world.send(out.tensor(), right);
      if (sending != null) sending.await();
      equal(Arrays.toString(in.read()), Arrays.toString(part(left, rank, count)));
    }

    private static Blocks blocks(long[] counts, boolean gaps) {
      if (counts == null) return null;
      return gaps ? Blocks.of(counts, offsets(counts, true)) : Blocks.of(counts);
    }

    private long[] counts(IntFunction<Integer> of) {
      long[] counts = new long[n];
      for (int r = 0; r < n; r++) counts[r] = of.apply(r);
      return counts;
    }

    private long[] sendCounts() {
      return switch (kind) {
        case ALLTOALLV -> counts(r -> uneven(rank, r));
        case SCATTERV -> rank == root ? counts(r -> uneven(root, r)) : null;
        case REDUCE_SCATTERV -> counts(r -> uneven(root, r));
        default -> null;
      };
    }

    private long[] recvCounts() {
      return switch (kind) {
        case ALLTOALLV -> counts(r -> uneven(r, rank));
        case GATHERV -> rank == root ? counts(r -> uneven(r, root)) : null;
        case ALLGATHERV -> counts(r -> uneven(r, root));
        default -> null;
      };
    }

    /** Null: nothing. */
    private double[] sent() {
      long[] equal = counts(r -> count);
      return switch (kind) {
        case ALLREDUCE, REDUCE, ALLGATHER, GATHER -> part(rank, root, count);
        case REDUCE_SCATTER, ALLTOALL -> joined(equal, false, r -> part(rank, r, count));
        case SCATTER -> rank != root ? null : joined(equal, false, r -> part(root, r, count));
        case ALLTOALLV ->
            joined(sendCounts(), (gaps & 1) != 0, r -> part(rank, r, uneven(rank, r)));
        case SCATTERV -> rank != root ? null
            : joined(sendCounts(), (gaps & 1) != 0, r -> part(root, r, uneven(root, r)));
        case REDUCE_SCATTERV ->
            joined(sendCounts(), (gaps & 1) != 0, r -> part(rank, r, uneven(root, r)));
        case GATHERV, ALLGATHERV -> part(rank, root, uneven(rank, root));
        case BROADCAST, BARRIER, SEND, RECV -> null;
      };
    }

    /** Null: nothing. */
    private double[] wanted() {
      long[] equal = counts(r -> count);
      boolean recvGaps = (gaps & 2) != 0;
      return switch (kind) {
        case ALLREDUCE -> sums(root, count);
        case REDUCE -> rank == root ? part(n - 1, root, count) : null;
        case BROADCAST -> part(root, root, count);
        case REDUCE_SCATTER -> sums(rank, count);
        case REDUCE_SCATTERV -> sums(rank, uneven(root, rank));
        case ALLGATHER -> joined(equal, false, r -> part(r, root, count));
        case GATHER -> rank == root ? joined(equal, false, r -> part(r, root, count)) : null;
        case SCATTER -> part(root, rank, count);
        case ALLTOALL -> joined(equal, false, r -> part(r, rank, count));
        case ALLTOALLV -> joined(recvCounts(), recvGaps, r -> part(r, rank, uneven(r, rank)));
        case GATHERV -> rank != root ? null
            : joined(recvCounts(), recvGaps, r -> part(r, root, uneven(r, root)));
        case ALLGATHERV -> joined(recvCounts(), recvGaps, r -> part(r, root, uneven(r, root)));
        case SCATTERV -> part(root, rank, uneven(root, rank));
        case BARRIER, SEND, RECV -> null;
      };
    }

    private double[] sums(int receiver, int length) {
      double[] sums = new double[length];
      for (int i = 0; i < length; i++) {
        for (int s = 0; s < n; s++) sums[i] += value(s, receiver, i);
      }
      return sums;
    }
  }

  private static double[] sentTo(int n, int rank) {
    double[] values = new double[n];
    for (int r = 0; r < n; r++) values[r] = value(rank, r, 0);
    return values;
  }

  /** The smaller tensor is this rank's part of the larger one, or both are the same. */
  private static void inPlace(Comm world, Storage storage) {
    int n = world.size();
    int rank = world.rank();
    double all = n * (n + 1) / 2.0;
    Storage.Place both = storage.make(world, new double[] {rank + 1, 7});
    world.allReduce(both.tensor());
    equal(Arrays.toString(both.read()), Arrays.toString(new double[] {all, 7 * n}));
    world.allReduce(both.tensor(), ReduceOp.MAX);
    equal(Arrays.toString(both.read()), Arrays.toString(new double[] {all, 7 * n}));
    world.reduce(both.tensor(), both.tensor(), ReduceOp.SUM, 0);
    if (rank == 0) equal(both.read()[0], n * all);
    if (!storage.onHeap()) {
      Storage.Place async = storage.make(world, new double[] {rank + 1});
      world.allReduceAsync(async.tensor()).await();
      world.allReduceAsync(async.tensor(), ReduceOp.MIN).await();
      equal(async.read()[0], all);
    }
    double[] own = new double[2 * n];
    double[] gathered = new double[2 * n];
    for (int i = 0; i < 2; i++) own[2 * rank + i] = value(rank, 0, i);
    for (int i = 0; i < 2 * n; i++) gathered[i] = value(i / 2, 0, i % 2);
    Storage.Place whole = storage.make(world, own);
    world.allGather(whole.tensor().slice(2 * rank, 2), whole.tensor());
    equal(Arrays.toString(whole.read()), Arrays.toString(gathered));
    world.reduceScatter(whole.tensor(), whole.tensor().slice(2 * rank, 2), ReduceOp.MIN);
    equal(whole.read()[2 * rank + 1], value(rank, 0, 1));
    // Arrays are copied, so even this may use one.
    if (!storage.onHeap()) return;
    Storage.Place turned = storage.make(world, sentTo(n, rank));
    world.allToAll(turned.tensor(), turned.tensor());
    for (int r = 0; r < n; r++) equal(turned.read()[r], value(r, rank, 0));
  }
}
