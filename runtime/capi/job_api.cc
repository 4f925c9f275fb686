// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/kinds.h"
#include "capi/call.h"
#include "capi/objects.h"
#include "capi/operation.h"
#include "job/host_identity.h"
#include "job/store_options.h"
#include "launch/credentials.h"
#include "launch/facts.h"

namespace dt::capi {
namespace {

constexpr int64_t kMaxBusyMs = int64_t{365} * 24 * 3600 * 1000;

/// A served store: its loop outlives it.
struct StoreServerObject {
  static constexpr HandleKind kKind = HandleKind::kStoreServer;
  std::unique_ptr<net::Loop> loop;
  std::unique_ptr<store::Server> server;
};

/// `path`: read instead of ./dt.toml; empty: none.
Result<Config> load_config(const std::string& path) {
  Config::LoadOptions options;
  options.file = path;
  return Config::load(process_environment(), options);
}

static_assert(DT_KIND_ALLREDUCE == static_cast<int>(backend::Kind::kAllreduce));
static_assert(DT_KIND_REDUCE == static_cast<int>(backend::Kind::kReduce));
static_assert(DT_KIND_BROADCAST == static_cast<int>(backend::Kind::kBroadcast));
static_assert(DT_KIND_ALLGATHER == static_cast<int>(backend::Kind::kAllgather));
static_assert(DT_KIND_REDUCE_SCATTER == static_cast<int>(backend::Kind::kReduceScatter));
static_assert(DT_KIND_BARRIER == static_cast<int>(backend::Kind::kBarrier));
static_assert(DT_KIND_SEND == static_cast<int>(backend::Kind::kSend));
static_assert(DT_KIND_RECV == static_cast<int>(backend::Kind::kRecv));
static_assert(DT_KIND_ALLTOALL == static_cast<int>(backend::Kind::kAlltoall));
static_assert(DT_KIND_ALLTOALLV == static_cast<int>(backend::Kind::kAlltoallv));
static_assert(DT_KIND_GATHER == static_cast<int>(backend::Kind::kGather));
static_assert(DT_KIND_GATHERV == static_cast<int>(backend::Kind::kGatherv));
static_assert(DT_KIND_SCATTER == static_cast<int>(backend::Kind::kScatter));
static_assert(DT_KIND_SCATTERV == static_cast<int>(backend::Kind::kScatterv));
static_assert(DT_KIND_ALLGATHERV == static_cast<int>(backend::Kind::kAllgatherv));
static_assert(DT_KIND_REDUCE_SCATTERV == static_cast<int>(backend::Kind::kReduceScatterv));

dt_stats stats_of(const job::Job& job, uint32_t struct_size) {
  const record::Totals totals = job.meter()->read();
  dt_stats stats;
  dt_stats_init(&stats);
  stats.struct_size = struct_size;
  stats.restarts = job.place().attempt;
  stats.stalls = totals.stalls;
  stats.uncounted = job.recorder() == nullptr ? 0 : job.recorder()->dropped();
  stats.steps = totals.steps.steps;
  stats.step_bytes = totals.steps.bytes;
  stats.communication_ns = totals.steps.communication_ns;
  stats.exposed_ns = totals.steps.exposed_ns;
  stats.hidden_share = record::hidden_share(totals.steps);
  return stats;
}

}  // namespace

Result<ConfigObject::State> config_of(const Call& call, const dt_config* config) {
  if (config == nullptr) {
    DT_TRY_VALUE(auto loaded, load_config({}));
    return ConfigObject::State{std::move(loaded), {}};
  }
  DT_TRY_VALUE(const auto object, call.get<ConfigObject>(config, "config"));
  return object->state.with([](const ConfigObject::State& mine) { return mine; });
}

}  // namespace dt::capi

using namespace dt;
using namespace dt::capi;

extern "C" {

dt_status dt_config_create(const char* path, dt_config** out_config) {
  return guard("dt_config_create", [&](const Call& call) -> Status {
    DT_TRY(call.not_null(out_config, "out_config"));
    DT_TRY_VALUE(auto loaded, load_config(path != nullptr ? path : ""));
    return call.give(std::make_shared<ConfigObject>(ConfigObject::State{std::move(loaded), {}}),
                     out_config);
  });
}

dt_status dt_config_set(dt_config* config, const char* key, const char* value) {
  return guard("dt_config_set", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<ConfigObject>(config, "config"));
    DT_TRY(call.not_null(key, "key"));
    DT_TRY(call.not_null(value, "value"));
    return object->state.with(
        [&](ConfigObject::State& state) { return state.config.set(key, value); });
  });
}

