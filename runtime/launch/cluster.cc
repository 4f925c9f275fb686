// SPDX-License-Identifier: Apache-2.0
#include "launch/cluster.h"

#include "config/value.h"

namespace dt::launch {
namespace {

bool is_role(const ClusterRole& role, const std::string& name) {
  return name == role.name || (role.other_name != nullptr && name == role.other_name);
}

const Cluster::Role* find_role(const Cluster& cluster, const ClusterRole& role) {
  for (const char* name : {role.name, role.other_name}) {
    if (name == nullptr) continue;
    const auto found = cluster.roles.find(name);
    if (found != cluster.roles.end()) return &found->second;
  }
  return nullptr;
}

TaskKind kind_of(const std::string& type, const ClusterShape& shape) {
  for (const ClusterRole& role : shape.workers) {
    if (is_role(role, type)) return TaskKind::kWorker;
  }
  if (is_role(shape.servers, type)) return TaskKind::kServer;
  return is_role(shape.evaluators, type) ? TaskKind::kEvaluator : TaskKind::kOther;
}

/// The tasks that are ranks, as one task sees them.
struct WorkerCount {
  int64_t all = 0;
  int64_t before = 0;                   ///< in the roles before the task's
  int64_t own = 0;                      ///< in its role
  const std::string* leader = nullptr;  ///< address of the first; null: there is none
  const char* sparse = nullptr;  ///< a role of which the cluster names some tasks only; null none
};

WorkerCount count_workers(const Cluster& cluster, const ClusterShape& shape) {
  WorkerCount count;
  for (const ClusterRole& role : shape.workers) {
    const Cluster::Role* tasks = find_role(cluster, role);
    const auto size = tasks == nullptr ? 0 : static_cast<int64_t>(tasks->addresses.size());
    if (tasks != nullptr && tasks->sparse && count.sparse == nullptr) count.sparse = role.name;
    if (count.leader == nullptr && size > 0) count.leader = &tasks->addresses.front();
    if (is_role(role, cluster.task_type)) {
      count.before = count.all;
      count.own = size;
    }
    count.all += size;
  }
  return count;
}

Status check_task_index(const Cluster& cluster, const ClusterShape& shape, int64_t tasks) {
  if (cluster.task_index.value_or(0) < tasks) return {};
  return launch_error("out_of_range",
                      format("%s task.index=%d, but its cluster has %lld tasks of type %s; "
                             "give every task the same cluster, itself included",
                             shape.variable, cluster.task_index.value_or(0),
                             static_cast<long long>(tasks), cluster.task_type.c_str()));
}

Status check_task_type(const std::string& type, const ClusterShape& shape) {
  const TaskKind kind = kind_of(type, shape);
  if (kind == TaskKind::kWorker) return {};
  std::string names;
  for (const ClusterRole& role : shape.workers) {
    names += (names.empty() ? "" : " and ") + std::string(role.name);
  }
  const std::string shown = std::string(shape.variable) + " task.type=" + config::quoted(type);
  if (kind == TaskKind::kOther) {
    return launch_error("not_a_worker", shown + " is unknown and takes no rank in dt; expected " +
                                            names + "; call dt_init in such tasks only");
  }
  const char* duty = kind == TaskKind::kServer
                         ? "a parameter server: call dt_ps_serve in it"
                         : "an evaluator: let it read checkpoints, or parameters after "
                           "dt_ps_connect";
  return launch_error("not_a_worker", shown + " takes no rank in dt. It is " + duty +
                                          ". Call dt_init in tasks of type " + names + " only");
}

}  // namespace

Result<Cluster> read_cluster(Variables& variables, const ClusterShape& shape) {
  const std::string* text = variables.get(shape.variable);
  if (text == nullptr) return Cluster();
  if (shape.mark != nullptr && text->find(shape.mark) == std::string::npos) {
    variables.warn("other_cluster_spec: " + variables.shown(shape.variable) + " names no " +
                   shape.mark + ", so it is not Vertex AI's and does not count");
    return Cluster();
  }
  return parse_cluster(variables.shown(shape.variable), *text);
}

Result<Facts> facts_of_cluster(const Cluster& cluster, const ClusterShape& shape) {
  Facts facts;
  facts.launcher = shape.launcher;
  const std::string where = shape.variable;
  if (cluster.roles.empty()) return facts;
  if (cluster.task_type.empty()) {
    facts.intention = where + " names a cluster";
    return facts;
  }
  DT_TRY(check_task_type(cluster.task_type, shape));
  const WorkerCount count = count_workers(cluster, shape);
  if (count.sparse != nullptr) {
    facts.intention = where + " names some tasks of " + count.sparse + " only";
    return facts;
  }
  DT_TRY(check_task_index(cluster, shape, count.own));
  facts.at(Field::kRank) = NumberFact{
      static_cast<int32_t>(count.before) + cluster.task_index.value_or(0), where + " task.index"};
  facts.at(Field::kWorldSize) = NumberFact{static_cast<int32_t>(count.all), where + " cluster"};
  DT_TRY_VALUE(net::HostPort address, parse_host_port(where, *count.leader));
  facts.master_addr = TextFact{std::move(address.host), where};
  if (address.port != 0) facts.at(Field::kMasterPort) = NumberFact{address.port, where};
  set_one_per_node(facts);
  return facts;
}

Result<ClusterTask> task_of_cluster(const Cluster& cluster, const ClusterShape& shape) {
  ClusterTask task;
  task.kind = kind_of(cluster.task_type, shape);
  task.index = cluster.task_index.value_or(0);
  const WorkerCount count = count_workers(cluster, shape);
  if (count.sparse == nullptr) task.workers = static_cast<int32_t>(count.all);
  if (const Cluster::Role* servers = find_role(cluster, shape.servers)) {
    task.servers = servers->addresses;
  }
  if (task.kind == TaskKind::kServer) {
    DT_TRY(check_task_index(cluster, shape, static_cast<int64_t>(task.servers.size())));
  }
  return task;
}

}  // namespace dt::launch
