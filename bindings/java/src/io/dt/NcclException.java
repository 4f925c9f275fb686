// SPDX-License-Identifier: Apache-2.0
package io.dt;

/** NCCL refused something. */
public final class NcclException extends DtException {
  private static final long serialVersionUID = 1L;

  NcclException(Data data) {
    super(data);
  }
}
