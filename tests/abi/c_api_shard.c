/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "c_api_test.h"

static void check_options(const fixture* f, const dt_param* params) {
  dt_shard* untouched = f->open[SHARD];
  dt_shard_options options;
  dt_shard_options_init(&options);
  REFUSES("out_shard", dt_shard_create(f->comm, params, 2, &options, NULL));
  REFUSES("params", dt_shard_create(f->comm, NULL, 2, &options, &untouched));
  REFUSES("count", dt_shard_create(f->comm, params, 0, &options, &untouched));
  REFUSES_HANDLES(f, COMM, dt_comm, "comm", dt_shard_create(h, params, 2, &options, &untouched));
  options.struct_size = 0;
  REFUSES("dt_shard_options_init", dt_shard_create(f->comm, params, 2, &options, &untouched));
  dt_shard_options_init(&options);
  static const int32_t bad_stages[] = {-1, 4, INT32_MAX};
  for (int32_t i = 0; i < COUNT_OF(bad_stages); ++i) {
    options.stage = bad_stages[i];
    REFUSES("options->stage", dt_shard_create(f->comm, params, 2, &options, &untouched));
  }
  options.stage = 1;
  options.prefetch = -1;
  REFUSES("options->prefetch", dt_shard_create(f->comm, params, 2, &options, &untouched));
  options.prefetch = 0;
  options.shard_ranks = -1;
  REFUSES("options->shard_ranks", dt_shard_create(f->comm, params, 2, &options, &untouched));
  options.shard_ranks = INT32_MAX;
  REFUSES("must be 0 or divide the", dt_shard_create(f->comm, params, 2, &options, &untouched));
  options.shard_ranks = 0;
  options.offload = "";
  REFUSES("options->offload", dt_shard_create(f->comm, params, 2, &options, &untouched));
  options.offload = NULL;
  const int64_t bad_granules[] = {0, -1};
  options.granules = bad_granules;
  REFUSES("options->granules[1]", dt_shard_create(f->comm, params, 2, &options, &untouched));
  options.granules = NULL;
  const int32_t bad_units[] = {0, -1};
  options.units = bad_units;
  REFUSES("options->units[1]", dt_shard_create(f->comm, params, 2, &options, &untouched));
  options.units = NULL;
  int32_t dims[] = {2, -1};
  int64_t shapes[] = {2, 2};
  options.dims = dims;
  REFUSES("options->shapes", dt_shard_create(f->comm, params, 2, &options, &untouched));
  options.shapes = shapes;
  REFUSES("shape (2, 2): it has 3 elements",
          dt_shard_create(f->comm, params, 2, &options, &untouched));
  shapes[0] = -1;
  shapes[1] = -3;
  REFUSES("shape (-1, -3)", dt_shard_create(f->comm, params, 2, &options, &untouched));
  shapes[0] = INT64_MAX;
  shapes[1] = INT64_MAX;
  REFUSES("has 3 elements", dt_shard_create(f->comm, params, 2, &options, &untouched));
  shapes[0] = 1;
  shapes[1] = 3;
  REFUSES("options->dims[1] is -1", dt_shard_create(f->comm, params, 2, &options, &untouched));
  dims[1] = 65;
  REFUSES("options->dims[1] is 65", dt_shard_create(f->comm, params, 2, &options, &untouched));
  options.dims = NULL;
  options.shapes = NULL;
  dt_reducer_options gradients;
  dt_reducer_options_init(&gradients);
  gradients.predivide = -1;
  options.reducer = &gradients;
  REFUSES("predivide", dt_shard_create(f->comm, params, 2, &options, &untouched));
  gradients.predivide = 0;
  const int64_t row_elements[] = {1, 0};
  gradients.row_elements = row_elements;
  REFUSES("row_elements", dt_shard_create(f->comm, params, 2, &options, &untouched));
  // A program built with a shorter struct: the field is not read.
  gradients.struct_size = (uint32_t)offsetof(dt_reducer_options, row_elements);
  gradients.predivide = -1;
  REFUSES("predivide", dt_shard_create(f->comm, params, 2, &options, &untouched));
  gradients.predivide = 0;
  dt_shard* shorter = NULL;
  EXPECT(dt_shard_create(f->comm, params, 2, &options, &shorter) == DT_OK);
  dt_shard_destroy(shorter);
  gradients.struct_size = (uint32_t)sizeof gradients;
  gradients.row_elements = NULL;
  float weight[3];
  void* const grads[] = {weight, NULL};
  gradients.grads = grads;
  REFUSES("options->reducer->grads", dt_shard_create(f->comm, params, 2, &options, &untouched));
  gradients.grads = NULL;
  gradients.tune_steps = 3;
  REFUSES("tune_steps", dt_shard_create(f->comm, params, 2, &options, &untouched));
  gradients.tune_steps = 0;
  gradients.static_graph = 1;
  REFUSES("static_graph", dt_shard_create(f->comm, params, 2, &options, &untouched));
  gradients.struct_size = 0;
  REFUSES("options->reducer", dt_shard_create(f->comm, params, 2, &options, &untouched));
  EXPECT(untouched == f->open[SHARD]);
}