dt_status dt_config_get(const dt_config* config, const char* key, char* buffer,
                        int64_t capacity_bytes, int64_t* out_bytes) {
  return guard("dt_config_get", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<ConfigObject>(config, "config"));
    DT_TRY(call.not_null(key, "key"));
    DT_TRY_VALUE(std::string text, object->state.with([&](const ConfigObject::State& state) {
      return state.config.value_text(key);
    }));
    text.push_back('\0');
    return copy_out(call, text, buffer, capacity_bytes, out_bytes);
  });
}

dt_status dt_config_dump(const dt_config* config, char* buffer, int64_t capacity_bytes,
                         int64_t* out_bytes) {
  return guard("dt_config_dump", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<ConfigObject>(config, "config"));
    std::string text = object->state.with(
        [](const ConfigObject::State& state) { return state.config.dump_json(); });
    text.push_back('\0');
    return copy_out(call, text, buffer, capacity_bytes, out_bytes);
  });
}

dt_status dt_config_set_log_sink(dt_config* config, dt_log_sink sink, void* user_data) {
  return guard("dt_config_set_log_sink", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<ConfigObject>(config, "config"));
    object->state.with([&](ConfigObject::State& state) {
      state.sink = nullptr;
      if (sink == nullptr) return;
      state.sink = [sink, user_data](LogLevel level, const char* message) {
        sink(user_data, static_cast<dt_log_level>(level), message);
      };
    });
    return {};
  });
}

void dt_config_destroy(dt_config* config) { destroy<ConfigObject>(config); }

dt_status dt_init(const dt_config* config, dt_job** out_job) {
  return guard("dt_init", [&](const Call& call) -> Status {
    DT_TRY(call.not_null(out_job, "out_job"));
    DT_TRY_VALUE(auto state, config_of(call, config));
    auto object = std::make_shared<JobObject>();
    DT_TRY_VALUE(object->job, job::Job::start(state.config, std::move(state.sink)));
    return call.give(std::move(object), out_job);
  });
}

dt_status dt_rank_info(dt_job* job, dt_place* out_place) {
  return guard("dt_rank_info", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<JobObject>(job, "job"));
    DT_TRY(call.not_null(out_place, "out_place"));
    DT_TRY(call.known_size(out_place->struct_size, sizeof(dt_place), "out_place", "dt_place_init"));
    const launch::Place& place = object->job->place();
    dt_place filled;
    dt_place_init(&filled);
    filled.struct_size = out_place->struct_size;
    filled.rank = place.rank;
    filled.world_size = place.world_size;
    filled.local_rank = place.local_rank;
    filled.local_size = place.local_size;
    filled.node_rank = place.node_rank;
    filled.node_count = place.node_count;
    filled.attempt = place.attempt;
    filled.master_port = place.master_port;
    copy_text(place.master_addr, filled.master_addr);
    copy_text(place.job_id, filled.job_id);
    copy_text(object->job->host_name(), filled.host);
    copy_text(place.launcher, filled.launcher);
    memcpy(out_place, &filled, std::min<size_t>(filled.struct_size, sizeof filled));
    return {};
  });
}

dt_status dt_abort(dt_job* job, const char* message) {
  return guard("dt_abort", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<JobObject>(job, "job"));
    return object->job->abort(message != nullptr ? message : "no reason given");
  });
}

dt_status dt_busy_begin(dt_job* job, const char* what, int64_t max_ms) {
  return guard("dt_busy_begin", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<JobObject>(job, "job"));
    if (max_ms <= 0 || max_ms > kMaxBusyMs) {
      return call.invalid("max_ms is %lld; how long the pause may take, from 1 to %lld (a year)",
                          static_cast<long long>(max_ms), static_cast<long long>(kMaxBusyMs));
    }
    return object->job->busy(what != nullptr ? what : "something", max_ms);
  });
}

dt_status dt_busy_end(dt_job* job) {
  return guard("dt_busy_end", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<JobObject>(job, "job"));
    return object->job->busy("", 0);
  });
}

dt_status dt_agree(dt_job* job, int32_t agreed, int32_t* out_agreed) {
  return on_job("dt_agree", job, [&](const Call& call, const JobPtr& object) -> Status {
    DT_TRY(call.not_null(out_agreed, "out_agreed"));
    DT_TRY_VALUE(*out_agreed, object->job->vote(agreed != 0 ? 1 : 0, ReduceOp::kMin, "agree"));
    return {};
  });
}

// No guard: a failed one would write this thread's last error, which takes memory.
dt_status dt_request_stop(dt_job* job) {
  return request_stop(job) ? DT_OK : DT_ERR_INVALID_ARGUMENT;
}

dt_status dt_stop_requested(dt_job* job, int32_t* out_stop) {
  return on_job("dt_stop_requested", job, [&](const Call& call, const JobPtr& object) -> Status {
    DT_TRY(call.not_null(out_stop, "out_stop"));
    const bool asked = handle_table().stop_requested(job) || object->job->told_to_stop();
    DT_TRY_VALUE(*out_stop, object->job->vote(asked ? 1 : 0, ReduceOp::kMax, "stop"));
    return {};
  });
}

