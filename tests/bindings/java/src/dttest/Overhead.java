// SPDX-License-Identifier: Apache-2.0
package dttest;

import io.dt.Comm;
import io.dt.Dtype;
import io.dt.Job;
import io.dt.Memory;
import io.dt.ReduceOp;
import java.nio.FloatBuffer;

/**
 * The loop of overhead.c: rank 0 prints nanoseconds per allreduce of 1 KiB, a line per round.
 * Arguments: how many loops in a round, how many rounds; buffer, address or array.
 */
public final class Overhead {
  private static final int COUNT = 256;

  private Overhead() {}

  /** @param arguments loops, rounds, how memory is given */
  public static void main(String[] arguments) {
    int loops = Integer.parseInt(arguments[0]);
    int rounds = Integer.parseInt(arguments[1]);
    try (Job job = Job.init(); Comm comm = job.world(); Memory memory = comm.allocate(8 * COUNT)) {
      FloatBuffer from = Ranks.floats(COUNT);
      FloatBuffer to = Ranks.floats(COUNT);
      float[] send = new float[COUNT];
      float[] recv = new float[COUNT];
      long address = memory.address();
      Runnable call =
          switch (arguments[2]) {
            case "buffer" -> () -> comm.allreduce(from, to, ReduceOp.SUM);
            case "address" ->
                () -> comm.allreduce(address, address + 4 * COUNT, COUNT, Dtype.F32, ReduceOp.SUM, 0);
            default -> () -> comm.allreduce(send, recv, ReduceOp.SUM);
          };
      for (int i = 0; i < rounds; i++) {
        long begin = System.nanoTime();
        for (int k = 0; k < loops; k++) call.run();
        double ns = (double) (System.nanoTime() - begin) / loops;
        if (comm.rank() == 0) System.out.printf("%.1f%n", ns);
      }
      job.leave();
    }
  }
}
