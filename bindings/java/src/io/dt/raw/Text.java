// SPDX-License-Identifier: Apache-2.0
package io.dt.raw;

import java.nio.charset.StandardCharsets;

/** Text of dt is UTF-8; what is not becomes U+FFFD. */
final class Text {
  private Text() {}

  static byte[] encode(String text) {
    return text.getBytes(StandardCharsets.UTF_8);
  }

  static String decode(byte[] bytes) {
    return new String(bytes, StandardCharsets.UTF_8);
  }
}