void test_shard(const fixture* f) {
  const dt_param params[] = {{3, "weight", DT_F32, 0}, {0, NULL, DT_F64, 0}};
  check_options(f, params);
  const int64_t granules[] = {2, 0};
  const int32_t units[] = {5, 0};
  dt_shard_options options;
  dt_shard_options_init(&options);
  options.stage = 1;
  options.granules = granules;
  options.units = units;
  dt_shard* shard = NULL;
  OK(dt_shard_create(f->comm, params, 2, &options, &shard));

  dt_reducer* reducer = NULL;
  REFUSES("out_reducer", dt_shard_reducer(shard, NULL));
  REFUSES_HANDLES(f, SHARD, dt_shard, "shard", dt_shard_reducer(h, &reducer));
  EXPECT(reducer == NULL);
  OK(dt_shard_reducer(shard, &reducer));

  static const int32_t bad_indices[] = {-1, 3, INT32_MAX};
  float values[] = {1, 2, 3};
  void* pointer = f->comm;
  int64_t offset = -1, count = -1;
  dt_piece piece;
  dt_piece_init(&piece);
  for (int32_t i = 0; i < COUNT_OF(bad_indices); ++i) {
    REFUSES("index", dt_shard_param(shard, bad_indices[i], &pointer));
    REFUSES("index", dt_shard_set(shard, bad_indices[i], values, NULL));
    REFUSES("index", dt_shard_piece(shard, bad_indices[i], NULL, &piece));
    REFUSES("index", dt_shard_full_grad(shard, bad_indices[i], NULL, values));
    REFUSES("index", dt_shard_plan(shard, bad_indices[i], &offset, &count));
  }
  REFUSES("out_pointer", dt_shard_param(shard, 0, NULL));
  REFUSES("values", dt_shard_set(shard, 0, NULL, NULL));
  REFUSES("out_values", dt_shard_full_grad(shard, 0, NULL, NULL));
  FAILS(DT_ERR_INVALID_STATE, dt_shard_full_grad(shard, 0, NULL, values));
  REFUSES("out_piece", dt_shard_piece(shard, 0, NULL, NULL));
  REFUSES("out_offsets", dt_shard_plan(shard, 0, NULL, &count));
  REFUSES("out_counts", dt_shard_plan(shard, 0, &offset, NULL));
  REFUSES("unit", dt_shard_gather(shard, 1, NULL));
  REFUSES("unit", dt_shard_release(shard, 1, NULL));
  REFUSES_HANDLES(f, SHARD, dt_shard, "shard", dt_shard_param(h, 0, &pointer));
  REFUSES_HANDLES(f, SHARD, dt_shard, "shard", dt_shard_set(h, 0, values, NULL));
  REFUSES_HANDLES(f, SHARD, dt_shard, "shard", dt_shard_piece(h, 0, NULL, &piece));
  REFUSES_HANDLES(f, SHARD, dt_shard, "shard", dt_shard_updated(h, NULL));
  REFUSES_HANDLES(f, SHARD, dt_shard, "shard", dt_shard_full_grad(h, 0, NULL, values));
  REFUSES_HANDLES(f, SHARD, dt_shard, "shard", dt_shard_plan(h, 0, &offset, &count));
  EXPECT(offset == -1 && count == -1);
  OK(dt_shard_plan(shard, 0, &offset, &count));
  EXPECT(offset == 0 && count == 3);
  OK(dt_shard_plan(shard, 1, &offset, &count));
  EXPECT(offset == 0 && count == 0);
  REFUSES_HANDLES(f, SHARD, dt_shard, "shard", dt_shard_gather(h, 5, NULL));
  REFUSES_HANDLES(f, SHARD, dt_shard, "shard", dt_shard_release(h, 5, NULL));
  EXPECT(pointer == (void*)f->comm && piece.param == NULL);
  piece.struct_size = 0;
  REFUSES("struct_size", dt_shard_piece(shard, 0, NULL, &piece));
  dt_piece_init(&piece);

  OK(dt_shard_param(shard, 0, &pointer));
  const float* const weight = pointer;
  EXPECT(pointer != NULL && (uintptr_t)pointer % 256 == 0 && (int)weight[2] == 0);
  REFUSES("pointer", dt_mem_free(f->comm, pointer)); /* the shard's */
  OK(dt_shard_set(shard, 0, values, NULL));
  OK(dt_shard_set(shard, 1, NULL, NULL)); /* it has no elements */
  EXPECT((int)weight[0] == 1 && (int)weight[2] == 3);
  OK(dt_shard_piece(shard, 0, NULL, &piece));
  EXPECT(piece.offset == 0 && piece.count == 3 && piece.param == pointer && piece.grad == NULL);
  OK(dt_shard_piece(shard, 1, NULL, &piece));
  EXPECT(piece.count == 0 && piece.param == NULL && piece.grad == NULL);

  OK(dt_reducer_ready(reducer, 0, values, NULL));
  OK(dt_reducer_ready(reducer, 1, NULL, NULL));
  OK(dt_reducer_finish(reducer, NULL));
  OK(dt_shard_piece(shard, 0, NULL, &piece));
  EXPECT(piece.grad != NULL && (int)((float*)piece.grad)[1] == 2);
  float whole[] = {0, 0, 0};
  OK(dt_shard_full_grad(shard, 0, NULL, whole));
  OK(dt_shard_full_grad(shard, 1, NULL, NULL)); /* it has no elements */
  EXPECT((int)whole[2] == 3);
  ((float*)piece.param)[1] = 7;
  OK(dt_shard_updated(shard, NULL));
  OK(dt_shard_gather(shard, 5, NULL));
  OK(dt_shard_release(shard, 5, NULL));
  OK(dt_shard_gather(shard, 5, NULL));
  EXPECT((int)weight[1] == 7);

  DESTROY_SURVIVES(f, SHARD, dt_shard, dt_shard_destroy);
  dt_shard_destroy(shard);
  dt_shard_destroy(shard);
  FAILS(DT_ERR_INVALID_ARGUMENT, dt_shard_updated(shard, NULL));
  OK(dt_reducer_ready(reducer, 0, values, NULL)); /* goes on without it */
  OK(dt_reducer_ready(reducer, 1, NULL, NULL));
  OK(dt_reducer_finish(reducer, NULL));
  dt_reducer_destroy(reducer);
}

