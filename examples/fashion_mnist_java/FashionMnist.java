// SPDX-License-Identifier: Apache-2.0
import io.dt.*;
import java.io.*;
import java.nio.*;
import java.util.*;
import java.util.stream.IntStream;
import java.util.zip.GZIPInputStream;

/**
 * Trains on Fashion-MNIST on one rank or many, also beside the same trainer in other languages:
 * {@code dt run -n 2 java -cp dt.jar:fashion_mnist.jar FashionMnist --steps 100}
 */
public final class FashionMnist {
  private static final long BUCKET_BYTES = 256 * 1024; // two buckets: one travels during the other
  private final Map<String, String> options;
  private final Comm comm;
  private final int batch, localBatch;
  private final long seed, epochs, stepsPerEpoch;
  private final double peakRate;
  private final byte[] pixels, labels;
  private final Network network;
  private final float[][] velocity = new float[8][];
  private final FloatBuffer[] gradients = new FloatBuffer[8];
  private final DoubleBuffer totals = direct(24).asDoubleBuffer(); // loss, correct, wishes to stop

  private FashionMnist(Map<String, String> options, Comm comm) throws IOException {
    this.options = options;
    this.comm = comm;
    batch = (int) number("--batch", 120);
    seed = number("--seed", 1);
    epochs = number("--epochs", 3);
    peakRate = Double.parseDouble(options.getOrDefault("--lr", "0.05"));
    String data = options.getOrDefault("--data", "/usr/share/datasets/fashion-mnist") + "/train-";
    labels = read(data + "labels-idx1-ubyte.gz", 1, (int) number("--limit", 0));
    pixels = read(data + "images-idx3-ubyte.gz", 3, (int) number("--limit", 0));
    if (batch % comm.size() != 0 || batch > labels.length) throw new IOException("--batch cannot be dealt to the ranks");
    localBatch = batch / comm.size();
    stepsPerEpoch = labels.length / batch;
    network = new Network(localBatch, seed);
    for (int p = 0; p < 8; p++) velocity[p] = new float[Network.COUNTS[p]];
  }

  private long number(String option, long otherwise) {
    return Long.parseLong(options.getOrDefault(option, Long.toString(otherwise)));
  }

  private static ByteBuffer direct(int bytes) {
    return ByteBuffer.allocateDirect(bytes).order(ByteOrder.nativeOrder());
  }

  /** The bytes of an IDX file without its header; of `limit` items, 0: all. */
  private static byte[] read(String path, int dimensions, int limit) throws IOException {
    try (var in = new DataInputStream(new GZIPInputStream(new FileInputStream(path), 1 << 16))) {
      if (in.readInt() != 0x800 + dimensions) throw new IOException(path + ": is no such IDX file");
      int items = in.readInt();
      int size = 1;
      for (int d = 1; d < dimensions; d++) size *= in.readInt();
      byte[] bytes = new byte[size * (limit > 0 && limit < items ? limit : items)];
      in.readFully(bytes);
      return bytes;
    }
  }

  private void run() throws IOException {
    List<Param> params = new ArrayList<>();
    for (int p = 0; p < 8; p++) params.add(new Param(Network.NAMES[p], Network.COUNTS[p], Dtype.F32));
    String log = comm.rank() == 0 ? options.getOrDefault("--loss-log", "/dev/null") : "/dev/null";
    long step = 0, last = Math.min(number("--steps", Long.MAX_VALUE), epochs * stepsPerEpoch);
    var buckets = ReducerOptions.DEFAULT.withBucketBytes(BUCKET_BYTES, BUCKET_BYTES);
    try (Sampler sampler = new Sampler(comm, labels.length, seed);
        Reducer reducer = new Reducer(comm, params, buckets);
        PrintWriter losses = new PrintWriter(log)) {
      losses.println("step,loss");
      for (totals.put(2, 0); step < last && totals.get(2) == 0; step++) {
        sampler.setEpoch(step / stepsPerEpoch);
        float loss = step(reducer, step, sampler.indices(step % stepsPerEpoch * localBatch, localBatch));
        losses.println(step + 1 + "," + loss);
        if (!Float.isFinite(loss)) throw new IOException("the loss is no longer finite; choose a smaller --lr");
        if (step % 25 == 24) say("step %d  loss %.4f  acc %.1f %%", step + 1, loss, 100 * totals.get(1) / batch);
      }
      if (comm.size() > 1) compareParameters(step);
    }
  }

