// SPDX-License-Identifier: Apache-2.0
package io.dt;

/** The time was over; the message names the ranks that did not come. */
public final class DtTimeoutException extends DtException {
  private static final long serialVersionUID = 1L;

  DtTimeoutException(Data data) {
    super(data);
  }
}
