/* SPDX-License-Identifier: Apache-2.0 */
/* Every function of dt.h from C99, at world size 1: what it does, and how it refuses bad arguments.
 */
#include "c_api_test.h"

#include <stdio.h>
#include <stdlib.h>

int failures = 0;

/* How often libdt and this program took memory. Stays 0 under a sanitizer, which has a malloc() of
 * its own. */
static int mallocs = 0;

#ifdef DT_COUNT_MALLOC
void* __libc_malloc(size_t bytes);

void* malloc(size_t bytes) {
  __atomic_fetch_add(&mallocs, 1, __ATOMIC_RELAXED);
  return __libc_malloc(bytes);
}
#endif

void expect(int holds, const char* what, const char* file, int line) {
  if (holds) return;
  ++failures;
  fprintf(stderr, "%s:%d: %s does not hold\n", file, line, what);
}

void expect_status(dt_status got, dt_status wanted, const char* call, const char* file, int line) {
  if (got == wanted && (got == DT_OK || dt_last_error()[0] != '\0')) return;
  ++failures;
  fprintf(stderr, "%s:%d: %s: %s, expected %s; message: \"%s\"\n", file, line, call,
          dt_status_name(got), dt_status_name(wanted), got == DT_OK ? "" : dt_last_error());
}

void expect_refused(dt_status got, const char* call, const char* argument, const char* file,
                    int line) {
  char function[64];
  size_t length = strcspn(call, "(");
  if (length >= sizeof function) length = sizeof function - 1;
  memcpy(function, call, length);
  function[length] = '\0';
  const char* message = got == DT_OK ? "" : dt_last_error();
  if (got == DT_ERR_INVALID_ARGUMENT && strstr(message, function) != NULL &&
      strstr(message, argument) != NULL) {
    return;
  }
  ++failures;
  fprintf(stderr,
          "%s:%d: %s: %s, expected DT_ERR_INVALID_ARGUMENT with \"%s\" and \"%s\" in its message; "
          "message: \"%s\"\n",
          file, line, call, dt_status_name(got), function, argument, message);
}

int bad_handles(const fixture* f, enum handle_kind kind, void* out[BAD_HANDLES]) {
  static int no_handle;
  int n = 0;
  out[n++] = NULL;
  out[n++] = f->closed[kind];
  for (int other = 0; other < KINDS; ++other) {
    if (other != (int)kind) out[n++] = f->open[other];
  }
  out[n++] = &no_handle;
  out[n++] = (void*)(uintptr_t)1;
  out[n++] = (void*)UINTPTR_MAX;
  return n;
}

/* The first call of the process, as in a signal handler that comes before dt_init() has made the
 * job: it takes no memory. */
static void test_stop_before_init(void) {
  const int before = mallocs;
  const dt_status status = dt_request_stop(NULL);
  const int after = mallocs;
  EXPECT(status == DT_ERR_INVALID_ARGUMENT);
  EXPECT(after == before);
  EXPECT(dt_last_error()[0] == '\0');
}

dt_config* alone(void) {
  dt_config* config = NULL;
  OK(dt_config_create(NULL, &config));
  OK(dt_config_set(config, "job.rank", "0"));
  OK(dt_config_set(config, "job.world_size", "1"));
  return config;
}

void test_status(void) {
  /* Nothing failed on this thread yet. */
  dt_error_info info;
  dt_error_info_init(&info);
  EXPECT(strcmp(dt_last_error(), "") == 0);
  OK(dt_last_error_info(&info));
  EXPECT(info.status == DT_OK);
  EXPECT(info.message[0] == '\0');

  static const struct {
    dt_status status;
    const char* name;
  } names[] = {
      {DT_OK, "DT_OK"},
      {DT_ERR_INVALID_ARGUMENT, "DT_ERR_INVALID_ARGUMENT"},
      {DT_ERR_INVALID_STATE, "DT_ERR_INVALID_STATE"},
      {DT_ERR_UNSUPPORTED, "DT_ERR_UNSUPPORTED"},
      {DT_ERR_VERSION, "DT_ERR_VERSION"},
      {DT_ERR_CONFIG, "DT_ERR_CONFIG"},
      {DT_ERR_OUT_OF_MEMORY, "DT_ERR_OUT_OF_MEMORY"},
      {DT_ERR_SYSTEM, "DT_ERR_SYSTEM"},
      {DT_ERR_CUDA, "DT_ERR_CUDA"},
      {DT_ERR_NCCL, "DT_ERR_NCCL"},
      {DT_ERR_TIMEOUT, "DT_ERR_TIMEOUT"},
      {DT_ERR_PEER_LOST, "DT_ERR_PEER_LOST"},
      {DT_ERR_MISMATCH, "DT_ERR_MISMATCH"},
      {DT_ERR_ABORTED, "DT_ERR_ABORTED"},
      {DT_ERR_INTERNAL, "DT_ERR_INTERNAL"},
      {(dt_status)5, "DT_ERR_UNKNOWN"},
      {DT_STATUS_FORCE32, "DT_ERR_UNKNOWN"},
  };
  for (int32_t i = 0; i < COUNT_OF(names); ++i) {
    EXPECT(strcmp(dt_status_name(names[i].status), names[i].name) == 0);
  }

  REFUSES("out_info", dt_last_error_info(NULL));
  OK(dt_last_error_info(&info));
  EXPECT(info.status == DT_ERR_INVALID_ARGUMENT);
  EXPECT(strcmp(info.message, dt_last_error()) == 0);
  info.struct_size = 0;
  info.rank = 77;
  REFUSES("struct_size", dt_last_error_info(&info));
  EXPECT(info.rank == 77);
  info.struct_size = 4;
  REFUSES("struct_size", dt_last_error_info(&info));

  EXPECT(dt_abi_version() == DT_ABI_VERSION);
  EXPECT(strcmp(dt_version(), DT_VERSION) == 0);
  EXPECT(strstr(dt_build_info(), "compiler: ") != NULL);
  // NCCL is loaded at run time, where CUDA is built in.
  const char* const backends = strstr(dt_build_info(), "cuda: not built") != NULL
                                   ? "backends: self, host, multihost\n"
                                   : "backends: self, host, multihost, nccl\n";
  EXPECT(strstr(dt_build_info(), backends) != NULL);
}

