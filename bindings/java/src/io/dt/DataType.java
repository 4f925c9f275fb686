// SPDX-License-Identifier: Apache-2.0
package io.dt;

/** Type of the elements of a {@link Tensor}. */
public enum DataType {
  /** Signed bytes. */
  I8(1),
  /** Unsigned bytes. */
  U8(1),
  /** Signed integers of 32 bits. */
  I32(4),
  /** Unsigned integers of 32 bits. */
  U32(4),
  /** Signed integers of 64 bits. */
  I64(8),
  /** Unsigned integers of 64 bits. */
  U64(8),
  /** IEEE binary16. */
  F16(2),
  /** The upper half of a binary32. */
  BF16(2),
  /** {@code float}. */
  F32(4),
  /** {@code double}. */
  F64(8),
  /** One byte, 0 or 1; has no average. */
  BOOL(1),
  /** {@code short}. */
  I16(2),
  /** Unsigned integers of 16 bits. */
  U16(2),
  /** 8-bit floats with 4 bits of exponent: only moved, never reduced. */
  F8E4M3(1),
  /** 8-bit floats with 5 bits of exponent: only moved, never reduced. */
  F8E5M2(1);

  private final int bytes;

  DataType(int bytes) {
    this.bytes = bytes;
  }

  /**
   * Size of an element.
   *
   * @return bytes
   */
  public int bytes() {
    return bytes;
  }

  /** As dt_dtype. */
  int number() {
    return ordinal();
  }
}
