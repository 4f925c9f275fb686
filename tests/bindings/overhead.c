/* SPDX-License-Identifier: Apache-2.0 */
/* The loop that the languages' overhead programs run, in C: nanoseconds per call of a blocking 1 KiB
 * allreduce, a line per round on rank 0. */
#include <dt/dt.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { kCalls = 20000, kRounds = 5, kCount = 256 };

static void require(dt_status status) {
  if (status == DT_OK) return;
  fprintf(stderr, "overhead: %s\n", dt_last_error());
  exit(1);
}

static double now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

int main(void) {
  static float buffer[kCount];
  dt_job* job = NULL;
  dt_comm* world = NULL;
  int32_t rank = 0;
  require(dt_init(NULL, &job));
  require(dt_comm_world(job, &world));
  require(dt_comm_rank(world, &rank));
  for (int round = -1; round < kRounds; ++round) { /* the first warms up */
    require(dt_barrier(world, NULL, NULL));
    const double begin = now_ns();
    for (int i = 0; i < kCalls; ++i) {
      require(dt_allreduce(world, buffer, buffer, kCount, DT_F32, DT_SUM, NULL, NULL));
    }
    if (round >= 0 && rank == 0) printf("%.1f\n", (now_ns() - begin) / kCalls);
  }
  require(dt_finalize(job, -1));
  dt_comm_destroy(world);
  dt_job_destroy(job);
  return 0;
}
