/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The MPI side of `dt bench --compare`, compiled on demand by mpicc: measures one collective as
 * dt's worker does (method.h) and prints lines for compare.cc:
 *
 *   dt-bench-library TEXT
 *   dt-bench-row SIZE_BYTES COUNT OUT_OF_PLACE_US IN_PLACE_US OUT_OF_PLACE_WRONG IN_PLACE_WRONG
 *
 * rival_mpi COLLECTIVE DTYPE OP WARMUP ITERATIONS BUDGET_US TIMEOUT_S SIZE_BYTES...
 * COLLECTIVE, DTYPE and OP are numbers of method.h; ITERATIONS 0: as many as fit into BUDGET_US.
 */
#define _POSIX_C_SOURCE 200809L
#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <unistd.h>

#include "method.h"

enum { kFixedArguments = 8 }; /* the sizes follow */

static MPI_Datatype mpi_dtype(int dtype) {
  switch (dtype) {
    case BENCH_I8: return MPI_INT8_T;
    case BENCH_U8: return MPI_UINT8_T;
    case BENCH_I32: return MPI_INT32_T;
    case BENCH_U32: return MPI_UINT32_T;
    case BENCH_I64: return MPI_INT64_T;
    case BENCH_U64: return MPI_UINT64_T;
    case BENCH_F32: return MPI_FLOAT;
    case BENCH_F64: return MPI_DOUBLE;
    default: return MPI_DATATYPE_NULL;
  }
}

static MPI_Op mpi_op(int op) {
  switch (op) {
    case BENCH_SUM: return MPI_SUM;
    case BENCH_PROD: return MPI_PROD;
    case BENCH_MIN: return MPI_MIN;
    case BENCH_MAX: return MPI_MAX;
    default: return MPI_OP_NULL;
  }
}

