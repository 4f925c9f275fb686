// SPDX-License-Identifier: Apache-2.0
using System;
using System.Runtime.InteropServices;

/// Matrices are row-major; every inner loop runs over what lies side by side.
unsafe static class Matrix {
    /// Zeroed floats, which live as long as the process.
    internal static float* New(long count) =>
        Clear((float*)Marshal.AllocHGlobal(new IntPtr(count * sizeof(float))), count);

    internal static float* Clear(float* values, long count) {
        for (long i = 0; i < count; ++i) values[i] = 0;
        return values;
    }

    /// c += a * b, [rows x inner] * [inner x columns]; a's strides say how it is stored.
    internal static void Multiply(float* a, int rowStride, int stride, float* b, float* c, int rows, int inner,
        int columns) {
        for (int i = 0; i < rows; ++i, c += columns)
            for (int p = 0; p < inner; ++p) {
                float x = a[i * rowStride + p * stride];
                float* from = b + p * columns, to = c;
                if (x == 0) continue;  // ReLU and the maximum leave many
                for (float* end = to + columns; to < end; ++to, ++from) *to += x * *from;
            }
    }

    /// c = a * b' for b of [columns x inner], turned in scratch of that size.
    internal static void MultiplyByTurned(float* a, float* b, float* scratch, float* c, int rows, int inner,
        int columns) {
        for (int i = 0; i < columns * inner; ++i) scratch[i % inner * columns + i / inner] = b[i];
        Multiply(a, inner, 1, scratch, Clear(c, (long)rows * columns), rows, inner, columns);
    }
}

/// Convolution 3 x 3 with zeros around, bias, ReLU, and a maximum of 2 x 2; channels are last.
unsafe sealed class ConvPool {
    internal readonly int InputSize, OutputSize, Patch, Channels;
    readonly int side, strip, padded, outPadded, border;
    readonly float* patches, responses, turned;
    readonly int[] winners;  // of four each, -1: ReLU cut it off
    internal ConvPool(int side, int inChannels, int channels, int border, int images) {
        this.side = side; this.border = border; Channels = channels;
        Patch = 3 * (strip = 3 * inChannels);
        InputSize = (side + 2) * (padded = (side + 2) * inChannels);
        outPadded = side / 2 + 2 * border;
        OutputSize = outPadded * outPadded * channels;
        patches = Matrix.New(side * side * Patch);
        responses = Matrix.New(side * side * channels);
        turned = Matrix.New(Patch * channels);
        winners = new int[images * side * side / 4 * channels];
    }

    /// Copies patches out of an image, or adds them up into it.
    void Move(float* image, bool gather) {
        float* patch = patches;
        for (int y = 0; y < side; ++y)
            for (int x = 0; x < side; ++x)
                for (int row = 0; row < 3; ++row, patch += strip) {
                    float* at = image + (y + row) * padded + x * strip / 3;
                    for (int i = 0; i < strip; ++i) if (gather) patch[i] = at[i]; else at[i] += patch[i];
                }
    }

    float* Cell(int y, int x, int which) => responses + ((2 * y + which / 2) * side + 2 * x + which % 2) * Channels;

    internal void Forward(float* input, float* weight, float* bias, int images, float* output) {
        int winner = 0;
        for (int image = 0; image < images; ++image, input += InputSize, output += OutputSize) {
            Move(input, true);
            float* cleared = Matrix.Clear(responses, side * side * Channels);
            Matrix.Multiply(patches, Patch, 1, weight, cleared, side * side, Patch, Channels);
            for (int cell = 0; cell < side * side / 4; ++cell) {
                int y = cell / (side / 2), x = cell % (side / 2);
                float* to = output + ((y + border) * outPadded + x + border) * Channels;
                for (int c = 0; c < Channels; ++c) {
                    int best = 0;
                    for (int i = 1; i < 4; ++i) if (Cell(y, x, i)[c] > Cell(y, x, best)[c]) best = i;
                    to[c] = Math.Max(0, Cell(y, x, best)[c] + bias[c]);
                    winners[winner++] = to[c] > 0 ? best : -1;
                }
            }
        }
    }

    internal void Backward(float* input, float* weight, float* outputGradient, int images,
        float* weightGradient, float* biasGradient, float* inputGradient) {
        int winner = 0;
        if (inputGradient != null) Matrix.Clear(inputGradient, (long)images * InputSize);
        for (int image = 0; image < images; ++image, input += InputSize, outputGradient += OutputSize) {
            Matrix.Clear(responses, side * side * Channels);
            for (int cell = 0; cell < side * side / 4; ++cell) {
                int y = cell / (side / 2), x = cell % (side / 2);
                float* from = outputGradient + ((y + border) * outPadded + x + border) * Channels;
                for (int c = 0; c < Channels; ++c, ++winner) {
                    if (winners[winner] < 0) continue;
                    Cell(y, x, winners[winner])[c] = from[c];
                    biasGradient[c] += from[c];
                }
            }
            Move(input, true);
            Matrix.Multiply(patches, 1, Patch, responses, weightGradient, Patch, side * side, Channels);
            if (inputGradient == null) continue;
            Matrix.MultiplyByTurned(responses, weight, turned, patches, side * side, Channels, Patch);
            Move(inputGradient + image * InputSize, false);
        }
    }
}
