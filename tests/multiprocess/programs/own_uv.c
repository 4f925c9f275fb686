/* SPDX-License-Identifier: Apache-2.0 */
/* A rank of a program that exports functions named like libuv's, as libtorch_cpu.so does. None is
 * called. */
#include <dt/dt.h>
#include <stdio.h>
#include <stdlib.h>

#define OWN(name)                                                   \
  void name(void);                                                  \
  void name(void) {                                                 \
    fputs("own_uv: dt called the program's " #name "()\n", stderr); \
    abort();                                                        \
  }
OWN(uv_accept)
OWN(uv_async_init)
OWN(uv_async_send)
OWN(uv_backend_fd)
OWN(uv_backend_timeout)
OWN(uv_buf_init)
OWN(uv_close)
OWN(uv_fileno)
OWN(uv_is_active)
OWN(uv_is_closing)
OWN(uv_listen)
OWN(uv_loop_close)
OWN(uv_loop_init)
OWN(uv_mutex_init)
OWN(uv_mutex_lock)
OWN(uv_once)
OWN(uv_poll_init)
OWN(uv_poll_start)
OWN(uv_poll_stop)
OWN(uv_read_start)
OWN(uv_read_stop)
OWN(uv_run)
OWN(uv_rwlock_init)
OWN(uv_shutdown)
OWN(uv_stop)
OWN(uv_tcp_bind)
OWN(uv_tcp_connect)
OWN(uv_tcp_getpeername)
OWN(uv_tcp_getsockname)
OWN(uv_tcp_init)
OWN(uv_tcp_init_ex)
OWN(uv_tcp_keepalive)
OWN(uv_tcp_nodelay)
OWN(uv_timer_init)
OWN(uv_timer_start)
OWN(uv_timer_stop)
OWN(uv_try_write)
OWN(uv_update_time)
OWN(uv_version)
OWN(uv_walk)
OWN(uv_write)

static void check(dt_status status) {
  if (status == DT_OK) return;
  fprintf(stderr, "own_uv: %s\n", dt_last_error());
  exit(1);
}

int main(void) {
  dt_job* job = NULL;
  dt_comm* world = NULL;
  float value = 1;
  check(dt_init(NULL, &job));
  check(dt_comm_world(job, &world));
  check(dt_allreduce(world, &value, &value, 1, DT_F32, DT_SUM, NULL, NULL));
  dt_comm_destroy(world);
  check(dt_finalize(job, 60000));
  dt_job_destroy(job);
  printf("own_uv: %g\n", value);
  return value == 2 ? 0 : 1;
}
