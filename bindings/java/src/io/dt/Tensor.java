// SPDX-License-Identifier: Apache-2.0
package io.dt;

import io.dt.raw.Loader;
import io.dt.raw.Raw;
import java.lang.ref.Reference;
import java.nio.Buffer;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.DoubleBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.nio.LongBuffer;
import java.nio.ShortBuffer;

/**
 * Memory with a type and a number of elements: what operations read and write. It owns no memory,
 * except that of {@link Comm#allocate}. Make it once and use it again: then calls that wait make no
 * garbage. It keeps what it was made of reachable, and an operation under way keeps its tensors.
 */
public final class Tensor implements AutoCloseable {
  /** In the array, where there is one. */
  private final long address;
  private final long count;
  private final DataType type;
  private final boolean readOnly;
  /** A heap array, which is copied: it is never held during a call. Null: memory at the address. */
  private final Object array;
  /** Null: not dt's. */
  private final Memory memory;
  /** What must stay reachable. */
  private final Object owner;

  private Tensor(
      long address, long count, DataType type, boolean readOnly, Object array, Memory memory,
      Object owner) {
    this.address = address;
    this.count = count;
    this.type = type;
    this.readOnly = readOnly;
    this.array = array;
    this.memory = memory;
    this.owner = owner;
  }

  /**
   * The elements between position and limit of a direct buffer.
   *
   * @param buffer direct, in native order
   * @return of {@link DataType#F32}
   */
  public static Tensor of(FloatBuffer buffer) {
    return of(buffer, DataType.F32);
  }

  /**
   * The elements between position and limit of a direct buffer.
   *
   * @param buffer direct, in native order
   * @return of {@link DataType#F64}
   */
  public static Tensor of(DoubleBuffer buffer) {
    return of(buffer, DataType.F64);
  }

  /**
   * The elements between position and limit of a direct buffer.
   *
   * @param buffer direct, in native order
   * @return of {@link DataType#I32}
   */
  public static Tensor of(IntBuffer buffer) {
    return of(buffer, DataType.I32);
  }

  /**
   * The elements between position and limit of a direct buffer.
   *
   * @param buffer direct, in native order
   * @return of {@link DataType#I64}
   */
  public static Tensor of(LongBuffer buffer) {
    return of(buffer, DataType.I64);
  }

  /**
   * The elements between position and limit of a direct buffer: of a ByteBuffer any, of a
   * ShortBuffer those of 16 bits, of an IntBuffer also U32, of a LongBuffer also U64.
   *
   * @param buffer direct; in native order, unless elements are single bytes
   * @param type of the elements
   * @return a view
   */
  public static Tensor of(Buffer buffer, DataType type) {
    String method = "Tensor.of";
    Checks.notNull(method, "buffer", buffer);
    Checks.notNull(method, "type", type);
    if (!buffer.isDirect()) {
      throw Checks.refused(
          method, "buffer", "lies on the heap, where the garbage collector moves it",
          "give a direct buffer, or for calls that wait the array itself");
    }
    int unit = unit(buffer, type);
    long bytes = unit * (long) buffer.remaining();
    if (bytes % type.bytes() != 0) {
      throw Checks.refused(
          method, "buffer", "has " + bytes + " bytes, which are no whole elements of " + type,
          "set its position and limit");
    }
    Loader.load();
    return new Tensor(
        Raw.address(buffer) + unit * (long) buffer.position(), bytes / type.bytes(), type,
        buffer.isReadOnly(), null, null, buffer);
  }

  /**
   * All elements of an array, for calls that wait: they are copied there and back.
   *
   * @param array not copied now
   * @return of {@link DataType#F32}
   */
  public static Tensor of(float[] array) {
    return ofArray(array, array == null ? 0 : array.length, DataType.F32);
  }

  /**
   * All elements of an array, for calls that wait: they are copied there and back.
   *
   * @param array not copied now
   * @return of {@link DataType#F64}
   */
  public static Tensor of(double[] array) {
    return ofArray(array, array == null ? 0 : array.length, DataType.F64);
  }

  /**
   * All elements of an array, for calls that wait: they are copied there and back.
   *
   * @param array not copied now
   * @return of {@link DataType#I32}
   */
  public static Tensor of(int[] array) {
    return ofArray(array, array == null ? 0 : array.length, DataType.I32);
  }