static void count_messages(void* user_data, dt_log_level level, const char* message) {
  (void)level;
  (void)message;
  ++*(int*)user_data;
}

void test_config(const fixture* f) {
  dt_config* untouched = f->config;
  REFUSES("out_config", dt_config_create(NULL, NULL));
  FAILS(DT_ERR_CONFIG, dt_config_create("/nonexistent/dt.toml", &untouched));
  EXPECT(strstr(dt_last_error(), "/nonexistent/dt.toml") != NULL);
  EXPECT(untouched == f->config);

  dt_config* config = alone();
  OK(dt_config_set(config, "reducer.bucket_cap_bytes", "4096"));
  FAILS(DT_ERR_CONFIG, dt_config_set(config, "reducer.bucket_cap_byte", "4096"));
  EXPECT(strstr(dt_last_error(), "reducer.bucket_cap_bytes") != NULL);
  FAILS(DT_ERR_CONFIG, dt_config_set(config, "reducer.bucket_cap_bytes", "much"));
  REFUSES("key", dt_config_set(config, NULL, "1"));
  REFUSES("value", dt_config_set(config, "job.rank", NULL));
  REFUSES_HANDLES(f, CONFIG, dt_config, "config", dt_config_set(h, "job.rank", "0"));

  char text[64] = "untouched";
  int64_t bytes = 77;
  FAILS(DT_ERR_CONFIG, dt_config_get(config, "no.such.key", text, sizeof text, &bytes));
  REFUSES("key", dt_config_get(config, NULL, text, sizeof text, &bytes));
  REFUSES("buffer", dt_config_get(config, "job.rank", NULL, 1, &bytes));
  REFUSES("capacity_bytes", dt_config_get(config, "job.rank", text, -1, &bytes));
  REFUSES("out_bytes", dt_config_get(config, "job.rank", text, sizeof text, NULL));
  REFUSES_HANDLES(f, CONFIG, dt_config, "config",
                  dt_config_get(h, "job.rank", text, sizeof text, &bytes));
  EXPECT(strcmp(text, "untouched") == 0 && bytes == 77);
  OK(dt_config_get(config, "reducer.bucket_cap_bytes", NULL, 0, &bytes));
  EXPECT(bytes == 5);
  OK(dt_config_get(config, "reducer.bucket_cap_bytes", text, sizeof text, &bytes));
  EXPECT(bytes == 5 && strcmp(text, "4096") == 0);
  OK(dt_config_get(config, "reducer.bucket_cap_bytes", text, 3, &bytes));
  EXPECT(bytes == 5 && strncmp(text, "40", 2) == 0);

  REFUSES("buffer", dt_config_dump(config, NULL, 1, &bytes));
  REFUSES("capacity_bytes", dt_config_dump(config, text, -1, &bytes));
  REFUSES("out_bytes", dt_config_dump(config, text, sizeof text, NULL));
  REFUSES_HANDLES(f, CONFIG, dt_config, "config", dt_config_dump(h, text, sizeof text, &bytes));
  OK(dt_config_dump(config, NULL, 0, &bytes));
  char* json = malloc((size_t)bytes);
  EXPECT(json != NULL);
  if (json != NULL) {
    OK(dt_config_dump(config, json, bytes, &bytes));
    EXPECT(json[0] == '{' && strlen(json) + 1 == (size_t)bytes);
    EXPECT(strstr(json, "\"reducer.bucket_cap_bytes\"") != NULL);
    free(json);
  }

  int messages = 0;
  REFUSES_HANDLES(f, CONFIG, dt_config, "config",
                  dt_config_set_log_sink(h, count_messages, &messages));
  OK(dt_config_set_log_sink(config, count_messages, &messages));
  OK(dt_config_set_log_sink(config, NULL, NULL));
  DESTROY_SURVIVES(f, CONFIG, dt_config, dt_config_destroy);
  dt_config_destroy(config);
  dt_config_destroy(config);
}

