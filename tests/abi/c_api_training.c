/* SPDX-License-Identifier: Apache-2.0 */
/* Reducer and sampler at world size 1. */
#include <math.h>

#include "c_api_test.h"

static const dt_param params[] = {{3, "weight", DT_F32, 0}, {2, NULL, DT_F64, 0}};

static void check_create(const fixture* f) {
  dt_reducer* untouched = f->open[REDUCER];
  REFUSES_HANDLES(f, COMM, dt_comm, "comm", dt_reducer_create(h, params, 2, NULL, &untouched));
  REFUSES("params", dt_reducer_create(f->comm, NULL, 2, NULL, &untouched));
  REFUSES("count", dt_reducer_create(f->comm, params, 0, NULL, &untouched));
  REFUSES("count", dt_reducer_create(f->comm, params, -1, NULL, &untouched));
  REFUSES("count", dt_reducer_create(f->comm, params, 1048577, NULL, &untouched));
  REFUSES("out_reducer", dt_reducer_create(f->comm, params, 2, NULL, NULL));
  dt_param bad[] = {params[0], params[1]};
  bad[1].count = -1;
  REFUSES("params", dt_reducer_create(f->comm, bad, 2, NULL, &untouched));
  bad[1].count = INT64_MAX;
  REFUSES("params", dt_reducer_create(f->comm, bad, 2, NULL, &untouched));
  bad[1].count = 2;
  bad[1].dtype = (dt_dtype)15;
  REFUSES("params", dt_reducer_create(f->comm, bad, 2, NULL, &untouched));
  bad[1].dtype = DT_F64;
  bad[1].uses = -1;
  REFUSES("params[1].uses", dt_reducer_create(f->comm, bad, 2, NULL, &untouched));

  dt_reducer_options options;
  memset(&options, 0, sizeof options);
  REFUSES("options", dt_reducer_create(f->comm, params, 2, &options, &untouched));
  dt_reducer_options_init(&options);
  options.bucket_cap_bytes = -1;
  REFUSES("bucket cap", dt_reducer_create(f->comm, params, 2, &options, &untouched));
  options.bucket_cap_bytes = 0;
  options.first_bucket_bytes = -1;
  REFUSES("bucket cap", dt_reducer_create(f->comm, params, 2, &options, &untouched));
  options.first_bucket_bytes = 0;
  options.find_unused = 2;
  REFUSES("find_unused", dt_reducer_create(f->comm, params, 2, &options, &untouched));
  options.find_unused = 0;
  options.static_graph = 2;
  REFUSES("static_graph", dt_reducer_create(f->comm, params, 2, &options, &untouched));
  options.static_graph = 0;
  options.tune_steps = 2;
  REFUSES("at least 3", dt_reducer_create(f->comm, params, 2, &options, &untouched));
  options.tune_steps = 3;
  options.keep_plan = 1;
  REFUSES("choose one", dt_reducer_create(f->comm, params, 2, &options, &untouched));
  options.tune_steps = options.keep_plan = 0;
  options.find_unused = options.static_graph = 1;
  REFUSES("choose one", dt_reducer_create(f->comm, params, 2, &options, &untouched));
  options.find_unused = options.static_graph = 0;
  options.divide_by_users = 1;
  REFUSES("find_unused", dt_reducer_create(f->comm, params, 2, &options, &untouched));
  options.divide_by_users = 2;
  REFUSES("divide_by_users", dt_reducer_create(f->comm, params, 2, &options, &untouched));
  options.divide_by_users = 0;
  options.wire = (dt_wire)4;
  REFUSES("wire", dt_reducer_create(f->comm, params, 2, &options, &untouched));
  options.wire = DT_WIRE_SAME;
  options.predivide = -1;
  REFUSES("predivide", dt_reducer_create(f->comm, params, 2, &options, &untouched));
  options.predivide = (double)NAN;
  REFUSES("predivide", dt_reducer_create(f->comm, params, 2, &options, &untouched));
  options.predivide = 0;
  static const int64_t bad_elements[] = {0, -1, 0};
  options.row_elements = &bad_elements[1];
  REFUSES("row_elements", dt_reducer_create(f->comm, params, 2, &options, &untouched));
  options.row_elements = &bad_elements[0];
  REFUSES("row_elements[1]", dt_reducer_create(f->comm, params, 2, &options, &untouched));
  options.row_elements = NULL;
  double own[4];
  void* grads[] = {own, NULL};
  options.grads = grads;
  REFUSES("grads[1]", dt_reducer_create(f->comm, params, 2, &options, &untouched));
  grads[1] = (char*)own + 4;
  REFUSES("no multiple", dt_reducer_create(f->comm, params, 2, &options, &untouched));
  grads[1] = own;
  REFUSES("share memory", dt_reducer_create(f->comm, params, 2, &options, &untouched));
  options.grads = NULL;
  static const int32_t twice[] = {1, 1};
  options.order = twice;
  REFUSES("order[1]", dt_reducer_create(f->comm, params, 2, &options, &untouched));
  options.order = NULL;

  /* A later header's larger struct: fine while what this library does not know is zero. */
  struct {
    dt_reducer_options known;
    int64_t later;
  } larger;
  memset(&larger, 0, sizeof larger);
  larger.known.struct_size = (uint32_t)sizeof larger;
  larger.later = 1;
  REFUSES("options", dt_reducer_create(f->comm, params, 2, &larger.known, &untouched));
  EXPECT(untouched == f->open[REDUCER]);
  larger.later = 0;
  dt_reducer* reducer = NULL;
  OK(dt_reducer_create(f->comm, params, 2, &larger.known, &reducer));
  dt_reducer_destroy(reducer);
}

