// SPDX-License-Identifier: Apache-2.0
package dttest;

import static dttest.Check.equal;
import static dttest.Check.test;
import static dttest.Check.that;
import static dttest.Check.thrown;
import static dttest.Ranks.floats;

import io.dt.ClosedException;
import io.dt.Comm;
import io.dt.DataType;
import io.dt.InvalidArgumentException;
import io.dt.Job;
import io.dt.MismatchException;
import io.dt.Param;
import io.dt.Piece;
import io.dt.Reducer;
import io.dt.ReducerOptions;
import io.dt.Shard;
import io.dt.ShardOptions;
import io.dt.Tensor;
import java.nio.ByteBuffer;
import java.nio.FloatBuffer;
import java.util.Arrays;
import java.util.List;

/** Parameters that each rank updates a part of. */
final class ShardTests {
  private static final int STEPS = 4;
  private static final List<Param> PARAMS =
      List.of(
          new Param("embedding", 600, DataType.F32),
          new Param("bias", 1, DataType.F32),
          new Param("weight", 1000, DataType.F32),
          new Param("none", 0, DataType.F32));
  private static final int[] UNITS = {0, 0, 1, 1};

  private ShardTests() {}

  static void add() {
    test("stages and bucket sizes of a shard end with the same bits", () ->
        Ranks.run(2, (job, world) -> same(world)));
    test("a shard's pieces and its memory", () -> Ranks.run(2, (job, world) -> pieces(world)));
    test("what a shard refuses", () -> Ranks.run(2, (job, world) -> refusals(world)));
    test("a closed shard keeps the memory of its buffers", ShardTests::closed);
  }

  private static void same(Comm world) {
    ShardOptions options = ShardOptions.DEFAULT.withUnits(UNITS);
    float[] plain = train(world, options.withStage(0));
    for (int stage = 0; stage <= 1; stage++) {
      for (long bytes : new long[] {1, 1024, 1 << 20}) {
        ReducerOptions reducer = ReducerOptions.DEFAULT.withBucketBytes(bytes, 0);
        ShardOptions cut = options.withStage(stage).withReducer(reducer);
        that(Arrays.equals(train(world, cut), plain), "stage " + stage + ", " + bytes + " bytes");
        cut = cut.withGranules(64, 0, 100, 0);
        that(Arrays.equals(train(world, cut), plain), "stage " + stage + " in rows");
      }
    }
  }

  /** SGD with momentum. All parameters, and the norms of the steps: the same on all ranks. */
  private static float[] train(Comm world, ShardOptions options) {
    FloatBuffer result = floats(STEPS + 1601);
    try (Shard shard = new Shard(world, PARAMS, options)) {
      Reducer reducer = shard.reducer();
      float[][] momentum = new float[PARAMS.size()][];
      for (int p = 0; p < PARAMS.size(); p++) {
        momentum[p] = new float[count(p)];
        float[] first = new float[count(p)];
        for (int i = 0; i < first.length; i++) first[i] = draw(0, 0, p, i);
        shard.set(p, Tensor.of(first));
      }
      for (int step = 1; step <= STEPS; step++) {
        FloatBuffer[] gradients = new FloatBuffer[PARAMS.size()];
        for (int p = 0; p < gradients.length; p++) {
          shard.gather(UNITS[p]);
          FloatBuffer values = shard.parameter(p).asFloatBuffer();
          boolean inPlace = p == 2;
          gradients[p] = inPlace ? reducer.gradient(p).asFloatBuffer() : floats(count(p));
          for (int i = 0; i < count(p); i++) {
            gradients[p].put(i, values.get(i) + draw(step, world.rank(), p, i));
          }
        }
        for (int p = gradients.length; p-- > 0; ) {
          if (p == 2) {
            reducer.ready(p);
          } else {
            reducer.ready(p, Tensor.of(gradients[p]));
          }
        }
        reducer.finish();
        result.put((float) reducer.clipNorm(1.5));
        for (int p = 0; p < gradients.length; p++) {
          Piece piece = shard.piece(p);
          FloatBuffer values = piece.param().asFloatBuffer();
          FloatBuffer gradient = piece.gradient().asFloatBuffer();
          equal((long) values.remaining(), piece.count());
          for (int i = 0; i < piece.count(); i++) {
            int at = (int) piece.offset() + i;
            momentum[p][at] = 0.9f * momentum[p][at] + gradient.get(i);
            values.put(i, values.get(i) - 0.1f * momentum[p][at]);
          }
        }
        shard.updated();
      }
      for (int p = 0; p < PARAMS.size(); p++) {
        shard.gather(UNITS[p]);
        result.put(shard.parameter(p).asFloatBuffer());
      }
    }
    that(!result.hasRemaining(), "all of it is there");
    world.checkEqual(Tensor.of(result.flip()), "the result");
    float[] copy = new float[result.remaining()];
    result.get(copy);
    return copy;
  }

  private static int count(int param) {
    return (int) PARAMS.get(param).count();
  }

  /** The same in each run; sums of them are rounded. */
  private static float draw(int step, int rank, int param, int i) {
    long x = ((step * 64L + rank) << 40 | (long) param << 20 | i) * 0x9e3779b97f4a7c15L;
    x = (x ^ (x >>> 29)) * 0xbf58476d1ce4e5b9L;
    return (x >>> 40) / 16777216f - 0.5f;
  }

