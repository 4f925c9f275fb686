// SPDX-License-Identifier: Apache-2.0
package io.dt;

/** The operating system refused something. */
public final class SystemException extends DtException {
  private static final long serialVersionUID = 1L;

  SystemException(Data data) {
    super(data);
  }
}
