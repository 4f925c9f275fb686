// SPDX-License-Identifier: Apache-2.0
package dttest;

import io.dt.Comm;
import io.dt.DataType;
import io.dt.Job;
import io.dt.ReduceOp;
import io.dt.Tensor;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;

/** A rank that {@code dt run} starts, whose local rank may have been changed. */
public final class RankProgram {
  private RankProgram() {}

  /** @param arguments how many ranks there are */
  public static void main(String[] arguments) throws Exception {
    int n = Integer.parseInt(arguments[0]);
    try (Job job = Job.init(); Comm world = job.world()) {
      Check.equal(job.place().launcher(), "dt run");
      Check.equal(job.place().worldSize(), n);
      followRanks(job, world, n);
      for (int count : new int[] {1, 1000, 1 << 20}) {
        FloatBuffer buffer = Ranks.pattern(world.rank(), count);
        world.allReduce(Tensor.of(buffer));
        for (int i = 0; i < count; i++) {
          Check.equal(buffer.get(i), (float) (n * (n + 1) / 2 + n * 0.5 * i));
        }
        Tensor memory = world.allocate(count, DataType.F32);
        FloatBuffer shared = memory.buffer().asFloatBuffer();
        shared.put(Ranks.pattern(world.rank(), count));
        shared.clear();
        world.allReduceAsync(memory, ReduceOp.MAX).future().get();
        Check.equal(shared.get(count - 1), n + 0.5f * (count - 1));
      }
      job.leave();
    }
    System.out.println("rank ended well");
  }

  /** Blocks lie, and roots are found, in the order of the ranks. */
  private static void followRanks(Job job, Comm world, int n) {
    int me = Integer.parseInt(System.getenv("DT_RANK"));
    Check.equal(world.rank(), me);
    Check.equal(job.place().localRank(), Integer.parseInt(System.getenv("DT_LOCAL_RANK")));
    IntBuffer mine = Ranks.bytes(4 * n).asIntBuffer();
    IntBuffer all = Ranks.bytes(4 * n).asIntBuffer();
    for (int i = 0; i < n; i++) mine.put(i, 100 * me + i);
    world.allGather(Tensor.of(mine).slice(0, 1), Tensor.of(all));
    for (int i = 0; i < n; i++) Check.equal(all.get(i), 100 * i);
    world.allToAll(Tensor.of(mine), Tensor.of(all));
    for (int i = 0; i < n; i++) Check.equal(all.get(i), 100 * i + me);
    for (int root = 0; root < n; root++) {
      IntBuffer one = Ranks.bytes(4).asIntBuffer().put(0, me);
      world.broadcast(Tensor.of(one), root);
      Check.equal(one.get(0), root);
    }
  }
}
