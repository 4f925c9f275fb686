// SPDX-License-Identifier: Apache-2.0
package io.dt;

/** A fault of dt itself; please report it. */
public final class InternalException extends DtException {
  private static final long serialVersionUID = 1L;

  InternalException(Data data) {
    super(data);
  }
}
