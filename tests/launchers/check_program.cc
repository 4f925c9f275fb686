// SPDX-License-Identifier: Apache-2.0
// What launchers start: joins the job, checks collectives against closed forms, and prints one line
// of JSON with its place. Wrong results and failed calls go to stderr, and it exits with 1.
// check_program RANK: that rank kills itself instead, while the others wait for it.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "dt/dt.h"

namespace {

void check(dt_status status, const char* call) {
  if (status == DT_OK) return;
  fprintf(stderr, "check_program: %s: %s: %s\n", call, dt_status_name(status), dt_last_error());
  exit(1);
}

void expect(bool good, const char* what) {
  if (good) return;
  fprintf(stderr, "check_program: %s gave a wrong result\n", what);
  exit(1);
}

void check_collectives(dt_comm* comm, int32_t rank, int32_t world_size) {
  constexpr int64_t kCount = 100003;  // larger than a segment, divisible by nothing
  std::vector<int64_t> values(kCount);
  for (int64_t i = 0; i < kCount; ++i) values[static_cast<size_t>(i)] = rank + world_size * i;
  check(dt_allreduce(comm, values.data(), values.data(), kCount, DT_I64, DT_SUM, nullptr, nullptr),
        "dt_allreduce");
  const int64_t ranks = int64_t{world_size} * (world_size - 1) / 2;
  bool good = true;
  for (int64_t i = 0; i < kCount; ++i) {
    good = good && values[static_cast<size_t>(i)] == ranks + int64_t{world_size} * world_size * i;
  }
  expect(good, "dt_allreduce");

  std::vector<int32_t> all(static_cast<size_t>(world_size), -1);
  check(dt_allgather(comm, &rank, all.data(), 1, DT_I32, nullptr, nullptr), "dt_allgather");
  for (int32_t i = 0; i < world_size; ++i) expect(all[static_cast<size_t>(i)] == i, "dt_allgather");
}

}  // namespace

int main(int argc, char** argv) {
  dt_job* job = nullptr;
  dt_comm* comm = nullptr;
  dt_place place;
  check(dt_init(nullptr, &job), "dt_init");
  dt_place_init(&place);
  check(dt_rank_info(job, &place), "dt_rank_info");
  check(dt_comm_world(job, &comm), "dt_comm_world");
  check_collectives(comm, place.rank, place.world_size);
  if (argc > 1) {
    if (place.rank == atoi(argv[1])) raise(SIGKILL);
    check(dt_barrier(comm, nullptr, nullptr), "dt_barrier");
  }
  check(dt_finalize(job, -1), "dt_finalize");
  dt_comm_destroy(comm);
  dt_job_destroy(job);

  char line[1024];
  const int length = snprintf(
      line, sizeof line,
      "{\"rank\": %d, \"world_size\": %d, \"local_rank\": %d, \"local_size\": %d, \"node_rank\": "
      "%d, "
      "\"node_count\": %d, \"master_addr\": \"%s\", \"master_port\": %d, \"launcher\": \"%s\", "
      "\"host\": \"%s\"}\n",
      place.rank, place.world_size, place.local_rank, place.local_size, place.node_rank,
      place.node_count, place.master_addr, place.master_port, place.launcher, place.host);
  // In one piece: the lines of all ranks meet in one pipe.
  return write(STDOUT_FILENO, line, static_cast<size_t>(length)) == length ? 0 : 1;
}
