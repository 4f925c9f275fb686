/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives, works and memory at world size 1, where every result is the rank's own data. */
#define _POSIX_C_SOURCE 200809L
#include <poll.h>
#include <unistd.h>

#include "c_api_test.h"

enum { N = 5 };

static void fill(float* values) {
  for (int i = 0; i < N; ++i) values[i] = 0.5F + (float)i;
}

/* 1 where `values` is what fill() wrote. */
static int filled(const float* values) {
  for (int i = 0; i < N; ++i) {
    if (values[i] < 0.5F + (float)i || values[i] > 0.5F + (float)i) return 0;
  }
  return 1;
}

/*
 * All that data-carrying calls have in common. `call` is written with h, p, n, t and w for the
 * communicator, the first buffer, count, dtype and out_work.
 */
#define REFUSES_COMMON(f, buffer, call)               \
  do {                                                \
    float data_[N] = {0};                             \
    dt_work* const before_ = (f)->open[WORK];         \
    dt_work* work_ = before_;                         \
    dt_work** w = &work_;                             \
    void* p = data_;                                  \
    int64_t n = N;                                    \
    dt_dtype t = DT_F32;                              \
    REFUSES_HANDLES(f, COMM, dt_comm, "comm", call);  \
    dt_comm* h = (f)->comm;                           \
    p = NULL;                                         \
    REFUSES(buffer, call);                            \
    p = data_;                                        \
    n = -1;                                           \
    REFUSES("count", call);                           \
    n = INT64_MAX; /* more bytes than there can be */ \
    REFUSES("count", call);                           \
    n = N;                                            \
    t = (dt_dtype)15;                                 \
    REFUSES("dtype", call);                           \
    t = (dt_dtype)-1;                                 \
    REFUSES("dtype", call);                           \
    EXPECT(work_ == before_);                         \
    (void)h;                                          \
  } while (0)

/* What alltoallv and its like refuse of their arrays; buffers may not overlap but in place. */
static void check_table_refusals(const fixture* f) {
  float a[2 * N] = {0};
  float b[2 * N] = {0};
  dt_work* work = NULL;
  const int64_t five = N;
  const int64_t four = N - 1;
  const int64_t one = 1;
  const int64_t below = -1;
  const int64_t huge = INT64_MAX;
  dt_comm* const c = f->comm;
  REFUSES("send_counts", dt_alltoallv(c, a, NULL, NULL, b, &five, NULL, DT_F32, NULL, &work));
  REFUSES("recv_counts", dt_alltoallv(c, a, &five, NULL, b, NULL, NULL, DT_F32, NULL, &work));
  REFUSES("counts", dt_gatherv(c, a, N, b, NULL, NULL, DT_F32, 0, NULL, &work));
  REFUSES("counts", dt_scatterv(c, a, NULL, NULL, b, N, DT_F32, 0, NULL, &work));
  REFUSES("counts", dt_allgatherv(c, a, b, NULL, NULL, DT_F32, NULL, &work));
  REFUSES("send_offsets[0] is -1",
          dt_alltoallv(c, a, &five, &below, b, &five, NULL, DT_F32, NULL, &work));
  REFUSES("recv_offsets[0] is -1",
          dt_alltoallv(c, a, &five, NULL, b, &five, &below, DT_F32, NULL, &work));
  REFUSES("recv_counts[0] is -1",
          dt_alltoallv(c, a, &five, NULL, b, &below, NULL, DT_F32, NULL, &work));
  REFUSES("2^63", dt_alltoallv(c, a, &five, &huge, b, &five, NULL, DT_F32, NULL, &work));
  REFUSES("recv_offsets[0]", dt_gatherv(c, a, N, b, &five, &below, DT_F32, 0, NULL, &work));
  REFUSES("send_offsets[0]", dt_scatterv(c, a, &five, &below, b, N, DT_F32, 0, NULL, &work));
  REFUSES("recv_offsets[0]", dt_allgatherv(c, a, b, &five, &below, DT_F32, NULL, &work));
  REFUSES("count is -1", dt_gatherv(c, a, -1, b, &five, NULL, DT_F32, 0, NULL, &work));
  REFUSES("count is -1", dt_scatterv(c, a, &five, NULL, b, -1, DT_F32, 0, NULL, &work));
  REFUSES("sends 5 elements to itself and expects 4",
          dt_alltoallv(c, a, &five, NULL, b, &four, NULL, DT_F32, NULL, &work));
  REFUSES("sends 5 elements to itself and expects 4",
          dt_gatherv(c, a, N, b, &four, NULL, DT_F32, 0, NULL, &work));
  REFUSES("sends 4 elements to itself and expects 5",
          dt_scatterv(c, a, &four, NULL, b, N, DT_F32, 0, NULL, &work));
  REFUSES("send_counts", dt_reduce_scatterv(c, a, NULL, NULL, b, DT_F32, DT_SUM, NULL, &work));
  REFUSES("send_offsets[0]",
          dt_reduce_scatterv(c, a, &five, &below, b, DT_F32, DT_SUM, NULL, &work));
  REFUSES("overlap", dt_reduce_scatterv(c, a, &five, &one, a, DT_F32, DT_SUM, NULL, &work));
  REFUSES("overlap", dt_alltoall(c, a, a, N, DT_F32, NULL, &work));
  REFUSES("overlap", dt_alltoall(c, (char*)a + 1, a, N, DT_F32, NULL, &work));
  REFUSES("overlap", dt_alltoallv(c, a, &five, NULL, a, &five, NULL, DT_F32, NULL, &work));
  REFUSES("overlap", dt_gather(c, a, a + 1, N, DT_F32, 0, NULL, &work));
  REFUSES("overlap", dt_scatter(c, a, a + 1, N, DT_F32, 0, NULL, &work));
  REFUSES("overlap", dt_gatherv(c, a, N, a, &five, &one, DT_F32, 0, NULL, &work));
  REFUSES("overlap", dt_scatterv(c, a, &five, &one, a, N, DT_F32, 0, NULL, &work));
  REFUSES("overlap", dt_allgatherv(c, a, a, &five, &one, DT_F32, NULL, &work));
  EXPECT(work == NULL);
}