  private static void pieces(Comm world) throws Exception {
    int rank = world.rank();
    try (Shard shard = new Shard(world, List.of(new Param("w", 1024, DataType.F32)))) {
      Piece piece = shard.piece(0);
      equal(piece.offset(), rank * 512L);
      equal(piece.count(), 512L);
      that(piece.gradient() == null, "there was no step");
      equal(shard.parameterAddress(0) % 256, 0L);
      equal(shard.parameter(0).getFloat(0), 0f);
      // Each rank has other values, and then all have what the pieces' owners have.
      float[] values = new float[1024];
      Arrays.fill(values, rank + 1);
      shard.set(0, Tensor.of(values));
      shard.updated();
      shard.gather(0);
      FloatBuffer whole = shard.parameter(0).asFloatBuffer();
      for (int i = 0; i < 1024; i++) equal(whole.get(i), i < 512 ? 1f : 2f);
      // A reducer may go before its shard, which keeps the gradients.
      FloatBuffer gradient = floats(1024);
      for (int i = 0; i < 1024; i++) gradient.put(i, rank);
      shard.reducer().ready(0, Tensor.of(gradient));
      shard.reducer().finish();
      equal(gradient.get(0), (float) rank);
      shard.reducer().close();
      thrown(ClosedException.class, shard.reducer()::finish, "Reducer is closed");
      equal(shard.piece(0).gradient().getFloat(0), 0.5f);
    }
    try (Shard shard =
        new Shard(
            world,
            List.of(new Param("whole", 10, DataType.F32)),
            ShardOptions.DEFAULT.withGranules(10))) {
      Piece piece = shard.piece(0);
      that(piece.count() == 0 || piece.count() == 10, "in one piece");
      if (piece.count() == 0) equal(piece.param().capacity() + piece.gradient().capacity(), 0);
    }
  }

  private static void refusals(Comm world) throws Exception {
    Class<InvalidArgumentException> refused = InvalidArgumentException.class;
    ShardOptions options = ShardOptions.DEFAULT;
    thrown(refused, () -> new Shard(world, PARAMS, options.withStage(2)),
        "new Shard: stage is 2; it must be 0 or 1");
    thrown(refused, () -> new Shard(world, PARAMS, options.withUnits(0, -1, 0, 0)),
        "units[1] is -1");
    thrown(refused, () -> new Shard(world, PARAMS, options.withGranules(0, 0, -5, 0)),
        "granules[2] is -5");
    thrown(refused, () -> new Shard(world, PARAMS, options.withUnits(0, 1)),
        "Shard: units has 2 numbers for 4 parameters");
    thrown(refused, () -> new Shard(world, PARAMS, options.withGranules(1)), "granules");
    thrown(refused, () -> new Shard(null, PARAMS), "Shard: comm is null");
    thrown(refused, () -> new Shard(world, null), "Shard: params is null");
    thrown(refused, () -> new Shard(world, List.of(new Param("w", 4, null))), "type is null");
    thrown(refused, () -> new Shard(world, PARAMS, null), "Shard: options is null");
    thrown(refused, () -> options.withReducer(null), "ShardOptions.withReducer: reducer is null");
    thrown(MismatchException.class,
        () -> new Shard(world, List.of(new Param("w", 4 + world.rank(), DataType.F32))), "w");
    try (Shard shard = new Shard(world, PARAMS, options.withUnits(UNITS))) {
      thrown(refused, () -> shard.gather(7), "Shard.gather: unit is 7, which no parameter has");
      thrown(refused, () -> shard.parameter(4), "Shard.parameter: index is 4");
      thrown(refused, () -> shard.piece(-1), "Shard.piece: index is -1");
      thrown(refused, () -> shard.set(4, Tensor.of(new float[1])), "Shard.set: index is 4");
      thrown(refused, () -> shard.set(1, null), "Shard.set: values is null");
      thrown(refused, () -> shard.set(1, Tensor.of(new float[2])), "2 elements", "1 of F32");
      thrown(refused, () -> shard.set(1, Tensor.of(new double[1])), "F64");
      shard.updated();
      shard.gather(0);
    }
  }

  private static void closed() throws Exception {
    Job job = Job.init();
    Comm comm = job.world();
    Shard shard = new Shard(comm, List.of(new Param("w", 4, DataType.F32)));
    Reducer reducer = shard.reducer();
    ByteBuffer whole = shard.parameter(0);
    FloatBuffer gradient = floats(4);
    gradient.put(3, 5);
    reducer.ready(0, Tensor.of(gradient));
    reducer.finish();
    Piece piece = shard.piece(0);
    for (AutoCloseable each : List.of(shard, shard, comm, job)) each.close();
    for (Check.Body each : List.<Check.Body>of(
        shard::updated, () -> shard.gather(0), () -> shard.parameter(0),
        () -> shard.parameterAddress(0), () -> shard.piece(0),
        () -> shard.set(0, Tensor.of(new float[4])))) {
      thrown(ClosedException.class, each, "Shard is closed; use it before close()");
    }
    thrown(ClosedException.class, reducer::finish, "Reducer is closed");
    piece.param().putFloat(8, 2);
    equal(whole.getFloat(8), 2f);
    equal(piece.gradient().getFloat(12), 5f);
  }
}