  /**
   * All elements of an array, for calls that wait: they are copied there and back.
   *
   * @param array not copied now
   * @return of {@link DataType#I64}
   */
  public static Tensor of(long[] array) {
    return ofArray(array, array == null ? 0 : array.length, DataType.I64);
  }

  /**
   * All bytes of an array as elements in native order, for calls that wait: they are copied there
   * and back.
   *
   * @param array not copied now; of whole elements
   * @param type of the elements
   * @return a view
   */
  public static Tensor of(byte[] array, DataType type) {
    int bytes = Checks.notNull("Tensor.of", "array", array).length;
    int unit = Checks.notNull("Tensor.of", "type", type).bytes();
    if (bytes % unit == 0) return ofArray(array, bytes / unit, type);
    throw Checks.refused(
        "Tensor.of", "array", "has " + bytes + " bytes, which are no whole elements of " + type,
        "give whole elements");
  }

  private static Tensor ofArray(Object array, int count, DataType type) {
    Checks.notNull("Tensor.of", "array", array);
    return new Tensor(0, count, type, false, array, null, null);
  }

  /**
   * Memory of another library, also a GPU's.
   *
   * @param address of the first element
   * @param count elements
   * @param type of the elements
   * @param keepAlive what owns the memory: kept reachable with the tensor, and until an operation
   *     that uses it is done; null: the caller sees to that
   * @return a view
   */
  public static Tensor at(long address, long count, DataType type, Object keepAlive) {
    Checks.atLeast("Tensor.at", "count", count, 0);
    Checks.notNull("Tensor.at", "type", type);
    if (address == 0 && count > 0) {
      throw Checks.refused("Tensor.at", "address", "is 0", "give that of " + count + " elements");
    }
    return new Tensor(address, count, type, false, null, null, keepAlive);
  }

  static Tensor allocate(Comm comm, long count, DataType type) {
    Checks.notNull("Comm.allocate", "type", type);
    Checks.atLeast("Comm.allocate", "count", count, 1);
    if (count > Long.MAX_VALUE / type.bytes()) {
      throw Checks.refused("Comm.allocate", "count", "is " + count, "take fewer than 2^63 bytes");
    }
    Memory memory = Memory.allocate(comm, count * type.bytes());
    Tensor tensor = new Tensor(memory.address(), count, type, false, null, memory, null);
    Handle.CLEANER.register(tensor, memory::close);
    return tensor;
  }

  /**
   * Some of the elements, in the same memory.
   *
   * @param first index of the first one
   * @param count elements
   * @return a view, which keeps this tensor reachable
   */
  public Tensor slice(long first, long count) {
    if (first < 0 || count < 0 || first > this.count - count) {
      throw Checks.refused(
          "Tensor.slice", "the slice",
          "of " + count + " elements from " + first + " on is not inside the " + this.count,
          "give a part of them");
    }
    return new Tensor(
        address + first * type.bytes(), count, type, readOnly, array, memory, this);
  }

  /**
   * How many elements it has.
   *
   * @return at least 0
   */
  public long count() {
    return count;
  }

  /**
   * The type of the elements.
   *
   * @return never null
   */
  public DataType type() {
    return type;
  }

  /**
   * Where the memory lies, for libraries that take addresses. The address keeps nothing.
   *
   * @return of the first element; that of {@link Comm#allocate} is a multiple of 4096, on a GPU of
   *     256
   */
  public long address() {
    if (array != null) {
      throw Checks.refused(
          "Tensor.address", "the array", "lies on the heap, where it moves", "use a direct buffer");
    }
    if (memory != null && memory.closed()) throw closed();
    return address;
  }

  /**
   * Memory of {@link Comm#allocate} as a buffer in native order, if it is not more than 2 GiB. The
   * memory stays as long as a view of the buffer can be reached, also after {@link #close}.
   *
   * @return a buffer with its own position and limit
   */
  public ByteBuffer buffer() {
    if (memory == null) {
      throw Checks.refused(
          "Tensor.buffer", "the memory", "is not of Comm.allocate",
          "use what the tensor was made of");
    }
    int bytes = Checks.size("Tensor.buffer", bytes());
    acquire();
    return memory.buffer(address, bytes);
  }