static void check_reducer_refusals(const fixture* f, dt_reducer* reducer) {
  static const int32_t bad_indices[] = {-1, 2, INT32_MAX};
  void* pointer = f->comm;
  const int64_t* rows = NULL;
  int64_t row_count = 0;
  int32_t value = 77;
  for (int32_t i = 0; i < COUNT_OF(bad_indices); ++i) {
    REFUSES("index", dt_reducer_grad(reducer, bad_indices[i], NULL, &pointer));
    REFUSES("index", dt_reducer_ready(reducer, bad_indices[i], NULL, NULL));
    REFUSES("index", dt_reducer_unused(reducer, bad_indices[i], NULL, NULL));
    REFUSES("index", dt_reducer_used(reducer, bad_indices[i], &value));
    REFUSES("index", dt_reducer_ready_rows(reducer, bad_indices[i], NULL, 0, NULL));
    REFUSES("index", dt_reducer_rows(reducer, bad_indices[i], &rows, &pointer, &row_count));
    REFUSES("index", dt_reducer_bucket(reducer, bad_indices[i], &value));
    REFUSES("index", dt_reducer_watch(reducer, bad_indices[i], &value, 4));
  }
  REFUSES("on", dt_reducer_accumulate(reducer, 2));
  float norm = 77;
  REFUSES("max_norm", dt_reducer_clip_norm(reducer, 0, 2, NULL, &norm));
  REFUSES("norm_type", dt_reducer_clip_norm(reducer, 1, 0.5, NULL, &norm));
  FAILS(DT_ERR_INVALID_STATE, dt_reducer_clip_norm(reducer, 1, 2, NULL, &norm));
  REFUSES_HANDLES(f, REDUCER, dt_reducer, "reducer", dt_reducer_clip_norm(h, 1, 2, NULL, &norm));
  EXPECT((int)norm == 77);
  REFUSES("bytes", dt_reducer_watch(reducer, 0, &value, -1));
  REFUSES("out_pointer", dt_reducer_grad(reducer, 0, NULL, NULL));
  REFUSES("out_bucket", dt_reducer_bucket(reducer, 0, NULL));
  REFUSES("out_used", dt_reducer_used(reducer, 0, NULL));
  REFUSES("row_count", dt_reducer_ready_rows(reducer, 0, NULL, -1, NULL));
  REFUSES("rows", dt_reducer_ready_rows(reducer, 0, NULL, 1, pointer));
  REFUSES("out_rows", dt_reducer_rows(reducer, 0, NULL, &pointer, &row_count));
  REFUSES("out_values", dt_reducer_rows(reducer, 0, &rows, NULL, &row_count));
  REFUSES("out_count", dt_reducer_rows(reducer, 0, &rows, &pointer, NULL));
  FAILS(DT_ERR_INVALID_STATE, dt_reducer_rows(reducer, 0, &rows, &pointer, &row_count));
  REFUSES("out_ranks", dt_reducer_active(reducer, NULL));
  FAILS(DT_ERR_INVALID_STATE, dt_reducer_active(reducer, &value));
  REFUSES_HANDLES(f, REDUCER, dt_reducer, "reducer", dt_reducer_active(h, &value));
  FAILS(DT_ERR_INVALID_STATE, dt_reducer_unused(reducer, 0, NULL, NULL));
  FAILS(DT_ERR_INVALID_STATE, dt_reducer_used(reducer, 0, &value));
  REFUSES("out_statistics", dt_reducer_stats(reducer, NULL));
  dt_reducer_statistics statistics;
  dt_reducer_statistics_init(&statistics);
  REFUSES_HANDLES(f, REDUCER, dt_reducer, "reducer", dt_reducer_grad(h, 0, NULL, &pointer));
  REFUSES_HANDLES(f, REDUCER, dt_reducer, "reducer", dt_reducer_ready(h, 0, NULL, NULL));
  REFUSES_HANDLES(f, REDUCER, dt_reducer, "reducer", dt_reducer_unused(h, 0, NULL, NULL));
  REFUSES_HANDLES(f, REDUCER, dt_reducer, "reducer", dt_reducer_used(h, 0, &value));
  REFUSES_HANDLES(f, REDUCER, dt_reducer, "reducer", dt_reducer_ready_rows(h, 0, NULL, 0, NULL));
  REFUSES_HANDLES(f, REDUCER, dt_reducer, "reducer",
                  dt_reducer_rows(h, 0, &rows, &pointer, &row_count));
  REFUSES_HANDLES(f, REDUCER, dt_reducer, "reducer", dt_reducer_accumulate(h, 1));
  REFUSES_HANDLES(f, REDUCER, dt_reducer, "reducer", dt_reducer_set_hook(h, NULL, NULL));
  REFUSES_HANDLES(f, REDUCER, dt_reducer, "reducer", dt_reducer_finish(h, NULL));
  REFUSES_HANDLES(f, REDUCER, dt_reducer, "reducer", dt_reducer_watch(h, 0, &value, 4));
  REFUSES_HANDLES(f, REDUCER, dt_reducer, "reducer", dt_reducer_rebuild(h, &value));
  REFUSES_HANDLES(f, REDUCER, dt_reducer, "reducer", dt_reducer_bucket(h, 0, &value));
  REFUSES_HANDLES(f, REDUCER, dt_reducer, "reducer", dt_reducer_stats(h, &statistics));
  statistics.struct_size = 0;
  REFUSES("struct_size", dt_reducer_stats(reducer, &statistics));
  EXPECT(pointer == (void*)f->comm && value == 77);
}

