// SPDX-License-Identifier: Apache-2.0
// A rank that prints what it counted. At the first start rank 1 ends with exit code 3.
#include <dt/dt.h>
#include <unistd.h>

#include <cstdio>

namespace {

bool worked(dt_status status) {
  if (status != DT_OK) fprintf(stderr, "%s\n", dt_last_error());
  return status == DT_OK;
}

}  // namespace

int main() {
  dt_job* job = nullptr;
  dt_comm* world = nullptr;
  dt_place place;
  dt_place_init(&place);
  if (!worked(dt_init(nullptr, &job)) || !worked(dt_comm_world(job, &world)) ||
      !worked(dt_rank_info(job, &place))) {
    return 1;
  }
  if (place.attempt == 0 && place.rank == 1) _exit(3);
  if (!worked(dt_barrier(world, nullptr, nullptr))) return 1;
  dt_stats stats;
  dt_stats_init(&stats);
  dt_kind_stats barriers;
  if (!worked(dt_job_stats(job, &stats)) ||
      !worked(dt_job_kind_stats(job, DT_KIND_BARRIER, &barriers))) {
    return 1;
  }
  printf("restarts %d barriers %lld\n", stats.restarts,
         static_cast<long long>(barriers.operations));
  const bool ended = worked(dt_finalize(job, -1));
  dt_comm_destroy(world);
  dt_job_destroy(job);
  return ended ? 0 : 1;
}
