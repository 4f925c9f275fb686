/* SPDX-License-Identifier: Apache-2.0 */
#include "c_api_test.h"

static void check_named_options(const fixture* f) {
  dt_named* untouched = f->open[NAMED];
  dt_named_options options;
  dt_named_options_init(&options);
  EXPECT(options.cache == 1024);
  EXPECT(options.fuse_bytes == 67108864);
  EXPECT(options.stall_ms == 60000);
  EXPECT(options.cycle_us == 1000);
  REFUSES("out_named", dt_named_create(f->comm, &options, NULL));
  REFUSES_HANDLES(f, COMM, dt_comm, "comm", dt_named_create(h, &options, &untouched));
  options.struct_size = 1;
  REFUSES("dt_named_options_init", dt_named_create(f->comm, &options, &untouched));
  dt_named_options_init(&options);
  options.cache = -1;
  REFUSES("options->cache", dt_named_create(f->comm, &options, &untouched));
  options.cache = 0;
  options.fuse_bytes = -1;
  REFUSES("options->fuse_bytes", dt_named_create(f->comm, &options, &untouched));
  options.fuse_bytes = 0;
  options.stall_ms = -1;
  REFUSES("options->stall_ms", dt_named_create(f->comm, &options, &untouched));
  options.stall_ms = 0;
  options.cycle_us = -1;
  REFUSES("options->cycle_us", dt_named_create(f->comm, &options, &untouched));
  EXPECT(untouched == f->open[NAMED]);
}

void test_named(const fixture* f) {
  check_named_options(f);
  dt_named* named = NULL;
  OK(dt_named_create(f->comm, NULL, &named));

  float values[4] = {1, 2, 3, 4};
  float more[2] = {5, 6};
  dt_collective one;
  dt_collective two;
  dt_collective_init(&one);
  one.kind = DT_KIND_ALLREDUCE;
  one.dtype = DT_F32;
  one.op = DT_SUM;
  one.send = one.recv = values;
  one.count = 4;
  two = one;
  two.send = two.recv = more;
  two.count = 2;
  dt_work* work = f->open[WORK];
  char long_name[1002];
  memset(long_name, 'x', sizeof long_name - 1);
  long_name[sizeof long_name - 1] = '\0';
  REFUSES_HANDLES(f, NAMED, dt_named, "named", dt_named_submit(h, "a", &one, &work));
  REFUSES("name", dt_named_submit(named, NULL, &one, &work));
  REFUSES("name", dt_named_submit(named, "", &one, &work));
  REFUSES("name has 1001 bytes", dt_named_submit(named, long_name, &one, &work));
  REFUSES("collective", dt_named_submit(named, "a", NULL, &work));
  one.count = -1;
  REFUSES("count", dt_named_submit(named, "a", &one, &work));
  one.count = 4;
  one.kind = DT_KIND_BARRIER;
  FAILS(DT_ERR_UNSUPPORTED, dt_named_submit(named, "a", &one, &work));
  one.kind = DT_KIND_ALLREDUCE;
  EXPECT(work == f->open[WORK]);
  long_name[1000] = '\0';
  OK(dt_named_submit(named, long_name, &one, NULL));
  OK(dt_named_submit(named, "a", &one, &work));
  int32_t done = 0;
  OK(dt_work_wait(work, -1, &done));
  EXPECT(done == 1);
  OK(dt_work_test(work, &done));
  EXPECT(done == 1);
  OK(dt_work_wait_stream(work, NULL));
  int32_t index = -1;
  OK(dt_work_wait_any(&work, 1, -1, &index));
  EXPECT(index == 0);
  dt_work_destroy(work);
  EXPECT(values[3] == 4);

  const char* names[2] = {"a", "b"};
  const dt_collective* all[2];
  all[0] = &one;
  all[1] = &two;
  dt_work* works[2] = {NULL, NULL};
  REFUSES_HANDLES(f, NAMED, dt_named, "named", dt_named_submit_group(h, names, all, 2, works));
  REFUSES("names", dt_named_submit_group(named, NULL, all, 2, works));
  REFUSES("collectives", dt_named_submit_group(named, names, NULL, 2, works));
  REFUSES("count", dt_named_submit_group(named, names, all, 0, works));
  REFUSES("count", dt_named_submit_group(named, names, all, 65537, works));
  names[1] = NULL;
  REFUSES("names[1]", dt_named_submit_group(named, names, all, 2, works));
  names[1] = "a";
  REFUSES("names[1]", dt_named_submit_group(named, names, all, 2, works));
  names[1] = "b";
  EXPECT(works[0] == NULL && works[1] == NULL);
  OK(dt_named_submit_group(named, names, all, 2, works));
  for (int i = 0; i < 2; ++i) {
    OK(dt_work_wait(works[i], -1, NULL));
    dt_work_destroy(works[i]);
  }
  OK(dt_named_submit_group(named, names, all, 2, NULL));
  EXPECT(more[1] == 6);

  dt_named_statistics statistics;
  dt_named_statistics_init(&statistics);
  REFUSES_HANDLES(f, NAMED, dt_named, "named", dt_named_stats(h, &statistics));
  REFUSES("out_statistics", dt_named_stats(named, NULL));
  statistics.struct_size = 3;
  REFUSES("struct_size", dt_named_stats(named, &statistics));
  dt_named_statistics_init(&statistics);
  OK(dt_named_stats(named, &statistics));
  EXPECT(statistics.tensors == 6);
  EXPECT(statistics.fused_tensors == 4);
  EXPECT(statistics.operations == 4);
  EXPECT(statistics.stalls == 0);

  char text[8] = "before";
  int64_t bytes = 0;
  REFUSES_HANDLES(f, NAMED, dt_named, "named", dt_named_report(h, -1, text, 8, &bytes));
  REFUSES("out_bytes", dt_named_report(named, -1, text, 8, NULL));
  REFUSES("capacity_bytes", dt_named_report(named, -1, text, -1, &bytes));
  REFUSES("buffer", dt_named_report(named, -1, NULL, 1, &bytes));
  OK(dt_named_report(named, -1, text, sizeof text, &bytes));
  EXPECT(bytes == 1);
  EXPECT(text[0] == '\0');

  int32_t last = -7;
  REFUSES_HANDLES(f, NAMED, dt_named, "named", dt_named_join(h, -1, &last));
  REFUSES("out_last_rank", dt_named_join(named, -1, NULL));
  OK(dt_named_join(named, -1, &last));
  EXPECT(last == 0);
  OK(dt_named_submit(named, "a", &one, NULL));

  DESTROY_SURVIVES(f, NAMED, dt_named, dt_named_destroy);
  dt_named_destroy(named);
  dt_named_destroy(named);
  REFUSES("named", dt_named_submit(named, "a", &one, &work));
}
