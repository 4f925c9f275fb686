/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DT_CLI_BENCH_METHOD_H
#define DT_CLI_BENCH_METHOD_H
/*
 * How a collective is measured: the part that dt's worker (C++) and the MPI rival (C) must do
 * alike, so both include this file. C99, nothing of dt, nothing of MPI.
 *
 * Words: a *case* is one collective on one count, in place or not. Area `a` holds what is sent out
 * of place, area `b` what is received, and both of it in place. Verification fills `a` or `b` with
 * small whole numbers that every dtype holds exactly, a different pattern for each rank and index,
 * and compares with the closed form.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* From this size on each rank rewrites its buffer and passes a barrier before each timed operation,
 * so that the data lie where gradients would; below, operations run back to back. */
#define BENCH_FRESH_BYTES 65536
/* Bounds of the number of operations in one round when --iters does not say it. */
#define BENCH_MIN_ITERATIONS 4
#define BENCH_MAX_ITERATIONS 5000

enum bench_collective {
  BENCH_ALLREDUCE,
  BENCH_ALLGATHER,
  BENCH_REDUCE_SCATTER,
  BENCH_BROADCAST,
  BENCH_REDUCE,
  BENCH_ALLTOALL,
  BENCH_GATHER,
  BENCH_SCATTER,
  BENCH_BARRIER,
  BENCH_ALLTOALLV,
  BENCH_ALLGATHERV,
  BENCH_SENDRECV, /* each rank sends to the next one and receives from the one before at once */
  BENCH_PINGPONG, /* the same one rank after the other, beginning with rank 0 */
  BENCH_COLLECTIVE_COUNT
};

/* Values as in dt_dtype and dt_reduce_op (asserted in worker/worker.cc). */
enum bench_dtype {
  BENCH_I8,
  BENCH_U8,
  BENCH_I32,
  BENCH_U32,
  BENCH_I64,
  BENCH_U64,
  BENCH_F16,
  BENCH_BF16,
  BENCH_F32,
  BENCH_F64,
  BENCH_DTYPE_COUNT
};
enum bench_op { BENCH_SUM, BENCH_AVG, BENCH_PROD, BENCH_MIN, BENCH_MAX, BENCH_OP_COUNT };

static const char* const bench_collective_names[] = {
    "allreduce", "allgather", "reduce_scatter", "broadcast",  "reduce",   "alltoall", "gather",
    "scatter",   "barrier",   "alltoallv",      "allgatherv", "sendrecv", "pingpong"};
static const char* const bench_op_names[] = {"sum", "avg", "prod", "min", "max"};
static const int bench_dtype_bytes[] = {1, 1, 4, 4, 8, 8, 2, 2, 4, 8};

typedef struct bench_case {
  int collective;
  int dtype;
  int op;
  int rank;
  int ranks;
  int in_place;
  int64_t count; /* elements, as the collective's own `count` argument; of blocks of unlike size
                    the average */
  char* a;
  char* b;
  int64_t* counts; /* [ranks] by bench_set_counts(), for the collectives whose names end in v */
} bench_case;

static inline double bench_now_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

/* These count elements per rank, or per pair of ranks; their size is the total of one buffer. */
static inline int bench_is_split(int collective) {
  return collective == BENCH_ALLGATHER || collective == BENCH_REDUCE_SCATTER ||
         collective == BENCH_ALLTOALL || collective == BENCH_GATHER ||
         collective == BENCH_SCATTER || collective == BENCH_ALLTOALLV ||
         collective == BENCH_ALLGATHERV;
}

/* Both halves of their rows measure the same. */
static inline int bench_is_never_in_place(int collective) {
  return collective == BENCH_ALLTOALL || collective == BENCH_ALLTOALLV ||
         collective == BENCH_SENDRECV || collective == BENCH_PINGPONG;
}

static inline int64_t bench_count(int collective, int dtype, int ranks, int64_t bytes) {
  const int64_t elements = collective == BENCH_BARRIER ? 0 : bytes / bench_dtype_bytes[dtype];
  return bench_is_split(collective) ? elements / ranks : elements;
}

static inline int64_t bench_bytes(int collective, int dtype, int ranks, int64_t count) {
  return count * bench_dtype_bytes[dtype] * (bench_is_split(collective) ? ranks : 1);
}

static inline int64_t bench_iterations(double us_per_operation, double budget_us) {
  const double wanted = us_per_operation > 0 ? budget_us / us_per_operation : BENCH_MAX_ITERATIONS;
  if (wanted < BENCH_MIN_ITERATIONS) return BENCH_MIN_ITERATIONS;
  return wanted > BENCH_MAX_ITERATIONS ? BENCH_MAX_ITERATIONS : (int64_t)wanted;
}