  private float step(Reducer reducer, long step, long[] indices) {
    network.forward(pixels, labels, indices);
    totals.put(0, network.lossSum).put(1, network.correct).put(2, 0);
    Work summed = comm.allreduceAsync(totals, totals, ReduceOp.SUM);
    // The second step has other buckets: by then the arrival order is known.
    for (int p = 0; step < 2 && p < 8; p++) gradients[p] = reducer.gradient(p).asFloatBuffer();
    // Each gradient goes into its bucket, and full buckets travel while this goes on.
    network.backward(p -> {
      gradients[p].clear().put(network.gradients[p]);
      reducer.ready(p);
    });
    reducer.finish();
    double warmup = Math.min(1.0, (step + 1) / 300.0);
    double done = Math.min(1.0, (double) step / Math.max(epochs * stepsPerEpoch, 1));
    float rate = (float) (peakRate * warmup * warmup * 0.5 * (1 + Math.cos(Math.PI * done)));
    for (int p = 0; p < 8; p++) {
      float[] value = network.values[p], moving = velocity[p], gradient = network.gradients[p];
      gradients[p].clear().get(gradient);
      for (int i = 0; i < value.length; i++) {
        moving[i] = 0.9f * moving[i] + (gradient[i] + 1e-4f * value[i]);
        value[i] -= rate * moving[i];
      }
    }
    if (step == 0) reducer.rebuild();
    summed.await();
    return (float) (totals.get(0) / batch);
  }

  /** All ranks must end with the same bits. */
  private void compareParameters(long step) throws IOException {
    long[] own = {hash(network.values, 0xcbf29ce484222325L), hash(velocity, step)};
    LongBuffer all = direct(16 * comm.size()).asLongBuffer();
    comm.allgather(direct(16).asLongBuffer().put(own).flip(), all, Dtype.U64);
    for (int i = 0; i < all.capacity(); i++) {
      if (all.get(i) != all.get(i % 2)) throw new IOException("parameters differ: rank " + i / 2 + " against rank 0");
    }
    say("parameters equal on all %d ranks (hash %016x)", comm.size(), own[0]);
  }

  /** FNV-1a over words of 8 bytes; all parameters together are a whole number of them. */
  private static long hash(float[][] arrays, long hash) {
    ByteBuffer bytes = direct(4 * IntStream.of(Network.COUNTS).sum());
    for (float[] each : arrays) for (float value : each) bytes.putFloat(value);
    for (bytes.flip(); bytes.hasRemaining(); hash ^= hash >>> 32) hash = (hash ^ bytes.getLong()) * 0x100000001b3L;
    return hash;
  }

  private void say(String format, Object... values) {
    if (comm.rank() == 0 && !options.containsKey("--quiet")) System.out.println(String.format(format, values));
  }

  /** @param arguments --steps --batch --seed --lr --epochs --data --loss-log --limit, --quiet */
  public static void main(String[] arguments) {
    Map<String, String> options = new HashMap<>();
    for (int i = 0; i < arguments.length; i++) {
      boolean flag = List.of("--quiet", "--no-eval").contains(arguments[i]);
      options.put(arguments[i], flag || i + 1 == arguments.length ? "" : arguments[++i]);
    }
    try (Job job = Job.init(); Comm comm = job.world()) {
      try {
        new FashionMnist(options, comm).run();
        job.leave();
      } catch (IOException e) {
        job.abort(e.getMessage()); // the others end with this message, too
        throw e;
      }
    } catch (Exception e) {
      System.err.println("fashion_mnist: " + e);
      System.exit(1);
    }
  }
}
