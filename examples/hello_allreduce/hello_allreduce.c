/* SPDX-License-Identifier: Apache-2.0 */
/* cc hello_allreduce.c $(pkg-config --cflags --libs dt) -o hello && dt run -n 4 ./hello */
#include <dt/dt.h>
#include <stdio.h>
#include <stdlib.h>

static void check(dt_status status) {
  if (status == DT_OK) return;
  fprintf(stderr, "hello_allreduce: %s\n", dt_last_error());
  exit(1);
}

int main(void) {
  dt_job* job;
  dt_comm* comm;
  dt_place place;
  check(dt_init(NULL, &job));
  dt_place_init(&place);
  check(dt_rank_info(job, &place));
  check(dt_comm_world(job, &comm));

  int32_t rank = place.rank, sum = 0;
  check(dt_allreduce(comm, &rank, &sum, 1, DT_I32, DT_SUM, NULL, NULL));
  if (rank == 0) printf("the ranks of %d add up to %d\n", place.world_size, sum);

  check(dt_finalize(job, -1));
  dt_comm_destroy(comm);
  dt_job_destroy(job);
  return 0;
}
