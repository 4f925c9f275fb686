// SPDX-License-Identifier: Apache-2.0
package dttest;

import io.dt.Comm;
import io.dt.DataType;
import io.dt.Tensor;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.function.Supplier;

/** Kinds of memory that a tensor can be made of. */
enum Storage {
  BYTES,
  TYPED_BUFFER,
  OF_DT,
  ADDRESS,
  BYTE_ARRAY,
  TYPED_ARRAY;

  /** A tensor, what it is made of, and its bytes. */
  record Place(Tensor tensor, Object memory, Supplier<byte[]> bytes) {}

  /** An array, which only blocking calls take. */
  boolean onHeap() {
    return this == BYTE_ARRAY || this == TYPED_ARRAY;
  }

  boolean has(DataType dtype) {
    if (this != TYPED_BUFFER && this != TYPED_ARRAY) return true;
    return switch (dtype) {
      case I32, I64, F32, F64 -> true;
      default -> false;
    };
  }

  Place make(Comm comm, DataType dtype, byte[] before) {
    int count = before.length / dtype.bytes();
    return switch (this) {
      case BYTES, TYPED_BUFFER -> {
        ByteBuffer memory = Ranks.bytes(before.length).put(0, before);
        yield new Place(
            this == BYTES ? Tensor.of(memory, dtype) : typed(memory, dtype), memory,
            () -> read(memory, before.length));
      }
      case OF_DT, ADDRESS -> {
        Tensor memory = comm.allocate(count + 1, dtype);
        ByteBuffer bytes = memory.buffer().put(0, before);
        yield new Place(
            this == OF_DT ? memory.slice(0, count)
                : Tensor.at(memory.address(), count, dtype, memory),
            memory, () -> read(bytes, before.length));
      }
      case BYTE_ARRAY -> {
        byte[] memory = before.clone();
        yield new Place(Tensor.of(memory, dtype), memory, () -> memory);
      }
      case TYPED_ARRAY -> array(dtype, view(before), count);
    };
  }

  private static ByteBuffer view(byte[] bytes) {
    return ByteBuffer.wrap(bytes).order(ByteOrder.nativeOrder());
  }

  private static byte[] read(ByteBuffer memory, int size) {
    byte[] bytes = new byte[size];
    memory.get(0, bytes);
    return bytes;
  }

  private static Tensor typed(ByteBuffer memory, DataType dtype) {
    return switch (dtype) {
      case I32 -> Tensor.of(memory.asIntBuffer());
      case I64 -> Tensor.of(memory.asLongBuffer());
      case F32 -> Tensor.of(memory.asFloatBuffer());
      default -> Tensor.of(memory.asDoubleBuffer());
    };
  }

  private static Place array(DataType dtype, ByteBuffer before, int count) {
    ByteBuffer after = view(new byte[before.capacity()]);
    switch (dtype) {
      case I32: {
        int[] memory = new int[count];
        before.asIntBuffer().get(memory);
        return new Place(Tensor.of(memory), memory, () -> {
          after.asIntBuffer().put(memory);
          return after.array();
        });
      }
      case I64: {
        long[] memory = new long[count];
        before.asLongBuffer().get(memory);
        return new Place(Tensor.of(memory), memory, () -> {
          after.asLongBuffer().put(memory);
          return after.array();
        });
      }
      case F32: {
        float[] memory = new float[count];
        before.asFloatBuffer().get(memory);
        return new Place(Tensor.of(memory), memory, () -> {
          after.asFloatBuffer().put(memory);
          return after.array();
        });
      }
      default: {
        double[] memory = new double[count];
        before.asDoubleBuffer().get(memory);
        return new Place(Tensor.of(memory), memory, () -> {
          after.asDoubleBuffer().put(memory);
          return after.array();
        });
      }
    }
  }
}
