// SPDX-License-Identifier: Apache-2.0
package io.dt;

/** The call does not fit here: after the job's end, inside a group, inside a step. */
public final class InvalidStateException extends DtException {
  private static final long serialVersionUID = 1L;

  InvalidStateException(Data data) {
    super(data);
  }
}
