// SPDX-License-Identifier: Apache-2.0
package io.dt;

import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;

/** Lists as the native layer takes them: each item's size as a long in native order, then it. */
final class Packing {
  private final ByteArrayOutputStream bytes = new ByteArrayOutputStream();
  private final ByteBuffer number = ByteBuffer.allocate(8).order(ByteOrder.nativeOrder());

  Packing add(long value) {
    bytes.writeBytes(number.putLong(0, value).array());
    return this;
  }

  /** Its bits as a long. */
  Packing add(double value) {
    return add(Double.doubleToRawLongBits(value));
  }

  /** Null: absent. */
  Packing add(byte[] item) {
    add(item == null ? -1 : item.length);
    if (item != null) bytes.writeBytes(item);
    return this;
  }

  Packing add(String text) {
    return add(text.getBytes(StandardCharsets.UTF_8));
  }

  byte[] take() {
    return bytes.toByteArray();
  }

  static ByteBuffer read(byte[] packed) {
    return ByteBuffer.wrap(packed).order(ByteOrder.nativeOrder());
  }

  /** Null: absent. */
  static byte[] item(ByteBuffer packed) {
    long size = packed.getLong();
    if (size < 0) return null;
    byte[] item = new byte[Math.toIntExact(size)];
    packed.get(item);
    return item;
  }

  static String text(ByteBuffer packed) {
    return new String(item(packed), StandardCharsets.UTF_8);
  }
}
