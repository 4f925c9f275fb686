// SPDX-License-Identifier: Apache-2.0
#include "launch/ps_place.h"

#include <algorithm>
#include <optional>

#include "config/value.h"
#include "launch/cluster.h"
#include "launch/discover.h"
#include "net/address.h"

namespace dt::launch {
namespace {

/// The part of a key that messages begin with: "DT_PS_INDEX=5", "ps.index (dt.toml:3)=5".
std::string shown_number(const Config& config, const char* key) {
  const ConfigSource& source = config.source_of(key);
  const std::string value = std::to_string(config.integer(key));
  if (source.kind == SourceKind::kEnvironment) {
    return std::string(config::find_key(config::keys(), key)->environment) + "=" + value;
  }
  return format("%s (%s)=%s", key, source.where.c_str(), value.c_str());
}

std::string servers_text(size_t count) {
  return format("%zu parameter server%s", count, count == 1 ? "" : "s");
}

/// A cluster that the environment describes, with this process's task in it.
struct Around {
  const ClusterShape* shape = nullptr;  ///< null: there is none
  ClusterTask task;
  Status broken;  ///< why its text is of no use
};

Around read_around(Variables& variables) {
  Around around;
  const std::string* forced = variables.get("DT_LAUNCHER");
  for (const ClusterShape* shape : {&kTfConfig, &kVertexSpec}) {
    if (forced != nullptr && *forced != shape->launcher) continue;
    const Result<Cluster> cluster = read_cluster(variables, *shape);
    if (cluster.ok() && cluster.value().roles.empty()) continue;
    Result<ClusterTask> task = cluster.ok() ? task_of_cluster(cluster.value(), *shape)
                                            : Result<ClusterTask>(cluster.status());
    if (task.ok()) {
      around.shape = shape;
      around.task = std::move(task).value();
      around.broken = {};
      return around;
    }
    if (around.broken.ok()) around.broken = task.status();
  }
  return around;
}

/// @param may_choose a server may leave its port, "host:0", to the kernel
Result<std::vector<std::string>> check_addresses(const std::vector<std::string>& given,
                                                 const std::string& shown, bool may_choose) {
  std::vector<std::string> addresses;
  for (const std::string& text : given) {
    if (may_choose && text.size() > 2 && text.compare(text.size() - 2, 2, ":0") == 0 &&
        net::parse_host(text.substr(0, text.size() - 2))) {
      addresses.push_back(text);
      continue;
    }
    const auto parsed = net::parse_host_maybe_port(text);
    if (!parsed || parsed->port == 0) {
      return launch_error("bad_address", shown + ": " + config::quoted(text) +
                                             "; expected host:port with a port from 1 to 65535, "
                                             "an IPv6 address in brackets");
    }
    std::string address = net::host_port_text(parsed->host, parsed->port);
    if (std::find(addresses.begin(), addresses.end(), address) != addresses.end()) {
      return launch_error("bad_address", shown + " names " + address +
                                             " twice; each parameter server has an address of its "
                                             "own");
    }
    addresses.push_back(std::move(address));
  }
  return addresses;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

Result<std::vector<std::string>> find_servers(Config& config, const Around& around) {
  const std::string& text = config.text("ps.servers");
  if (!text.empty()) {
    const ConfigSource& source = config.source_of("ps.servers");
    return check_addresses(split(text),
                           source.kind == SourceKind::kEnvironment
                               ? "DT_PS_SERVERS"
                               : "ps.servers (" + source.where + ")",
                           config.integer("ps.index") >= 0);
  }
  if (!around.broken.ok()) return around.broken;
  if (around.shape == nullptr || around.task.servers.empty()) {
    return launch_error(
        "no_servers",
        "this job has no parameter servers: ps.servers is empty, and no TF_CONFIG with ps tasks is "
        "set; start it with dt run --servers N, or give ps.servers (DT_PS_SERVERS=host:port,"
        "host:port), or a TF_CONFIG with ps tasks");
  }
  const std::string where =
      format("%s cluster.%s", around.shape->variable, around.shape->servers.name);
  DT_TRY_VALUE(auto servers, check_addresses(around.task.servers, where, false));
  std::string joined;
  for (const std::string& address : servers) joined += (joined.empty() ? "" : ",") + address;
  DT_TRY(config.set_discovered("ps.servers", joined,
                               std::string(around.shape->launcher) + ": " + where));
  return servers;
}

/// A server that ps.index names.
Status take_own_server(Config& config, const Environment& environment, Variables& variables,
                       PsPlace* place) {
  const int64_t index = config.integer("ps.index");
  if (index >= static_cast<int64_t>(place->servers.size())) {
    return launch_error("out_of_range", format("%s, but this job has %s; the index counts from 0",
                                               shown_number(config, "ps.index").c_str(),
                                               servers_text(place->servers.size()).c_str()));
  }
  place->role = PsRole::kServer;
  place->index = static_cast<int32_t>(index);
  const bool variable = config.source_of("ps.index").kind == SourceKind::kEnvironment;
  if (!variable) {
    place->launcher = "config";
    return {};
  }
  place->launcher = environment.count("DT_LAUNCHER_PID") != 0 ? "dt run" : "env";
  constexpr int32_t kFirstFd = 3;  // behind stdin, stdout and stderr
  DT_TRY_VALUE(const std::optional<int32_t> fd,
               variables.integer("DT_PS_LISTEN_FD", kFirstFd, INT32_MAX));
  place->listen_fd = fd.value_or(-1);
  return {};
}

/// A server or an evaluator of the cluster around. False: neither.
Result<bool> take_task(Config& config, const Around& around, PsPlace* place) {
  const bool serves = around.task.kind == TaskKind::kServer;
  if (around.shape == nullptr || !(serves || around.task.kind == TaskKind::kEvaluator)) {
    return false;
  }
  place->role = serves ? PsRole::kServer : PsRole::kEvaluator;
  place->index = around.task.index;
  place->launcher = around.shape->launcher;
  if (!serves) return true;
  const auto count = static_cast<int32_t>(place->servers.size());
  if (place->index >= count) {  // ps.servers goes before the cluster
    return launch_error(
        "out_of_range",
        format("%s task.index=%d, but ps.servers names %s; leave ps.servers out",
               around.shape->variable, place->index, servers_text(place->servers.size()).c_str()));
  }
  DT_TRY(config.set_discovered("ps.index", std::to_string(place->index),
                               place->launcher + ": " + around.shape->variable + " task.index"));
  return true;
}

Status take_worker(const Place& found, PsPlace* place) {
  if (found.rank < 0) {
    return launch_error("partial",
                        "the rank of this process is settled only when all ranks have met, and a "
                        "worker of parameter servers needs it before; set DT_RANK and "
                        "DT_WORLD_SIZE");
  }
  place->role = PsRole::kWorker;
  place->index = found.rank;
  place->workers = found.world_size;
  place->launcher = found.launcher;
  return {};
}

Status settle_workers(const Config& config, const Around& around, PsPlace* place) {
  const auto given = static_cast<int32_t>(config.integer("ps.workers"));
  if (given == 0) {
    if (place->workers == 0 && around.shape != nullptr) place->workers = around.task.workers;
    return {};
  }
  place->workers = given;
  if (place->role != PsRole::kWorker || place->index < given) return {};
  return launch_error("out_of_range",
                      format("%s, but this process is worker %d; workers count "
                             "from 0",
                             shown_number(config, "ps.workers").c_str(), place->index));
}

}  // namespace

Result<PsPlace> resolve_ps_place(Config& config, const Environment& environment) {
  Variables variables(environment);
  const Around around = read_around(variables);
  PsPlace place;
  DT_TRY_VALUE(place.servers, find_servers(config, around));
  if (config.integer("ps.index") >= 0) {
    DT_TRY(take_own_server(config, environment, variables, &place));
  } else {
    // A launcher inside the task, such as dt run, makes it a worker.
    const Result<Place> found = resolve_place(config, environment);
    bool taken = false;
    if (!found.ok() && !config.given("ps.index")) {
      DT_TRY_VALUE(taken, take_task(config, around, &place));
    }
    if (!taken) {
      if (!found.ok() && !around.broken.ok()) return around.broken;
      DT_TRY(found.status());
      DT_TRY(take_worker(found.value(), &place));
    }
  }
  DT_TRY(settle_workers(config, around, &place));
  // What a launcher calls its job is known to the workers only: it does not start the servers.
  if (config.given("job.id")) place.job_id = config.text("job.id");
  place.attempt = static_cast<int32_t>(config.integer("job.attempt"));
  return place;
}

Status check_not_a_server(const Config& config) {
  const int64_t index = config.integer("ps.index");
  if (index < 0) return {};
  const std::string& servers = config.text("ps.servers");
  std::string who = format("parameter server %lld", static_cast<long long>(index));
  if (!servers.empty()) {
    who += format(" of %td", 1 + std::count(servers.begin(), servers.end(), ','));
  }
  return launch_error("not_a_worker", "this process is " + who + " (" +
                                          shown_number(config, "ps.index") +
                                          "): it calls dt_ps_serve instead of dt_init");
}

}  // namespace dt::launch
