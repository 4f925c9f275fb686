/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs and communicators at world size 1. */
#define _POSIX_C_SOURCE 200809L

#include <stdio.h>
#include <stdlib.h>

#include "c_api_test.h"

static void check_place(const fixture* f) {
  dt_place place;
  dt_place_init(&place);
  REFUSES_HANDLES(f, JOB, dt_job, "job", dt_rank_info(h, &place));
  REFUSES("out_place", dt_rank_info(f->job, NULL));
  place.struct_size = 0;
  place.rank = 77;
  REFUSES("struct_size", dt_rank_info(f->job, &place));
  EXPECT(place.rank == 77);
  dt_place_init(&place);
  OK(dt_rank_info(f->job, &place));
  EXPECT(place.struct_size == sizeof place);
  EXPECT(place.rank == 0 && place.world_size == 1);
  EXPECT(place.local_rank == 0 && place.local_size == 1);
  EXPECT(place.node_rank == 0 && place.node_count == 1);
  EXPECT(place.attempt == 0);
  EXPECT(place.host[0] != '\0');
  EXPECT(place.launcher[0] != '\0');

  /* A program built against a later header brings a larger struct. */
  struct {
    dt_place known;
    char later[64];
  } larger;
  memset(&larger, 0, sizeof larger);
  larger.known.struct_size = (uint32_t)sizeof larger;
  OK(dt_rank_info(f->job, &larger.known));
  EXPECT(larger.known.world_size == 1);
}

/* A job of its own, for what breaks it. */
static void check_abort(const fixture* f) {
  REFUSES_HANDLES(f, JOB, dt_job, "job", dt_abort(h, "why"));
  dt_job* job = NULL;
  dt_comm* comm = NULL;
  float value = 1;
  OK(dt_init(f->config, &job));
  OK(dt_comm_world(job, &comm));
  OK(dt_abort(job, "the loss is not a number"));
  FAILS(DT_ERR_ABORTED, dt_comm_check(comm));
  EXPECT(strstr(dt_last_error(), "the loss is not a number") != NULL);
  dt_error_info info;
  dt_error_info_init(&info);
  OK(dt_last_error_info(&info));
  EXPECT(info.status == DT_ERR_ABORTED && info.rank == 0);
  FAILS(DT_ERR_ABORTED, dt_allreduce(comm, &value, &value, 1, DT_F32, DT_SUM, NULL, NULL));
  FAILS(DT_ERR_ABORTED, dt_finalize(job, -1));
  dt_comm_destroy(comm);
  dt_job_destroy(job);

  OK(dt_init(f->config, &job));
  OK(dt_abort(job, NULL));
  dt_job_destroy(job);
}

/* Pauses, votes and stops of a job of one rank. */
static void check_votes(const fixture* f) {
  int32_t vote = 7;
  REFUSES_HANDLES(f, JOB, dt_job, "job", dt_busy_begin(h, "checkpoint", 1000));
  REFUSES_HANDLES(f, JOB, dt_job, "job", dt_busy_end(h));
  REFUSES_HANDLES(f, JOB, dt_job, "job", dt_agree(h, 1, &vote));
  REFUSES_HANDLES(f, JOB, dt_job, "job", dt_stop_requested(h, &vote));
  EXPECT(vote == 7);
  OK(dt_busy_begin(f->job, "checkpoint", 1000));
  OK(dt_busy_begin(f->job, NULL, 1));
  FAILS(DT_ERR_INVALID_ARGUMENT, dt_busy_begin(f->job, "checkpoint", 0));
  EXPECT(strstr(dt_last_error(), "max_ms is 0") != NULL);
  FAILS(DT_ERR_INVALID_ARGUMENT, dt_busy_begin(f->job, "checkpoint", INT64_MAX));
  OK(dt_busy_end(f->job));
  OK(dt_busy_end(f->job));
  OK(dt_agree(f->job, 5, &vote));
  EXPECT(vote == 1);
  OK(dt_agree(f->job, 0, &vote));
  EXPECT(vote == 0);
  FAILS(DT_ERR_INVALID_ARGUMENT, dt_agree(f->job, 1, NULL));
  FAILS(DT_ERR_INVALID_ARGUMENT, dt_stop_requested(f->job, NULL));

  dt_job* job = NULL;
  OK(dt_init(f->config, &job));
  OK(dt_stop_requested(job, &vote));
  EXPECT(vote == 0);
  EXPECT(dt_request_stop(NULL) == DT_ERR_INVALID_ARGUMENT);
  EXPECT(dt_request_stop((dt_job*)f->comm) == DT_ERR_INVALID_ARGUMENT);
  EXPECT(dt_request_stop((dt_job*)&job) == DT_ERR_INVALID_ARGUMENT);
  OK(dt_request_stop(job));
  OK(dt_stop_requested(job, &vote));
  EXPECT(vote == 1);
  OK(dt_stop_requested(f->job, &vote)); /* another job */
  EXPECT(vote == 0);
  OK(dt_finalize(job, -1));
  FAILS(DT_ERR_INVALID_STATE, dt_stop_requested(job, &vote));
  dt_job_destroy(job);
  EXPECT(dt_request_stop(job) == DT_ERR_INVALID_ARGUMENT);
}

