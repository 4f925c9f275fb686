// SPDX-License-Identifier: Apache-2.0

/** Distributed training for programs of the Java virtual machine. */
module io.dt {
  exports io.dt;
}
