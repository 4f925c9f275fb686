// SPDX-License-Identifier: Apache-2.0
package io.dt;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.function.BiConsumer;

/**
 * A reduction by a function of the caller's, over host memory: {@code inOut[i] = inOut[i] op
 * in[i]}. It must be associative and commutative.
 *
 * <p>The function gets two buffers of any part of the elements, in native order, which are copies:
 * {@code in.asFloatBuffer()}, for example. It runs on any thread, of several parts at the same
 * time, and must not call dt. What it throws ends the operation with an {@link
 * InvalidArgumentException} of this rank, whose cause it is; other ranks do not see it, and the
 * result is undefined on all.
 */
public final class Combine implements Reduction {
  final int items;
  final BiConsumer<ByteBuffer, ByteBuffer> function;

  private Combine(int items, BiConsumer<ByteBuffer, ByteBuffer> function) {
    this.items = items;
    this.function = function;
  }

  /**
   * Of single elements.
   *
   * @param function takes in and inOut, and writes inOut
   * @return to be used in any number of operations
   */
  public static Combine of(BiConsumer<ByteBuffer, ByteBuffer> function) {
    return of(1, function);
  }

  /**
   * Of elements that belong together.
   *
   * @param items how many of the tensor's elements: 2 for pairs; of at most 4095 bytes
   * @param function takes in and inOut, and writes inOut
   * @return to be used in any number of operations
   */
  public static Combine of(int items, BiConsumer<ByteBuffer, ByteBuffer> function) {
    Checks.atLeast("Combine.of", "items", items, 1);
    return new Combine(items, Checks.notNull("Combine.of", "function", function));
  }

  /** How many of its elements so many of a tensor's are. */
  long elements(String method, long count) {
    if (count % items == 0) return count / items;
    throw Checks.refused(
        method, "the count", "is " + count + ", no multiple of the " + items + " items of Combine",
        "give whole elements");
  }

  /** Counts and offsets likewise; null stays null. */
  byte[] elements(String method, byte[] blocks) {
    if (blocks == null) return null;
    ByteBuffer made = ByteBuffer.allocate(blocks.length).order(ByteOrder.nativeOrder());
    for (ByteBuffer all = Packing.read(blocks); all.hasRemaining(); ) {
      made.putLong(elements(method, all.getLong()));
    }
    return made.array();
  }
}