static dt_status double_bucket(void* calls, const dt_bucket* bucket, int32_t stage,
                               dt_work** out_work) {
  ++*(int32_t*)calls;
  if (stage > 0 || *out_work != NULL || bucket->params == NULL) return DT_ERR_INTERNAL;
  if (bucket->dtype != DT_F64) return DT_OK;
  for (int64_t i = 0; i < 2; ++i) ((double*)bucket->data)[i] *= 2;
  return DT_OK;
}

static void check_power_sgd(const fixture* f) {
  dt_param matrix = {64, "matrix", DT_F32, 0};
  dt_reducer* reducer = NULL;
  int64_t rows = 8;
  float data[64];
  OK(dt_reducer_create(f->comm, &matrix, 1, NULL, &reducer));
  dt_power_sgd_options options;
  memset(&options, 0, sizeof options);
  REFUSES("options", dt_reducer_power_sgd(reducer, &rows, &options));
  dt_power_sgd_options_init(&options);
  options.rank = 65;
  REFUSES("rank", dt_reducer_power_sgd(reducer, &rows, &options));
  options.rank = 0;
  options.start_step = -1;
  REFUSES("start_step", dt_reducer_power_sgd(reducer, &rows, &options));
  options.start_step = 0;
  options.min_compression = (double)NAN;
  REFUSES("min_compression", dt_reducer_power_sgd(reducer, &rows, &options));
  options.min_compression = 0;
  options.wire = (dt_wire)5;
  REFUSES("wire is 5", dt_reducer_power_sgd(reducer, &rows, &options));
  options.wire = DT_WIRE_8BIT;
  REFUSES("DT_WIRE_8BIT", dt_reducer_power_sgd(reducer, &rows, &options));
  REFUSES("rows", dt_reducer_power_sgd(reducer, NULL, NULL));
  rows = 7;
  REFUSES("rows[0]", dt_reducer_power_sgd(reducer, &rows, NULL));
  rows = 8;
  REFUSES_HANDLES(f, REDUCER, dt_reducer, "reducer", dt_reducer_power_sgd(h, &rows, NULL));
  REFUSES_HANDLES(f, REDUCER, dt_reducer, "reducer", dt_reducer_save(h, "x"));
  REFUSES_HANDLES(f, REDUCER, dt_reducer, "reducer", dt_reducer_load(h, "x"));
  REFUSES("path", dt_reducer_save(reducer, NULL));
  REFUSES("path is empty", dt_reducer_save(reducer, ""));
  REFUSES("path", dt_reducer_load(reducer, NULL));
  FAILS(DT_ERR_SYSTEM, dt_reducer_save(reducer, "/nowhere/reducer"));
  FAILS(DT_ERR_SYSTEM, dt_reducer_load(reducer, "/nowhere/reducer"));
  OK(dt_reducer_power_sgd(reducer, &rows, NULL));
  for (int i = 0; i < 64; ++i) data[i] = (float)((i / 8 + 1) * (i % 8 - 3)); /* of rank 1 */
  OK(dt_reducer_ready(reducer, 0, data, NULL));
  OK(dt_reducer_finish(reducer, NULL));
  for (int i = 0; i < 64; ++i) {
    EXPECT(fabsf(data[i] - (float)((i / 8 + 1) * (i % 8 - 3))) < 1e-3F);
  }
  dt_reducer_destroy(reducer);
}

