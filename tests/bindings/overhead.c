/* SPDX-License-Identifier: Apache-2.0 */
/* overhead LOOPS [ROUNDS]: the time of a 1 KiB allreduce of f32 in a loop of C, in ns per call, for
 * the loops of other languages to be compared with. A line per line read from stdin, until that
 * ends: so both sides of a comparison take turns. With ROUNDS as many lines, by rank 0 alone: for
 * several ranks, whose input is not the terminal's. */
#include <dt/dt.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { kCount = 256 };

static double now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static int failed(void) {
  fprintf(stderr, "overhead: %s\n", dt_last_error());
  return 1;
}

int main(int argc, char** argv) {
  const long loops = argc > 1 ? strtol(argv[1], NULL, 10) : 20000;
  const long rounds = argc > 2 ? strtol(argv[2], NULL, 10) : 0;
  static float send[kCount], recv[kCount];
  char line[64];
  dt_job* job = NULL;
  dt_comm* comm = NULL;
  int32_t rank = 0;
  if (dt_init(NULL, &job) != DT_OK || dt_comm_world(job, &comm) != DT_OK ||
      dt_comm_rank(comm, &rank) != DT_OK) {
    return failed();
  }
  for (long i = 0; rounds > 0 ? i < rounds : fgets(line, sizeof line, stdin) != NULL; ++i) {
    const double begin = now_ns();
    for (long k = 0; k < loops; ++k) {
      if (dt_allreduce(comm, send, recv, kCount, DT_F32, DT_SUM, NULL, NULL) != DT_OK) {
        return failed();
      }
    }
    if (rank == 0) printf("%.1f\n", (now_ns() - begin) / (double)loops);
    fflush(stdout);
  }
  dt_comm_destroy(comm);
  if (dt_finalize(job, -1) != DT_OK) return failed();
  dt_job_destroy(job);
  return 0;
}
