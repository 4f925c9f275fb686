// SPDX-License-Identifier: Apache-2.0
import java.util.Arrays;

/** A convolution of 3 x 3 with zeros around, its bias, ReLU and a 2 x 2 maximum; channels lie last. */
final class Conv {
  final int inputSize, outputSize; // floats per image, borders included
  private final int side, in, out, border, outPadded;
  private final float[] patches, responses; // of one image
  private final byte[][] winners; // per image and pooled value: which of four won, 4: none

  Conv(int side, int in, int out, int border, int images) {
    this.side = side; // border: that the next layer wants
    this.in = in;
    this.out = out;
    this.border = border;
    outPadded = side / 2 + 2 * border;
    inputSize = (side + 2) * (side + 2) * in;
    outputSize = outPadded * outPadded * out;
    patches = new float[side * side * 9 * in];
    responses = new float[side * side * out];
    winners = new byte[images][side * side / 4 * out];
  }

  /** Copies the patches out of an image, or adds them back into it. */
  private void move(float[] image, boolean back) {
    for (int row = 0, at = 0; row < side * side * 3; row++, at += 3 * in) {
      int from = ((row / 3 / side + row % 3) * (side + 2) + row / 3 % side) * in;
      if (!back) System.arraycopy(image, from, patches, at, 3 * in);
      else for (int i = 0; i < 3 * in; i++) image[from + i] += patches[at + i];
    }
  }

  private int upperLeft(int cell) {
    return (cell / (side / 2) * 2 * side + cell % (side / 2) * 2) * out;
  }

  private int pooled(int cell) {
    return ((cell / (side / 2) + border) * outPadded + cell % (side / 2) + border) * out;
  }

  void forward(int m, float[] image, float[] weight, float[] bias, float[] to) {
    move(image, false);
    Arrays.fill(responses, 0);
    Matrix.multiply(side * side, 9 * in, out, patches, weight, responses);
    for (int cell = 0; cell < side * side / 4; cell++) {
      for (int c = 0; c < out; c++) {
        int at = upperLeft(cell) + c, below = at + side * out;
        float p = responses[at], q = responses[at + out], r = responses[below], s = responses[below + out];
        float up = p < q ? q : p, low = r < s ? s : r, value = (up < low ? low : up) + bias[c];
        int which = up < low ? (r < s ? 3 : 2) : (p < q ? 1 : 0);
        winners[m][cell * out + c] = (byte) (0 < value ? which : 4);
        to[pooled(cell) + c] = Math.max(0, value);
      }
    }
  }

  /** Adds to the gradients, that of the image unless it is null. */
  void backward(int m, float[] image, float[] weight, float[] from, float[] weightGradient, float[] biasGradient,
      float[] imageGradient) {
    Arrays.fill(responses, 0);
    for (int i = 0; i < winners[m].length; i++) {
      int which = winners[m][i], c = i % out;
      if (which == 4) continue;
      float g = from[pooled(i / out) + c];
      responses[upperLeft(i / out) + c + which % 2 * out + which / 2 * side * out] = g;
      biasGradient[c] += g;
    }
    move(image, false);
    Matrix.addOuter(side * side, 9 * in, out, patches, responses, weightGradient);
    if (imageGradient == null) return;
    Matrix.multiplyTurned(side * side, 9 * in, out, responses, weight, patches);
    move(imageGradient, true);
  }
}
