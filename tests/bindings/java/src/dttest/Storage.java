// SPDX-License-Identifier: Apache-2.0
package dttest;

import io.dt.Comm;
import io.dt.DataType;
import io.dt.Tensor;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.DoubleBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.nio.LongBuffer;
import java.util.function.IntToDoubleFunction;

/** Kinds of memory that a tensor can be made of. */
enum Storage {
  FLOATS,
  DOUBLES,
  INTS,
  LONGS,
  BYTES,
  OF_DT,
  ADDRESS,
  FLOAT_ARRAY,
  DOUBLE_ARRAY,
  INT_ARRAY,
  LONG_ARRAY,
  BYTE_ARRAY;

  /** A tensor, what it is made of, and how to read it. */
  record Place(Tensor tensor, Object memory, int count, IntToDoubleFunction element) {
    double[] read() {
      double[] values = new double[count];
      for (int i = 0; i < count; i++) values[i] = element.applyAsDouble(i);
      return values;
    }
  }

  boolean onHeap() {
    return ordinal() >= FLOAT_ARRAY.ordinal();
  }

  Place make(Comm comm, double[] values) {
    int n = values.length;
    switch (this) {
      case FLOATS: {
        FloatBuffer memory = Ranks.floats(n);
        fill(values, (i, value) -> memory.put(i, (float) value));
        return new Place(Tensor.of(memory), memory, n, memory::get);
      }
      case DOUBLES: {
        DoubleBuffer memory = Ranks.bytes(8 * n).asDoubleBuffer();
        fill(values, memory::put);
        return new Place(Tensor.of(memory), memory, n, memory::get);
      }
      case INTS: {
        IntBuffer memory = Ranks.bytes(4 * n).asIntBuffer();
        fill(values, (i, value) -> memory.put(i, (int) value));
        return new Place(Tensor.of(memory), memory, n, memory::get);
      }
      case LONGS: {
        LongBuffer memory = Ranks.bytes(8 * n).asLongBuffer();
        fill(values, (i, value) -> memory.put(i, (long) value));
        return new Place(Tensor.of(memory), memory, n, memory::get);
      }
      case BYTES: {
        ByteBuffer memory = Ranks.bytes(4 * n);
        fill(values, (i, value) -> memory.putInt(4 * i, (int) value));
        return new Place(Tensor.of(memory, DataType.I32), memory, n, i -> memory.getInt(4 * i));
      }
      case OF_DT: {
        Tensor memory = comm.allocate(n + 1, DataType.F32);
        ByteBuffer bytes = memory.buffer();
        fill(values, (i, value) -> bytes.putFloat(4 * i, (float) value));
        return new Place(memory.slice(0, n), memory, n, i -> bytes.getFloat(4 * i));
      }
      case ADDRESS: {
        Tensor memory = comm.allocate(n + 1, DataType.I64);
        ByteBuffer bytes = memory.buffer();
        fill(values, (i, value) -> bytes.putLong(8 * i, (long) value));
        return new Place(
            Tensor.at(memory.address(), n, DataType.I64, memory), memory, n,
            i -> bytes.getLong(8 * i));
      }
      case FLOAT_ARRAY: {
        float[] memory = new float[n];
        fill(values, (i, value) -> memory[i] = (float) value);
        return new Place(Tensor.of(memory), memory, n, i -> memory[i]);
      }
      case DOUBLE_ARRAY: {
        double[] memory = values.clone();
        return new Place(Tensor.of(memory), memory, n, i -> memory[i]);
      }
      case INT_ARRAY: {
        int[] memory = new int[n];
        fill(values, (i, value) -> memory[i] = (int) value);
        return new Place(Tensor.of(memory), memory, n, i -> memory[i]);
      }
      case LONG_ARRAY: {
        long[] memory = new long[n];
        fill(values, (i, value) -> memory[i] = (long) value);
        return new Place(Tensor.of(memory), memory, n, i -> memory[i]);
      }
      default: {
        byte[] memory = new byte[4 * n];
        ByteBuffer view = ByteBuffer.wrap(memory).order(ByteOrder.nativeOrder());
        fill(values, (i, value) -> view.putInt(4 * i, (int) value));
        return new Place(Tensor.of(memory, DataType.I32), memory, n, i -> view.getInt(4 * i));
      }
    }
  }

  private interface Put {
    void put(int i, double value);
  }

  private static void fill(double[] values, Put put) {
    for (int i = 0; i < values.length; i++) put.put(i, values[i]);
  }
}
