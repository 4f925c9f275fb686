// SPDX-License-Identifier: Apache-2.0
package dttest;

import io.dt.Comm;
import io.dt.Dtype;
import io.dt.Job;
import io.dt.Memory;
import io.dt.ReduceOp;
import java.nio.FloatBuffer;
import java.util.Arrays;

/**
 * The loop of overhead.c: prints nanoseconds per allreduce of 1 KiB, median of many batches.
 * Argument: buffer, address or array.
 */
public final class Overhead {
  private static final int COUNT = 256;
  private static final int BATCHES = 200;
  private static final int WARM_BATCHES = 300; // the compiler wants more than C
  private static final int CALLS = 200;

  private Overhead() {}

  /** @param arguments how memory is given */
  public static void main(String[] arguments) {
    try (Job job = Job.init(); Comm comm = job.world(); Memory memory = comm.allocate(4 * COUNT)) {
      FloatBuffer buffer = Ranks.floats(COUNT);
      float[] array = new float[COUNT];
      long address = memory.address();
      Runnable call =
          switch (arguments[0]) {
            case "buffer" -> () -> comm.allreduce(buffer, buffer, ReduceOp.SUM);
            case "address" ->
                () -> comm.allreduce(address, address, COUNT, Dtype.F32, ReduceOp.SUM, 0);
            default -> () -> comm.allreduce(array, array, ReduceOp.SUM);
          };
      double[] batches = new double[BATCHES];
      for (int i = -WARM_BATCHES; i < BATCHES; i++) {
        long begin = System.nanoTime();
        for (int k = 0; k < CALLS; k++) call.run();
        if (i >= 0) batches[i] = (double) (System.nanoTime() - begin) / CALLS;
      }
      Arrays.sort(batches);
      if (comm.rank() == 0) System.out.printf("%.1f%n", batches[BATCHES / 2]);
      job.leave();
    }
  }
}