static void check_adamw_options(const fixture* f, dt_shard* shard) {
  static const double bad_shares[] = {-0.1, 1, (double)NAN};
  static const double bad_amounts[] = {-1, (double)INFINITY, (double)NAN};
  dt_optimizer* untouched = f->open[OPTIMIZER];
  dt_adamw_options options;
  dt_adamw_options_init(&options);
  REFUSES("out_optimizer", dt_optimizer_adamw(shard, &options, NULL));
  REFUSES_HANDLES(f, SHARD, dt_shard, "shard", dt_optimizer_adamw(h, &options, &untouched));
  for (int32_t i = 0; i < COUNT_OF(bad_shares); ++i) {
    dt_adamw_options_init(&options);
    options.beta1 = bad_shares[i];
    REFUSES("options->beta1", dt_optimizer_adamw(shard, &options, &untouched));
    dt_adamw_options_init(&options);
    options.beta2 = bad_shares[i];
    REFUSES("options->beta2", dt_optimizer_adamw(shard, &options, &untouched));
    dt_adamw_options_init(&options);
    options.epsilon = bad_amounts[i];
    REFUSES("options->epsilon", dt_optimizer_adamw(shard, &options, &untouched));
    dt_adamw_options_init(&options);
    options.weight_decay = bad_amounts[i];
    REFUSES("options->weight_decay", dt_optimizer_adamw(shard, &options, &untouched));
    const double decays[] = {0, bad_amounts[i]};
    dt_adamw_options_init(&options);
    options.weight_decays = decays;
    REFUSES("options->weight_decays[1]", dt_optimizer_adamw(shard, &options, &untouched));
  }
  dt_adamw_options_init(&options);
  options.skip_non_finite = 2;
  REFUSES("options->skip_non_finite", dt_optimizer_adamw(shard, &options, &untouched));
  options.struct_size = 0;
  REFUSES("dt_adamw_options_init", dt_optimizer_adamw(shard, &options, &untouched));
  EXPECT(untouched == f->open[OPTIMIZER]);
}

