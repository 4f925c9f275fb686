// SPDX-License-Identifier: Apache-2.0
package io.dt;

/** Another rank died or cannot be reached: rank, host and process say which. */
public final class PeerLostException extends DtException {
  private static final long serialVersionUID = 1L;

  PeerLostException(Data data) {
    super(data);
  }
}