dt_status dt_trace_dump(dt_job* job, const char* directory) {
  return guard("dt_trace_dump", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<JobObject>(job, "job"));
    const auto written = object->job->dump_trace(directory != nullptr ? directory : "");
    if (written.status().code() != Code::kInvalidArgument) return written.status();
    return call.invalid("%s", written.status().message().c_str());
  });
}

dt_status dt_job_stats(dt_job* job, dt_stats* out_stats) {
  return guard("dt_job_stats", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<JobObject>(job, "job"));
    DT_TRY(call.not_null(out_stats, "out_stats"));
    DT_TRY(call.known_size(out_stats->struct_size, sizeof(dt_stats), "out_stats", "dt_stats_init"));
    const dt_stats filled = stats_of(*object->job, out_stats->struct_size);
    memcpy(out_stats, &filled, std::min<size_t>(filled.struct_size, sizeof filled));
    return {};
  });
}

dt_status dt_job_kind_stats(dt_job* job, dt_kind kind, dt_kind_stats* out_kind) {
  return guard("dt_job_kind_stats", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<JobObject>(job, "job"));
    DT_TRY(call.not_null(out_kind, "out_kind"));
    if (!is_valid(static_cast<Kind>(kind))) {
      return call.invalid("kind is %d, which is no dt_kind", kind);
    }
    const record::Totals totals = object->job->meter()->read();
    const record::Totals::Kind& of = totals.kinds[static_cast<size_t>(kind)];
    *out_kind = {of.operations, of.failures, of.bytes,
                 of.bus_bytes,  of.busy_ns,  record::bus_bandwidth(of)};
    return {};
  });
}

dt_status dt_job_peer_stats(dt_job* job, int32_t rank, dt_peer_stats* out_peer) {
  return guard("dt_job_peer_stats", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<JobObject>(job, "job"));
    DT_TRY(call.not_null(out_peer, "out_peer"));
    const int32_t world_size = object->job->place().world_size;
    if (rank < 0 || rank >= world_size) {
      return call.invalid("rank is %d; it must be in [0, %d)", rank, world_size);
    }
    const record::Totals::Peer peer = object->job->meter()->peer(rank);
    *out_peer = dt_peer_stats{peer.waits, peer.waited_ns};
    return {};
  });
}

dt_status dt_finalize(dt_job* job, int64_t timeout_ms) {
  return guard("dt_finalize", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<JobObject>(job, "job"));
    return object->job->finalize(timeout_ms);
  });
}

void dt_job_destroy(dt_job* job) { destroy<JobObject>(job); }

dt_status dt_store_serve(const dt_config* config, dt_store_server** out_server) {
  return guard("dt_store_serve", [&](const Call& call) -> Status {
    DT_TRY(call.not_null(out_server, "out_server"));
    DT_TRY_VALUE(auto state, config_of(call, config));
    const Config& settings = state.config;
    const LoggerPtr logger = job::make_logger(settings, std::move(state.sink));
    DT_TRY(settings.check_together());
    auto object = std::make_shared<StoreServerObject>();
    DT_TRY_VALUE(object->loop, net::Loop::start());
    store::ServerOptions options = job::store_options(settings);
    options.job_id = settings.text("job.id");
    options.attempt = static_cast<int32_t>(settings.integer("job.attempt"));
    options.world_size =
        static_cast<int32_t>(std::max<int64_t>(settings.integer("job.world_size"), 1));
    DT_TRY(launch::check_world_size(
        {options.world_size,
         "job.world_size (" + settings.source_of("job.world_size").where + ")"}));
    if (!settings.text("store.bind").empty()) options.bind_address = settings.text("store.bind");
    options.port = static_cast<uint16_t>(std::max<int64_t>(settings.integer("job.master_port"), 0));
    options.host = job::host_name();
    options.pid = getpid();
    options.several_jobs = options.any_job = true;
    options.logger = logger;
    DT_TRY_VALUE(const launch::Credentials credentials,
                 launch::find_credentials(settings, process_environment(), false));
    options.security = credentials.security;
    DT_TRY_VALUE(object->server, store::Server::start(object->loop.get(), std::move(options)));
    return call.give(std::move(object), out_server);
  });
}

dt_status dt_store_server_port(dt_store_server* server, int32_t* out_port) {
  return guard("dt_store_server_port", [&](const Call& call) -> Status {
    DT_TRY_VALUE(const auto object, call.get<StoreServerObject>(server, "server"));
    DT_TRY(call.not_null(out_port, "out_port"));
    *out_port = object->server->port();
    return {};
  });
}

void dt_store_server_destroy(dt_store_server* server) { destroy<StoreServerObject>(server); }

}  // extern "C"