static void check_refusals(const fixture* f) {
  float r[N] = {0};
  dt_work* work = NULL;
  REFUSES_COMMON(f, "send", dt_allreduce(h, p, r, n, t, DT_SUM, NULL, w));
  REFUSES_COMMON(f, "recv", dt_allreduce(h, r, p, n, t, DT_SUM, NULL, w));
  REFUSES_COMMON(f, "send", dt_reduce(h, p, r, n, t, DT_SUM, 0, NULL, w));
  REFUSES_COMMON(f, "recv", dt_reduce(h, r, p, n, t, DT_SUM, 0, NULL, w));
  REFUSES_COMMON(f, "buffer", dt_broadcast(h, p, n, t, 0, NULL, w));
  REFUSES_COMMON(f, "send", dt_allgather(h, p, r, n, t, NULL, w));
  REFUSES_COMMON(f, "recv", dt_allgather(h, r, p, n, t, NULL, w));
  REFUSES_COMMON(f, "send", dt_reduce_scatter(h, p, r, n, t, DT_SUM, NULL, w));
  REFUSES_COMMON(f, "recv", dt_reduce_scatter(h, r, p, n, t, DT_SUM, NULL, w));
  REFUSES_COMMON(f, "send", dt_reduce_scatterv(h, p, &n, NULL, r, t, DT_SUM, NULL, w));
  REFUSES_COMMON(f, "recv", dt_reduce_scatterv(h, r, &n, NULL, p, t, DT_SUM, NULL, w));
  REFUSES_COMMON(f, "send", dt_alltoall(h, p, r, n, t, NULL, w));
  REFUSES_COMMON(f, "recv", dt_alltoall(h, r, p, n, t, NULL, w));
  REFUSES_COMMON(f, "send", dt_gather(h, p, r, n, t, 0, NULL, w));
  REFUSES_COMMON(f, "recv", dt_gather(h, r, p, n, t, 0, NULL, w));
  REFUSES_COMMON(f, "send", dt_scatter(h, p, r, n, t, 0, NULL, w));
  REFUSES_COMMON(f, "recv", dt_scatter(h, r, p, n, t, 0, NULL, w));
  REFUSES_COMMON(f, "send", dt_alltoallv(h, p, &n, NULL, r, &n, NULL, t, NULL, w));
  REFUSES_COMMON(f, "recv", dt_alltoallv(h, r, &n, NULL, p, &n, NULL, t, NULL, w));
  REFUSES_COMMON(f, "send", dt_gatherv(h, p, n, r, &n, NULL, t, 0, NULL, w));
  REFUSES_COMMON(f, "recv", dt_gatherv(h, r, n, p, &n, NULL, t, 0, NULL, w));
  REFUSES_COMMON(f, "send", dt_scatterv(h, p, &n, NULL, r, n, t, 0, NULL, w));
  REFUSES_COMMON(f, "recv", dt_scatterv(h, r, &n, NULL, p, n, t, 0, NULL, w));
  REFUSES_COMMON(f, "send", dt_allgatherv(h, p, r, &n, NULL, t, NULL, w));
  REFUSES_COMMON(f, "recv", dt_allgatherv(h, r, p, &n, NULL, t, NULL, w));
  REFUSES_HANDLES(f, COMM, dt_comm, "comm", dt_barrier(h, NULL, &work));
  REFUSES_HANDLES(f, COMM, dt_comm, "comm", dt_check_equal(h, NULL, 0, NULL, NULL));
  REFUSES("data", dt_check_equal(f->comm, NULL, 1, NULL, NULL));
  REFUSES("bytes", dt_check_equal(f->comm, &work, -1, NULL, NULL));
  REFUSES_HANDLES(f, COMM, dt_comm, "comm", dt_group_begin(h));
  REFUSES_HANDLES(f, COMM, dt_comm, "comm", dt_group_end(h, NULL));
  REFUSES_HANDLES(f, COMM, dt_comm, "comm", dt_group_end(h, &work));
  REFUSES_HANDLES(f, COMM, dt_comm, "comm", dt_send(h, r, N, DT_F32, 0, NULL, &work));
  REFUSES_HANDLES(f, COMM, dt_comm, "comm", dt_recv(h, r, N, DT_F32, 0, NULL, &work));

  check_table_refusals(f);
  static const dt_reduce_op bad_ops[] = {(dt_reduce_op)8, (dt_reduce_op)-1, DT_REDUCE_OP_FORCE32};
  static const int32_t bad_ranks[] = {-1, 1, INT32_MAX};
  const int64_t five = N;
  for (int32_t i = 0; i < COUNT_OF(bad_ops); ++i) {
    REFUSES("op", dt_allreduce(f->comm, r, r, N, DT_F32, bad_ops[i], NULL, &work));
    REFUSES("op", dt_reduce(f->comm, r, r, N, DT_F32, bad_ops[i], 0, NULL, &work));
    REFUSES("op", dt_reduce_scatterv(f->comm, r, &five, NULL, r, DT_F32, bad_ops[i], NULL, &work));
    REFUSES("op", dt_reduce_scatter(f->comm, r, r, N, DT_F32, bad_ops[i], NULL, &work));
  }
  for (int32_t i = 0; i < COUNT_OF(bad_ranks); ++i) {
    REFUSES("root", dt_reduce(f->comm, r, r, N, DT_F32, DT_SUM, bad_ranks[i], NULL, &work));
    REFUSES("root", dt_broadcast(f->comm, r, N, DT_F32, bad_ranks[i], NULL, &work));
    REFUSES("root", dt_gather(f->comm, r, r, N, DT_F32, bad_ranks[i], NULL, &work));
    REFUSES("root", dt_scatter(f->comm, r, r, N, DT_F32, bad_ranks[i], NULL, &work));
    REFUSES("root", dt_gatherv(f->comm, r, N, r, &five, NULL, DT_F32, bad_ranks[i], NULL, &work));
    REFUSES("root", dt_scatterv(f->comm, r, &five, NULL, r, N, DT_F32, bad_ranks[i], NULL, &work));
    REFUSES("peer", dt_send(f->comm, r, N, DT_F32, bad_ranks[i], NULL, &work));
    REFUSES("peer", dt_recv(f->comm, r, N, DT_F32, bad_ranks[i], NULL, &work));
  }
  /* A rank is not its own peer, so the world of one has none. */
  REFUSES("peer", dt_send(f->comm, r, N, DT_F32, 0, NULL, &work));
  REFUSES("peer", dt_recv(f->comm, r, N, DT_F32, 0, NULL, &work));
  EXPECT(work == NULL);
}