/* One handle of each kind that stays open, and one that is closed. */
static void open_all(fixture* f) {
  memset(f, 0, sizeof *f);
  for (int round = 0; round < 2; ++round) {
    dt_config* config = alone();
    dt_job* job = NULL;
    dt_comm* comm = NULL;
    dt_work* work = NULL;
    dt_reducer* reducer = NULL;
    dt_shard* shard = NULL;
    dt_optimizer* optimizer = NULL;
    dt_named* named = NULL;
    dt_outer* outer = NULL;
    dt_ps* ps = NULL;
    dt_ps_server* ps_server = NULL;
    dt_sampler* sampler = NULL;
    dt_store_server* server = NULL;
    const dt_param param = {4, "weight", DT_F32, 0};
    float weight[] = {1, 2, 3, 4};
    const dt_outer_param outer_param = {weight, 4, "weight", DT_F32, 0};
    dt_sampler_options options;
    dt_sampler_options_init(&options);
    options.world_size = 1;
    OK(dt_init(config, &job));
    OK(dt_comm_world(job, &comm));
    OK(dt_barrier(comm, NULL, &work));
    OK(dt_reducer_create(comm, &param, 1, NULL, &reducer));
    OK(dt_shard_create(comm, &param, 1, NULL, &shard));
    OK(dt_optimizer_adamw(shard, NULL, &optimizer));
    OK(dt_named_create(comm, NULL, &named));
    OK(dt_outer_create(comm, &outer_param, 1, NULL, &outer));
    open_ps(&ps_server, &ps);
    OK(dt_sampler_create(&options, &sampler));
    OK(dt_store_serve(config, &server));
    void* handles[KINDS];
    handles[CONFIG] = config;
    handles[JOB] = job;
    handles[COMM] = comm;
    handles[WORK] = work;
    handles[REDUCER] = reducer;
    handles[SHARD] = shard;
    handles[OPTIMIZER] = optimizer;
    handles[NAMED] = named;
    handles[OUTER] = outer;
    handles[PS] = ps;
    handles[PS_SERVER] = ps_server;
    handles[SAMPLER] = sampler;
    handles[STORE_SERVER] = server;
    memcpy(round == 0 ? f->closed : f->open, handles, sizeof handles);
    if (round != 0) break;
    /* Parents first: any order must do. */
    OK(dt_finalize(job, -1));
    dt_config_destroy(config);
    dt_job_destroy(job);
    dt_comm_destroy(comm);
    dt_work_destroy(work);
    dt_reducer_destroy(reducer);
    dt_shard_destroy(shard);
    dt_optimizer_destroy(optimizer);
    dt_named_destroy(named);
    dt_outer_destroy(outer);
    dt_ps_server_destroy(ps_server);
    dt_ps_destroy(ps);
    dt_sampler_destroy(sampler);
    dt_store_server_destroy(server);
  }
  f->config = f->open[CONFIG];
  f->job = f->open[JOB];
  f->comm = f->open[COMM];
}

static void close_all(fixture* f) {
  dt_work_destroy(f->open[WORK]);
  dt_reducer_destroy(f->open[REDUCER]);
  dt_shard_destroy(f->open[SHARD]);
  dt_optimizer_destroy(f->open[OPTIMIZER]);
  dt_named_destroy(f->open[NAMED]);
  dt_outer_destroy(f->open[OUTER]);
  dt_ps_destroy(f->open[PS]);
  dt_ps_server_destroy(f->open[PS_SERVER]);
  dt_sampler_destroy(f->open[SAMPLER]);
  dt_comm_destroy(f->comm);
  OK(dt_finalize(f->job, -1));
  dt_job_destroy(f->job);
  dt_store_server_destroy(f->open[STORE_SERVER]);
  dt_config_destroy(f->config);
}

int main(void) {
  test_stop_before_init();
  test_status();
  fixture f;
  open_all(&f);
  if (failures != 0) {
    fprintf(stderr, "no handles to test with\n");
    return 1;
  }
  test_config(&f);
  test_job(&f);
  test_comm(&f);
  test_collectives(&f);
  test_work(&f);
  test_memory(&f);
  test_store(&f);
  test_store_server(&f);
  test_reducer(&f);
  test_shard(&f);
  test_optimizer(&f);
  test_named(&f);
  test_outer(&f);
  test_ps(&f);
  test_sampler(&f);
  test_batch_norm(&f);
  close_all(&f);
  if (failures != 0) fprintf(stderr, "%d checks failed\n", failures);
  return failures != 0;
}