static void check_stats(const fixture* f) {
  dt_stats stats;
  dt_stats_init(&stats);
  EXPECT(stats.struct_size == sizeof stats);
  REFUSES_HANDLES(f, JOB, dt_job, "job", dt_job_stats(h, &stats));
  REFUSES("out_stats is NULL", dt_job_stats(f->job, NULL));
  stats.struct_size = 8;
  REFUSES("struct_size", dt_job_stats(f->job, &stats));
  EXPECT(stats.restarts == 0);
  dt_peer_stats peer = {-1, -1};
  REFUSES_HANDLES(f, JOB, dt_job, "job", dt_job_peer_stats(h, 0, &peer));
  REFUSES("out_peer is NULL", dt_job_peer_stats(f->job, 0, NULL));
  REFUSES("rank is -1; it must be in [0, 1)", dt_job_peer_stats(f->job, -1, &peer));
  REFUSES("rank is 1; it must be in [0, 1)", dt_job_peer_stats(f->job, 1, &peer));
  EXPECT(peer.waits == -1);

  dt_kind_stats kind = {.operations = -1};
  REFUSES_HANDLES(f, JOB, dt_job, "job", dt_job_kind_stats(h, DT_KIND_REDUCE, &kind));
  REFUSES("out_kind is NULL", dt_job_kind_stats(f->job, DT_KIND_REDUCE, NULL));
  REFUSES("kind is 16, which is no dt_kind", dt_job_kind_stats(f->job, (dt_kind)16, &kind));
  REFUSES("kind is -1, which is no dt_kind", dt_job_kind_stats(f->job, (dt_kind)-1, &kind));
  EXPECT(kind.operations == -1);

  dt_config* config = alone();
  OK(dt_config_set(config, "job.attempt", "3"));
  dt_job* job = NULL;
  dt_comm* comm = NULL;
  float value = 1;
  OK(dt_init(config, &job));
  OK(dt_comm_world(job, &comm));
  OK(dt_allreduce(comm, &value, &value, 1, DT_F32, DT_SUM, NULL, NULL));
  OK(dt_finalize(job, -1));
  dt_stats_init(&stats);
  OK(dt_job_stats(job, &stats)); /* also after the end */
  EXPECT(stats.restarts == 3);
  EXPECT(stats.stalls == 0 && stats.uncounted == 0 && stats.steps == 0);
  EXPECT(stats.hidden_share == 1.0);
  OK(dt_job_kind_stats(job, DT_KIND_ALLREDUCE, &kind));
  EXPECT(kind.operations == 1 && kind.bytes == 4);
  EXPECT(kind.bus_bytes == 0); /* nobody to talk to */
  OK(dt_job_kind_stats(job, DT_KIND_REDUCE, &kind));
  EXPECT(kind.operations == 0);
  OK(dt_job_peer_stats(job, 0, &peer));
  EXPECT(peer.waits == 0 && peer.waited_ns == 0);
  dt_comm_destroy(comm);
  dt_job_destroy(job);
  dt_config_destroy(config);
}

