/* SPDX-License-Identifier: Apache-2.0 */
/* The loop of Overhead.java in C: prints nanoseconds per allreduce of 1 KiB, median of many
 * batches. */
#include <dt/dt.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { kCount = 256, kBatches = 200, kWarmBatches = 100, kCalls = 200 };

static void check(dt_status status) {
  if (status == DT_OK) return;
  fprintf(stderr, "overhead: %s\n", dt_last_error());
  exit(1);
}

static int compare(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return x < y ? -1 : x > y;
}

static double now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return 1e9 * (double)time.tv_sec + (double)time.tv_nsec;
}

int main(void) {
  dt_job* job = NULL;
  dt_comm* comm = NULL;
  check(dt_init(NULL, &job));
  check(dt_comm_world(job, &comm));
  static float buffer[kCount];
  double batches[kBatches];
  for (int i = -kWarmBatches; i < kBatches; ++i) {
    const double begin = now_ns();
    for (int k = 0; k < kCalls; ++k) {
      check(dt_allreduce(comm, buffer, buffer, kCount, DT_F32, DT_SUM, NULL, NULL));
    }
    if (i >= 0) batches[i] = (now_ns() - begin) / kCalls;
  }
  int32_t rank = 0;
  check(dt_comm_rank(comm, &rank));
  qsort(batches, kBatches, sizeof batches[0], compare);
  if (rank == 0) printf("%.1f\n", batches[kBatches / 2]);
  check(dt_finalize(job, -1));
  dt_comm_destroy(comm);
  dt_job_destroy(job);
  return 0;
}
