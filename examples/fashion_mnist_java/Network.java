// SPDX-License-Identifier: Apache-2.0
import java.util.Arrays;
import java.util.SplittableRandom;
import java.util.function.IntConsumer;
import java.util.stream.IntStream;

/** Two convolutions and two dense layers: the model of examples/fashion_mnist, number for number. */
final class Network {
  static final String[] NAMES = {"conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias", "dense1.weight", "dense1.bias", "dense2.weight", "dense2.bias"};
  static final int[] COUNTS = {9 * 16, 16, 9 * 16 * 32, 32, 1568 * 128, 128, 128 * 10, 10};
  private static final int[] FAN_IN = {9, 0, 9 * 16, 0, 1568, 0, 100 * 128, 0}; // 0: a bias

  final float[][] values = zeros(), gradients = zeros(), velocities = zeros();
  double lossSum;
  int correct;
  private final int images, passes;
  private final Conv conv1, conv2;
  private final float[][] input, pooled, features, hidden, logits; // per image

  /** A step has the gradients of so many passes over so many images each. */
  Network(int images, int passes, long seed) {
    this.images = images;
    this.passes = passes;
    conv1 = new Conv(28, 1, 16, 1, images);
    conv2 = new Conv(14, 16, 32, 0, images);
    input = new float[images][conv1.inputSize];
    pooled = new float[images][conv1.outputSize];
    features = new float[images][conv2.outputSize];
    hidden = new float[images][128];
    logits = new float[images][10];
    SplittableRandom random = new SplittableRandom(seed); // splitmix64, as in C++
    for (int p = 0; p < 8; p++) {
      for (int i = 0; FAN_IN[p] != 0 && i < COUNTS[p]; i++) {
        values[p][i] = (float) Math.sqrt(6.0f / FAN_IN[p]) * (((int) (random.nextLong() >>> 40) - (1 << 23)) * 0x1p-23f);
      }
    }
  }

  private static float[][] zeros() {
    return Arrays.stream(COUNTS).mapToObj(float[]::new).toArray(float[][]::new);
  }

  void forward(byte[] pixels, byte[] labels, long[] indices) {
    for (int m = 0; m < images; m++) {
      for (int p = 0; p < 784; p++) {
        float pixel = (pixels[(int) indices[m] * 784 + p] & 255) * (1.0f / 255);
        input[m][(p / 28 + 1) * 30 + p % 28 + 1] = (pixel - 0.2860f) * (1.0f / 0.3530f);
      }
      conv1.forward(m, input[m], values[0], values[1], pooled[m]);
      conv2.forward(m, pooled[m], values[2], values[3], features[m]);
      dense(features[m], values[4], values[5], hidden[m]);
      for (int i = 0; i < 128; i++) hidden[m][i] = Math.max(hidden[m][i], 0);
      dense(hidden[m], values[6], values[7], logits[m]);
      softmax(logits[m], labels[(int) indices[m]]);
    }
  }

  /** Turns logits into the gradient of the mean loss, softmax minus one-hot. */
  private void softmax(float[] logits, int label) {
    int best = 0;
    for (int i = 1; i < 10; i++) best = logits[i] > logits[best] ? i : best;
    float most = logits[best];
    double sum = 0;
    for (float logit : logits) sum += Math.exp(logit - most);
    lossSum += Math.log(sum) - (logits[label] - most);
    correct += best == label ? 1 : 0;
    for (int i = 0; i < 10; i++) {
      logits[i] = (float) (Math.exp(logits[i] - most) / sum - (i == label ? 1 : 0)) * (1.0f / (images * passes));
    }
  }

  /** Sums and gradients begin anew. */
  void beginStep() {
    lossSum = correct = 0;
    for (float[] each : gradients) Arrays.fill(each, 0);
  }

  /** Adds to gradients, and says of each when this pass's part is there. */
  void backward(IntConsumer ready) {
    float[][] hiddenGradient = denseBackward(6, hidden, logits, ready);
    float[][] featureGradient = denseBackward(4, features, hiddenGradient, ready);
    float[][] pooledGradient = new float[images][conv1.outputSize];
    for (int m = 0; m < images; m++) conv2.backward(m, pooled[m], values[2], featureGradient[m], gradients[2], gradients[3], pooledGradient[m]);
    IntStream.of(3, 2).forEach(ready);
    for (int m = 0; m < images; m++) conv1.backward(m, input[m], values[0], pooledGradient[m], gradients[0], gradients[1], null);
    IntStream.of(1, 0).forEach(ready);
  }

  /** Of the layer whose weights are parameter w; gives the gradient of its input, before the ReLU that made it. */
  private float[][] denseBackward(int w, float[][] in, float[][] from, IntConsumer ready) {
    int inner = in[0].length, columns = COUNTS[w + 1];
    for (int m = 0; m < images; m++) {
      add(columns, 1, from[m], 0, gradients[w + 1], 0);
      for (int i = 0; i < inner; i++) add(columns, in[m][i], from[m], 0, gradients[w], i * columns);
    }
    IntStream.of(w + 1, w).forEach(ready);
    float[][] inGradient = new float[images][inner];
    for (int m = 0; m < images; m++) {
      for (int i = 0; i < inner * columns; i++) {
        if (in[m][i / columns] > 0) inGradient[m][i / columns] += from[m][i % columns] * values[w][i];
      }
    }
    return inGradient;
  }

  /** Stochastic gradient descent with momentum and weight decay. */
  void update(float rate) {
    for (int p = 0; p < 8; p++) {
      for (int i = 0; i < COUNTS[p]; i++) {
        velocities[p][i] = 0.9f * velocities[p][i] + (gradients[p][i] + 1e-4f * values[p][i]);
        values[p][i] -= rate * velocities[p][i];
      }
    }
  }

  private static void dense(float[] in, float[] weight, float[] bias, float[] to) {
    System.arraycopy(bias, 0, to, 0, to.length);
    for (int i = 0; i < in.length; i++) add(to.length, in[i], weight, i * to.length, to, 0);
  }

  /** y += a * x; many a are zero, after ReLU. */
  static void add(int count, float a, float[] x, int xo, float[] y, int yo) {
    for (int i = 0; a != 0 && i < count; i++) y[yo + i] += a * x[xo + i];
  }
}
