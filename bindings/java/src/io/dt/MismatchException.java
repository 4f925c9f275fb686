// SPDX-License-Identifier: Apache-2.0
package io.dt;

/** Ranks called different things; the message shows both sides. */
public final class MismatchException extends DtException {
  private static final long serialVersionUID = 1L;

  MismatchException(Data data) {
    super(data);
  }
}
