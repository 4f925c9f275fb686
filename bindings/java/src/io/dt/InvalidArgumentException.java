// SPDX-License-Identifier: Apache-2.0
package io.dt;

/** An argument is wrong, or its handle is closed; nothing was done. */
public final class InvalidArgumentException extends DtException {
  private static final long serialVersionUID = 1L;

  InvalidArgumentException(Data data) {
    super(data);
  }
}
