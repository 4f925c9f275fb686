/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "c_api_test.h"

/* A parameter server of this process, alone in its job, and its only worker. */
void open_ps(dt_ps_server** server, dt_ps** ps) {
  dt_config* config = NULL;
  int32_t port = 0;
  char address[32];
  OK(dt_config_create(NULL, &config));
  OK(dt_config_set(config, "ps.servers", "127.0.0.1:0"));
  OK(dt_config_set(config, "ps.index", "0"));
  OK(dt_ps_serve(config, NULL, server));
  OK(dt_ps_server_port(*server, &port));
  snprintf(address, sizeof address, "127.0.0.1:%d", (int)port);
  dt_config_destroy(config);
  OK(dt_config_create(NULL, &config));
  OK(dt_config_set(config, "ps.servers", address));
  OK(dt_ps_connect(config, NULL, ps));
  dt_config_destroy(config);
}

static void check_ps_place(const fixture* f) {
  dt_config* config = NULL;
  dt_ps_place place;
  dt_ps_place_init(&place);
  REFUSES("out_place", dt_ps_info(f->config, NULL));
  REFUSES_HANDLES_BUT_NULL(f, CONFIG, dt_config, "config", dt_ps_info(h, &place));
  FAILS(DT_ERR_CONFIG, dt_ps_info(f->config, &place));
  EXPECT(strstr(dt_last_error(), "--servers") != NULL);
  OK(dt_config_create(NULL, &config));
  OK(dt_config_set(config, "ps.servers", "127.0.0.1:0,127.0.0.1:0"));
  OK(dt_config_set(config, "ps.index", "1"));
  OK(dt_config_set(config, "ps.workers", "3"));
  OK(dt_ps_info(config, &place));
  EXPECT(place.role == DT_PS_SERVER && place.index == 1 && place.servers == 2);
  EXPECT(place.workers == 3 && place.attempt == 0);
  place.struct_size = 1;
  REFUSES("dt_ps_place_init", dt_ps_info(config, &place));
  dt_ps* ps = f->open[PS];
  FAILS(DT_ERR_INVALID_STATE, dt_ps_connect(config, NULL, &ps));
  EXPECT(ps == f->open[PS]);
  dt_config_destroy(config);
}

static void check_ps_server(const fixture* f) {
  dt_ps_server* server = f->open[PS_SERVER];
  dt_ps_server_options options;
  dt_ps_server_options_init(&options);
  EXPECT(options.checkpoint == NULL && options.save_every_ms == 60000);
  EXPECT(options.absent_ms == 10000 && options.arrival_ms == 300000);
  REFUSES("out_server", dt_ps_serve(f->config, NULL, NULL));
  REFUSES_HANDLES_BUT_NULL(f, CONFIG, dt_config, "config", dt_ps_serve(h, NULL, &server));
  options.struct_size = 1;
  REFUSES("dt_ps_server_options_init", dt_ps_serve(f->config, &options, &server));
  dt_ps_server_options_init(&options);
  options.save_every_ms = -1;
  REFUSES("options->save_every_ms", dt_ps_serve(f->config, &options, &server));
  options.save_every_ms = 0;
  options.absent_ms = -1;
  REFUSES("options->absent_ms", dt_ps_serve(f->config, &options, &server));
  options.absent_ms = 0;
  options.arrival_ms = -1;
  REFUSES("options->arrival_ms", dt_ps_serve(f->config, &options, &server));
  options.arrival_ms = 0;
  options.checkpoint = "";
  REFUSES("options->checkpoint", dt_ps_serve(f->config, &options, &server));
  options.checkpoint = "/nonexistent/place";
  FAILS(DT_ERR_SYSTEM, dt_ps_serve(f->config, &options, &server));
  FAILS(DT_ERR_CONFIG, dt_ps_serve(f->config, NULL, &server));
  EXPECT(server == f->open[PS_SERVER]);

  int32_t port = 77;
  int32_t ended = 7;
  dt_ps_server_statistics statistics;
  dt_ps_server_statistics_init(&statistics);
  REFUSES("out_port", dt_ps_server_port(server, NULL));
  REFUSES_HANDLES(f, PS_SERVER, dt_ps_server, "server", dt_ps_server_port(h, &port));
  EXPECT(port == 77);
  REFUSES_HANDLES(f, PS_SERVER, dt_ps_server, "server", dt_ps_server_wait(h, 0, &ended));
  EXPECT(ended == 7);
  OK(dt_ps_server_wait(server, 0, &ended));
  EXPECT(ended == 0);
  REFUSES("out_statistics", dt_ps_server_stats(server, NULL));
  REFUSES_HANDLES(f, PS_SERVER, dt_ps_server, "server", dt_ps_server_stats(h, &statistics));
  OK(dt_ps_server_stats(server, &statistics));
  EXPECT(statistics.workers == 1 && statistics.pushes == 0 && statistics.saves == 0);
  statistics.struct_size = 1;
  REFUSES("dt_ps_server_statistics_init", dt_ps_server_stats(server, &statistics));
  DESTROY_SURVIVES(f, PS_SERVER, dt_ps_server, dt_ps_server_destroy);
}