static void check_sgd_options(const fixture* f, dt_shard* shard) {
  dt_optimizer* untouched = f->open[OPTIMIZER];
  dt_sgd_options options;
  dt_sgd_options_init(&options);
  REFUSES("out_optimizer", dt_optimizer_sgd(shard, &options, NULL));
  REFUSES_HANDLES(f, SHARD, dt_shard, "shard", dt_optimizer_sgd(h, &options, &untouched));
  options.momentum = -1;
  REFUSES("options->momentum", dt_optimizer_sgd(shard, &options, &untouched));
  dt_sgd_options_init(&options);
  options.dampening = (double)NAN;
  REFUSES("options->dampening", dt_optimizer_sgd(shard, &options, &untouched));
  dt_sgd_options_init(&options);
  options.nesterov = 2;
  REFUSES("options->nesterov", dt_optimizer_sgd(shard, &options, &untouched));
  options.nesterov = 1; /* without a momentum */
  REFUSES("options->nesterov", dt_optimizer_sgd(shard, &options, &untouched));
  dt_sgd_options_init(&options);
  options.weight_decay = -1;
  REFUSES("options->weight_decay", dt_optimizer_sgd(shard, &options, &untouched));
  dt_sgd_options_init(&options);
  options.skip_non_finite = -1;
  REFUSES("options->skip_non_finite", dt_optimizer_sgd(shard, &options, &untouched));
  options.reserved = 1;
  REFUSES("options->reserved", dt_optimizer_sgd(shard, &options, &untouched));
  options.struct_size = 0;
  REFUSES("dt_sgd_options_init", dt_optimizer_sgd(shard, &options, &untouched));
  EXPECT(untouched == f->open[OPTIMIZER]);
}

/* The second parameter is -1.5 before. */
static void check_files(const fixture* f, dt_shard* shard, dt_optimizer* optimizer) {
  const dt_param other = {2, "weight", DT_F32, 0};
  dt_shard* another = NULL;
  dt_optimizer* strange = NULL;
  OK(dt_shard_create(f->comm, &other, 1, NULL, &another));
  OK(dt_optimizer_sgd(another, NULL, &strange));
  static const char path[] = "/nowhere/checkpoint";
  REFUSES("path is NULL", dt_shard_save(shard, optimizer, NULL));
  REFUSES("path is NULL", dt_shard_load(shard, optimizer, NULL));
  REFUSES("path is empty", dt_shard_save(shard, NULL, ""));
  REFUSES("path is empty", dt_shard_load(shard, NULL, ""));
  REFUSES("optimizer is of another shard", dt_shard_save(shard, strange, path));
  REFUSES("optimizer is of another shard", dt_shard_load(shard, strange, path));
  REFUSES_HANDLES(f, SHARD, dt_shard, "shard", dt_shard_save(h, NULL, path));
  REFUSES_HANDLES(f, SHARD, dt_shard, "shard", dt_shard_load(h, NULL, path));
  dt_optimizer_destroy(strange);
  dt_shard_destroy(another);
  REFUSES("optimizer", dt_shard_save(shard, strange, path)); /* it is gone */
  REFUSES("optimizer", dt_shard_load(shard, strange, path));
  FAILS(DT_ERR_SYSTEM, dt_shard_save(shard, optimizer, path));
  FAILS(DT_ERR_SYSTEM, dt_shard_load(shard, optimizer, path));

  char file[] = "/tmp/dt-checkpoint-XXXXXX";
  const int made = mkstemp(file);
  EXPECT(made >= 0);
  close(made);
  void* pointer = NULL;
  const double zero = 0;
  OK(dt_shard_param(shard, 1, &pointer));
  OK(dt_shard_save(shard, optimizer, file));
  OK(dt_shard_set(shard, 1, &zero, NULL));
  OK(dt_shard_load(shard, optimizer, file));
  OK(dt_shard_gather(shard, 0, NULL));
  EXPECT((int)(*(double*)pointer * 2) == -3);
  OK(dt_shard_save(shard, NULL, file));
  REFUSES("has no state of an optimizer", dt_shard_load(shard, optimizer, file));
  OK(dt_shard_load(shard, NULL, file));
  EXPECT(unlink(file) == 0);
}

