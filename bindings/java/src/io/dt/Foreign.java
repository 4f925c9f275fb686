// SPDX-License-Identifier: Apache-2.0
package io.dt;

import io.dt.raw.Raw;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/** Buffers over memory that the virtual machine does not own. */
final class Foreign {
  private Foreign() {}

  /** Of one buffer. */
  static int size(String what, long bytes) {
    if (bytes <= Integer.MAX_VALUE) return (int) bytes;
    throw DtException.invalidArgument(
        what + ": " + bytes + " bytes are more than a buffer can hold; take parts, or the address");
  }

  /** In native order; null where this process cannot read it, as on a GPU. */
  static ByteBuffer buffer(long address, int size) {
    if (size > 0 && !Raw.readable(address)) return null;
    return ((ByteBuffer) Raw.direct(address, size)).order(ByteOrder.nativeOrder());
  }

  static DtException onDevice(String what) {
    return DtException.invalidArgument(
        what + ": the memory is a GPU's; take its address for a library that can use it");
  }
}