static void check_hook(const fixture* f) {
  dt_reducer* reducer = NULL;
  int32_t calls = 0;
  float one[3] = {1, 2, 3};
  double other[2] = {1, 2};
  OK(dt_reducer_create(f->comm, params, 2, NULL, &reducer));
  OK(dt_reducer_set_hook(reducer, double_bucket, &calls));
  OK(dt_reducer_ready(reducer, 0, one, NULL));
  OK(dt_reducer_ready(reducer, 1, other, NULL));
  OK(dt_reducer_finish(reducer, NULL));
  EXPECT(calls == 2 && (int)one[1] == 2 && (int)other[1] == 4);
  dt_reducer_destroy(reducer);
}

void test_reducer(const fixture* f) {
  check_hook(f);
  check_power_sgd(f);
  check_create(f);
  dt_reducer_options options;
  dt_reducer* reducer = NULL;
  dt_reducer_options_init(&options);
  options.sum = 1;
  OK(dt_reducer_create(f->comm, params, 2, &options, &reducer));
  check_reducer_refusals(f, reducer);

  /* Reverse order of registration: the last parameter lies in bucket 0, the other dtype apart. */
  int32_t first = -1;
  int32_t second = -1;
  OK(dt_reducer_bucket(reducer, 0, &first));
  OK(dt_reducer_bucket(reducer, 1, &second));
  EXPECT(first == 1 && second == 0);

  void* pointer = NULL;
  OK(dt_reducer_grad(reducer, 0, NULL, &pointer));
  EXPECT(pointer != NULL && (uintptr_t)pointer % 256 == 0);
  REFUSES("pointer",
          dt_mem_free(f->comm, pointer)); /* the first of its bucket, but the reducer's */
  float* in_place = pointer;
  double copied[2] = {1.5, -2.5};
  for (int i = 0; i < 3; ++i) in_place[i] = (float)(i + 1);
  OK(dt_reducer_watch(reducer, 1, copied, (int64_t)sizeof copied));
  OK(dt_reducer_watch(reducer, 0, NULL, 0));
  OK(dt_reducer_ready(reducer, 1, copied, NULL));
  FAILS(DT_ERR_INVALID_STATE, dt_reducer_ready(reducer, 1, copied, NULL));
  FAILS(DT_ERR_INVALID_STATE, dt_reducer_rebuild(reducer, NULL));
  OK(dt_reducer_ready(reducer, 0, NULL, NULL));
  OK(dt_reducer_finish(reducer, NULL));
  for (int i = 0; i < 3; ++i) EXPECT((int)in_place[i] == i + 1);
  EXPECT((int)(copied[0] * 2) == 3 && (int)(copied[1] * 2) == -5);

  float norm = 0; /* of 1, 2, 3, 1.5, -2.5 */
  OK(dt_reducer_clip_norm(reducer, (double)INFINITY, 2, NULL, &norm));
  EXPECT(fabs((double)norm - sqrt(22.5)) < 1e-5);
  OK(dt_reducer_clip_norm(reducer, 100, (double)INFINITY, NULL, &norm));
  EXPECT((int)norm == 3);
  OK(dt_reducer_clip_norm(reducer, 1, 1, NULL, &norm));
  EXPECT((int)norm == 10 && fabs(copied[1] + 0.25) < 1e-5 && fabsf(in_place[1] - 0.2F) < 1e-5F);

  dt_reducer_statistics statistics;
  dt_reducer_statistics_init(&statistics);
  OK(dt_reducer_stats(reducer, &statistics));
  EXPECT(statistics.steps == 1 && statistics.bucket_count == 2);
  EXPECT(statistics.memory_bytes >= 2 * 256 && statistics.total_gather_ns == 0);
  EXPECT(statistics.hidden_share >= 0 && statistics.hidden_share <= 1);

  int32_t order[2] = {7, 7};
  REFUSES("out_order", dt_reducer_order(reducer, NULL));
  REFUSES_HANDLES(f, REDUCER, dt_reducer, "reducer", dt_reducer_order(h, order));
  OK(dt_reducer_order(reducer, order));
  EXPECT(order[0] == 1 && order[1] == 0);
  OK(dt_reducer_rebuild(reducer, NULL));
  int32_t changed = 77;
  OK(dt_reducer_rebuild(reducer, &changed));
  EXPECT(changed == 0 || changed == 1);

  OK(dt_reducer_accumulate(reducer, 1));
  OK(dt_reducer_ready(reducer, 1, copied, NULL));
  OK(dt_reducer_accumulate(reducer, 0));
  OK(dt_reducer_ready(reducer, 1, copied, NULL));
  FAILS(DT_ERR_INVALID_STATE, dt_reducer_finish(reducer, NULL));
  EXPECT(strstr(dt_last_error(), "weight") != NULL);
  OK(dt_reducer_ready(reducer, 0, NULL, NULL));
  OK(dt_reducer_ready(reducer, 1, copied, NULL));
  OK(dt_reducer_finish(reducer, NULL));

  DESTROY_SURVIVES(f, REDUCER, dt_reducer, dt_reducer_destroy);
  dt_reducer_destroy(reducer);
  dt_reducer_destroy(reducer);
}

