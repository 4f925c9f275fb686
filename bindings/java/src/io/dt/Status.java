// SPDX-License-Identifier: Apache-2.0
package io.dt;

/** What a failed call asks of the program. */
public enum Status {
  /** Fix the call: an argument is wrong, or its handle is closed. */
  INVALID_ARGUMENT(1),
  /** Fix the call: it does not fit here. */
  INVALID_STATE(2),
  /** Fix the call: this build or backend cannot do it. */
  UNSUPPORTED(3),
  /** Fix the call: versions differ. */
  VERSION(4),
  /** Fix the machine: a setting is wrong. */
  CONFIG(11),
  /** Fix the machine: no memory. */
  OUT_OF_MEMORY(12),
  /** Fix the machine: the operating system refused. */
  SYSTEM(13),
  /** Fix the machine: CUDA refused. */
  CUDA(14),
  /** Fix the machine: NCCL refused. */
  NCCL(15),
  /** Re-create the communicator: the time was over. */
  TIMEOUT(21),
  /** Re-create the communicator: a rank is gone. */
  PEER_LOST(22),
  /** Re-create the communicator: ranks called different things. */
  MISMATCH(23),
  /** Re-create the communicator: a rank gave up. */
  ABORTED(24),
  /** Report a bug. */
  INTERNAL(31),
  /** A status that this version does not know; {@link DtException#statusNumber} has it. */
  UNKNOWN(-1);

  private static final Status[] ALL = values();
  private final int number;

  Status(int number) {
    this.number = number;
  }

  /**
   * As in the C interface.
   *
   * @return number of dt_status; -1 of {@link #UNKNOWN}
   */
  public int number() {
    return number;
  }

  static Status of(int number) {
    for (Status each : ALL) {
      if (each.number == number) return each;
    }
    return UNKNOWN;
  }
}
