// SPDX-License-Identifier: Apache-2.0
package io.dt;

/** The other side speaks another version of dt. */
public final class VersionException extends DtException {
  private static final long serialVersionUID = 1L;

  VersionException(Data data) {
    super(data);
  }
}