/* What `iterations` took on this rank, as time per operation. Of a ping-pong, which is as many hops
 * as there are ranks, only rank 0 sees all: so the mean over the ranks is one hop. */
static inline double bench_per_operation_us(const bench_case* c, double total_us,
                                            int64_t iterations) {
  if (c->collective == BENCH_PINGPONG && c->rank != 0) return 0;
  return total_us / (double)iterations;
}

/* ---- Blocks of unlike size --------------------------------------------------------------------
 * They are half of the average and one and a half in turn, and the last of an odd number is the
 * average. An allgatherv has them in rank order. In an alltoallv the block of ranks i and j, in
 * both directions, is number (i + j) mod ranks: so each rank sends and receives as much as any
 * other, and what it sends to one is as large as what it gets from it. */

/* Elements before block number `block`, which may go round once. */
static inline int64_t bench_blocks_before(const bench_case* c, int64_t block) {
  const int64_t in_round = block % c->ranks;
  return block * c->count - (in_round % 2 == 1 ? c->count - c->count / 2 : 0);
}

/* Where rank's block with `peer` begins, in its packed buffer. */
static inline int64_t bench_block_begin(const bench_case* c, int rank, int64_t peer) {
  if (c->collective == BENCH_ALLGATHERV) return bench_blocks_before(c, peer);
  return bench_blocks_before(c, rank + peer) - bench_blocks_before(c, rank);
}

static inline int64_t bench_block_count(const bench_case* c, int peer) {
  return bench_block_begin(c, c->rank, peer + 1) - bench_block_begin(c, c->rank, peer);
}

/* The peer whose block element `index` of this rank's result belongs to. */
static inline int bench_block_of(const bench_case* c, int64_t index) {
  int peer = (int)(index / c->count);
  while (peer > 0 && index < bench_block_begin(c, c->rank, peer)) --peer;
  while (peer + 1 < c->ranks && index >= bench_block_begin(c, c->rank, peer + 1)) ++peer;
  return peer;
}

static inline void bench_set_counts(const bench_case* c) {
  for (int peer = 0; peer < c->ranks; ++peer) c->counts[peer] = bench_block_count(c, peer);
}

/* ---- Where the case's data lie --------------------------------------------------------------- */

static inline char* bench_at(const bench_case* c, char* area, int64_t element) {
  return area + element * bench_dtype_bytes[c->dtype];
}

static inline char* bench_send(const bench_case* c) {
  if (!c->in_place || bench_is_never_in_place(c->collective)) return c->a;
  if (c->collective == BENCH_ALLGATHER) return bench_at(c, c->b, c->rank * c->count);
  if (c->collective == BENCH_ALLGATHERV) {
    return bench_at(c, c->b, bench_block_begin(c, c->rank, c->rank));
  }
  return c->b;
}

/* Broadcast has one buffer: `a` out of place, so that both halves of a row are measured alike. */
static inline char* bench_recv(const bench_case* c) {
  if (c->collective == BENCH_BROADCAST) return c->in_place ? c->b : c->a;
  if (c->in_place && c->collective == BENCH_REDUCE_SCATTER) {
    return bench_at(c, c->b, c->rank * c->count);
  }
  return c->b;
}

/* The root is rank 0. */
static inline int64_t bench_send_count(const bench_case* c) {
  switch (c->collective) {
    case BENCH_REDUCE_SCATTER:
    case BENCH_ALLTOALL:
    case BENCH_ALLTOALLV: return c->count * c->ranks;
    case BENCH_ALLGATHERV: return bench_block_count(c, c->rank);
    case BENCH_SCATTER: return c->rank == 0 ? c->count * c->ranks : 0;
    default: return c->count;
  }
}

static inline int64_t bench_recv_count(const bench_case* c) {
  switch (c->collective) {
    case BENCH_ALLGATHER:
    case BENCH_ALLTOALL:
    case BENCH_ALLTOALLV:
    case BENCH_ALLGATHERV: return c->count * c->ranks;
    case BENCH_GATHER: return c->rank == 0 ? c->count * c->ranks : 0;
    default: return c->count;
  }
}

/* ---- Values ---------------------------------------------------------------------------------- */

