/* SPDX-License-Identifier: Apache-2.0 */
/* The store of a world of one: the same promises without a socket. */
#include "c_api_test.h"

enum { MAX_VALUE_BYTES = 16 << 20, MAX_KEY_BYTES = 1024 };

/* Every call with a key: NULL, empty, too long. `call` is written with k. */
#define REFUSES_KEYS(argument, call)                         \
  do {                                                       \
    char long_[MAX_KEY_BYTES + 2];                           \
    memset(long_, 'k', sizeof long_);                        \
    long_[MAX_KEY_BYTES + 1] = '\0';                         \
    const char* const keys_[] = {NULL, "", long_};           \
    for (int32_t key_ = 0; key_ < COUNT_OF(keys_); ++key_) { \
      const char* k = keys_[key_];                           \
      REFUSES(argument, call);                               \
    }                                                        \
  } while (0)

static void check_set_get(const fixture* f) {
  dt_job* job = f->job;
  char buffer[8] = "?";
  int64_t bytes = 77;
  REFUSES_HANDLES(f, JOB, dt_job, "job", dt_store_set(h, "key", "v", 1, -1));
  REFUSES_KEYS("key", dt_store_set(job, k, "v", 1, -1));
  REFUSES("value", dt_store_set(job, "key", NULL, 1, -1));
  REFUSES("value", dt_store_set(job, "key", "v", -1, -1));
  REFUSES("value", dt_store_set(job, "key", "v", (int64_t)MAX_VALUE_BYTES + 1, -1));
  REFUSES_HANDLES(f, JOB, dt_job, "job", dt_store_get(h, "key", 0, buffer, 8, &bytes));
  REFUSES_KEYS("key", dt_store_get(job, k, 0, buffer, 8, &bytes));
  REFUSES("buffer", dt_store_get(job, "key", 0, NULL, 8, &bytes));
  REFUSES("capacity_bytes", dt_store_get(job, "key", 0, buffer, -1, &bytes));
  REFUSES("out_bytes", dt_store_get(job, "key", 0, buffer, 8, NULL));
  FAILS(DT_ERR_TIMEOUT, dt_store_get(job, "no/such/key", 0, buffer, 8, &bytes));
  EXPECT(strstr(dt_last_error(), "no/such/key") != NULL);
  EXPECT(bytes == 77 && strcmp(buffer, "?") == 0);

  OK(dt_store_set(job, "empty", NULL, 0, -1));
  OK(dt_store_get(job, "empty", -1, NULL, 0, &bytes));
  EXPECT(bytes == 0);
  OK(dt_store_set(job, "key", "a\0b", 3, -1));
  OK(dt_store_get(job, "key", -1, buffer, 8, &bytes));
  EXPECT(bytes == 3 && memcmp(buffer, "a\0b", 3) == 0);
  OK(dt_store_get(job, "key", -1, buffer + 4, 1, &bytes));
  EXPECT(bytes == 3 && buffer[4] == 'a');
}

static void check_numbers(const fixture* f) {
  dt_job* job = f->job;
  int64_t number = 77;
  int32_t flag = 77;
  REFUSES_HANDLES(f, JOB, dt_job, "job", dt_store_add(h, "number", 1, -1, &number));
  REFUSES_KEYS("key", dt_store_add(job, k, 1, -1, &number));
  REFUSES("out_value", dt_store_add(job, "number", 1, -1, NULL));
  FAILS(DT_ERR_INVALID_ARGUMENT, dt_store_add(job, "key", 1, -1, &number));
  EXPECT(number == 77);
  OK(dt_store_add(job, "number", 40, -1, &number));
  OK(dt_store_add(job, "number", -42, -1, &number));
  EXPECT(number == -2);

  REFUSES_HANDLES(f, JOB, dt_job, "job",
                  dt_store_compare_set(h, "swap", NULL, 0, "x", 1, -1, &flag));
  REFUSES_KEYS("key", dt_store_compare_set(job, k, NULL, 0, "x", 1, -1, &flag));
  REFUSES("expected", dt_store_compare_set(job, "swap", "x", -1, "x", 1, -1, &flag));
  REFUSES("desired", dt_store_compare_set(job, "swap", NULL, 0, NULL, 1, -1, &flag));
  REFUSES("desired", dt_store_compare_set(job, "swap", NULL, 0, "x", -1, -1, &flag));
  REFUSES("out_swapped", dt_store_compare_set(job, "swap", NULL, 0, "x", 1, -1, NULL));
  EXPECT(flag == 77);
  OK(dt_store_compare_set(job, "swap", "y", 1, "x", 1, -1, &flag));
  EXPECT(flag == 0);
  OK(dt_store_compare_set(job, "swap", NULL, 0, "x", 1, -1, &flag));
  EXPECT(flag == 1);
  OK(dt_store_compare_set(job, "swap", NULL, 0, "z", 1, -1, &flag));
  EXPECT(flag == 0);
  OK(dt_store_compare_set(job, "swap", "x", 1, "", 0, -1, &flag));
  EXPECT(flag == 1);
  OK(dt_store_compare_set(job, "swap", "", 0, "z", 1, -1, &flag));
  EXPECT(flag == 1);
}