static void check_sampler_options(const fixture* f) {
  dt_sampler* untouched = f->open[SAMPLER];
  dt_sampler_options options;
  memset(&options, 0, sizeof options);
  REFUSES("options", dt_sampler_create(&options, &untouched));
  REFUSES("options", dt_sampler_create(NULL, &untouched));
  dt_sampler_options_init(&options);
  REFUSES("world_size", dt_sampler_create(&options, &untouched));
  options.world_size = 2;
  REFUSES("out_sampler", dt_sampler_create(&options, NULL));
  options.rank = 2;
  REFUSES("rank", dt_sampler_create(&options, &untouched));
  options.rank = -1;
  REFUSES("rank", dt_sampler_create(&options, &untouched));
  options.rank = 0;
  options.size = -1;
  REFUSES("size", dt_sampler_create(&options, &untouched));
  options.size = 4;

  double weights[4] = {0, 1, 2, 3};
  options.block = -1;
  REFUSES("options->block is -1; it must be in [0, ", dt_sampler_create(&options, &untouched));
  options.block = 0;
  options.window = 8;
  REFUSES("options->window is 8 without options->block; set both",
          dt_sampler_create(&options, &untouched));
  options.window = -1;
  REFUSES("options->window is -1", dt_sampler_create(&options, &untouched));
  options.window = 0;
  options.draws = 9;
  REFUSES("options->draws is 9 without options->weights; set both",
          dt_sampler_create(&options, &untouched));
  options.draws = -1;
  REFUSES("options->draws is -1", dt_sampler_create(&options, &untouched));
  options.draws = 0;
  options.block = 2;
  options.sequential = 1;
  REFUSES("options->sequential and options->block are both set; choose one order",
          dt_sampler_create(&options, &untouched));
  options.weights = weights;
  REFUSES("options->sequential and options->block are both set",
          dt_sampler_create(&options, &untouched));
  options.sequential = 0;
  REFUSES("options->weights and options->block are both set; choose one order",
          dt_sampler_create(&options, &untouched));
  options.block = 0;
  options.sequential = 1;
  REFUSES("options->weights and options->sequential are both set",
          dt_sampler_create(&options, &untouched));
  options.sequential = 0;
  weights[2] = -0.5;
  REFUSES("options->weights[2] is -0.5; weights are finite and >= 0",
          dt_sampler_create(&options, &untouched));
  weights[2] = HUGE_VAL;
  REFUSES("options->weights[2] is inf", dt_sampler_create(&options, &untouched));
  weights[1] = weights[2] = weights[3] = 0;
  REFUSES("give at least one sample a weight above 0", dt_sampler_create(&options, &untouched));
  EXPECT(untouched == f->open[SAMPLER]);
}