/* Written where the call says; what the file holds is tested elsewhere. */
static void check_trace(const fixture* f) {
  REFUSES_HANDLES(f, JOB, dt_job, "job", dt_trace_dump(h, "/tmp"));
  REFUSES("rank 0 knows no directory", dt_trace_dump(f->job, NULL));
  char folder[] = "/tmp/dt-c-trace-XXXXXX";
  char file[64];
  EXPECT(mkdtemp(folder) != NULL);
  snprintf(file, sizeof file, "%s/rank-00000.dttrace", folder);
  OK(dt_trace_dump(f->job, folder));
  FILE* written = fopen(file, "rb");
  char magic[9] = {0};
  EXPECT(written != NULL && fread(magic, 1, 8, written) == 8);
  EXPECT(strcmp(magic, "DTTRACE\n") == 0);
  if (written != NULL) fclose(written);
  FAILS(DT_ERR_SYSTEM, dt_trace_dump(f->job, file)); /* a file, no directory */
  EXPECT(strstr(dt_last_error(), "trace of rank 0") != NULL);
  EXPECT(remove(file) == 0);

  /* A failure writes it by itself, where there is a directory for it. */
  dt_config* config = alone();
  dt_job* job = NULL;
  OK(dt_config_set(config, "trace.dir", folder));
  OK(dt_init(config, &job));
  OK(dt_abort(job, "on purpose"));
  FAILS(DT_ERR_ABORTED, dt_finalize(job, -1));
  EXPECT(remove(file) == 0);
  OK(dt_trace_dump(job, NULL)); /* also after the end */
  EXPECT(remove(file) == 0);
  dt_job_destroy(job);

  OK(dt_config_set(config, "record.entries", "0"));
  OK(dt_init(config, &job));
  FAILS(DT_ERR_INVALID_STATE, dt_trace_dump(job, folder));
  OK(dt_finalize(job, -1));
  dt_job_destroy(job);
  dt_config_destroy(config);
  EXPECT(remove(folder) == 0);
}

static void check_finalize(const fixture* f) {
  REFUSES_HANDLES(f, JOB, dt_job, "job", dt_finalize(h, 0));
  dt_job* job = NULL;
  dt_comm* comm = NULL;
  dt_comm* untouched = f->comm;
  float value = 1;
  OK(dt_init(f->config, &job));
  OK(dt_comm_world(job, &comm));
  OK(dt_finalize(job, -1));
  OK(dt_finalize(job, -1));
  FAILS(DT_ERR_INVALID_STATE, dt_comm_world(job, &untouched));
  EXPECT(untouched == f->comm);
  FAILS(DT_ERR_INVALID_STATE, dt_allreduce(comm, &value, &value, 1, DT_F32, DT_SUM, NULL, NULL));
  FAILS(DT_ERR_INVALID_STATE, dt_store_set(job, "key", "v", 1, -1));
  dt_job_destroy(job);
  dt_job_destroy(job);
  dt_comm_destroy(comm);
}

void test_job(const fixture* f) {
  dt_job* untouched = f->job;
  REFUSES("out_job", dt_init(f->config, NULL));
  REFUSES_HANDLES_BUT_NULL(f, CONFIG, dt_config, "config", dt_init(h, &untouched));
  EXPECT(untouched == f->job);
  dt_config* impossible = alone();
  OK(dt_config_set(impossible, "job.rank", "3"));
  FAILS(DT_ERR_CONFIG, dt_init(impossible, &untouched));
  EXPECT(untouched == f->job);
  OK(dt_config_set(impossible, "job.rank", "0"));
  OK(dt_config_set(impossible, "job.world_size", "2147483647"));
  FAILS(DT_ERR_CONFIG, dt_init(impossible, &untouched));
  EXPECT(strstr(dt_last_error(), "=2147483647; a job has at most 1048576 ranks") != NULL);
  EXPECT(untouched == f->job);
  dt_store_server* server = f->open[STORE_SERVER];
  FAILS(DT_ERR_CONFIG, dt_store_serve(impossible, &server));
  EXPECT(strstr(dt_last_error(), "job.world_size (call)=2147483647; a job has") != NULL);
  EXPECT(server == f->open[STORE_SERVER]);
  dt_config_destroy(impossible);
  check_place(f);
  check_abort(f);
  check_votes(f);
  check_stats(f);
  check_trace(f);
  check_finalize(f);
  DESTROY_SURVIVES(f, JOB, dt_job, dt_job_destroy);
}

