// SPDX-License-Identifier: Apache-2.0
import io.dt.*;
import java.io.*;
import java.nio.*;
import java.util.*;
import java.util.zip.GZIPInputStream;

/**
 * Trains on Fashion-MNIST on one rank or many, also beside the same trainer in other languages:
 * {@code dt run -n 2 java -cp dt.jar:fashion_mnist.jar FashionMnist --steps 100}
 */
public record FashionMnist(Map<String, String> options, Job job, Comm comm) {
  private static final long BUCKET_BYTES = 256 * 1024; // two buckets: one travels during the other

  private long number(String option, long otherwise) {
    return Long.parseLong(options.getOrDefault(option, Long.toString(otherwise)));
  }

  /** The bytes of an IDX file without its header; of `limit` items, 0: all. */
  private static byte[] read(String path, int dimensions, int limit) throws IOException {
    try (var in = new DataInputStream(new GZIPInputStream(new FileInputStream(path), 1 << 16))) {
      if (in.readInt() != 0x800 + dimensions) throw new IOException(path + ": is no such IDX file");
      int items = in.readInt(), size = 1;
      for (int d = 1; d < dimensions; d++) size *= in.readInt();
      return in.readNBytes(size * (limit > 0 && limit < items ? limit : items));
    }
  }

  private void run() throws IOException {
    int batch = (int) number("--batch", 120), localBatch = batch / comm.size(), limit = (int) number("--limit", 0);
    int passes = (int) Math.max(number("--accumulate", 1), 1), images = localBatch / passes;
    String data = options.getOrDefault("--data", "/usr/share/datasets/fashion-mnist") + "/train-";
    byte[] labels = read(data + "labels-idx1-ubyte.gz", 1, limit), pixels = read(data + "images-idx3-ubyte.gz", 3, limit);
    if (batch % (comm.size() * passes) != 0 || batch > labels.length) throw new IOException("--batch cannot be dealt to the ranks");
    long seed = number("--seed", 1), stepsPerEpoch = labels.length / batch, planned = number("--epochs", 3) * stepsPerEpoch;
    long step = 0, last = Math.min(number("--steps", planned), planned);
    double peakRate = Double.parseDouble(options.getOrDefault("--lr", "0.05"));
    String log = comm.rank() == 0 ? options.getOrDefault("--loss-log", "/dev/null") : "/dev/null";
    double clip = Double.parseDouble(options.getOrDefault("--clip", "0"));
    Network network = new Network(images, passes, seed);
    List<Param> params = new ArrayList<>();
    for (int p = 0; p < 8; p++) params.add(new Param(Network.NAMES[p], Network.COUNTS[p], DataType.F32));
    FloatBuffer[] gradients = new FloatBuffer[8];
    Tensor sums = comm.allocate(2, DataType.F64); // loss, correct
    DoubleBuffer totals = sums.buffer().asDoubleBuffer();
    boolean stopped = false;
    String bits = options.getOrDefault("--wire", "f32").toUpperCase(Locale.ROOT);
    Wire wire = bits.equals("F32") ? Wire.SAME : bits.equals("8BIT") ? Wire.BITS8 : Wire.valueOf(bits);
    int rank = (int) number("--powersgd", 0);
    ReducerOptions buckets =
        ReducerOptions.DEFAULT.withBucketBytes(BUCKET_BYTES, BUCKET_BYTES).withWire(rank > 0 ? Wire.SAME : wire);
    try (Sampler sampler = new Sampler(comm, labels.length, seed);
        Reducer reducer = new Reducer(comm, params, buckets);
        PrintWriter losses = new PrintWriter(log)) {
      sampler.check(comm);
      long[] rows = new long[8]; // a weight is a matrix with a column for each output
      for (int p = 0; p < 8; p += 2) rows[p] = Network.COUNTS[p] / Network.COUNTS[p + 1];
      if (rank > 0) reducer.powerSgd(rows, new PowerSgd(rank).withWire(wire));
      losses.println("step,loss");
      for (; step < last && !stopped; step++) {
        sampler.setEpoch(step / stepsPerEpoch);
        // The second step has other buckets: by then the arrival order is known.
        for (int p = 0; step < 2 && p < 8; p++) gradients[p] = reducer.gradient(p).asFloatBuffer();
        long[] indices = sampler.indices(step % stepsPerEpoch * localBatch, localBatch);
        Work summed = null;
        network.beginStep();
        for (int pass = 1; pass <= passes; pass++) {
          network.forward(pixels, labels, Arrays.copyOfRange(indices, (pass - 1) * images, pass * images));
          totals.put(0, network.lossSum).put(1, network.correct);
          if (pass == passes) summed = comm.allReduceAsync(sums);
          reducer.accumulate(pass < passes);
          // Each gradient goes into its bucket; in the last pass full buckets travel while this goes on.
          network.backward(p -> {
            gradients[p].clear().put(network.gradients[p]);
            reducer.ready(p);
          });
        }
        reducer.finish();
        if (clip > 0) reducer.clipNorm(clip);
        for (int p = 0; p < 8; p++) gradients[p].clear().get(network.gradients[p]);
        double warmup = Math.min(1.0, (step + 1) / 300.0), done = Math.min(1.0, (double) step / planned);
        network.update((float) (peakRate * warmup * warmup * 0.5 * (1 + Math.cos(Math.PI * done))));
        if (step == 0) reducer.rebuild();
        summed.await();
        stopped = job.stopRequested(); // by any rank, or before a pre-emption
        float loss = (float) (totals.get(0) / batch);
        losses.println(step + 1 + "," + loss);
        if (!Float.isFinite(loss)) throw new IOException("the loss is no longer finite; choose a smaller --lr");
        if (step % 25 == 24) say("step %d  loss %.4f  acc %.1f %%", step + 1, loss, 100 * totals.get(1) / batch);
      }
    }
    checkEqual(network, step);
    if (comm.size() > 1) say("parameters equal on all %d ranks", comm.size());
  }

  /** Throws on all ranks, and says what differs, where one has another step, parameter or velocity. */
  private void checkEqual(Network network, long step) {
    comm.checkEqual(Tensor.of(new long[] {step}), "step " + step);
    for (int p = 0; p < 8; p++) {
      comm.checkEqual(Tensor.of(network.values[p]), Network.NAMES[p]);
      comm.checkEqual(Tensor.of(network.velocities[p]), "optimizer state of " + Network.NAMES[p]);
    }
  }

  private void say(String format, Object... values) {
    if (comm.rank() == 0 && !options.containsKey("--quiet")) System.out.println(String.format(format, values));
  }

  /** @param arguments --steps --batch --seed --lr --epochs --data --loss-log --limit --accumulate --wire --powersgd
   *     --clip, --quiet */
  public static void main(String[] arguments) {
    Map<String, String> options = new HashMap<>();
    for (int i = 0; i < arguments.length; i++) {
      boolean flag = List.of("--quiet", "--no-eval").contains(arguments[i]);
      options.put(arguments[i], flag || i + 1 == arguments.length ? "" : arguments[++i]);
    }
    try (Job job = Job.init(); Comm comm = job.world()) {
      try {
        new FashionMnist(options, job, comm).run();
      } catch (IOException e) {
        job.abort(e.getMessage()); // the others end with this message, too
        throw e;
      }
      job.leave();
    } catch (Exception e) {
      System.err.println("fashion_mnist: " + e);
      System.exit(1);
    }
  }
}