/* An epoch of 10 samples: begun by one rank, ended by the second of two. */
static void check_sampler_state(const fixture* f) {
  dt_sampler_options options;
  dt_sampler_state state, other;
  dt_sampler* sampler = NULL;
  int64_t indices[8], count = 77, length = 0;
  dt_sampler_options_init(&options);
  options.world_size = 1;
  options.size = 10;
  options.sequential = 1;
  OK(dt_sampler_create(&options, &sampler));
  dt_sampler_state_init(&state);
  EXPECT(state.struct_size == sizeof state);

  REFUSES("count is 0; it must be >= 1", dt_sampler_next(sampler, 0, indices, &count));
  REFUSES("out_indices", dt_sampler_next(sampler, 1, NULL, &count));
  REFUSES("out_count", dt_sampler_next(sampler, 1, indices, NULL));
  REFUSES_HANDLES(f, SAMPLER, dt_sampler, "sampler", dt_sampler_next(h, 1, indices, &count));
  EXPECT(count == 77);
  REFUSES("taken is -2; this rank has 10 samples", dt_sampler_save(sampler, -2, &state));
  REFUSES("taken is 11", dt_sampler_save(sampler, 11, &state));
  REFUSES("out_state", dt_sampler_save(sampler, -1, NULL));
  REFUSES_HANDLES(f, SAMPLER, dt_sampler, "sampler", dt_sampler_save(h, -1, &state));
  state.struct_size = 8;
  REFUSES("out_state->struct_size is 8; initialise the struct with dt_sampler_state_init()",
          dt_sampler_save(sampler, -1, &state));
  dt_sampler_state_init(&state);

  OK(dt_sampler_set_epoch(sampler, 2));
  OK(dt_sampler_next(sampler, 3, indices, &count));
  EXPECT(count == 3 && indices[0] == 0 && indices[2] == 2);
  OK(dt_sampler_save(sampler, 1, &state));
  EXPECT(state.epoch == 2 && state.consumed == 1 && state.size == 10 && state.reserved == 0);
  OK(dt_sampler_save(sampler, -1, &state));
  EXPECT(state.consumed == 3);
  dt_sampler_destroy(sampler);

  options.world_size = 2;
  options.rank = 1;
  sampler = NULL;
  OK(dt_sampler_create(&options, &sampler));
  REFUSES("state", dt_sampler_resume(sampler, NULL));
  REFUSES_HANDLES(f, SAMPLER, dt_sampler, "sampler", dt_sampler_resume(h, &state));
  other = state;
  other.struct_size = 0;
  REFUSES("state->struct_size is 0; initialise", dt_sampler_resume(sampler, &other));
  other = state;
  other.reserved = 1;
  REFUSES("state->reserved is not 0", dt_sampler_resume(sampler, &other));
  other = state;
  other.size = 9;
  REFUSES("state->size is 9, the sampler's data set has 10 samples; resume with the data set",
          dt_sampler_resume(sampler, &other));
  other = state;
  other.order += 1;
  REFUSES("another seed or another order; create it with the options that the state was saved with",
          dt_sampler_resume(sampler, &other));
  other = state;
  other.epoch = -1;
  REFUSES("state->epoch is -1; it must be >= 0", dt_sampler_resume(sampler, &other));
  other = state;
  other.consumed = 11;
  REFUSES("state->consumed is 11; it must be in [0, 10]", dt_sampler_resume(sampler, &other));
  other.consumed = -1;
  REFUSES("state->consumed is -1", dt_sampler_resume(sampler, &other));

  /* Left are 3 to 9; rank 1 has every second, and then the epoch's first. */
  OK(dt_sampler_resume(sampler, &state));
  OK(dt_sampler_set_epoch(sampler, 2));
  OK(dt_sampler_length(sampler, &length));
  EXPECT(length == 4);
  OK(dt_sampler_next(sampler, 8, indices, &count));
  EXPECT(count == 4 && indices[0] == 4 && indices[1] == 6 && indices[2] == 8 && indices[3] == 0);
  OK(dt_sampler_save(sampler, -1, &state));
  EXPECT(state.consumed == 10);
  OK(dt_sampler_next(sampler, 8, indices, &count));
  EXPECT(count == 0);
  FAILS(DT_ERR_INVALID_STATE, dt_sampler_next(sampler, 8, indices, &count));
  EXPECT(strstr(dt_last_error(),
                "rank 1 has taken its 4 samples of epoch 2, and was told of the "
                "end; go on with dt_sampler_set_epoch()") != NULL);
  OK(dt_sampler_set_epoch(sampler, 3));
  OK(dt_sampler_length(sampler, &length));
  EXPECT(length == 5);
  dt_sampler_destroy(sampler);

  options.whole_batches = 1;
  sampler = NULL;
  OK(dt_sampler_create(&options, &sampler));
  OK(dt_sampler_next(sampler, 4, indices, &count));
  EXPECT(count == 4);
  OK(dt_sampler_next(sampler, 4, indices, &count));
  EXPECT(count == 0);
  FAILS(DT_ERR_INVALID_STATE, dt_sampler_next(sampler, 1, indices, &count));
  EXPECT(strstr(dt_last_error(), "rank 1 has taken its 4 samples of epoch 0, and was told") !=
         NULL);
  dt_sampler_destroy(sampler);
}

/* Blocks that stay whole; draws of the one sample that has a weight; options of an older program.
 */
static void check_sampler_orders(void) {
  dt_sampler_options options;
  dt_sampler* sampler = NULL;
  int64_t indices[12], length = 0;
  const double weights[10] = {0, 0, 0, 0, 0, 0, 0.5, 0, 0, 0};
  dt_sampler_options_init(&options);
  options.world_size = 1;
  options.size = 12;
  options.block = 4;
  options.window = 1;
  OK(dt_sampler_create(&options, &sampler));
  OK(dt_sampler_indices(sampler, 0, 12, indices));
  for (int i = 0; i < 12; ++i) EXPECT(indices[i] == indices[i / 4 * 4] + i % 4);
  dt_sampler_destroy(sampler);

  dt_sampler_options_init(&options);
  options.world_size = 1;
  options.size = 10;
  options.weights = weights;
  options.draws = 3;
  OK(dt_sampler_create(&options, &sampler));
  OK(dt_sampler_length(sampler, &length));
  OK(dt_sampler_indices(sampler, 0, 3, indices));
  EXPECT(length == 3 && indices[0] == 6 && indices[1] == 6 && indices[2] == 6);
  dt_sampler_destroy(sampler);

  options.struct_size = 40; /* ends before `block` */
  OK(dt_sampler_create(&options, &sampler));
  OK(dt_sampler_length(sampler, &length));
  EXPECT(length == 10);
  dt_sampler_destroy(sampler);
}

