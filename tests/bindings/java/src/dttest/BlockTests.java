// SPDX-License-Identifier: Apache-2.0
package dttest;

import static dttest.Check.equal;
import static dttest.Check.test;
import static dttest.Check.thrown;
import static dttest.Ranks.floats;

import io.dt.Blocks;
import io.dt.Comm;
import io.dt.DataType;
import io.dt.InvalidArgumentException;
import io.dt.Job;
import io.dt.MismatchException;
import io.dt.OperationKind;
import io.dt.Tensor;
import java.nio.FloatBuffer;

/** Operations that move blocks: groups, and what is refused. MatrixTests has their values. */
final class BlockTests {
  private static final Class<InvalidArgumentException> REFUSED = InvalidArgumentException.class;

  private BlockTests() {}

  static void add() {
    test("blocks in groups, and their statistics", () -> Ranks.run(3, BlockTests::groups));
    test("wrong blocks of 2 ranks", () -> Ranks.run(2, (job, world) -> refused(world)));
    test("blocks at wrong offsets", () -> Ranks.run(2, (job, world) -> refusedOffsets(world)));
    test("counts that differ name both sides", () -> Ranks.run(2, (job, world) -> {
      int rank = world.rank();
      Tensor recv = rank == 0 ? some(4) : null;
      Blocks blocks = rank == 0 ? Blocks.of(2, 2) : null;
      MismatchException e =
          thrown(MismatchException.class, () -> world.gather(some(2 + rank), recv, blocks, 0),
              "2", "3");
      equal(e.operation(), "gatherv");
    }));
  }

  private static Tensor some(int count) {
    return Tensor.of(floats(count));
  }

  private static void groups(Job job, Comm world) {
    int n = world.size();
    int rank = world.rank();
    FloatBuffer to = floats(n);
    FloatBuffer from = floats(n);
    FloatBuffer whole = floats(n);
    for (int r = 0; r < n; r++) to.put(r, 10 * rank + r);
    world.groupBegin();
    world.allToAll(Tensor.of(to), Tensor.of(from));
    world.gather(Tensor.of(floats(1).put(0, rank)), rank == 0 ? Tensor.of(whole) : null, 0);
    world.groupEnd();
    for (int r = 0; r < n; r++) equal(from.get(r), 10f * r + rank);
    for (int r = 0; rank == 0 && r < n; r++) equal(whole.get(r), (float) r);
    equal(job.statistics().operations().get(OperationKind.ALLTOALL).operations(), 1L);
    equal(job.statistics().operations().get(OperationKind.GATHER).operations(), 1L);
    equal(job.statistics().operations().get(OperationKind.ALLGATHERV).operations(), 0L);
  }

  private static void refused(Comm world) throws Exception {
    int rank = world.rank();
    Tensor three = some(3);
    Tensor six = some(6);
    Tensor seven = some(7);
    Tensor fixed = Tensor.of(floats(3).asReadOnlyBuffer());
    Blocks whole = Blocks.of(3, 3);
    thrown(REFUSED, () -> world.allToAll(six, seven), "allToAll: recv", "7", "6 are wanted");
    thrown(REFUSED, () -> world.allToAllAsync(seven, some(7)), "no multiple of the 2 ranks");
    thrown(REFUSED, () -> world.allToAll(six, Blocks.of(6), some(6), whole),
        "allToAll: sendBlocks has 1 counts, but the communicator has 2 ranks");
    thrown(REFUSED, () -> Blocks.of(7, -1), "Blocks.of: counts[1] is -1");
    thrown(REFUSED, () -> Blocks.of((long[]) null), "counts is null");
    thrown(REFUSED, () -> world.allToAll(six, whole, seven, whole),
        "recvBlocks has 6 elements together, but recv has 7");
    thrown(REFUSED, () -> world.allToAllAsync(six, null, seven, whole), "sendBlocks is null");
    thrown(REFUSED, () -> world.allGather(three, seven, whole),
        "allGather: recvBlocks has 6 elements together, but recv has 7");
    thrown(REFUSED, () -> world.allGatherAsync(seven, six, whole),
        "recvBlocks[" + rank + "], which is this rank's, is 3, but send has 7");
    thrown(REFUSED, () -> world.allGather(three, six, null), "recvBlocks is null");
    thrown(REFUSED, () -> world.gather(six, seven, rank), "recv", "12 are wanted");
    thrown(REFUSED, () -> world.gather(six, null, rank), "recv is null");
    thrown(REFUSED, () -> world.gather(three, six, null, rank), "gather: recvBlocks is null");
    thrown(REFUSED, () -> world.scatter(six, seven, rank), "send", "14 are wanted");
    thrown(REFUSED, () -> world.scatter(seven, whole, three, rank),
        "scatter: sendBlocks has 6 elements together, but send has 7");
    thrown(REFUSED, () -> world.gatherAsync(fixed, six, 2), "root");
    thrown(REFUSED, () -> world.scatterAsync(six, fixed, rank), "read-only");
    thrown(REFUSED,
        () -> world.allGather(Tensor.of(new long[2]), Tensor.of(new long[3]), Blocks.of(2, 2)),
        "recvBlocks has 4 elements together, but recv has 3");
    thrown(REFUSED, () -> world.gather(Tensor.of(new float[1]), null, rank), "null");
    thrown(REFUSED, () -> world.allToAll(six, six), "overlap", "allToAll");
    world.barrier(); // nothing of all this broke it
  }

