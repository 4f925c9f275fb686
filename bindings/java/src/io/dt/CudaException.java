// SPDX-License-Identifier: Apache-2.0
package io.dt;

/** CUDA refused something. */
public final class CudaException extends DtException {
  private static final long serialVersionUID = 1L;

  CudaException(Data data) {
    super(data);
  }
}