/* Each moves the rank's own block; with offsets, and in place where that is allowed. */
static void check_blocks(const fixture* f, const float* send) {
  const int64_t five = N;
  const int64_t one = 1;
  const int64_t none = 0;
  float to[7][N + 1] = {{0}};
  OK(dt_alltoall(f->comm, send, to[0], N, DT_F32, NULL, NULL));
  OK(dt_gather(f->comm, send, to[1], N, DT_F32, 0, NULL, NULL));
  OK(dt_scatter(f->comm, send, to[2], N, DT_F32, 0, NULL, NULL));
  for (int i = 0; i < 3; ++i) EXPECT(filled(to[i]));
  OK(dt_alltoallv(f->comm, send, &five, NULL, to[3], &five, &one, DT_F32, NULL, NULL));
  OK(dt_gatherv(f->comm, send, N, to[4], &five, &one, DT_F32, 0, NULL, NULL));
  OK(dt_allgatherv(f->comm, send, to[5], &five, &one, DT_F32, NULL, NULL));
  memcpy(to[6] + 1, send, N * sizeof *send);
  for (int i = 3; i < 7; ++i) EXPECT(filled(to[i] + 1));
  OK(dt_scatterv(f->comm, to[6], &five, &one, to[0], N, DT_F32, 0, NULL, NULL));
  EXPECT(filled(to[0]));
  OK(dt_gather(f->comm, to[1], to[1], N, DT_F32, 0, NULL, NULL));
  OK(dt_scatter(f->comm, to[2], to[2], N, DT_F32, 0, NULL, NULL));
  OK(dt_gatherv(f->comm, to[4] + 1, N, to[4], &five, &one, DT_F32, 0, NULL, NULL));
  OK(dt_allgatherv(f->comm, to[5] + 1, to[5], &five, &one, DT_F32, NULL, NULL));
  EXPECT(filled(to[1]) && filled(to[2]) && filled(to[4] + 1) && filled(to[5] + 1));
  OK(dt_alltoallv(f->comm, NULL, &none, &one, NULL, &none, &one, DT_F32, NULL, NULL));
  OK(dt_gatherv(f->comm, NULL, 0, NULL, &none, NULL, DT_F32, 0, NULL, NULL));
  OK(dt_scatterv(f->comm, NULL, &none, NULL, NULL, 0, DT_F32, 0, NULL, NULL));
  OK(dt_allgatherv(f->comm, NULL, NULL, &none, NULL, DT_F32, NULL, NULL));
  OK(dt_alltoall(f->comm, NULL, NULL, 0, DT_F32, NULL, NULL));
  OK(dt_gather(f->comm, NULL, NULL, 0, DT_F32, 0, NULL, NULL));
  OK(dt_scatter(f->comm, NULL, NULL, 0, DT_F32, 0, NULL, NULL));
}