static void check_ps_connect(const fixture* f) {
  dt_ps* ps = f->open[PS];
  dt_ps_options options;
  dt_ps_options_init(&options);
  EXPECT(options.worker == -1 && options.connect_ms == 300000);
  EXPECT(options.timeout_ms == 1800000 && options.queue_bytes == 268435456);
  REFUSES("out_ps", dt_ps_connect(f->config, NULL, NULL));
  REFUSES_HANDLES_BUT_NULL(f, CONFIG, dt_config, "config", dt_ps_connect(h, NULL, &ps));
  options.struct_size = 1;
  REFUSES("dt_ps_options_init", dt_ps_connect(f->config, &options, &ps));
  dt_ps_options_init(&options);
  options.worker = -2;
  REFUSES("options->worker", dt_ps_connect(f->config, &options, &ps));
  options.worker = 0;
  options.connect_ms = -1;
  REFUSES("options->connect_ms", dt_ps_connect(f->config, &options, &ps));
  options.connect_ms = 0;
  options.queue_bytes = 0;
  REFUSES("options->queue_bytes", dt_ps_connect(f->config, &options, &ps));
  FAILS(DT_ERR_CONFIG, dt_ps_connect(f->config, NULL, &ps));
  EXPECT(ps == f->open[PS]);
}

static int32_t check_ps_variable(const fixture* f, dt_ps* ps) {
  dt_ps_spec spec;
  dt_ps_spec_init(&spec);
  EXPECT(spec.rows == 1 && spec.columns == 1 && spec.rate == 0.01 && spec.optimizer == DT_PS_SGD);
  EXPECT(spec.beta1 == 0.9 && spec.beta2 == 0.999 && spec.epsilon == 1e-8 && spec.momentum == 0);
  EXPECT(spec.initial == DT_PS_CONSTANT && spec.initial_value == 0 && spec.seed == 0);
  int32_t variable = 77;
  REFUSES("spec", dt_ps_variable(ps, NULL, &variable));
  REFUSES("spec->name", dt_ps_variable(ps, &spec, &variable));
  spec.name = "x";
  REFUSES("out_variable", dt_ps_variable(ps, &spec, NULL));
  REFUSES_HANDLES(f, PS, dt_ps, "ps", dt_ps_variable(h, &spec, &variable));
  spec.rows = 0;
  REFUSES("spec->rows", dt_ps_variable(ps, &spec, &variable));
  spec.rows = 4;
  spec.columns = 0;
  REFUSES("spec->columns", dt_ps_variable(ps, &spec, &variable));
  spec.columns = 2;
  spec.nesterov = 2;
  REFUSES("spec->nesterov", dt_ps_variable(ps, &spec, &variable));
  spec.nesterov = 0;
  spec.optimizer = (dt_ps_optimizer)9;
  REFUSES("spec->optimizer", dt_ps_variable(ps, &spec, &variable));
  spec.optimizer = DT_PS_SGD;
  spec.initial = (dt_ps_initial)9;
  REFUSES("spec->initial", dt_ps_variable(ps, &spec, &variable));
  spec.initial = DT_PS_CONSTANT;
  spec.rate = -1;
  REFUSES("spec->rate", dt_ps_variable(ps, &spec, &variable));
  spec.rate = 1;
  spec.reserved = 1;
  REFUSES("spec->reserved", dt_ps_variable(ps, &spec, &variable));
  spec.reserved = 0;
  EXPECT(variable == 77);
  OK(dt_ps_variable(ps, &spec, &variable));
  EXPECT(variable >= 0 && variable < 77);
  spec.rows = 5;
  FAILS(DT_ERR_MISMATCH, dt_ps_variable(ps, &spec, &variable));
  return variable;
}