/* 0 to 3; for products 1 or 2, and 1 from the seventh rank on, so that every dtype holds them. */
static inline int64_t bench_value(const bench_case* c, int rank, int64_t index) {
  const uint64_t key = (uint64_t)index * 1000003 + (uint64_t)rank + 1;
  const int64_t digit = (int64_t)((key * UINT64_C(0x9E3779B97F4A7C15)) >> 62);
  if (c->op != BENCH_PROD) return digit;
  return rank < 6 ? 1 + (digit & 1) : 1;
}

static inline double bench_reduced(const bench_case* c, int64_t index) {
  int64_t result = bench_value(c, 0, index);
  for (int rank = 1; rank < c->ranks; ++rank) {
    const int64_t value = bench_value(c, rank, index);
    switch (c->op) {
      case BENCH_PROD: result *= value; break;
      case BENCH_MIN: result = value < result ? value : result; break;
      case BENCH_MAX: result = value > result ? value : result; break;
      default: result += value; break;
    }
  }
  if (c->op != BENCH_AVG) return (double)result;
  if (c->dtype >= BENCH_F16) return (double)result / c->ranks;
  /* Integers wrap before they are divided. */
  if (c->dtype == BENCH_I8) return (double)((int8_t)(uint8_t)result / c->ranks);
  if (c->dtype == BENCH_U8) return (double)((uint8_t)result / (unsigned)c->ranks);
  return (double)(result / c->ranks);
}

/* Of blocks of unlike size. */
static inline double bench_wanted_of_block(const bench_case* c, int64_t index) {
  const int peer = bench_block_of(c, index);
  const int64_t in_block = index - bench_block_begin(c, c->rank, peer);
  const int64_t sent_at =
      c->collective == BENCH_ALLGATHERV ? 0 : bench_block_begin(c, peer, c->rank);
  return (double)bench_value(c, peer, sent_at + in_block);
}

static inline double bench_wanted(const bench_case* c, int64_t index) {
  switch (c->collective) {
    case BENCH_ALLGATHER:
    case BENCH_GATHER: return (double)bench_value(c, (int)(index / c->count), index % c->count);
    case BENCH_ALLTOALL:
      return (double)bench_value(c, (int)(index / c->count), c->rank * c->count + index % c->count);
    case BENCH_SCATTER: return (double)bench_value(c, 0, c->rank * c->count + index);
    case BENCH_BROADCAST: return (double)bench_value(c, 0, index);
    case BENCH_REDUCE_SCATTER: return bench_reduced(c, c->rank * c->count + index);
    case BENCH_ALLTOALLV:
    case BENCH_ALLGATHERV: return bench_wanted_of_block(c, index);
    case BENCH_SENDRECV:
    case BENCH_PINGPONG: return (double)bench_value(c, (c->rank + c->ranks - 1) % c->ranks, index);
    default: return bench_reduced(c, index);
  }
}

static inline double bench_half_to_double(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  double value = (bits & 1023) / 1024.0;
  if (exponent == 31) return 1e30; /* infinity and NaN are wrong in any case */
  value = exponent == 0 ? value / 16384 : 1 + value;
  for (int e = exponent == 0 ? 15 : exponent; e < 15; ++e) value /= 2;
  for (int e = exponent; e > 15; --e) value *= 2;
  return (bits & 0x8000) != 0 ? -value : value;
}

static inline double bench_bf16_to_double(uint16_t bits) {
  const uint32_t wide = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &wide, sizeof value);
  return (double)value;
}

static inline void bench_fill(const bench_case* c, char* area, int64_t count) {
  static const uint16_t half[] = {0x0000, 0x3C00, 0x4000, 0x4200}; /* 0 1 2 3 */
  static const uint16_t bf16[] = {0x0000, 0x3F80, 0x4000, 0x4040};
#define BENCH_FILL(type, expression)                  \
  for (int64_t i = 0; i < count; ++i) {               \
    const int64_t value = bench_value(c, c->rank, i); \
    ((type*)(void*)area)[i] = (type)(expression);     \
  }                                                   \
  break
  switch (c->dtype) {
    case BENCH_I8:
    case BENCH_U8: BENCH_FILL(uint8_t, value);
    case BENCH_I32:
    case BENCH_U32: BENCH_FILL(uint32_t, value);
    case BENCH_I64:
    case BENCH_U64: BENCH_FILL(uint64_t, value);
    case BENCH_F16: BENCH_FILL(uint16_t, half[value]);
    case BENCH_BF16: BENCH_FILL(uint16_t, bf16[value]);
    case BENCH_F32: BENCH_FILL(float, value);
    default: BENCH_FILL(double, value);
  }
#undef BENCH_FILL
}

