// SPDX-License-Identifier: Apache-2.0
package io.dt;

/** A rank aborted the job or left the communicator; the message has its reason. */
public final class AbortedException extends DtException {
  private static final long serialVersionUID = 1L;

  AbortedException(Data data) {
    super(data);
  }
}