void test_batch_norm(const fixture* f) {
  const double rows[] = {1, 10, 3, 30};
  double mean[2] = {77, 77}, variance[2] = {77, 77}, sum[2] = {77, 77}, product[2] = {77, 77};
  int64_t count = 77;
  REFUSES_HANDLES(f, COMM, dt_comm, "comm",
                  dt_batch_moments(h, rows, 2, 2, 1, DT_F64, mean, variance, &count, NULL));
  REFUSES("input", dt_batch_moments(f->comm, NULL, 2, 2, 1, DT_F64, mean, variance, &count, NULL));
  REFUSES("out_variance is at ", dt_batch_moments(f->comm, rows, 2, 2, 1, DT_F64, mean,
                                                  (double*)((char*)variance + 4), &count, NULL));
  REFUSES("which is no multiple of its elements' 4 bytes; align it",
          dt_batch_moments(f->comm, (const char*)rows + 2, 2, 2, 1, DT_F32, mean, variance, &count,
                           NULL));
  REFUSES("batch is -1; it must be >= 0",
          dt_batch_moments(f->comm, rows, -1, 2, 1, DT_F64, mean, variance, &count, NULL));
  REFUSES("channels is 0; it must be in [1, 16777216]",
          dt_batch_moments(f->comm, rows, 2, 0, 1, DT_F64, mean, variance, &count, NULL));
  REFUSES("channels is 16777217",
          dt_batch_moments(f->comm, rows, 2, 16777217, 1, DT_F64, mean, variance, &count, NULL));
  REFUSES("spatial is 0; it must be >= 1",
          dt_batch_moments(f->comm, rows, 2, 2, 0, DT_F64, mean, variance, &count, NULL));
  REFUSES("dtype is i32; it must be f16, bf16, f32 or f64",
          dt_batch_moments(f->comm, rows, 2, 2, 1, DT_I32, mean, variance, &count, NULL));
  REFUSES("dtype is ?",
          dt_batch_moments(f->comm, rows, 2, 2, 1, (dt_dtype)15, mean, variance, &count, NULL));
  REFUSES("does not fit into 2^63 bytes",
          dt_batch_moments(f->comm, rows, INT64_MAX, 2, 1, DT_F64, mean, variance, &count, NULL));
  REFUSES("does not fit into 2^63 bytes",
          dt_batch_moments(f->comm, rows, 2, 2, INT64_MAX, DT_F64, mean, variance, &count, NULL));
  REFUSES("out_mean",
          dt_batch_moments(f->comm, rows, 2, 2, 1, DT_F64, NULL, variance, &count, NULL));
  REFUSES("out_variance",
          dt_batch_moments(f->comm, rows, 2, 2, 1, DT_F64, mean, NULL, &count, NULL));
  REFUSES("out_count",
          dt_batch_moments(f->comm, rows, 2, 2, 1, DT_F64, mean, variance, NULL, NULL));
  REFUSES("no rank has an element",
          dt_batch_moments(f->comm, NULL, 0, 2, 1, DT_F64, mean, variance, &count, NULL));
  EXPECT(count == 77 && mean[0] > 76 && variance[1] > 76);
  OK(dt_batch_moments(f->comm, rows, 2, 2, 1, DT_F64, mean, variance, &count, NULL));
  EXPECT(count == 2 && fabs(mean[0] - 2) <= 0 && fabs(mean[1] - 20) <= 0);
  EXPECT(fabs(variance[0] - 1) <= 0 && fabs(variance[1] - 100) <= 0);

  REFUSES_HANDLES(f, COMM, dt_comm, "comm",
                  dt_batch_gradient_sums(h, rows, rows, 2, 2, 1, DT_F64, mean, variance, 0, sum,
                                         product, NULL));
  REFUSES("input", dt_batch_gradient_sums(f->comm, NULL, rows, 2, 2, 1, DT_F64, mean, variance, 0,
                                          sum, product, NULL));
  REFUSES("gradient", dt_batch_gradient_sums(f->comm, rows, NULL, 2, 2, 1, DT_F64, mean, variance,
                                             0, sum, product, NULL));
  REFUSES("batch is -1", dt_batch_gradient_sums(f->comm, rows, rows, -1, 2, 1, DT_F64, mean,
                                                variance, 0, sum, product, NULL));
  REFUSES("epsilon is -1; it must be finite and >= 0",
          dt_batch_gradient_sums(f->comm, rows, rows, 2, 2, 1, DT_F64, mean, variance, -1, sum,
                                 product, NULL));
  REFUSES("epsilon", dt_batch_gradient_sums(f->comm, rows, rows, 2, 2, 1, DT_F64, mean, variance,
                                            (double)NAN, sum, product, NULL));
  REFUSES("mean", dt_batch_gradient_sums(f->comm, rows, rows, 2, 2, 1, DT_F64, NULL, variance, 0,
                                         sum, product, NULL));
  REFUSES("variance", dt_batch_gradient_sums(f->comm, rows, rows, 2, 2, 1, DT_F64, mean, NULL, 0,
                                             sum, product, NULL));
  REFUSES("out_sum", dt_batch_gradient_sums(f->comm, rows, rows, 2, 2, 1, DT_F64, mean, variance, 0,
                                            NULL, product, NULL));
  REFUSES("out_product", dt_batch_gradient_sums(f->comm, rows, rows, 2, 2, 1, DT_F64, mean,
                                                variance, 0, sum, NULL, NULL));
  EXPECT(sum[0] > 76 && product[1] > 76);
  OK(dt_group_begin(f->comm));
  EXPECT(dt_batch_moments(f->comm, rows, 2, 2, 1, DT_F64, mean, variance, &count, NULL) ==
         DT_ERR_INVALID_STATE);
  EXPECT(dt_batch_gradient_sums(f->comm, rows, rows, 2, 2, 1, DT_F64, mean, variance, 0, sum,
                                product, NULL) == DT_ERR_INVALID_STATE);
  OK(dt_group_end(f->comm, NULL));
  OK(dt_batch_gradient_sums(f->comm, rows, rows, 2, 2, 1, DT_F64, mean, variance, 0, sum, product,
                            NULL));
  EXPECT(fabs(sum[0] - 4) <= 0 && fabs(sum[1] - 40) <= 0);
  EXPECT(fabs(product[0] - 2) <= 0 && fabs(product[1] - 20) <= 0);
}