/* Zero where every correct result is exact: an average of a number of ranks that is no power of two
 * is rounded, and so is a sum beyond what f16 (11 bits) and bf16 (8 bits) hold. */
static inline double bench_tolerance(const bench_case* c) {
  const int rounded_sum = (c->dtype == BENCH_BF16 && 3 * c->ranks > 256) ||
                          (c->dtype == BENCH_F16 && 3 * c->ranks > 2048);
  const int rounded_avg = c->op == BENCH_AVG && (c->ranks & (c->ranks - 1)) != 0;
  if (c->op > BENCH_AVG || (!rounded_sum && !rounded_avg)) return 0;
  switch (c->dtype) {
    case BENCH_F16: return 1.0 / 512;
    case BENCH_BF16: return 1.0 / 64;
    case BENCH_F32: return 1e-6 * c->ranks;
    case BENCH_F64: return 1e-14 * c->ranks;
    default: return 0;
  }
}

/* Sets up verification: fills what this rank contributes, spoils what it receives. */
static inline void bench_prepare(const bench_case* c) {
  memset(bench_recv(c), 0xA5, (size_t)(bench_recv_count(c) * bench_dtype_bytes[c->dtype]));
  if (c->in_place && c->collective == BENCH_ALLGATHER) {
    memset(c->b, 0xA5, (size_t)bench_bytes(c->collective, c->dtype, c->ranks, c->count));
  }
  if (c->collective == BENCH_BROADCAST && c->rank != 0) return;
  bench_fill(c, bench_send(c), bench_send_count(c));
}

/* Elements of this rank's result that are not what they must be. */
static inline int64_t bench_wrong(const bench_case* c) {
  const double tolerance = bench_tolerance(c);
  /* Whole-buffer results start at b in place as well. */
  char* const result = c->collective == BENCH_ALLGATHER ? c->b : bench_recv(c);
  const int64_t count = bench_recv_count(c);
  int64_t wrong = 0;
  if (c->collective == BENCH_REDUCE && c->rank != 0) return 0;
#define BENCH_COMPARE(type, expected, decoded)                        \
  for (int64_t i = 0; i < count; ++i) {                               \
    const double wanted = bench_wanted(c, i);                         \
    const type got = ((const type*)(const void*)result)[i];           \
    const double difference = (double)(decoded) - (double)(expected); \
    const double bound = tolerance * wanted;                          \
    wrong += !(difference <= bound && -difference <= bound);          \
  }                                                                   \
  break
  switch (c->dtype) {
    case BENCH_I8: BENCH_COMPARE(int8_t, (int8_t)(int64_t)wanted, got);
    case BENCH_U8: BENCH_COMPARE(uint8_t, (uint8_t)(int64_t)wanted, got);
    case BENCH_I32: BENCH_COMPARE(int32_t, wanted, got);
    case BENCH_U32: BENCH_COMPARE(uint32_t, wanted, got);
    case BENCH_I64: BENCH_COMPARE(int64_t, wanted, got);
    case BENCH_U64: BENCH_COMPARE(uint64_t, wanted, got);
    case BENCH_F16: BENCH_COMPARE(uint16_t, wanted, bench_half_to_double(got));
    case BENCH_BF16: BENCH_COMPARE(uint16_t, wanted, bench_bf16_to_double(got));
    case BENCH_F32: BENCH_COMPARE(float, wanted, got);
    default: BENCH_COMPARE(double, wanted, got);
  }
#undef BENCH_COMPARE
  return wrong;
}

/* Writes the value 1 over what this rank contributes, as a backward pass would write gradients. */
static inline void bench_rewrite(const bench_case* c) {
  static const uint64_t ones[] = {UINT64_C(0x0101010101010101),
                                  UINT64_C(0x0101010101010101),
                                  UINT64_C(0x0000000100000001),
                                  UINT64_C(0x0000000100000001),
                                  1,
                                  1,
                                  UINT64_C(0x3C003C003C003C00),
                                  UINT64_C(0x3F803F803F803F80),
                                  UINT64_C(0x3F8000003F800000),
                                  UINT64_C(0x3FF0000000000000)};
  char* const area = bench_send(c);
  const int64_t bytes = bench_send_count(c) * bench_dtype_bytes[c->dtype];
  const uint64_t word = ones[c->dtype];
  int64_t at = 0;
  for (; at + 8 <= bytes; at += 8) memcpy(area + at, &word, 8);
  memcpy(area + at, &word, (size_t)(bytes - at));
}

#endif