void test_ps(const fixture* f) {
  check_ps_place(f);
  check_ps_server(f);
  check_ps_connect(f);
  dt_ps_server* server = NULL;
  dt_ps* ps = NULL;
  open_ps(&server, &ps);
  const int32_t x = check_ps_variable(f, ps);
  const int64_t rows[2] = {3, 1};
  const float gradients[4] = {1, 2, 3, 4};
  float values[8] = {0};
  dt_work* work = f->open[WORK];
  REFUSES_HANDLES(f, PS, dt_ps, "ps", dt_ps_push(h, x, rows, 2, gradients, -1, &work));
  REFUSES_HANDLES(f, PS, dt_ps, "ps", dt_ps_pull(h, x, rows, 2, values, &work));
  REFUSES_HANDLES(f, PS, dt_ps, "ps", dt_ps_set(h, x, rows, 2, gradients, &work));
  REFUSES("variable", dt_ps_push(ps, x + 1, rows, 2, gradients, -1, &work));
  REFUSES("rows", dt_ps_push(ps, x, NULL, 2, gradients, -1, &work));
  REFUSES("row_count", dt_ps_push(ps, x, rows, -2, gradients, -1, &work));
  REFUSES("row_count", dt_ps_push(ps, x, rows, -1, gradients, -1, &work));
  REFUSES("gradients", dt_ps_push(ps, x, rows, 2, NULL, -1, &work));
  REFUSES("rate is inf", dt_ps_push(ps, x, rows, 2, gradients, HUGE_VAL, &work));
  REFUSES("rate is", dt_ps_push(ps, x, rows, 2, gradients, NAN, &work));
  REFUSES("values", dt_ps_pull(ps, x, rows, 2, NULL, &work));
  REFUSES("values", dt_ps_set(ps, x, NULL, -1, NULL, &work));
  const int64_t outside[1] = {4};
  REFUSES("rows[0] is 4", dt_ps_pull(ps, x, outside, 1, values, &work));
  EXPECT(work == f->open[WORK]);
  OK(dt_ps_push(ps, x, rows, 2, gradients, -1, &work));
  int32_t done = 0;
  OK(dt_work_wait(work, -1, &done));
  EXPECT(done == 1);
  OK(dt_work_test(work, &done));
  OK(dt_work_wait_stream(work, NULL));
  dt_work_destroy(work);
  OK(dt_ps_push(ps, x, NULL, 0, NULL, -1, NULL));
  OK(dt_ps_pull(ps, x, NULL, -1, values, NULL));
  EXPECT(values[0] == 0 && values[2] == -3 && values[3] == -4 && values[6] == -1);
  OK(dt_ps_set(ps, x, rows, 2, gradients, NULL));
  OK(dt_ps_pull(ps, x, rows, 2, values, NULL));
  EXPECT(values[0] == 1 && values[3] == 4);

  dt_ps_statistics statistics;
  dt_ps_statistics_init(&statistics);
  REFUSES_HANDLES(f, PS, dt_ps, "ps", dt_ps_clock(h, 0));
  REFUSES("ahead", dt_ps_clock(ps, -2));
  OK(dt_ps_clock(ps, 0));
  OK(dt_ps_clock(ps, -1));
  REFUSES_HANDLES(f, PS, dt_ps, "ps", dt_ps_stats(h, &statistics));
  REFUSES("out_statistics", dt_ps_stats(ps, NULL));
  OK(dt_ps_stats(ps, &statistics));
  EXPECT(statistics.pushes == 3 && statistics.pulls == 2 && statistics.clock == 2);
  statistics.struct_size = 1;
  REFUSES("dt_ps_statistics_init", dt_ps_stats(ps, &statistics));
  int32_t fd = -1;
  int32_t again = -1;
  REFUSES_HANDLES(f, PS, dt_ps, "ps", dt_ps_fd(h, &fd));
  REFUSES("out_fd", dt_ps_fd(ps, NULL));
  OK(dt_ps_fd(ps, &fd));
  OK(dt_ps_fd(ps, &again));
  EXPECT(fd >= 0 && fd == again);
  REFUSES_HANDLES(f, PS, dt_ps, "ps", dt_ps_save(h));
  FAILS(DT_ERR_INVALID_STATE, dt_ps_save(ps));
  REFUSES_HANDLES(f, PS, dt_ps, "ps", dt_ps_leave(h));
  OK(dt_ps_leave(ps));
  OK(dt_ps_leave(ps));
  FAILS(DT_ERR_INVALID_STATE, dt_ps_push(ps, x, rows, 2, gradients, -1, NULL));
  dt_ps_destroy(ps);
  int32_t ended = 0;
  OK(dt_ps_server_wait(server, -1, &ended));
  EXPECT(ended == 1);
  dt_ps_server_destroy(server);
  DESTROY_SURVIVES(f, PS, dt_ps, dt_ps_destroy);
}