static void check_wait_list_delete(const fixture* f) {
  dt_job* job = f->job;
  const char* const keys[] = {"list/b", "list/a"};
  const char* const with_null[] = {"list/b", NULL};
  const char* const absent[] = {"list/b", "list/absent"};
  char buffer[64] = "?";
  int64_t bytes = 77;
  int32_t existed = 77;
  OK(dt_store_set(job, "list/b", "1", 1, -1));
  OK(dt_store_set(job, "list/a", "2", 1, -1));

  REFUSES_HANDLES(f, JOB, dt_job, "job", dt_store_wait(h, keys, 2, 0));
  REFUSES("keys", dt_store_wait(job, NULL, 2, 0));
  REFUSES("keys", dt_store_wait(job, with_null, 2, 0));
  REFUSES("count", dt_store_wait(job, keys, 0, 0));
  REFUSES("count", dt_store_wait(job, keys, -1, 0));
  REFUSES("count", dt_store_wait(job, keys, 65537, 0));
  OK(dt_store_wait(job, keys, 2, 0));
  FAILS(DT_ERR_TIMEOUT, dt_store_wait(job, absent, 2, 10));
  EXPECT(strstr(dt_last_error(), "list/absent") != NULL);

  REFUSES_HANDLES(f, JOB, dt_job, "job", dt_store_list(h, "list/", -1, buffer, 64, &bytes));
  REFUSES("prefix", dt_store_list(job, NULL, -1, buffer, 64, &bytes));
  REFUSES("buffer", dt_store_list(job, "list/", -1, NULL, 64, &bytes));
  REFUSES("capacity_bytes", dt_store_list(job, "list/", -1, buffer, -1, &bytes));
  REFUSES("out_bytes", dt_store_list(job, "list/", -1, buffer, 64, NULL));
  EXPECT(bytes == 77 && strcmp(buffer, "?") == 0);
  OK(dt_store_list(job, "list/", -1, buffer, 64, &bytes));
  EXPECT(bytes == 14 && memcmp(buffer, "list/a\0list/b", 14) == 0);
  OK(dt_store_list(job, "", -1, NULL, 0, &bytes));
  EXPECT(bytes >= 14);

  REFUSES_HANDLES(f, JOB, dt_job, "job", dt_store_delete(h, "list/a", -1, &existed));
  REFUSES_KEYS("key", dt_store_delete(job, k, -1, &existed));
  EXPECT(existed == 77);
  OK(dt_store_delete(job, "list/a", -1, &existed));
  EXPECT(existed == 1);
  OK(dt_store_delete(job, "list/a", -1, &existed));
  EXPECT(existed == 0);
  OK(dt_store_delete(job, "list/b", -1, NULL));
}