  /**
   * Gives memory of {@link Comm#allocate} back, also that of slices, when no operation and no
   * buffer uses it any more. Does nothing for other tensors. The garbage collector does the same,
   * but does not know how much memory it is. May be repeated.
   */
  @Override
  public void close() {
    if (memory != null) memory.close();
  }

  long bytes() {
    return count * type.bytes();
  }

  void checkWritable(String method, String name) {
    if (!readOnly) return;
    throw Checks.refused(method, name, "is read-only", "give memory that may be written");
  }

  boolean onHeap() {
    return array != null;
  }

  /** Without the check of address(). */
  long place() {
    return address;
  }

  /** Begins a use of the memory by a call of dt, that release() ends. */
  void acquire() {
    if (memory != null && !memory.retain()) throw closed();
  }

  /** Begins a use of both, which may be null. */
  static void acquire(Tensor first, Tensor second) {
    if (first != null) first.acquire();
    try {
      if (second != null) second.acquire();
    } catch (ClosedException e) {
      release(first);
      throw e;
    }
  }

  /** Makes a call that uses the memory. */
  void use(Runnable call) {
    acquire();
    try {
      call.run();
    } finally {
      release(this);
      Reference.reachabilityFence(this);
    }
  }

  static void release(Tensor tensor) {
    if (tensor != null && tensor.memory != null) tensor.memory.release();
  }

  void copyIn(long to) {
    Raw.copy_in(array, address, to, bytes());
  }

  void copyOut(long from) {
    Raw.copy_out(from, array, address, bytes());
  }

  /** This, or a copy of an array: for a call that may make garbage. */
  Tensor direct(String method) {
    if (array == null) return this;
    ByteBuffer copy =
        ByteBuffer.allocateDirect(Checks.size(method, bytes())).order(ByteOrder.nativeOrder());
    Tensor tensor = of(copy, type);
    copyIn(tensor.address);
    return tensor;
  }

  private static ClosedException closed() {
    return new ClosedException("Tensor", null);
  }

  /** Bytes of an element of the buffer, which must fit the type. */
  private static int unit(Buffer buffer, DataType type) {
    int unit;
    boolean fits;
    ByteOrder order;
    if (buffer instanceof ByteBuffer bytes) {
      unit = 1;
      fits = true;
      order = type.bytes() == 1 ? ByteOrder.nativeOrder() : bytes.order(); // one byte has no order
    } else if (buffer instanceof FloatBuffer floats) {
      unit = 4;
      fits = type == DataType.F32;
      order = floats.order();
    } else if (buffer instanceof DoubleBuffer doubles) {
      unit = 8;
      fits = type == DataType.F64;
      order = doubles.order();
    } else if (buffer instanceof IntBuffer ints) {
      unit = 4;
      fits = type == DataType.I32 || type == DataType.U32;
      order = ints.order();
    } else if (buffer instanceof LongBuffer longs) {
      unit = 8;
      fits = type == DataType.I64 || type == DataType.U64;
      order = longs.order();
    } else {
      unit = 2;
      fits = buffer instanceof ShortBuffer && type.bytes() == unit;
      order = fits ? ((ShortBuffer) buffer).order() : ByteOrder.nativeOrder();
    }
    if (!fits) {
      throw Checks.refused(
          "Tensor.of", "buffer",
          "is a " + kind(buffer) + ", which has no elements of " + type,
          "give the DataType of its elements, or a buffer of that type");
    }
    if (order == ByteOrder.nativeOrder()) return unit;
    throw Checks.refused(
        "Tensor.of", "buffer", "is in " + order + " order",
        "call order(ByteOrder.nativeOrder()) on its ByteBuffer before anything is written");
  }

  private static String kind(Buffer buffer) {
    for (Class<?> type = buffer.getClass(); ; type = type.getSuperclass()) {
      if (type.getSuperclass() == Buffer.class) return type.getSimpleName();
    }
  }

  /** For messages and logs. */
  @Override
  public String toString() {
    return "Tensor of " + count + " " + type;
  }
}
