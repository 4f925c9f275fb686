/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that name the line and go on. One thread, so plain counters will do. */
#ifndef DT_TESTS_ABI_C_API_TEST_H
#define DT_TESTS_ABI_C_API_TEST_H

#include "dt/dt.h"

#define COUNT_OF(array) ((int32_t)(sizeof(array) / sizeof((array)[0])))

enum handle_kind {
  CONFIG,
  JOB,
  COMM,
  WORK,
  REDUCER,
  SHARD,
  OPTIMIZER,
  NAMED,
  OUTER,
  PS,
  PS_SERVER,
  SAMPLER,
  STORE_SERVER,
  KINDS
};

typedef struct fixture {
  void* open[KINDS];   /* a usable handle of each kind */
  void* closed[KINDS]; /* a destroyed one */
  dt_config* config;   /* the same as in `open`, typed */
  dt_job* job;
  dt_comm* comm;
} fixture;

extern int failures;

void expect(int holds, const char* what, const char* file, int line);
/* The status must be `wanted` and, for an error, the message non-empty. */
void expect_status(dt_status got, dt_status wanted, const char* call, const char* file, int line);
/* INVALID_ARGUMENT, whose message names the function (the first word of `call`) and `argument`. */
void expect_refused(dt_status got, const char* call, const char* argument, const char* file,
                    int line);
/* Handles that must be refused where one of `kind` is wanted: NULL, closed, of each other kind, and
   no handles at all. Returns how many. */
enum { BAD_HANDLES = KINDS + 5 };
int bad_handles(const fixture* f, enum handle_kind kind, void* out[BAD_HANDLES]);

#define EXPECT(condition) expect((condition) != 0, #condition, __FILE__, __LINE__)
#define OK(call) expect_status((call), DT_OK, #call, __FILE__, __LINE__)
#define FAILS(wanted, call) expect_status((call), (wanted), #call, __FILE__, __LINE__)
#define REFUSES(argument, call) expect_refused((call), #call, argument, __FILE__, __LINE__)
/* `call` uses `h`, a handle of C type `type`. */
#define REFUSES_HANDLES(f, kind, type, argument, call)             \
  do {                                                             \
    void* bad_[BAD_HANDLES];                                       \
    const int bad_count_ = bad_handles((f), (kind), bad_);         \
    for (int bad_i_ = 0; bad_i_ < bad_count_; ++bad_i_) {          \
      type* h = (type*)bad_[bad_i_];                               \
      expect_refused((call), #call, argument, __FILE__, __LINE__); \
    }                                                              \
  } while (0)
/* The same without NULL, where NULL means a default. */
#define REFUSES_HANDLES_BUT_NULL(f, kind, type, argument, call)    \
  do {                                                             \
    void* bad_[BAD_HANDLES];                                       \
    const int bad_count_ = bad_handles((f), (kind), bad_);         \
    for (int bad_i_ = 0; bad_i_ < bad_count_; ++bad_i_) {          \
      type* h = (type*)bad_[bad_i_];                               \
      if (h == NULL) continue;                                     \
      expect_refused((call), #call, argument, __FILE__, __LINE__); \
    }                                                              \
  } while (0)
/* A destroy function must survive every bad handle. */
#define DESTROY_SURVIVES(f, kind, type, destroy)           \
  do {                                                     \
    void* bad_[BAD_HANDLES];                               \
    const int bad_count_ = bad_handles((f), (kind), bad_); \
    for (int bad_i_ = 0; bad_i_ < bad_count_; ++bad_i_) {  \
      destroy((type*)bad_[bad_i_]);                        \
    }                                                      \
  } while (0)

/* A config of a world of one, whatever launched this test. */
dt_config* alone(void);

void test_status(void);
void test_config(const fixture* f);
void test_job(const fixture* f);
void test_comm(const fixture* f);
void test_collectives(const fixture* f);
void test_work(const fixture* f);
void test_memory(const fixture* f);
void test_store(const fixture* f);
void test_store_server(const fixture* f);
void test_reducer(const fixture* f);
void test_shard(const fixture* f);
void test_optimizer(const fixture* f);
void test_named(const fixture* f);
/* Gives both. */
void open_ps(dt_ps_server** server, dt_ps** ps);
void test_ps(const fixture* f);
void test_outer(const fixture* f);
void test_sampler(const fixture* f);
void test_batch_norm(const fixture* f);

#endif /* DT_TESTS_ABI_C_API_TEST_H */
