// SPDX-License-Identifier: Apache-2.0
package io.dt;

import io.dt.raw.Raw;
import io.dt.raw.Upcall;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/** A {@link Combine} in one operation; to be deleted when that is done. */
final class Combination extends Upcall {
  /** So much is copied at a time. */
  private static final int PART_BYTES = 1 << 16;
  private static final int MOST_BYTES = 4095;

  static {
    LogRelay.stopAtEnd();
  }

  final long number = Raw.upcall_number(this);
  final int elementBytes;
  private final String method;
  private final Combine combine;
  private volatile Throwable thrown;

  Combination(String method, Combine combine, DataType type) {
    this.method = method;
    this.combine = combine;
    elementBytes = combine.items * type.bytes();
  }

  /** Null for a ReduceOp. */
  static Combination of(OperationKind kind, Reduction op, DataType type) {
    if (!(op instanceof Combine combine)) return null;
    if (combine.items <= MOST_BYTES / type.bytes()) {
      return new Combination(kind.method(), combine, type);
    }
    throw Checks.refused(
        kind.method(), "an element",
        "of Combine is " + combine.items + " items of " + type, "take at most 4095 bytes");
  }

  /** Called by dt, on any thread. */
  @Override
  public int call(long in, long inOut, long count) {
    try {
      long part = Math.max(1, PART_BYTES / elementBytes);
      for (long done = 0; done < count && thrown == null; done += part) {
        long at = done * elementBytes;
        int bytes = (int) Math.min(part, count - done) * elementBytes;
        ByteBuffer result = (ByteBuffer) Raw.direct(inOut + at, bytes);
        ByteBuffer copy = copy(result);
        combine.function.accept(copy((ByteBuffer) Raw.direct(in + at, bytes)), copy);
        if (thrown == null) result.put(0, copy, 0, bytes);
      }
    } catch (Throwable e) {
      thrown = e;
    }
    return 0;
  }

  private static ByteBuffer copy(ByteBuffer part) {
    ByteBuffer made = ByteBuffer.allocate(part.capacity()).order(ByteOrder.nativeOrder());
    return made.put(0, part, 0, part.capacity());
  }

  /** Null unless the function has thrown. */
  DtException failure() {
    return thrown == null ? null : DtException.thrown(method, thrown);
  }

  void check() {
    if (thrown != null) throw failure();
  }

  /** Null: none. */
  static void delete(Combination one) {
    if (one != null) one.delete();
  }
}
