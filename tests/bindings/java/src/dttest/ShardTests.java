// SPDX-License-Identifier: Apache-2.0
package dttest;

import static dttest.Check.equal;
import static dttest.Check.near;
import static dttest.Check.test;
import static dttest.Check.that;
import static dttest.Check.thrown;
import static dttest.Ranks.floats;

import io.dt.AdamWOptions;
import io.dt.ClosedException;
import io.dt.Comm;
import io.dt.DataType;
import io.dt.DtException;
import io.dt.InvalidArgumentException;
import io.dt.InvalidStateException;
import io.dt.Job;
import io.dt.MismatchException;
import io.dt.Optimizer;
import io.dt.Param;
import io.dt.Piece;
import io.dt.PieceAddresses;
import io.dt.Reducer;
import io.dt.ReducerOptions;
import io.dt.SgdOptions;
import io.dt.Shard;
import io.dt.ShardOptions;
import io.dt.SystemException;
import io.dt.Tensor;
import io.dt.UnsupportedException;
import java.nio.ByteBuffer;
import java.nio.FloatBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.function.Function;

/** Parameters that each rank updates a part of. */
final class ShardTests {
  private static final int STEPS = 4;
  private static final List<Param> PARAMS =
      List.of(
          new Param("embedding", 600, DataType.F32).withShape(20, 30),
          new Param("bias", 1, DataType.F32),
          new Param("weight", 1000, DataType.F32),
          new Param("none", 0, DataType.F32));
  private static final int[] UNITS = {0, 0, 1, 1};
  private static final double RATE = 0.01;
  private static final long ANY_STREAM = 12345; // over host memory it is ignored
  private static final double[] DECAYS = {0.1, 0, 0.05, 0};

  /** An element after STEPS steps, of which gradient[0] is the value before them. */
  private interface Formula {
    double after(double[] gradient, double decay);
  }

  private ShardTests() {}

  static void add() {
    test("stages and bucket sizes of a shard end with the same bits", () ->
        Ranks.run(2, (job, world) -> same(world)));
    test("a shard's pieces and its memory", () -> Ranks.run(2, (job, world) -> pieces(world)));
    test("gradients in their places, and whole ones, of shards of each stage", () ->
        Ranks.run(2, (job, world) -> inPlace(world)));
    test("what a shard refuses", () -> Ranks.run(2, (job, world) -> refusals(world)));
    test("a closed shard keeps the memory of its buffers", ShardTests::closed);
    test("AdamW of shards computes its formula", ShardTests::adamW);
    test("SGD of shards computes its formula", ShardTests::sgd);
    test("what an optimizer of a shard refuses", () ->
        Ranks.run(1, (job, world) -> optimizerRefusals(world)));
    test("closed optimizers of shards", () ->
        Ranks.run(1, (job, world) -> closedOptimizer(world)));
    test("checkpoints of shards go on to the same bits", () -> inFolder(file ->
        Ranks.run(2, (job, world) -> resumed(world, file))));
    test("what checkpoints of shards refuse", () -> inFolder(file ->
        Ranks.run(1, (job, world) -> checkpointRefusals(world, file))));
  }