static dt_collective described(dt_kind kind, const void* send, void* recv) {
  dt_collective one;
  dt_collective_init(&one);
  one.kind = kind;
  one.dtype = DT_F32;
  one.send = send;
  one.recv = recv;
  one.count = N;
  return one;
}

/* A message names the function of the kind. */
#define REFUSES_AS(function, argument, call) \
  expect_refused((call), function "() as " #call, argument, __FILE__, __LINE__)

/* The descriptor itself; what it shares with the named functions is tested there. */
static void check_launch(const fixture* f) {
  float send[N];
  float recv[N] = {0};
  const int64_t five = N;
  dt_work* work = NULL;
  fill(send);
  dt_collective one = described(DT_KIND_ALLREDUCE, send, recv);
  REFUSES_AS("dt_allreduce", "comm is NULL", dt_collective_launch(NULL, &one, &work));
  one.kind = (dt_kind)-1;
  REFUSES_HANDLES(f, COMM, dt_comm, "comm", dt_collective_launch(h, &one, &work));
  one.kind = DT_KIND_ALLREDUCE;
  REFUSES("collective", dt_collective_launch(f->comm, NULL, &work));
  one.struct_size = 0;
  REFUSES("dt_collective_init", dt_collective_launch(f->comm, &one, &work));
  one.struct_size = (uint32_t)sizeof one;
  one.caller_waits = 2;
  REFUSES_AS("dt_allreduce", "caller_waits", dt_collective_launch(f->comm, &one, &work));
  one.caller_waits = 1;
  for (int i = 0; i < 3; ++i) {
    static const int kinds[] = {-1, 16, 0x7fffffff};
    one.kind = (dt_kind)kinds[i];
    REFUSES("no dt_kind", dt_collective_launch(f->comm, &one, &work));
  }
  /* A table that the kind does not read. */
  one.kind = DT_KIND_ALLTOALL;
  one.send_counts = &five;
  REFUSES_AS("dt_alltoall", "send_counts is not NULL, but alltoall has no such table",
             dt_collective_launch(f->comm, &one, &work));
  one = described(DT_KIND_SCATTERV, send, recv);
  one.send_counts = &five;
  one.recv_offsets = &five;
  REFUSES_AS("dt_scatterv", "recv_offsets is not NULL, but scatterv has no such table",
             dt_collective_launch(f->comm, &one, &work));
  EXPECT(work == NULL);

  for (int kind = DT_KIND_ALLREDUCE; kind <= DT_KIND_REDUCE_SCATTERV; ++kind) {
    if (kind == DT_KIND_SEND || kind == DT_KIND_RECV) continue;
    memset(recv, 0, sizeof recv);
    one = described((dt_kind)kind, send, recv);
    one.name = "five";
    one.timeout_ms = 60000;
    if (kind == DT_KIND_ALLTOALLV || kind == DT_KIND_SCATTERV || kind == DT_KIND_REDUCE_SCATTERV)
      one.send_counts = &five;
    if (kind == DT_KIND_ALLTOALLV || kind == DT_KIND_GATHERV || kind == DT_KIND_ALLGATHERV)
      one.recv_counts = &five;
    OK(dt_collective_launch(f->comm, &one, kind % 2 == 0 ? &work : NULL));
    EXPECT((work != NULL) == (kind % 2 == 0));
    if (work != NULL) {
      int32_t done = 0;
      OK(dt_work_wait(work, -1, &done));
      EXPECT(done == 1);
      dt_work_destroy(work);
      work = NULL;
    }
    /* The root of a broadcast keeps its result in `send`. */
    EXPECT(kind == DT_KIND_BARRIER || kind == DT_KIND_BROADCAST || filled(recv));
  }
  one = described(DT_KIND_SEND, send, NULL);
  REFUSES_AS("dt_send", "peer 0 is this rank itself", dt_collective_launch(f->comm, &one, &work));
}

void test_collectives(const fixture* f) {
  check_refusals(f);
  static const dt_reduce_op ops[] = {DT_SUM, DT_AVG, DT_PROD, DT_MIN, DT_MAX};
  float send[N];
  fill(send);
  for (int32_t i = 0; i < COUNT_OF(ops); ++i) {
    float a[N] = {0};
    float b[N] = {0};
    float c[N] = {0};
    OK(dt_allreduce(f->comm, send, a, N, DT_F32, ops[i], NULL, NULL));
    OK(dt_reduce(f->comm, send, b, N, DT_F32, ops[i], 0, NULL, NULL));
    OK(dt_reduce_scatter(f->comm, send, c, N, DT_F32, ops[i], NULL, NULL));
    EXPECT(filled(a) && filled(b) && filled(c));
    OK(dt_allreduce(f->comm, a, a, N, DT_F32, ops[i], NULL, NULL));
    EXPECT(filled(a));
  }
  for (int type = DT_I8; type <= DT_F8E5M2; ++type) {
    unsigned char in[3 * 8];
    unsigned char out[3 * 8] = {0};
    static const int64_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 2, 4, 8, 1, 2, 2, 1, 1};
    EXPECT(dt_dtype_bytes((dt_dtype)type) == bytes[type]);
    for (int i = 0; i < 24; ++i) in[i] = (unsigned char)(i + 1);
    if (type < DT_F8E4M3) {
      OK(dt_allreduce(f->comm, in, out, 3, (dt_dtype)type, DT_SUM, NULL, NULL));
    } else {
      REFUSES("only", dt_allreduce(f->comm, in, out, 3, (dt_dtype)type, DT_SUM, NULL, NULL));
      OK(dt_allgather(f->comm, in, out, 3, (dt_dtype)type, NULL, NULL));
    }
    EXPECT(memcmp(in, out, (size_t)(3 * bytes[type])) == 0);
  }
  EXPECT(dt_dtype_bytes((dt_dtype)15) == 0);
  float all[N] = {0};
  OK(dt_allgather(f->comm, send, all, N, DT_F32, NULL, NULL));
  EXPECT(filled(all));
  OK(dt_broadcast(f->comm, all, N, DT_F32, 0, NULL, NULL));
  EXPECT(filled(all));
  check_blocks(f, send);
  check_launch(f);
  OK(dt_barrier(f->comm, NULL, NULL));
  float grouped[N] = {0};
  dt_comm* none = NULL;
  OK(dt_group_begin(f->comm));
  OK(dt_allreduce(f->comm, send, grouped, N, DT_F32, DT_SUM, NULL, NULL));
  OK(dt_barrier(f->comm, NULL, NULL));
  EXPECT(dt_group_begin(f->comm) == DT_ERR_INVALID_STATE);
  EXPECT(dt_comm_split(f->comm, 0, 0, &none) == DT_ERR_INVALID_STATE && none == NULL);
  EXPECT(dt_check_equal(f->comm, NULL, 0, NULL, NULL) == DT_ERR_INVALID_STATE);
  EXPECT(strstr(dt_last_error(), "inside a group; call dt_group_end before") != NULL);
  EXPECT(dt_comm_shrink(f->comm, &none) == DT_ERR_INVALID_STATE && none == NULL);
  OK(dt_group_end(f->comm, NULL));
  EXPECT(filled(grouped));
  OK(dt_check_equal(f->comm, grouped, (int64_t)sizeof grouped, "grouped", NULL));
  OK(dt_check_equal(f->comm, NULL, 0, NULL, NULL));
  EXPECT(dt_group_end(f->comm, NULL) == DT_ERR_INVALID_STATE);
  EXPECT(strstr(dt_last_error(), "no group was begun") != NULL);
  dt_work* whole = NULL;
  int32_t done = 0;
  EXPECT(dt_group_end(f->comm, &whole) == DT_ERR_INVALID_STATE && whole == NULL);
  memset(grouped, 0, sizeof grouped);
  OK(dt_group_begin(f->comm));
  OK(dt_allreduce(f->comm, send, grouped, N, DT_F32, DT_SUM, NULL, NULL));
  OK(dt_group_end(f->comm, &whole));
  OK(dt_work_wait(whole, -1, &done));
  EXPECT(done == 1 && filled(grouped));
  dt_work_destroy(whole);
  OK(dt_allreduce(f->comm, send, grouped, N, DT_F32, DT_SUM, NULL, NULL));
  /* Nothing to do, so nothing to point at. */
  OK(dt_allreduce(f->comm, NULL, NULL, 0, DT_F32, DT_SUM, NULL, NULL));
  OK(dt_reduce(f->comm, NULL, NULL, 0, DT_F32, DT_SUM, 0, NULL, NULL));
  OK(dt_broadcast(f->comm, NULL, 0, DT_F32, 0, NULL, NULL));
  OK(dt_allgather(f->comm, NULL, NULL, 0, DT_F32, NULL, NULL));
  OK(dt_reduce_scatter(f->comm, NULL, NULL, 0, DT_F32, DT_SUM, NULL, NULL));
}

