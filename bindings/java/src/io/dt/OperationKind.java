// SPDX-License-Identifier: Apache-2.0
package io.dt;

/** Operations, as {@link JobStatistics} counts them. */
public enum OperationKind {
  /** Of allreduce. */
  ALLREDUCE,
  /** Of reduce. */
  REDUCE,
  /** Of broadcast. */
  BROADCAST,
  /** Of allgather. */
  ALLGATHER,
  /** Of reduce-scatter. */
  REDUCE_SCATTER,
  /** Of barrier. */
  BARRIER,
  /** Of send. */
  SEND,
  /** Of recv. */
  RECV,
  /** Of alltoall. */
  ALLTOALL,
  /** Of alltoallv. */
  ALLTOALLV,
  /** Of gather. */
  GATHER,
  /** Of gatherv. */
  GATHERV,
  /** Of scatter. */
  SCATTER,
  /** Of scatterv. */
  SCATTERV,
  /** Of allgatherv. */
  ALLGATHERV
}
