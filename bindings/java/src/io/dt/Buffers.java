// SPDX-License-Identifier: Apache-2.0
package io.dt;

import io.dt.raw.Raw;
import java.nio.Buffer;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.DoubleBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.nio.LongBuffer;
import java.nio.ShortBuffer;

/** What dt may read and write in a buffer. Nothing here makes garbage. */
final class Buffers {
  private Buffers() {}

  /** Of a buffer whose type says it. */
  static Dtype dtype(String operation, String name, Buffer buffer) {
    if (buffer instanceof FloatBuffer) return Dtype.F32;
    if (buffer instanceof DoubleBuffer) return Dtype.F64;
    if (buffer instanceof IntBuffer) return Dtype.I32;
    if (buffer instanceof LongBuffer) return Dtype.I64;
    throw refused(
        operation, name, buffer == null ? "is null" : "does not say what its elements are",
        buffer == null ? "give a direct buffer" : "call the method that takes a Dtype");
  }

  /** Elements between position and limit, after all checks that need no other buffer. */
  static long count(String operation, String name, Buffer buffer, Dtype dtype) {
    if (buffer == null) throw refused(operation, name, "is null", "give a direct buffer");
    if (!buffer.isDirect()) {
      throw refused(
          operation, name, "lies on the heap, where the garbage collector moves it",
          "give a direct buffer, or to a blocking call the array itself");
    }
    long bytes = elementBytes(operation, name, buffer, dtype) * (long) buffer.remaining();
    if (bytes % dtype.bytes() != 0) {
      throw refused(
          operation, name, "has " + bytes + " bytes, which are no whole elements of " + dtype,
          "set its position and limit");
    }
    return bytes / dtype.bytes();
  }

  /** Bytes between position and limit, whatever they mean. */
  static long bytes(String operation, String name, Buffer buffer) {
    Dtype dtype =
        buffer instanceof ByteBuffer ? Dtype.U8
            : buffer instanceof ShortBuffer ? Dtype.F16 : dtype(operation, name, buffer);
    return count(operation, name, buffer, dtype) * dtype.bytes();
  }

  /** As count(), of a buffer that the operation writes. */
  static long writableCount(String operation, String name, Buffer buffer, Dtype dtype) {
    long count = count(operation, name, buffer, dtype);
    if (buffer.isReadOnly()) {
      throw refused(operation, name, "is read-only", "give a buffer that may be written");
    }
    return count;
  }

  /** Where the element at the position lies. */
  static long address(Buffer buffer) {
    long element =
        buffer instanceof ByteBuffer ? 1
            : buffer instanceof ShortBuffer ? 2
                : buffer instanceof FloatBuffer || buffer instanceof IntBuffer ? 4 : 8;
    return Raw.address(buffer) + buffer.position() * element;
  }

  static void wanted(String operation, String name, long has, long wanted) {
    if (has == wanted) return;
    throw refused(
        operation, name, "has " + has + " elements, but " + wanted + " are wanted",
        "set its position and limit, or give another");
  }

  static DtException refused(String operation, String name, String why, String next) {
    return DtException.invalidArgument(operation + ": " + name + " " + why + "; " + next);
  }

  private static int elementBytes(String operation, String name, Buffer buffer, Dtype dtype) {
    boolean fits;
    ByteOrder order;
    int bytes;
    if (buffer instanceof ByteBuffer) {
      fits = true;
      // A single byte has no order.
      order = dtype.bytes() == 1 ? ByteOrder.nativeOrder() : ((ByteBuffer) buffer).order();
      bytes = 1;
    } else if (buffer instanceof FloatBuffer) {
      fits = dtype == Dtype.F32;
      order = ((FloatBuffer) buffer).order();
      bytes = 4;
    } else if (buffer instanceof DoubleBuffer) {
      fits = dtype == Dtype.F64;
      order = ((DoubleBuffer) buffer).order();
      bytes = 8;
    } else if (buffer instanceof IntBuffer) {
      fits = dtype == Dtype.I32 || dtype == Dtype.U32;
      order = ((IntBuffer) buffer).order();
      bytes = 4;
    } else if (buffer instanceof LongBuffer) {
      fits = dtype == Dtype.I64 || dtype == Dtype.U64;
      order = ((LongBuffer) buffer).order();
      bytes = 8;
    } else {
      fits = buffer instanceof ShortBuffer && (dtype == Dtype.F16 || dtype == Dtype.BF16);
      order = fits ? ((ShortBuffer) buffer).order() : ByteOrder.nativeOrder();
      bytes = 2;
    }
    if (!fits) {
      throw refused(
          operation, name, "is a " + kind(buffer) + ", which has no elements of " + dtype,
          "give the Dtype of its elements, or a buffer of that type");
    }
    if (order != ByteOrder.nativeOrder()) {
      throw refused(
          operation, name, "is in " + order + " order",
          "call order(ByteOrder.nativeOrder()) on its ByteBuffer before anything is written");
    }
    return bytes;
  }

  private static String kind(Buffer buffer) {
    return buffer instanceof FloatBuffer ? "FloatBuffer"
        : buffer instanceof DoubleBuffer ? "DoubleBuffer"
            : buffer instanceof IntBuffer ? "IntBuffer"
                : buffer instanceof LongBuffer ? "LongBuffer"
                    : buffer instanceof ShortBuffer ? "ShortBuffer" : "CharBuffer";
  }
}
