// SPDX-License-Identifier: Apache-2.0
#include "cli/run/environment.h"

#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <set>
#include <utility>

#include "base/cgroup.h"
#include "base/numa.h"
#include "launch/facts.h"

namespace dt::cli {

namespace {

using Settings = std::vector<std::pair<std::string, std::string>>;

/// Of every process of the job.
Settings job_settings(const JobPlace& place) {
  Settings set = {
      {"DT_JOB_ID", place.job_id},
      {"DT_ATTEMPT", std::to_string(place.attempt)},
      {"DT_LAUNCHER_PID", std::to_string(place.agent_pid)},
      {"DT_RUN_TTY", place.terminal ? "1" : "0"},
      {launch::kLaunchesAround, place.around},
  };
  if (!place.token.empty()) set.emplace_back("DT_TOKEN", place.token);
  if (place.omp_num_threads > 0) {
    set.emplace_back("OMP_NUM_THREADS", std::to_string(place.omp_num_threads));
  }
  if (place.servers.empty()) return set;
  std::string servers;
  for (const std::string& address : place.servers) {
    servers += (servers.empty() ? "" : ",") + address;
  }
  set.emplace_back("DT_PS_SERVERS", servers);
  return set;
}

/// What makes a process the rank that it is.
Settings rank_settings(const JobPlace& place, int local_rank) {
  const std::string rank = std::to_string(place.first_rank + local_rank);
  const std::string world_size = std::to_string(place.world_size);
  const std::string local = std::to_string(local_rank);
  const std::string local_size = std::to_string(place.local_size);
  const std::string node = std::to_string(place.node_rank);
  const std::string nodes = std::to_string(place.node_count);
  return {
      {"DT_RANK", rank},
      {"DT_WORLD_SIZE", world_size},
      {"DT_LOCAL_RANK", local},
      {"DT_LOCAL_SIZE", local_size},
      {"DT_NODE_RANK", node},
      {"DT_NODE_COUNT", nodes},
      {"DT_MASTER_ADDR", place.store_host},
      {"DT_MASTER_PORT", std::to_string(place.store_port)},
      {"DT_STORE_SERVED", "true"},
      // as torchrun does, for programs that do not use dt
      {"RANK", rank},
      {"WORLD_SIZE", world_size},
      {"LOCAL_RANK", local},
      {"LOCAL_WORLD_SIZE", local_size},
      {"GROUP_RANK", node},
      {"GROUP_WORLD_SIZE", nodes},
      {"NODE_RANK", node},
      {"ROLE_NAME", "default"},
      {"ROLE_RANK", rank},
      {"ROLE_WORLD_SIZE", world_size},
      {"MASTER_ADDR", place.master_host},
      {"MASTER_PORT", std::to_string(place.master_port)},
      {"TORCHELASTIC_RUN_ID", place.job_id},
      {"TORCHELASTIC_RESTART_COUNT", std::to_string(place.attempt)},
      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(place.max_restarts)},
      // Tells PyTorch's rank 0 whether to be a client of that store instead of binding the port.
      {"TORCHELASTIC_USE_AGENT_STORE", place.torch_store ? "True" : "False"},
  };
}

// Variables of a job inside which this dt run was started.
constexpr const char* kForeign[] = {
    "DT_LAUNCHER",  // it would make each rank one of another launcher, or a job of its own
    "TORCHELASTIC_ERROR_FILE",
    "DT_JOB_STORE_RELAY_PORT",
    "DT_JOB_STORE_RELAY_ADDRESS",
    "DT_PS_INDEX",
    "DT_PS_LISTEN_FD"};
// What else would make a rank of a parameter server.
constexpr const char* kClusters[] = {"TF_CONFIG", "CLUSTER_SPEC"};

/// `inherited` without the variables in `removed`, and with those in `set` and their names.
std::vector<std::string> merge(const std::vector<std::string>& inherited,
                               std::set<std::string> removed, Settings set) {
  std::string names = launch::kNamesSet;
  for (const auto& [name, value] : set) {
    if (name != "DT_TOKEN") names += " " + name;
  }
  set.emplace_back(launch::kNamesSet, names);
  for (const auto& entry : set) removed.insert(entry.first);
  std::vector<std::string> environment;
  for (const std::string& variable : inherited) {
    if (removed.count(variable.substr(0, variable.find('='))) == 0) {
      environment.push_back(variable);
    }
  }
  for (const auto& entry : set) environment.push_back(entry.first + "=" + entry.second);
  return environment;
}

}  // namespace

