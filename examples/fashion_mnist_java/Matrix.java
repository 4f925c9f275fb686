// SPDX-License-Identifier: Apache-2.0
/** Products of matrices that lie row by row. Many values are zero, after ReLU. */
final class Matrix {
  private static void add(int count, float a, float[] x, int xo, float[] y, int yo) {
    for (int i = 0; i < count; i++) y[yo + i] += a * x[xo + i];
  }
  /** c[rows][columns] += a[rows][inner] * b[inner][columns] */
  static void multiply(int rows, int inner, int columns, float[] a, float[] b, float[] c) {
    for (int i = 0; i < rows * inner; i++) if (a[i] != 0) add(columns, a[i], b, i % inner * columns, c, i / inner * columns);
  }
  /** c[inner][columns] += the rows of a and b multiplied, all added up */
  static void addOuter(int rows, int inner, int columns, float[] a, float[] b, float[] c) {
    for (int i = 0; i < rows * inner; i++) if (a[i] != 0) add(columns, a[i], b, i / inner * columns, c, i % inner * columns);
  }
  /** c[rows][inner] = a[rows][columns] * b[inner][columns], turned */
  static void multiplyTurned(int rows, int inner, int columns, float[] a, float[] b, float[] c) {
    for (int i = 0; i < rows * inner; i++) {
      c[i] = 0;
      for (int k = 0; k < columns; k++) c[i] += a[i / inner * columns + k] * b[i % inner * columns + k];
    }
  }
}