void test_sampler(const fixture* f) {
  check_sampler_options(f);
  check_sampler_state(f);
  check_sampler_orders();
  dt_sampler_options options;
  dt_sampler* sampler = NULL;
  dt_sampler_options_init(&options);
  options.world_size = 2;
  options.rank = 1;
  options.sequential = 1;
  options.size = 7;
  OK(dt_sampler_create(&options, &sampler));

  int64_t length = 77;
  int64_t indices[4] = {77, 77, 77, 77};
  REFUSES("out_length", dt_sampler_length(sampler, NULL));
  REFUSES_HANDLES(f, SAMPLER, dt_sampler, "sampler", dt_sampler_length(h, &length));
  REFUSES("epoch", dt_sampler_set_epoch(sampler, -1));
  REFUSES_HANDLES(f, SAMPLER, dt_sampler, "sampler", dt_sampler_set_epoch(h, 0));
  REFUSES("first", dt_sampler_indices(sampler, -1, 1, indices));
  REFUSES("first", dt_sampler_indices(sampler, 5, 0, indices));
  REFUSES("count", dt_sampler_indices(sampler, 0, -1, indices));
  REFUSES("count", dt_sampler_indices(sampler, 1, 4, indices));
  REFUSES("count", dt_sampler_indices(sampler, 1, INT64_MAX, indices));
  REFUSES("out_indices", dt_sampler_indices(sampler, 0, 1, NULL));
  REFUSES_HANDLES(f, SAMPLER, dt_sampler, "sampler", dt_sampler_indices(h, 0, 1, indices));
  REFUSES_HANDLES(f, SAMPLER, dt_sampler, "sampler", dt_sampler_check(h, f->comm));
  REFUSES_HANDLES(f, COMM, dt_comm, "comm", dt_sampler_check(sampler, h));
  EXPECT(length == 77 && indices[0] == 77);

  /* 7 samples for 2 ranks: the first is dealt again at the end, and rank 1 has every second. */
  OK(dt_sampler_set_epoch(sampler, 3));
  OK(dt_sampler_length(sampler, &length));
  EXPECT(length == 4);
  OK(dt_sampler_indices(sampler, 0, 4, indices));
  EXPECT(indices[0] == 1 && indices[1] == 3 && indices[2] == 5 && indices[3] == 0);
  OK(dt_sampler_indices(sampler, 2, 1, indices));
  EXPECT(indices[0] == 5);
  OK(dt_sampler_indices(sampler, 4, 0, NULL));
  OK(dt_sampler_check(sampler, f->comm));

  DESTROY_SURVIVES(f, SAMPLER, dt_sampler, dt_sampler_destroy);
  dt_sampler_destroy(sampler);
  dt_sampler_destroy(sampler);
}