void test_comm(const fixture* f) {
  dt_comm* untouched = f->comm;
  REFUSES("out_comm", dt_comm_world(f->job, NULL));
  REFUSES_HANDLES(f, JOB, dt_job, "job", dt_comm_world(h, &untouched));
  REFUSES("out_comm", dt_comm_split(f->comm, 0, 0, NULL));
  REFUSES_HANDLES(f, COMM, dt_comm, "comm", dt_comm_split(h, 0, 0, &untouched));
  REFUSES("out_smaller", dt_comm_shrink(f->comm, NULL));
  REFUSES_HANDLES(f, COMM, dt_comm, "comm", dt_comm_shrink(h, &untouched));
  const int32_t self = 0;
  REFUSES("out_comm", dt_comm_create(f->job, &self, 1, NULL, NULL));
  REFUSES("ranks", dt_comm_create(f->job, NULL, 1, NULL, &untouched));
  REFUSES("count", dt_comm_create(f->job, &self, 0, NULL, &untouched));
  REFUSES_HANDLES(f, JOB, dt_job, "job", dt_comm_create(h, &self, 1, NULL, &untouched));
  REFUSES("out_host", dt_comm_host(f->comm, NULL));
  REFUSES_HANDLES(f, COMM, dt_comm, "comm", dt_comm_host(h, &untouched));
  EXPECT(untouched == f->comm);

  dt_comm* alone = NULL;
  OK(dt_comm_create(f->job, &self, 1, "alone", &alone));
  dt_comm* host = NULL;
  OK(dt_comm_host(alone, &host));
  dt_comm_destroy(alone);
  OK(dt_comm_check(host));
  dt_comm_destroy(host);

  dt_comm* same = NULL;
  int32_t size = 0;
  OK(dt_comm_shrink(f->comm, &same));
  OK(dt_comm_size(same, &size));
  EXPECT(size == 1);
  dt_comm_destroy(same);

  dt_comm* part = NULL;
  OK(dt_comm_split(f->comm, 3, -5, &part));
  EXPECT(part != NULL);
  dt_comm* none = f->comm;
  OK(dt_comm_split(f->comm, -1, 0, &none));
  EXPECT(none == NULL);

  int32_t value = 77;
  REFUSES("out_rank", dt_comm_rank(part, NULL));
  REFUSES_HANDLES(f, COMM, dt_comm, "comm", dt_comm_rank(h, &value));
  REFUSES("out_size", dt_comm_size(part, NULL));
  REFUSES_HANDLES(f, COMM, dt_comm, "comm", dt_comm_size(h, &value));
  REFUSES("out_world_rank", dt_comm_world_rank(part, 0, NULL));
  REFUSES("rank", dt_comm_world_rank(part, -1, &value));
  REFUSES("rank", dt_comm_world_rank(part, 1, &value));
  REFUSES_HANDLES(f, COMM, dt_comm, "comm", dt_comm_world_rank(h, 0, &value));
  EXPECT(value == 77);
  OK(dt_comm_rank(part, &value));
  EXPECT(value == 0);
  OK(dt_comm_size(part, &value));
  EXPECT(value == 1);
  value = 77;
  OK(dt_comm_world_rank(part, 0, &value));
  EXPECT(value == 0);

  REFUSES_HANDLES(f, COMM, dt_comm, "comm", dt_comm_set_timeout(h, 1000));
  OK(dt_comm_set_timeout(part, 0));
  OK(dt_comm_set_timeout(part, 1000));
  OK(dt_comm_set_timeout(part, -1));
  REFUSES_HANDLES(f, COMM, dt_comm, "comm", dt_comm_check(h));
  OK(dt_comm_check(part));

  DESTROY_SURVIVES(f, COMM, dt_comm, dt_comm_destroy);
  dt_comm_destroy(part);
  dt_comm_destroy(part);
  REFUSES("comm", dt_comm_check(part));
}