void test_optimizer(const fixture* f) {
  const dt_param params[] = {{2, "weight", DT_F32, 0}, {1, NULL, DT_F64, 0}};
  dt_shard* shard = NULL;
  dt_reducer* reducer = NULL;
  OK(dt_shard_create(f->comm, params, 2, NULL, &shard));
  OK(dt_shard_reducer(shard, &reducer));
  check_adamw_options(f, shard);
  check_sgd_options(f, shard);

  const dt_param integer = {2, "count", DT_I32, 0};
  dt_shard* integers = NULL;
  dt_optimizer* optimizer = NULL;
  OK(dt_shard_create(f->comm, &integer, 1, NULL, &integers));
  FAILS(DT_ERR_UNSUPPORTED, dt_optimizer_sgd(integers, NULL, &optimizer));
  EXPECT(strstr(dt_last_error(), "\"count\" is of i32") != NULL);
  dt_shard_destroy(integers);

  OK(dt_optimizer_sgd(shard, NULL, &optimizer));
  REFUSES("rate", dt_optimizer_step(optimizer, (double)NAN, NULL));
  REFUSES_HANDLES(f, OPTIMIZER, dt_optimizer, "optimizer", dt_optimizer_step(h, 1, NULL));
  int64_t skipped = -1;
  REFUSES("behind is -1", dt_optimizer_skipped(optimizer, -1, &skipped));
  REFUSES("behind is 8; it must be between 0 and 7", dt_optimizer_skipped(optimizer, 8, &skipped));
  REFUSES("out_skipped", dt_optimizer_skipped(optimizer, 0, NULL));
  REFUSES_HANDLES(f, OPTIMIZER, dt_optimizer, "optimizer", dt_optimizer_skipped(h, 0, &skipped));
  EXPECT(skipped == -1);
  OK(dt_optimizer_skipped(optimizer, 7, &skipped));
  EXPECT(skipped == 0);
  FAILS(DT_ERR_INVALID_STATE, dt_optimizer_step(optimizer, 1, NULL));
  float single[] = {1, 2};
  double wide = 3;
  OK(dt_reducer_ready(reducer, 0, single, NULL));
  OK(dt_reducer_ready(reducer, 1, &wide, NULL));
  OK(dt_reducer_finish(reducer, NULL));
  OK(dt_optimizer_step(optimizer, 0.5, NULL));
  OK(dt_shard_gather(shard, 0, NULL));
  void* pointer = NULL;
  OK(dt_shard_param(shard, 0, &pointer));
  EXPECT((int)(((float*)pointer)[1] * 2) == -2);
  OK(dt_shard_param(shard, 1, &pointer));
  EXPECT((int)(((double*)pointer)[0] * 2) == -3);

  check_files(f, shard, optimizer);

  DESTROY_SURVIVES(f, OPTIMIZER, dt_optimizer, dt_optimizer_destroy);
  dt_shard_destroy(shard);
  dt_reducer_destroy(reducer);
  dt_optimizer_destroy(optimizer);
  dt_optimizer_destroy(optimizer);
}