static void fail(const char* text) {
  fprintf(stderr, "rival_mpi: %s\n", text);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

/* Of blocks of unlike size, as MPI wants them. */
static int* counts = NULL;
static int* offsets = NULL;

static void set_counts(const bench_case* c) {
  int64_t begin = 0;
  bench_set_counts(c);
  for (int peer = 0; peer < c->ranks; ++peer) {
    counts[peer] = (int)c->counts[peer];
    offsets[peer] = (int)begin;
    begin += c->counts[peer];
  }
}

static int neighbours(const bench_case* c, MPI_Datatype type) {
  const int count = (int)c->count;
  const int next = (c->rank + 1) % c->ranks;
  const int before = (c->rank + c->ranks - 1) % c->ranks;
  int error = MPI_SUCCESS;
  if (c->collective == BENCH_SENDRECV || c->ranks == 1) {
    return MPI_Sendrecv(c->a, count, type, next, 0, c->b, count, type, before, 0, MPI_COMM_WORLD,
                        MPI_STATUS_IGNORE);
  }
  for (int turn = 0; turn < 2 && error == MPI_SUCCESS; ++turn) {
    error = (turn == 0) == (c->rank == 0)
                ? MPI_Send(c->a, count, type, next, 0, MPI_COMM_WORLD)
                : MPI_Recv(c->b, count, type, before, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  }
  return error;
}

static void operate(const bench_case* c) {
  const MPI_Datatype type = mpi_dtype(c->dtype);
  const MPI_Op op = mpi_op(c->op);
  const int count = (int)c->count;
  const void* const send = c->in_place ? MPI_IN_PLACE : c->a;
  int error = MPI_SUCCESS;
  switch (c->collective) {
    case BENCH_ALLREDUCE: error = MPI_Allreduce(send, c->b, count, type, op, MPI_COMM_WORLD); break;
    case BENCH_ALLGATHER:
      error = MPI_Allgather(send, count, type, c->b, count, type, MPI_COMM_WORLD);
      break;
    case BENCH_REDUCE_SCATTER:
      error = MPI_Reduce_scatter_block(send, c->b, count, type, op, MPI_COMM_WORLD);
      break;
    case BENCH_BROADCAST: error = MPI_Bcast(bench_recv(c), count, type, 0, MPI_COMM_WORLD); break;
    case BENCH_ALLTOALL: /* bench_send(): never in place */
      error = MPI_Alltoall(c->a, count, type, c->b, count, type, MPI_COMM_WORLD);
      break;
    case BENCH_GATHER: /* only the root may say MPI_IN_PLACE, here and below */
      error = MPI_Gather(c->rank == 0 ? send : bench_send(c), count, type, c->b, count, type, 0,
                         MPI_COMM_WORLD);
      break;
    case BENCH_SCATTER:
      error =
          MPI_Scatter(bench_send(c), count, type, c->in_place && c->rank == 0 ? MPI_IN_PLACE : c->b,
                      count, type, 0, MPI_COMM_WORLD);
      break;
    case BENCH_BARRIER: error = MPI_Barrier(MPI_COMM_WORLD); break;
    case BENCH_ALLTOALLV:
      error =
          MPI_Alltoallv(c->a, counts, offsets, type, c->b, counts, offsets, type, MPI_COMM_WORLD);
      break;
    case BENCH_ALLGATHERV:
      error =
          MPI_Allgatherv(send, counts[c->rank], type, c->b, counts, offsets, type, MPI_COMM_WORLD);
      break;
    case BENCH_SENDRECV:
    case BENCH_PINGPONG: error = neighbours(c, type); break;
    default: /* reduce */
      error =
          MPI_Reduce(c->rank == 0 ? send : bench_send(c), c->b, count, type, op, 0, MPI_COMM_WORLD);
      break;
  }
  if (error != MPI_SUCCESS) fail("the collective failed");
}

/* In place MPI leaves a reduce_scatter's result at the start of the buffer, not in the rank's part.
 */
static void move_result(const bench_case* c) {
  if (!c->in_place || c->collective != BENCH_REDUCE_SCATTER) return;
  memmove(bench_recv(c), c->b, (size_t)(c->count * bench_dtype_bytes[c->dtype]));
}

static long long verify(const bench_case* c) {
  bench_prepare(c);
  MPI_Barrier(MPI_COMM_WORLD);
  operate(c);
  move_result(c);
  long long mine = bench_wrong(c);
  long long all = 0;
  MPI_Allreduce(&mine, &all, 1, MPI_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
  return all;
}

/* Microseconds per operation on this rank. */
static double time_operations(const bench_case* c, int64_t iterations, int64_t bytes) {
  double total = 0;
  if (bytes < BENCH_FRESH_BYTES) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = bench_now_us();
    for (int64_t i = 0; i < iterations; ++i) operate(c);
    total = bench_now_us() - start;
  } else {
    for (int64_t i = 0; i < iterations; ++i) {
      bench_rewrite(c);
      MPI_Barrier(MPI_COMM_WORLD);
      const double start = bench_now_us();
      operate(c);
      total += bench_now_us() - start;
    }
  }
  return bench_per_operation_us(c, total, iterations);
}

static double measure(const bench_case* c, int warmup, int64_t iterations, double budget_us,
                      int64_t bytes) {
  bench_rewrite(c);
  double mine = time_operations(c, warmup > 0 ? warmup : 1, bytes);
  double slowest = 0;
  MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  mine =
      time_operations(c, iterations > 0 ? iterations : bench_iterations(slowest, budget_us), bytes);
  double sum = 0;
  MPI_Allreduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  return sum / c->ranks;
}

static void* allocate(int64_t bytes) {
  void* area = NULL;
  if (posix_memalign(&area, 4096, (size_t)bytes + 64) != 0) fail("not enough memory");
  memset(area, 0, (size_t)bytes);
  return area;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  if (argc <= kFixedArguments) fail("it is started by dt bench --compare");
  alarm((unsigned)atoi(argv[7])); /* ends this rank whatever becomes of mpirun */
  bench_case c;
  memset(&c, 0, sizeof c);
  c.collective = atoi(argv[1]);
  c.dtype = atoi(argv[2]);
  c.op = atoi(argv[3]);
  const int warmup = atoi(argv[4]);
  const int64_t iterations = atoll(argv[5]);
  const double budget_us = atof(argv[6]);
  MPI_Comm_rank(MPI_COMM_WORLD, &c.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &c.ranks);

  int64_t largest = 0;
  for (int i = kFixedArguments; i < argc; ++i) {
    const int64_t bytes = atoll(argv[i]);
    if (bytes > largest) largest = bytes;
  }
  c.a = allocate(largest);
  c.b = allocate(largest);
  c.counts = allocate(c.ranks * (int64_t)sizeof *c.counts);
  counts = allocate(c.ranks * (int64_t)sizeof *counts);
  offsets = allocate(c.ranks * (int64_t)sizeof *offsets);

  if (c.rank == 0) {
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    MPI_Get_library_version(text, &length);
    text[strcspn(text, "\n,")] = '\0';
    printf("dt-bench-library %s\n", text);
  }
  for (int i = kFixedArguments; i < argc; ++i) {
    c.count = bench_count(c.collective, c.dtype, c.ranks, atoll(argv[i]));
    /* With blocks of unlike size the offsets are counts, too. */
    if (c.count *
            (c.collective == BENCH_ALLTOALLV || c.collective == BENCH_ALLGATHERV ? c.ranks : 1) >
        INT_MAX) {
      fail("MPI counts end at 2^31 - 1 elements; choose a smaller size");
    }
    set_counts(&c);
    const int64_t bytes = bench_bytes(c.collective, c.dtype, c.ranks, c.count);
    double us[2];
    long long wrong[2];
    for (c.in_place = 0; c.in_place < 2; ++c.in_place) {
      wrong[c.in_place] = verify(&c);
      us[c.in_place] = measure(&c, warmup, iterations, budget_us, bytes);
    }
    if (c.rank == 0) {
      printf("dt-bench-row %lld %lld %.4f %.4f %lld %lld\n", (long long)bytes, (long long)c.count,
             us[0], us[1], wrong[0], wrong[1]);
    }
  }
  if (c.rank == 0) fflush(stdout);
  free(c.a);
  free(c.b);
  free(c.counts);
  free(counts);
  free(offsets);
  MPI_Finalize();
  return 0;
}