static void check_work_refusals(const fixture* f) {
  dt_work* work = f->open[WORK];
  int32_t value = 77;
  dt_error_info info;
  dt_error_info_init(&info);
  REFUSES("out_done", dt_work_test(work, NULL));
  REFUSES_HANDLES(f, WORK, dt_work, "work", dt_work_test(h, &value));
  REFUSES_HANDLES(f, WORK, dt_work, "work", dt_work_wait(h, 0, &value));
  REFUSES_HANDLES(f, WORK, dt_work, "work", dt_work_wait_stream(h, NULL));
  REFUSES_HANDLES(f, WORK, dt_work, "works", dt_work_wait_any(&h, 1, 0, &value));
  REFUSES("works", dt_work_wait_any(NULL, 1, 0, &value));
  REFUSES("count", dt_work_wait_any(&work, 0, 0, &value));
  REFUSES("count", dt_work_wait_any(&work, -1, 0, &value));
  REFUSES("count", dt_work_wait_any(&work, 65537, 0, &value));
  REFUSES("out_index", dt_work_wait_any(&work, 1, 0, NULL));
  REFUSES("out_fd", dt_work_fd(f->comm, NULL));
  REFUSES_HANDLES(f, COMM, dt_comm, "comm", dt_work_fd(h, &value));
  REFUSES("out_info", dt_work_error_info(work, NULL));
  REFUSES_HANDLES(f, WORK, dt_work, "work", dt_work_error_info(h, &info));
  info.struct_size = 0;
  REFUSES("struct_size", dt_work_error_info(work, &info));
  EXPECT(value == 77);
  void* bad[BAD_HANDLES];
  const int count = bad_handles(f, WORK, bad);
  for (int i = 0; i < count; ++i) EXPECT(dt_work_error(bad[i]) != NULL);
}

