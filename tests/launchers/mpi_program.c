/* SPDX-License-Identifier: Apache-2.0 */
/* A program that uses MPI beside dt: both must mean the same job. Compiled by the test with mpicc.
 */
#include <mpi.h>
#include <stdio.h>

#include "dt/dt.h"

static int failed(const char* call) {
  fprintf(stderr, "mpi_program: %s: %s\n", call, dt_last_error());
  return 1;
}

int main(int argc, char** argv) {
  int mpi_rank = -1;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &mpi_rank);

  dt_job* job = NULL;
  dt_comm* comm = NULL;
  dt_place place;
  dt_place_init(&place);
  if (dt_init(NULL, &job) != DT_OK) return failed("dt_init");
  if (dt_rank_info(job, &place) != DT_OK) return failed("dt_rank_info");
  if (dt_comm_world(job, &comm) != DT_OK) return failed("dt_comm_world");
  int32_t sum = place.rank;
  if (dt_allreduce(comm, &sum, &sum, 1, DT_I32, DT_SUM, NULL, NULL) != DT_OK) {
    return failed("dt_allreduce");
  }
  if (dt_finalize(job, -1) != DT_OK) return failed("dt_finalize");
  dt_comm_destroy(comm);
  dt_job_destroy(job);
  MPI_Finalize();
  if (mpi_rank != place.rank || sum != place.world_size * (place.world_size - 1) / 2) {
    fprintf(stderr, "mpi_program: MPI says rank %d, dt rank %d, sum %d\n", mpi_rank, place.rank,
            sum);
    return 1;
  }
  printf("{\"rank\": %d, \"world_size\": %d, \"launcher\": \"%s\"}\n", place.rank, place.world_size,
         place.launcher);
  return 0;
}
