// SPDX-License-Identifier: Apache-2.0
package dttest;

import io.dt.Comm;
import io.dt.DataType;
import io.dt.Job;
import io.dt.ReduceOp;
import io.dt.Tensor;

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
    try (Job job = Job.init(); Comm comm = job.world();
        Tensor memory = comm.allocate(2 * COUNT, DataType.F32)) {
      Tensor send =
          switch (arguments[2]) {
            case "buffer" -> Tensor.of(Ranks.floats(COUNT));
            case "address" -> memory.slice(0, COUNT);
            default -> Tensor.of(new float[COUNT]);
          };
      Tensor recv =
          switch (arguments[2]) {
            case "buffer" -> Tensor.of(Ranks.floats(COUNT));
            case "address" -> memory.slice(COUNT, COUNT);
            default -> Tensor.of(new float[COUNT]);
          };
      Runnable call = () -> comm.allReduce(send, recv, ReduceOp.SUM);
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