  private static void refusedOffsets(Comm world) throws Exception {
    int rank = world.rank();
    Tensor two = some(2);
    Tensor eight = some(8);
    Tensor other = some(8);
    long[] twos = {2, 2};
    Blocks inside = Blocks.of(twos, new long[] {2, 0});
    thrown(REFUSED, () -> Blocks.of(twos, new long[] {0}),
        "Blocks.of: offsets has 1 elements, counts 2; give one for each");
    thrown(REFUSED, () -> Blocks.of(twos, new long[] {0, -1}),
        "Blocks.of: offsets[1] is -1; it must be at least 0");
    thrown(REFUSED,
        () -> world.allToAllAsync(eight, Blocks.of(twos, new long[] {0, 7}), other, inside),
        "allToAll: the block of rank 1 in sendBlocks does not lie in send: it has 2 elements from "
            + "7 on, but send has 8; give a smaller offset or a larger tensor");
    long[] far = {0, Long.MAX_VALUE};
    thrown(REFUSED, () -> world.gather(two, eight, Blocks.of(twos, far), rank),
        "gather: the block of rank 1 in recvBlocks does not lie in recv",
        "from 9223372036854775807 on, but recv has 8");
    Blocks nine = Blocks.of(new long[] {9, 0}, new long[] {2, 0});
    thrown(REFUSED,
        () -> world.scatter(Tensor.of(new int[8]), nine, Tensor.of(new int[2]), rank),
        "rank 0 in sendBlocks does not lie in send: it has 9 elements from 2 on");
    thrown(REFUSED, () -> world.allGather(two, eight, Blocks.of(twos, new long[] {4, 3})),
        "allGather: the blocks of ranks 1 and 0 overlap in recv: recvBlocks.offsets[1] is 3 with 2 "
            + "elements, recvBlocks.offsets[0] is 4 with 2");
    thrown(REFUSED, () -> world.allGather(eight, other, inside),
        "recvBlocks[" + rank + "], which is this rank's, is 2, but send has 8");
    long[] most = {Long.MAX_VALUE, Long.MAX_VALUE};
    Tensor huge = Tensor.at(4096, Long.MAX_VALUE, DataType.F32, null);
    thrown(REFUSED, () -> world.allToAll(huge, Blocks.of(most), other, inside),
        "sendBlocks.counts[0] is 9223372036854775807", "2^63 bytes");
    // An empty block may be anywhere, and what is sent may overlap.
    Blocks anywhere = Blocks.of(new long[] {0, 2}, new long[] {Long.MAX_VALUE / 8, 6});
    world.allGather(some(2 * rank), eight, anywhere);
    world.scatter(eight, Blocks.of(twos, new long[] {1, 2}), two, 0);
    world.barrier(); // nothing of all this broke it
  }
}