void test_work(const fixture* f) {
  check_work_refusals(f);
  int32_t fd = -1;
  int32_t again = -1;
  OK(dt_work_fd(f->comm, &fd));
  OK(dt_work_fd(f->comm, &again));
  EXPECT(fd >= 0 && again == fd);

  float send[N];
  float recv[N] = {0};
  dt_work* works[2] = {NULL, NULL};
  int32_t value = 77;
  fill(send);
  OK(dt_allreduce(f->comm, send, recv, N, DT_F32, DT_SUM, NULL, &works[0]));
  OK(dt_barrier(f->comm, NULL, &works[1]));
  EXPECT(works[0] != NULL && works[1] != NULL && works[0] != works[1]);
  OK(dt_work_wait_any((dt_work* const*)works, 2, 5000, &value));
  EXPECT(value == 0 || value == 1);
  value = 77;
  OK(dt_work_wait(works[0], -1, &value));
  EXPECT(value == 1 && filled(recv));
  OK(dt_work_wait(works[1], 5000, NULL));
  value = 77;
  OK(dt_work_test(works[1], &value));
  EXPECT(value == 1);
  OK(dt_work_wait_stream(works[1], NULL));

  struct pollfd readable = {fd, POLLIN, 0};
  uint64_t completions = 0;
  EXPECT(poll(&readable, 1, 5000) == 1);
  EXPECT(read(fd, &completions, sizeof completions) == (ssize_t)sizeof completions);
  EXPECT(completions >= 1 && completions <= 2);

  dt_error_info info;
  dt_error_info_init(&info);
  info.status = DT_ERR_INTERNAL;
  OK(dt_work_error_info(works[0], &info));
  EXPECT(info.status == DT_OK && info.message[0] == '\0');
  EXPECT(dt_work_error(works[0])[0] == '\0');
  dt_work* other = NULL;
  REFUSES("out_other", dt_work_share(works[0], NULL));
  REFUSES_HANDLES(f, WORK, dt_work, "work", dt_work_share(h, &other));
  EXPECT(other == NULL);
  OK(dt_work_share(works[0], &other));
  int32_t shared_done = 0;
  dt_work_destroy(other);
  OK(dt_work_test(works[0], &shared_done));
  EXPECT(shared_done == 1 && other != works[0]);
  DESTROY_SURVIVES(f, WORK, dt_work, dt_work_destroy);
  dt_work_destroy(works[0]);
  dt_work_destroy(works[1]);
  dt_work_destroy(works[1]);
}

