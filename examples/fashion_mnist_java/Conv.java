// SPDX-License-Identifier: Apache-2.0
/** A convolution of 3 x 3 with zeros around, its bias, ReLU and a 2 x 2 maximum; channels lie last. */
final class Conv {
  final int inputSize, outputSize; // floats per image, borders included
  private final int half, in, out, border; // half: pooled cells in a row; border: that the next layer wants
  private final int[] taps; // from the upper left of a patch, in the order of the weights' rows
  private final byte[][] winners; // per image and pooled value: which of four won, 4: none

  Conv(int side, int in, int out, int border, int images) {
    half = side / 2;
    this.in = in;
    this.out = out;
    this.border = border;
    inputSize = (side + 2) * (side + 2) * in;
    outputSize = (half + 2 * border) * (half + 2 * border) * out;
    taps = new int[9 * in];
    for (int t = 0; t < taps.length; t++) taps[t] = (t / in / 3 * (side + 2) + t / in % 3) * in + t % in;
    winners = new byte[images][half * half * out];
  }

  /** Upper left of the patch of one of the four values of a cell. */
  private int patch(int cell, int which) {
    return ((cell / half * 2 + which / 2) * (2 * half + 2) + cell % half * 2 + which % 2) * in;
  }

  private int pooled(int cell) {
    return ((cell / half + border) * (half + 2 * border) + cell % half + border) * out;
  }

  void forward(int m, float[] image, float[] weight, float[] bias, float[] to) {
    float[] sums = new float[out], best = new float[out];
    for (int cell = 0; cell < half * half; cell++) {
      for (int which = 0; which < 4; which++) {
        System.arraycopy(bias, 0, sums, 0, out);
        for (int t = 0; t < taps.length; t++) Network.add(out, image[patch(cell, which) + taps[t]], weight, t * out, sums, 0);
        for (int c = 0; c < out; c++) {
          if (which > 0 && sums[c] <= best[c]) continue;
          best[c] = sums[c];
          winners[m][cell * out + c] = (byte) (sums[c] > 0 ? which : 4);
        }
      }
      for (int c = 0; c < out; c++) to[pooled(cell) + c] = Math.max(0, best[c]);
    }
  }

  /** Adds to the gradients, that of the image unless it is null. */
  void backward(int m, float[] image, float[] weight, float[] from, float[] weightGradient, float[] biasGradient, float[] imageGradient) {
    for (int i = 0; i < winners[m].length; i++) {
      int cell = i / out, c = i % out;
      if (winners[m][i] == 4) continue;
      int at = patch(cell, winners[m][i]);
      float g = from[pooled(cell) + c];
      biasGradient[c] += g;
      for (int t = 0; t < taps.length; t++) {
        weightGradient[t * out + c] += g * image[at + taps[t]];
        if (imageGradient != null) imageGradient[at + taps[t]] += g * weight[t * out + c];
      }
    }
  }
}