std::vector<std::string> rank_environment(const JobPlace& place, int local_rank,
                                          const std::vector<std::string>& inherited) {
  Settings set = rank_settings(place, local_rank);
  const Settings job = job_settings(place);
  set.insert(set.end(), job.begin(), job.end());
  if (place.relay_port != 0) {
    set.emplace_back("DT_JOB_STORE_RELAY_PORT", std::to_string(place.relay_port));
    set.emplace_back("DT_JOB_STORE_RELAY_ADDRESS", place.relay_address);
  }
  if (!place.error_folder.empty()) {
    set.emplace_back("TORCHELASTIC_ERROR_FILE", error_file(place, local_rank));
  }
  set.insert(set.end(), place.variables.begin(), place.variables.end());
  std::set<std::string> removed(std::begin(kForeign), std::end(kForeign));
  if (!place.servers.empty()) removed.insert("DT_PS_WORKERS");
  return merge(inherited, std::move(removed), std::move(set));
}

std::vector<std::string> server_environment(const JobPlace& place, int local_server, int listen_fd,
                                            const std::vector<std::string>& inherited) {
  Settings set = job_settings(place);
  set.emplace_back("DT_PS_INDEX", std::to_string(place.first_server + local_server));
  set.emplace_back("DT_PS_WORKERS", std::to_string(place.world_size));
  set.emplace_back("DT_PS_LISTEN_FD", std::to_string(listen_fd));
  std::set<std::string> removed(std::begin(kForeign), std::end(kForeign));
  removed.insert(std::begin(kClusters), std::end(kClusters));
  for (const auto& entry : rank_settings(place, 0)) removed.insert(entry.first);
  return merge(inherited, std::move(removed), std::move(set));
}

std::string error_file(const JobPlace& place, int local_rank) {
  return place.error_folder + format("/rank-%04d.error.json", place.first_rank + local_rank);
}

std::vector<std::string> current_environment() {
  std::vector<std::string> variables;
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    variables.emplace_back(*variable);
  }
  return variables;
}

Result<std::string> random_job_id() {
  uint64_t bits = 0;
  if (getrandom(&bits, sizeof bits, 0) != static_cast<ssize_t>(sizeof bits)) {
    return Status(Code::kSystem, "no random number for the job id: " + errno_text(errno));
  }
  return format("%016llx", static_cast<unsigned long long>(bits));
}

Result<ReservedPort> reserve_port() {
  ReservedPort reserved;
  reserved.socket.reset(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);  // ranks may listen on any address
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (!reserved.socket.is_open() ||
      setsockopt(reserved.socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      bind(reserved.socket.get(), generic, sizeof address) != 0 ||
      getsockname(reserved.socket.get(), generic, &length) != 0) {
    return Status(Code::kSystem, "cannot reserve a port: " + errno_text(errno));
  }
  reserved.port = ntohs(address.sin_port);
  return reserved;
}

UsableCores usable_cores(size_t allowed, double quota) {
  const int count = std::max(1, static_cast<int>(allowed));
  if (quota < 0 || quota >= count) return {count, false};
  return {std::max(1, static_cast<int>(quota)), true};
}

Threads threads_per_rank(int own_cores, const UsableCores& usable, int ranks) {
  const int share = std::max(1, usable.count / ranks);
  if (own_cores > 0 && own_cores <= share) return {own_cores, "the cores of each rank (--bind)"};
  return {share, format("%d cores%s for %d ranks", usable.count,
                        usable.by_quota ? " (the quota of the control group)" : "", ranks)};
}

UsableCores usable_cores() {
  return usable_cores(allowed_cpus().size(), cpu_quota("/proc", "/sys"));
}

}  // namespace dt::cli