void test_memory(const fixture* f) {
  void* untouched = f->comm;
  REFUSES_HANDLES(f, COMM, dt_comm, "comm", dt_mem_alloc(h, 64, &untouched));
  REFUSES("bytes", dt_mem_alloc(f->comm, 0, &untouched));
  REFUSES("bytes", dt_mem_alloc(f->comm, -1, &untouched));
  FAILS(DT_ERR_OUT_OF_MEMORY, dt_mem_alloc(f->comm, INT64_MAX / 2, &untouched));
  REFUSES("out_pointer", dt_mem_alloc(f->comm, 64, NULL));
  EXPECT(untouched == (void*)f->comm);

  void* memory = NULL;
  OK(dt_mem_alloc(f->comm, N * (int64_t)sizeof(float), &memory));
  EXPECT(memory != NULL && (uintptr_t)memory % 4096 == 0);
  float* values = memory;
  for (int i = 0; i < N; ++i) EXPECT(values[i] >= 0 && values[i] <= 0);
  fill(values);
  OK(dt_allreduce(f->comm, values, values, N, DT_F32, DT_AVG, NULL, NULL));
  EXPECT(filled(values));

  REFUSES_HANDLES(f, COMM, dt_comm, "comm", dt_mem_free(h, memory));
  int32_t elsewhere = 0;
  REFUSES("pointer", dt_mem_free(f->comm, &elsewhere));
  REFUSES("pointer", dt_mem_free(f->comm, values + 1));
  OK(dt_mem_free(f->comm, NULL));
  OK(dt_mem_free(f->comm, memory));
  REFUSES("pointer", dt_mem_free(f->comm, memory));
}
