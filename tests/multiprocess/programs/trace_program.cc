// SPDX-License-Identifier: Apache-2.0
// A rank of a job that records. After some operations that go well, rank 1 does what the mode says,
// and the others wait for it; whoever hears of a failure leaves the job and ends with code 9.
#include <dt/dt.h>
#include <sched.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

constexpr int kRoundsBefore = 5;

[[noreturn]] void leave(dt_job* job, int rank) {
  printf("rank %d saw: %s\n", rank, dt_last_error());
  (void)dt_finalize(job, 1000);
  dt_job_destroy(job);
  exit(9);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  setvbuf(stdout, nullptr, _IOLBF, 0);
  dt_job* job = nullptr;
  dt_comm* world = nullptr;
  dt_place place;
  dt_place_init(&place);
  if (dt_init(nullptr, &job) != DT_OK || dt_rank_info(job, &place) != DT_OK ||
      dt_comm_world(job, &world) != DT_OK) {
    printf("no job: %s\n", dt_last_error());
    return 1;
  }
  const int rank = place.rank;
  float values[8] = {};
  for (int round = 0; round < kRoundsBefore; ++round) {
    if (dt_allreduce(world, values, values, 8, DT_F32, DT_SUM, nullptr, nullptr) != DT_OK) {
      leave(job, rank);
    }
  }
  printf("ready %d\n", static_cast<int>(getpid()));
  if (rank == 1 && mode == "size") {
    if (dt_allreduce(world, values, values, 4, DT_F32, DT_SUM, nullptr, nullptr) != DT_OK) {
      leave(job, rank);
    }
  }
  if (rank == 1 && mode == "order") {
    if (dt_broadcast(world, values, 8, DT_F32, 0, nullptr, nullptr) != DT_OK) leave(job, rank);
  }
  if (rank == 1 && mode == "skip") {
    while (dt_comm_check(world) == DT_OK) sched_yield();
    leave(job, rank);
  }
  if (rank == 1 && mode == "hang") {
    for (;;) pause();
  }
  if (dt_allreduce(world, values, values, 8, DT_F32, DT_SUM, nullptr, nullptr) != DT_OK) {
    leave(job, rank);
  }
  dt_comm_destroy(world);
  const dt_status status = dt_finalize(job, -1);
  dt_job_destroy(job);
  return status == DT_OK ? 0 : 1;
}
