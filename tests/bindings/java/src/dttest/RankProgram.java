// SPDX-License-Identifier: Apache-2.0
package dttest;

import io.dt.Comm;
import io.dt.Job;
import io.dt.ReduceOp;
import java.nio.FloatBuffer;

/** A rank that {@code dt run} starts. */
public final class RankProgram {
  private RankProgram() {}

  /** @param arguments how many ranks there are */
  public static void main(String[] arguments) throws Exception {
    int n = Integer.parseInt(arguments[0]);
    try (Job job = Job.init(); Comm world = job.world()) {
      Check.equal(job.place().launcher(), "dt run");
      Check.equal(job.place().worldSize(), n);
      for (int count : new int[] {1, 1000, 1 << 20}) {
        FloatBuffer buffer = Ranks.pattern(world.rank(), count);
        world.allreduce(buffer, buffer, ReduceOp.SUM);
        for (int i = 0; i < count; i++) {
          Check.equal(buffer.get(i), (float) (n * (n + 1) / 2 + n * 0.5 * i));
        }
        FloatBuffer shared = world.allocate(4L * count).buffer().asFloatBuffer();
        shared.put(Ranks.pattern(world.rank(), count));
        shared.clear();
        world.allreduceAsync(shared, shared, ReduceOp.MAX).future().get();
        Check.equal(shared.get(count - 1), n + 0.5f * (count - 1));
      }
      job.leave();
    }
    System.out.println("rank ended well");
  }
}