static void check_multi(const fixture* f) {
  dt_job* job = f->job;
  const char* const keys[] = {"multi/1", "multi/2", "multi/absent"};
  const char* const with_null[] = {"multi/1", NULL};
  const void* const values[] = {"one", ""};
  const void* const no_values[] = {"one", NULL};
  const int64_t sizes[] = {3, 0};
  const int64_t bad_sizes[] = {3, -1};
  const int64_t some_sizes[] = {3, 1};
  REFUSES_HANDLES(f, JOB, dt_job, "job", dt_store_multi_set(h, keys, values, sizes, 2, -1));
  REFUSES("keys", dt_store_multi_set(job, NULL, values, sizes, 2, -1));
  REFUSES("keys", dt_store_multi_set(job, with_null, values, sizes, 2, -1));
  REFUSES("values", dt_store_multi_set(job, keys, NULL, sizes, 2, -1));
  REFUSES("values", dt_store_multi_set(job, keys, no_values, some_sizes, 2, -1));
  REFUSES("value_bytes", dt_store_multi_set(job, keys, values, NULL, 2, -1));
  REFUSES("values[1]", dt_store_multi_set(job, keys, values, bad_sizes, 2, -1));
  REFUSES("count", dt_store_multi_set(job, keys, values, sizes, 0, -1));
  REFUSES("count", dt_store_multi_set(job, keys, values, sizes, -2, -1));
  REFUSES("count", dt_store_multi_set(job, keys, values, sizes, 65537, -1));
  OK(dt_store_multi_set(job, keys, values, sizes, 2, -1));

  char buffer[8] = "?";
  int64_t out_sizes[3] = {77, 77, 77};
  int64_t bytes = 77;
  REFUSES_HANDLES(f, JOB, dt_job, "job",
                  dt_store_multi_get(h, keys, 3, -1, buffer, 8, out_sizes, &bytes));
  REFUSES("keys", dt_store_multi_get(job, NULL, 3, -1, buffer, 8, out_sizes, &bytes));
  REFUSES("keys", dt_store_multi_get(job, with_null, 2, -1, buffer, 8, out_sizes, &bytes));
  REFUSES("count", dt_store_multi_get(job, keys, 0, -1, buffer, 8, out_sizes, &bytes));
  REFUSES("count", dt_store_multi_get(job, keys, -3, -1, buffer, 8, out_sizes, &bytes));
  REFUSES("buffer", dt_store_multi_get(job, keys, 3, -1, NULL, 8, out_sizes, &bytes));
  REFUSES("capacity_bytes", dt_store_multi_get(job, keys, 3, -1, buffer, -8, out_sizes, &bytes));
  REFUSES("out_value_bytes", dt_store_multi_get(job, keys, 3, -1, buffer, 8, NULL, &bytes));
  REFUSES("out_bytes", dt_store_multi_get(job, keys, 3, -1, buffer, 8, out_sizes, NULL));
  EXPECT(bytes == 77 && out_sizes[0] == 77 && strcmp(buffer, "?") == 0);
  OK(dt_store_multi_get(job, keys, 3, -1, buffer, 8, out_sizes, &bytes));
  EXPECT(bytes == 3 && memcmp(buffer, "one", 3) == 0);
  EXPECT(out_sizes[0] == 3 && out_sizes[1] == 0 && out_sizes[2] == -1);
}

void test_store(const fixture* f) {
  check_set_get(f);
  check_numbers(f);
  check_wait_list_delete(f);
  check_multi(f);
  REFUSES_HANDLES(f, JOB, dt_job, "job", dt_store_barrier(h, "end", 1, -1));
  REFUSES_KEYS("name", dt_store_barrier(f->job, k, 1, -1));
  REFUSES("count", dt_store_barrier(f->job, "end", -1, -1));
  OK(dt_store_barrier(f->job, "end", 0, -1));
  OK(dt_store_barrier(f->job, "end", 1, -1));
  FAILS(DT_ERR_TIMEOUT, dt_store_barrier(f->job, "two", 2, 10));
}

void test_store_server(const fixture* f) {
  dt_store_server* untouched = f->open[STORE_SERVER];
  int32_t port = 77;
  REFUSES("out_server", dt_store_serve(f->config, NULL));
  REFUSES_HANDLES_BUT_NULL(f, CONFIG, dt_config, "config", dt_store_serve(h, &untouched));
  EXPECT(untouched == f->open[STORE_SERVER]);
  REFUSES("out_port", dt_store_server_port(untouched, NULL));
  REFUSES_HANDLES(f, STORE_SERVER, dt_store_server, "server", dt_store_server_port(h, &port));
  EXPECT(port == 77);
  OK(dt_store_server_port(untouched, &port));
  EXPECT(port >= 1 && port <= 65535);
  DESTROY_SURVIVES(f, STORE_SERVER, dt_store_server, dt_store_server_destroy);
}
