// SPDX-License-Identifier: Apache-2.0
package io.dt;

/** The library or a device has no memory left. */
public final class OutOfMemoryException extends DtException {
  private static final long serialVersionUID = 1L;

  OutOfMemoryException(Data data) {
    super(data);
  }
}
