// SPDX-License-Identifier: Apache-2.0
package io.dt;

/** An object was used after it was closed. */
public final class ClosedException extends IllegalStateException {
  private static final long serialVersionUID = 1L;

  ClosedException(String type, Throwable cause) {
    super(type + " is closed; use it before close(), or make another", cause);
  }
}
