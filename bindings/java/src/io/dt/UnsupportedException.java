// SPDX-License-Identifier: Apache-2.0
package io.dt;

/** This build, backend or store cannot do it. */
public final class UnsupportedException extends DtException {
  private static final long serialVersionUID = 1L;

  UnsupportedException(Data data) {
    super(data);
  }
}
