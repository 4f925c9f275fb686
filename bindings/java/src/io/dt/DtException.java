// SPDX-License-Identifier: Apache-2.0
package io.dt;

import java.nio.charset.StandardCharsets;

/**
 * A failed call of dt. Its class says what went wrong; statuses of newer libraries that have no
 * class here are this one. The message says what, where, why and what to do next.
 */
public class DtException extends RuntimeException {
  private static final long serialVersionUID = 1L;

  /** What a failure is made of. */
  record Data(
      int status, int rank, String host, long pid, String operation, long sequence,
      String message, Throwable cause) {}

  /** Number of dt_status. */
  private final int status;
  /** World rank, -1 unknown. */
  private final int rank;
  /** Empty unknown. */
  private final String host;
  /** 0 unknown. */
  private final long pid;
  /** Empty none. */
  private final String operation;
  /** -1 none. */
  private final long sequence;

  DtException(Data data) {
    super(data.message(), data.cause());
    status = data.status();
    rank = data.rank();
    host = data.host();
    pid = data.pid();
    operation = data.operation();
    sequence = data.sequence();
  }

  /**
   * What the program should do about it.
   *
   * @return {@link Status#UNKNOWN} for a status of a newer library
   */
  public final Status status() {
    return Status.of(status);
  }

  /**
   * The status as a number of the C interface.
   *
   * @return also one that {@link Status} does not know
   */
  public final int statusNumber() {
    return status;
  }

  /**
   * The rank behind the failure.
   *
   * @return a world rank, -1 unknown
   */
  public final int rank() {
    return rank;
  }

  /**
   * That rank's host.
   *
   * @return empty if unknown
   */
  public final String host() {
    return host;
  }

  /**
   * That rank's process.
   *
   * @return 0 if unknown
   */
  public final long pid() {
    return pid;
  }

  /**
   * The operation that failed.
   *
   * @return "allreduce", for example; empty if none
   */
  public final String operation() {
    return operation;
  }

  /**
   * Number of the operation on its communicator, equal on all ranks.
   *
   * @return -1 if none
   */
  public final long sequence() {
    return sequence;
  }

  /** Called by the native library, which has texts as UTF-8. */
  static DtException of(
      int status, int rank, byte[] host, long pid, byte[] operation, long sequence,
      byte[] message) {
    return of(
        new Data(
            status, rank, text(host), pid, text(operation), sequence,
            inJava(status, text(message)), null));
  }

  private static String inJava(int status, String message) {
    // What the program said when it aborted stays as it is.
    int end = status == Status.ABORTED.number() ? message.indexOf(" aborted the job: ") : -1;
    return end < 0
        ? Wording.inJava(message)
        : Wording.inJava(message.substring(0, end)) + message.substring(end);
  }

  /** The same failure met again: with the stack of whoever meets it. */
  final DtException again() {
    return of(new Data(status, rank, host, pid, operation, sequence, getMessage(), this));
  }

  /** Of a call that this layer refuses: what, where, why; what to do. */
  static InvalidArgumentException invalidArgument(String message) {
    return new InvalidArgumentException(
        new Data(Status.INVALID_ARGUMENT.number(), -1, "", 0, "", -1, message, null));
  }

  /** For a system call of the Java bindings that failed. */
  static SystemException system(String message, Throwable cause) {
    return new SystemException(
        new Data(Status.SYSTEM.number(), -1, "", 0, "", -1, message, cause));
  }

  /** The error of an operation whose Combine threw. */
  static InvalidArgumentException thrown(String method, Throwable cause) {
    return new InvalidArgumentException(
        new Data(
            Status.INVALID_ARGUMENT.number(), -1, "", 0, "", -1,
            method + ": the function of Combine threw " + cause
                + "; mend it: the result is undefined on all ranks",
            cause));
  }

  /** make_exceptions.py writes these classes. */
  private static DtException of(Data data) {
    switch (Status.of(data.status())) {
      case INVALID_ARGUMENT: return new InvalidArgumentException(data);
      case INVALID_STATE: return new InvalidStateException(data);
      case UNSUPPORTED: return new UnsupportedException(data);
      case VERSION: return new VersionException(data);
      case CONFIG: return new ConfigException(data);
      case OUT_OF_MEMORY: return new OutOfMemoryException(data);
      case SYSTEM: return new SystemException(data);
      case CUDA: return new CudaException(data);
      case NCCL: return new NcclException(data);
      case TIMEOUT: return new DtTimeoutException(data);
      case PEER_LOST: return new PeerLostException(data);
      case MISMATCH: return new MismatchException(data);
      case ABORTED: return new AbortedException(data);
      case INTERNAL: return new InternalException(data);
      default: return new DtException(data);
    }
  }

  private static String text(byte[] bytes) {
    return new String(bytes, StandardCharsets.UTF_8);
  }
}
