// SPDX-License-Identifier: Apache-2.0
package io.dt;

import io.dt.raw.Raw;
import java.util.Locale;

/** The operations in which elements only change their place, by one signature. */
enum Move {
  ALLTOALL,
  GATHER,
  SCATTER,
  ALLTOALLV,
  GATHERV,
  SCATTERV,
  ALLGATHERV;

  private final String operation = name().toLowerCase(Locale.ROOT);

  /** As messages call it. */
  String operation() {
    return operation;
  }

  /** `count` or `counts`, and `root`, are for those that have them. */
  void run(
      long comm, long send, long recv, long count, byte[] counts, int dtype, int root,
      long stream) {
    switch (this) {
      case ALLTOALL -> Raw.alltoall(comm, send, recv, count, dtype, stream);
      case GATHER -> Raw.gather(comm, send, recv, count, dtype, root, stream);
      case SCATTER -> Raw.scatter(comm, send, recv, count, dtype, root, stream);
      case ALLTOALLV -> Raw.alltoallv(comm, send, recv, counts, dtype, stream);
      case GATHERV -> Raw.gatherv(comm, send, count, recv, counts, dtype, root, stream);
      case SCATTERV -> Raw.scatterv(comm, send, counts, recv, count, dtype, root, stream);
      case ALLGATHERV -> Raw.allgatherv(comm, send, recv, counts, dtype, stream);
    }
  }

  /** Gives the number of the work. */
  long start(
      long comm, long send, long recv, long count, byte[] counts, int dtype, int root,
      long stream) {
    return switch (this) {
      case ALLTOALL -> Raw.alltoall_async(comm, send, recv, count, dtype, stream);
      case GATHER -> Raw.gather_async(comm, send, recv, count, dtype, root, stream);
      case SCATTER -> Raw.scatter_async(comm, send, recv, count, dtype, root, stream);
      case ALLTOALLV -> Raw.alltoallv_async(comm, send, recv, counts, dtype, stream);
      case GATHERV -> Raw.gatherv_async(comm, send, count, recv, counts, dtype, root, stream);
      case SCATTERV -> Raw.scatterv_async(comm, send, counts, recv, count, dtype, root, stream);
      case ALLGATHERV -> Raw.allgatherv_async(comm, send, recv, counts, dtype, stream);
    };
  }
}