  private static void same(Comm world) {
    ShardOptions options = ShardOptions.DEFAULT.withUnits(UNITS);
    float[] plain = train(world, options.withStage(0));
    for (int stage = 0; stage <= 3; stage++) {
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
      }
      setFirst(shard);
      for (int step = 1; step <= STEPS; step++) {
        FloatBuffer[] gradients = new FloatBuffer[PARAMS.size()];
        for (int p = 0; p < gradients.length; p++) {
          shard.gather(UNITS[p], ANY_STREAM);
          FloatBuffer values = shard.parameter(p).asFloatBuffer();
          boolean inPlace = p == 2;
          gradients[p] = inPlace ? reducer.gradient(p).asFloatBuffer() : floats(count(p));
          for (int i = 0; i < count(p); i++) {
            gradients[p].put(i, values.get(i) + draw(step, world.rank(), p, i));
          }
          shard.release(UNITS[p], ANY_STREAM);
        }
        for (int p = gradients.length; p-- > 0; ) {
          shard.gather(UNITS[p]);
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
          equal(shard.plan(p).get(world.rank()), new Shard.Part(piece.offset(), piece.count()));
          PieceAddresses addresses = shard.pieceAddresses(p, ANY_STREAM);
          equal(addresses.offset(), piece.offset());
          equal(addresses.count(), piece.count());
          if (piece.count() > 0) {
            that(addresses.param() != 0 && addresses.gradient() != 0, "it has addresses");
          }
          for (int i = 0; i < piece.count(); i++) {
            int at = (int) piece.offset() + i;
            momentum[p][at] = 0.9f * momentum[p][at] + gradient.get(i);
            values.put(i, values.get(i) - 0.1f * momentum[p][at]);
          }
        }
        shard.updated(ANY_STREAM);
      }
      gather(shard, result);
    }
    that(!result.hasRemaining(), "all of it is there");
    world.checkEqual(Tensor.of(result.flip()), "the result");
    float[] copy = new float[result.remaining()];
    result.get(copy);
    return copy;
  }

  private static void setFirst(Shard shard) {
    for (int p = 0; p < PARAMS.size(); p++) {
      float[] first = new float[count(p)];
      for (int i = 0; i < first.length; i++) first[i] = draw(0, 0, p, i);
      shard.set(p, Tensor.of(first));
    }
  }

  private static void gather(Shard shard, FloatBuffer result) {
    for (int p = 0; p < PARAMS.size(); p++) {
      shard.gather(UNITS[p]);
      result.put(shard.parameter(p).asFloatBuffer());
      shard.release(UNITS[p]);
    }
  }

  private static float[] gathered(Shard shard) {
    FloatBuffer result = FloatBuffer.allocate(1601);
    gather(shard, result);
    return result.array();
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

  private static void inPlace(Comm world) throws Exception {
    ShardOptions options = ShardOptions.DEFAULT.withUnits(UNITS)
        .withReducer(ReducerOptions.DEFAULT.withBucketBytes(1, 0));
    for (int stage = 0; stage <= 3; stage++) {
      try (Shard shard = new Shard(world, PARAMS, options.withStage(stage))) {
        that(shard.reducer().statistics().bucketCount() > 2, "several buckets");
        FloatBuffer[] places = new FloatBuffer[PARAMS.size()];
        for (int step = 1; step <= 3; step++) {
          if (step > 1) rebuilt(shard, stage, places);
          for (int p = PARAMS.size(); p-- > 0; ) {
            places[p] = shard.reducer().gradient(p).asFloatBuffer();
            that(shard.reducer().gradientAddress(p, ANY_STREAM) != 0, "it has an address");
            for (int i = 0; i < count(p); i++) places[p].put(i, draw(step, world.rank(), p, i));
            shard.reducer().ready(p);
          }
          shard.reducer().finish();
          for (int p = 0; p < PARAMS.size(); p++) whole(world, shard, step, p);
          shard.updated();
        }
      }
    }
  }

  /** It changes nothing, and an earlier step's places stay refused. */
  private static void rebuilt(Shard shard, int stage, FloatBuffer[] places) throws Exception {
    Reducer reducer = shard.reducer();
    long bytes = reducer.statistics().memoryBytes();
    that(!reducer.rebuild(), "the plan stays");
    equal(reducer.statistics().memoryBytes(), bytes);
    if (stage < 2) return;
    thrown(InvalidStateException.class, () -> reducer.ready(2),
        "Reducer.gradient gave no place for its gradient in this step");
    thrown(DtException.class, () -> reducer.ready(0, Tensor.of(places[0])),
        "Reducer.gradient gave", "call it in each step");
  }

  /** The mean of the ranks' gradients, in a part of an array or in a buffer. */
  private static void whole(Comm world, Shard shard, int step, int param) {
    int count = count(param);
    float[] array = new float[count + 2];
    shard.fullGradient(param, Tensor.of(array).slice(1, count));
    FloatBuffer buffer = floats(count);
    shard.fullGradient(param, Tensor.of(buffer));
    for (int i = 0; i < count; i++) {
      near(array[i + 1], (draw(step, 0, param, i) + draw(step, 1, param, i)) / 2, 1e-6);
      equal(buffer.get(i), array[i + 1]);
    }
    equal(array[0] + array[count + 1], 0f);
    world.checkEqual(Tensor.of(array), "a whole gradient");
  }

  private static void refusals(Comm world) throws Exception {
    Class<InvalidArgumentException> refused = InvalidArgumentException.class;
    ShardOptions options = ShardOptions.DEFAULT;
    thrown(refused, () -> new Shard(world, PARAMS, options.withStage(4)),
        "new Shard: stage is 4; it must be in [0, 3]");
    thrown(refused, () -> new Shard(world, PARAMS, options.withPrefetch(-1)),
        "new Shard: prefetch is -1");
    thrown(refused, () -> new Shard(world, PARAMS, options.withShardRanks(3)),
        "shardRanks is 3; it must be 0 or divide the 2 ranks");
    thrown(refused, () -> new Shard(world, PARAMS, options.withOffload(Path.of(""))),
        "new Shard: offload is empty; give the path of a directory");
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
      thrown(refused, () -> shard.release(7), "Shard.release: unit is 7, which no parameter has");
      thrown(refused, () -> shard.parameter(4), "Shard.parameter: index is 4");
      thrown(refused, () -> shard.piece(-1), "Shard.piece: index is -1");
      thrown(refused, () -> shard.plan(-1), "Shard.plan: index is -1");
      List<Param> odd = List.of(new Param("w", 5, DataType.F32).withShape(2, 3));
      thrown(refused, () -> new Shard(world, odd), "(w) cannot have the shape (2, 3): it has 5");
      thrown(refused, () -> shard.set(4, Tensor.of(new float[1])), "Shard.set: index is 4");
      thrown(refused, () -> shard.set(1, null), "Shard.set: values is null");
      thrown(refused, () -> shard.set(1, Tensor.of(new float[2])), "2 elements", "1 of F32");
      thrown(refused, () -> shard.set(1, Tensor.of(new double[1])), "F64");
      Tensor one = Tensor.of(new float[1]);
      thrown(InvalidStateException.class, () -> shard.fullGradient(1, one),
          "Shard.fullGradient on comm \"world\": there are no gradients; call it between Reducer.f");
      thrown(refused, () -> shard.fullGradient(4, one), "Shard.fullGradient: index is 4");
      thrown(refused, () -> shard.fullGradient(1, null), "Shard.fullGradient: out is null");
      thrown(refused, () -> shard.fullGradient(2, one), "out has 1 elements", "1000 of F32");
      thrown(refused, () -> shard.fullGradient(1, Tensor.of(new double[1])), "F64");
      thrown(refused, () -> shard.fullGradient(1, Tensor.of(floats(1).asReadOnlyBuffer())),
          "Shard.fullGradient: out is read-only");
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
        shard::updated, () -> shard.gather(0), () -> shard.release(0), () -> shard.parameter(0),
        () -> shard.parameterAddress(0), () -> shard.piece(0),
        () -> shard.set(0, Tensor.of(new float[4])),
        () -> shard.fullGradient(0, Tensor.of(new float[4])), () -> shard.save(Path.of("/nowhere/x")),
        () -> shard.load(Path.of("/nowhere/x")))) {
      thrown(ClosedException.class, each, "Shard is closed; use it before close()");
    }
    thrown(ClosedException.class, reducer::finish, "Reducer is closed");
    piece.param().putFloat(8, 2);
    equal(whole.getFloat(8), 2f);
    equal(piece.gradient().getFloat(12), 5f);
  }

  private static void adamW() throws Exception {
    double[] same = {0.01, 0.01, 0.01, 0.01};
    compare(Optimizer::adamW, adamW(0.9, 0.999, 1e-8), same);
    AdamWOptions options =
        AdamWOptions.DEFAULT.withBetas(0.8, 0.99).withEpsilon(0.01).withWeightDecay(0.2);
    compare(shard -> Optimizer.adamW(shard, options), adamW(0.8, 0.99, 0.01),
        new double[] {0.2, 0.2, 0.2, 0.2});
    compare(shard -> Optimizer.adamW(shard, options.withWeightDecays(DECAYS)),
        adamW(0.8, 0.99, 0.01), DECAYS);
  }

  private static Formula adamW(double beta1, double beta2, double epsilon) {
    return (gradient, decay) -> {
      double value = gradient[0];
      double mean = 0;
      double square = 0;
      for (int step = 1; step <= STEPS; step++) {
        value -= RATE * decay * value;
        mean = beta1 * mean + (1 - beta1) * gradient[step];
        square = beta2 * square + (1 - beta2) * gradient[step] * gradient[step];
        double root = Math.sqrt(square / (1 - Math.pow(beta2, step)));
        value -= RATE * mean / (1 - Math.pow(beta1, step)) / (root + epsilon);
      }
      return value;
    };
  }

  private static void sgd() throws Exception {
    compare(Optimizer::sgd, sgd(0, 0, false), new double[4]);
    SgdOptions options = SgdOptions.DEFAULT.withMomentum(0.9).withWeightDecay(0.2);
    compare(shard -> Optimizer.sgd(shard, options.withDampening(0.3)), sgd(0.9, 0.3, false),
        new double[] {0.2, 0.2, 0.2, 0.2});
    compare(shard -> Optimizer.sgd(shard, options.withNesterov().withWeightDecays(DECAYS)),
        sgd(0.9, 0, true), DECAYS);
  }

  private static Formula sgd(double momentum, double dampening, boolean nesterov) {
    return (gradient, decay) -> {
      double value = gradient[0];
      double kept = 0;
      for (int step = 1; step <= STEPS; step++) {
        double change = gradient[step] + decay * value;
        kept = momentum * kept + (step == 1 ? 1 : 1 - dampening) * change;
        value -= RATE * (nesterov ? change + momentum * kept : kept);
      }
      return value;
    };
  }

  /** World sizes and stages end with the same bits, which are near the formula. */
  private static void compare(Function<Shard, Optimizer> make, Formula formula, double[] decays)
      throws Exception {
    Queue<float[]> results = new ConcurrentLinkedQueue<>();
    for (int size = 1; size <= 2; size++) {
      Ranks.run(size, (job, world) -> {
        for (int stage = 0; stage <= 3; stage++) results.add(optimize(world, stage, make));
      });
    }
    float[] first = results.remove();
    equal(results.size(), 11);
    for (float[] each : results) that(Arrays.equals(each, first), "the same bits");
    int at = 0;
    for (int p = 0; p < PARAMS.size(); p++) {
      for (int i = 0; i < count(p); i++) {
        double[] gradient = new double[STEPS + 1];
        for (int step = 0; step <= STEPS; step++) gradient[step] = draw(step, 0, p, i);
        near(first[at++], formula.after(gradient, decays[p]), 1e-6);
      }
    }
  }

  /** All parameters; ranks have the same gradients. */
  private static float[] optimize(Comm world, int stage, Function<Shard, Optimizer> make) {
    ShardOptions options = ShardOptions.DEFAULT.withStage(stage).withUnits(UNITS);
    try (Shard shard = new Shard(world, PARAMS, options);
        Optimizer optimizer = make.apply(shard)) {
      setFirst(shard);
      steps(shard, optimizer, 1, STEPS);
      return gathered(shard);
    }
  }

  private static void steps(Shard shard, Optimizer optimizer, int first, int last) {
    for (int step = first; step <= last; step++) {
      reduce(shard, step);
      optimizer.step(RATE, ANY_STREAM);
    }
  }

  private static void reduce(Shard shard, int step) {
    for (int p = PARAMS.size(); p-- > 0; ) {
      FloatBuffer gradient = floats(count(p));
      for (int i = 0; i < count(p); i++) gradient.put(i, draw(step, 0, p, i));
      shard.reducer().ready(p, Tensor.of(gradient));
    }
    shard.reducer().finish();
  }

  private static void optimizerRefusals(Comm world) throws Exception {
    Class<InvalidArgumentException> refused = InvalidArgumentException.class;
    AdamWOptions adamW = AdamWOptions.DEFAULT;
    SgdOptions sgd = SgdOptions.DEFAULT;
    thrown(refused, () -> Optimizer.adamW(null), "Optimizer.adamW: shard is null");
    thrown(refused, () -> Optimizer.sgd(null), "Optimizer.sgd: shard is null");
    thrown(refused, () -> adamW.withWeightDecays((double[]) null),
        "AdamWOptions.withWeightDecays: weightDecays is null");
    thrown(refused, () -> sgd.withWeightDecays((double[]) null),
        "SgdOptions.withWeightDecays: weightDecays is null");
    List<Param> counts = List.of(new Param("count", 4, DataType.I32));
    try (Shard shard = new Shard(world, counts)) {
      thrown(UnsupportedException.class, () -> Optimizer.adamW(shard),
          "Optimizer.adamW: parameter #0 \"count\" is of i32");
    }
    try (Shard shard = new Shard(world, PARAMS);
        Optimizer optimizer = Optimizer.sgd(shard)) {
      thrown(refused, () -> Optimizer.adamW(shard, null), "Optimizer.adamW: options is null");
      thrown(refused, () -> Optimizer.adamW(shard, adamW.withBetas(1, 0)),
          "Optimizer.adamW: beta1 is 1; it must be in [0, 1)");
      thrown(refused, () -> Optimizer.adamW(shard, adamW.withBetas(0, -1)), "beta2 is -1");
      thrown(refused, () -> Optimizer.adamW(shard, adamW.withEpsilon(-1)), "epsilon is -1");
      thrown(refused, () -> Optimizer.adamW(shard, adamW.withWeightDecay(-1)),
          "weightDecay is -1; it must be at least 0");
      thrown(refused, () -> Optimizer.adamW(shard, adamW.withWeightDecays(0, -1, 0, 0)),
          "weightDecays[1] is -1");
      thrown(refused, () -> Optimizer.adamW(shard, adamW.withWeightDecays(1)),
          "Optimizer.adamW: weightDecays has 1 numbers for 4 parameters; give one each");
      thrown(refused, () -> Optimizer.sgd(shard, null), "Optimizer.sgd: options is null");
      thrown(refused, () -> Optimizer.sgd(shard, sgd.withMomentum(-1)),
          "Optimizer.sgd: momentum is -1");
      thrown(refused, () -> Optimizer.sgd(shard, sgd.withNesterov()), "nesterov is 1");
      thrown(refused, () -> Optimizer.sgd(shard, sgd.withDampening(Double.NaN)), "dampening");
      thrown(refused, () -> Optimizer.sgd(shard, sgd.withWeightDecays(1, 2)),
          "Optimizer.sgd: weightDecays has 2 numbers for 4 parameters");
      thrown(InvalidStateException.class, () -> optimizer.step(RATE),
          "Optimizer.step", "there are no gradients; call it between Reducer.finish");
      reduce(shard, 1);
      thrown(refused, () -> optimizer.step(Double.POSITIVE_INFINITY),
          "Optimizer.step: rate is inf; it must be finite");
      optimizer.step(RATE);
    }
    skips(world, shard -> Optimizer.adamW(shard, adamW.withSkipNonFinite()));
    skips(world, shard -> Optimizer.sgd(shard, sgd.withSkipNonFinite()));
  }

  private static void skips(Comm world, Function<Shard, Optimizer> make) throws Exception {
    try (Shard shard = new Shard(world, List.of(new Param("w", 2, DataType.F32)));
        Optimizer optimizer = make.apply(shard)) {
      for (float each : new float[] {Float.NaN, 1, Float.POSITIVE_INFINITY}) {
        shard.reducer().ready(0, Tensor.of(floats(2).put(0, 1).put(1, each)));
        shard.reducer().finish();
        optimizer.step(RATE);
      }
      equal(optimizer.skipped(0), 2L);
      equal(optimizer.skipped(1), 1L);
      thrown(InvalidArgumentException.class, () -> optimizer.skipped(8),
          "Optimizer.skipped: behind is 8; it must be between 0 and 7");
    }
  }

  private static void closedOptimizer(Comm world) throws Exception {
    Shard shard = new Shard(world, PARAMS);
    FloatBuffer values = shard.parameter(1).asFloatBuffer();
    Optimizer optimizer = Optimizer.sgd(shard);
    Optimizer other = Optimizer.adamW(shard);
    reduce(shard, 1);
    shard.close();
    thrown(ClosedException.class, () -> Optimizer.sgd(shard), "Shard is closed");
    // The optimizer keeps what it needs of its shard.
    optimizer.step(1);
    equal(values.get(0), -draw(1, 0, 1, 0));
    for (Optimizer each : List.of(optimizer, other, optimizer)) each.close();
    thrown(ClosedException.class, () -> optimizer.step(1),
        "Optimizer is closed; use it before close()");
  }

  private interface FileBody {
    void run(Path file) throws Exception;
  }

  /** Gives the body a path in a folder of its own. */
  private static void inFolder(FileBody body) throws Exception {
    Path folder = Files.createTempDirectory("dttest");
    Path file = folder.resolve("dt_shard_save");  // a name, not a word of C
    try {
      body.run(file);
    } finally {
      Files.deleteIfExists(file);
      Files.delete(folder);
    }
  }

  private static void resumed(Comm world, Path file) throws Exception {
    ShardOptions options = ShardOptions.DEFAULT.withUnits(UNITS);
    float[] saved;
    float[] ended;
    try (Shard shard = new Shard(world, PARAMS, options);
        Optimizer optimizer = Optimizer.adamW(shard)) {
      setFirst(shard);
      steps(shard, optimizer, 1, 2);
      shard.save(file, optimizer);
      String text = Files.readString(file, StandardCharsets.ISO_8859_1);
      that(text.contains("\"shape\":[20,30]"), "the file has the shape");
      saved = gathered(shard);
      steps(shard, optimizer, 3, STEPS);
      ended = gathered(shard);
    }
    for (int stage : new int[] {0, 3}) {
      Path offload = stage == 3 ? file.getParent() : null;
      ShardOptions other = options.withStage(stage).withOffload(offload);
      try (Shard shard = new Shard(world, PARAMS, other);
          Optimizer optimizer = Optimizer.adamW(shard)) {
        shard.load(file, optimizer);
        steps(shard, optimizer, 3, STEPS);
        that(Arrays.equals(gathered(shard), ended), "the same bits");
        shard.load(file);
        that(Arrays.equals(gathered(shard), saved), "parameters alone");
      }
    }
  }

  private static void checkpointRefusals(Comm world, Path file) throws Exception {
    Class<InvalidArgumentException> refused = InvalidArgumentException.class;
    Path lost = file.resolveSibling("dt_lost").resolve("file");
    try (Shard shard = new Shard(world, List.of(new Param("w", 4, DataType.F32)));
        Shard other = new Shard(world, List.of(new Param("w", 4, DataType.F64)));
        Optimizer optimizer = Optimizer.sgd(shard)) {
      thrown(SystemException.class, () -> shard.save(lost, optimizer),
          "Shard.save on comm \"world\"", "\"" + lost + ".partial\": No such file");
      thrown(SystemException.class, () -> shard.load(lost), "Shard.load", "\"" + lost + "\": No");
      thrown(SystemException.class,
          () -> new Shard(world, PARAMS, ShardOptions.DEFAULT.withOffload(lost)),
          "new Shard on comm \"world\": rank 0", "cannot make a file in \"" + lost + "\": No");
      thrown(refused, () -> shard.save(null), "Shard.save: path is null");
      thrown(refused, () -> shard.load(null), "Shard.load: path is null");
      thrown(refused, () -> shard.save(file, null), "Shard.save: optimizer is null");
      thrown(refused, () -> shard.load(file, null), "Shard.load: optimizer is null");
      thrown(refused, () -> other.save(file, optimizer), "give that of this one, or none");
      shard.save(file);
      thrown(refused, () -> shard.load(file, optimizer), "it has no state of an optimizer");
      thrown(refused, () -> other.load(file), "its \"w\" has 4 elements of F32, this model's");
      Files.writeString(file, "{}");
      thrown(refused, () -> shard.load(file), "give a file that Shard.save wrote");
      Optimizer closed = Optimizer.sgd(shard);
      closed.close();
      thrown(ClosedException.class, () -> shard.save(file, closed), "Optimizer is closed");
      thrown(ClosedException.class, () -> shard.load(file, closed), "Optimizer is closed");
    }
  }
}
