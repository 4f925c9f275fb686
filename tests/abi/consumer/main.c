/* SPDX-License-Identifier: Apache-2.0 */
/* A C99 program outside the source tree: allreduce at world size 1. */
#include <dt/dt.h>
#include <stdio.h>

int main(void) {
  dt_job* job = NULL;
  dt_comm* comm = NULL;
  int32_t values[3] = {1, 2, 3};
  int failed = 1;
  if (dt_abi_version() != DT_ABI_VERSION) {
    fprintf(stderr, "the library's ABI is %d, the header's %d\n", dt_abi_version(), DT_ABI_VERSION);
    return 1;
  }
  if (dt_init(NULL, &job) == DT_OK && dt_comm_world(job, &comm) == DT_OK &&
      dt_allreduce(comm, values, values, 3, DT_I32, DT_SUM, NULL, NULL) == DT_OK &&
      dt_finalize(job, -1) == DT_OK) {
    failed = values[0] != 1 || values[2] != 3;
    printf("C: dt %s, %d %d %d\n", dt_version(), values[0], values[1], values[2]);
  } else {
    fprintf(stderr, "%s\n", dt_last_error());
  }
  dt_comm_destroy(comm);
  dt_job_destroy(job);
  return failed;
}
