/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "c_api_test.h"

static void check_outer_options(const fixture* f, float* weight) {
  dt_outer* untouched = f->open[OUTER];
  dt_outer_options options;
  dt_outer_options_init(&options);
  dt_outer_param param = {weight, 4, NULL, DT_F32, 0};
  REFUSES_HANDLES(f, COMM, dt_comm, "comm", dt_outer_create(h, &param, 1, &options, &untouched));
  REFUSES("params", dt_outer_create(f->comm, NULL, 1, &options, &untouched));
  REFUSES("count", dt_outer_create(f->comm, &param, 0, &options, &untouched));
  REFUSES("out_outer", dt_outer_create(f->comm, &param, 1, &options, NULL));
  param.dtype = DT_F64;
  REFUSES("params[0].dtype is f64", dt_outer_create(f->comm, &param, 1, &options, &untouched));
  param.dtype = (dt_dtype)99;
  REFUSES("no dt_dtype", dt_outer_create(f->comm, &param, 1, &options, &untouched));
  param.dtype = DT_F32;
  param.count = -1;
  REFUSES("params[0].count", dt_outer_create(f->comm, &param, 1, &options, &untouched));
  param.count = INT64_MAX;
  REFUSES("params[0].count", dt_outer_create(f->comm, &param, 1, &options, &untouched));
  param.count = 4;
  param.data = NULL;
  REFUSES("params[0].data", dt_outer_create(f->comm, &param, 1, &options, &untouched));
  param.data = weight;
  param.reserved = 1;
  REFUSES("params[0].reserved", dt_outer_create(f->comm, &param, 1, &options, &untouched));
  param.reserved = 0;
  options.sync_every = 0;
  REFUSES("sync_every", dt_outer_create(f->comm, &param, 1, &options, &untouched));
  options.sync_every = 6;
  options.fragments = 4;
  REFUSES("fragments", dt_outer_create(f->comm, &param, 1, &options, &untouched));
  options.fragments = 3;
  static const int64_t bad_delays[] = {-1, 2, INT64_MAX};
  for (int32_t i = 0; i < COUNT_OF(bad_delays); ++i) {
    options.delay = bad_delays[i];
    REFUSES("delay", dt_outer_create(f->comm, &param, 1, &options, &untouched));
  }
  options.delay = 1;
  const double bad_numbers[] = {-0.5, 1.5, (double)NAN, (double)INFINITY};
  for (int32_t i = 0; i < COUNT_OF(bad_numbers); ++i) {
    options.alpha = bad_numbers[i];
    REFUSES("alpha", dt_outer_create(f->comm, &param, 1, &options, &untouched));
    options.alpha = 0;
    options.momentum = bad_numbers[i];
    REFUSES("momentum", dt_outer_create(f->comm, &param, 1, &options, &untouched));
    options.momentum = 0;
    options.rate = bad_numbers[i] > 1 && bad_numbers[i] < 2 ? -1 : bad_numbers[i];
    REFUSES("rate", dt_outer_create(f->comm, &param, 1, &options, &untouched));
    options.rate = 1;
  }
  options.nesterov = 2;
  REFUSES("nesterov", dt_outer_create(f->comm, &param, 1, &options, &untouched));
  options.nesterov = 0;
  options.format = (dt_outer_format)4;
  REFUSES("format", dt_outer_create(f->comm, &param, 1, &options, &untouched));
  options.format = DT_OUTER_4BIT;
  options.struct_size = 0;
  REFUSES("dt_outer_options_init", dt_outer_create(f->comm, &param, 1, &options, &untouched));
  EXPECT(untouched == f->open[OUTER]);
}

void test_outer(const fixture* f) {
  float weight[] = {1, 2, 3, 4};
  check_outer_options(f, weight);
  const dt_outer_param params[] = {{weight, 4, "weight", DT_F32, 0}, {NULL, 0, NULL, DT_BF16, 0}};
  dt_outer_options options;
  dt_outer_options_init(&options);
  options.sync_every = 2;
  options.rate = 0.5;
  options.momentum = 0;
  dt_outer* outer = NULL;
  OK(dt_outer_create(f->comm, params, 2, &options, &outer));
  REFUSES_HANDLES(f, OUTER, dt_outer, "outer", dt_outer_step(h, NULL));
  REFUSES_HANDLES(f, OUTER, dt_outer, "outer", dt_outer_sync(h));
  int64_t steps = -1;
  REFUSES_HANDLES(f, OUTER, dt_outer, "outer", dt_outer_steps(h, &steps));
  REFUSES("out_steps", dt_outer_steps(outer, NULL));
  EXPECT(steps == -1);
  REFUSES_HANDLES(f, OUTER, dt_outer, "outer", dt_outer_move(h, f->comm));
  REFUSES_HANDLES(f, COMM, dt_comm, "comm", dt_outer_move(outer, h));
  REFUSES_HANDLES(f, OUTER, dt_outer, "outer", dt_outer_save(h, "x"));
  REFUSES_HANDLES(f, OUTER, dt_outer, "outer", dt_outer_load(h, "x"));
  REFUSES("path", dt_outer_save(outer, NULL));
  REFUSES("path is empty", dt_outer_save(outer, ""));
  REFUSES("path", dt_outer_load(outer, NULL));
  FAILS(DT_ERR_SYSTEM, dt_outer_save(outer, "/nowhere/outer"));
  FAILS(DT_ERR_SYSTEM, dt_outer_load(outer, "/nowhere/outer"));

  int32_t changed = -1;
  for (int i = 0; i < 4; ++i) weight[i] += 2;
  OK(dt_outer_step(outer, &changed));
  EXPECT(changed == 0 && (int)weight[0] == 3);
  OK(dt_outer_step(outer, &changed));
  EXPECT(changed == 1 && (int)weight[0] == 2 && (int)weight[3] == 5);
  OK(dt_outer_step(outer, NULL));
  weight[1] += 4;
  OK(dt_outer_sync(outer));
  EXPECT((int)weight[1] == 5 && (int)weight[0] == 2);
  OK(dt_outer_steps(outer, &steps));
  EXPECT(steps == 3);
  OK(dt_outer_move(outer, f->comm));

  DESTROY_SURVIVES(f, OUTER, dt_outer, dt_outer_destroy);
  dt_outer_destroy(outer);
  dt_outer_destroy(outer);
}
