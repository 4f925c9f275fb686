// SPDX-License-Identifier: Apache-2.0
#include "launch/cluster.h"

#include "config/value.h"

namespace dt::launch {
namespace {

/// What a task that trains nothing does in place of dt_init.
const char* duty_of(const std::string& type) {
  if (type == "ps" || type == "workerpool2") {
    return "a parameter server: ranks of dt exchange gradients among themselves, so leave it out "
           "of the cluster, or let it only run its TensorFlow server";
  }
  if (type == "evaluator" || type == "workerpool3") {
    return "an evaluator: let it read checkpoints and evaluate them, without dt_init";
  }
  return nullptr;
}

bool is_role(const WorkerRole& role, const std::string& name) {
  return name == role.name || (role.other_name != nullptr && name == role.other_name);
}

const Cluster::Role* find_role(const Cluster& cluster, const WorkerRole& role) {
  for (const char* name : {role.name, role.other_name}) {
    if (name == nullptr) continue;
    const auto found = cluster.roles.find(name);
    if (found != cluster.roles.end()) return &found->second;
  }
  return nullptr;
}

Status check_task_type(const std::string& type, const std::string& variable,
                       std::span<const WorkerRole> workers) {
  std::string names;
  for (const WorkerRole& role : workers) {
    if (is_role(role, type)) return {};
    names += (names.empty() ? "" : " and ") + std::string(role.name);
  }
  const std::string shown = variable + " task.type=" + config::quoted(type);
  if (const char* duty = duty_of(type)) {
    return launch_error("not_a_worker", shown + " takes no rank in dt. It is " + duty +
                                            ". Call dt_init in tasks of type " + names + " only");
  }
  return launch_error("not_a_worker", shown + " is unknown and takes no rank in dt; expected " +
                                          names + "; call dt_init in such tasks only");
}

}  // namespace

Result<Facts> facts_of_cluster(const Cluster& cluster, const char* variable,
                               std::span<const WorkerRole> workers) {
  Facts facts;
  if (cluster.roles.empty()) return facts;
  if (cluster.task_type.empty()) {
    facts.intention = std::string(variable) + " names a cluster";
    return facts;
  }
  DT_TRY(check_task_type(cluster.task_type, variable, workers));
  int64_t before = 0;  // ranks of the roles before the task's
  int64_t size = 0;
  const std::string* leader = nullptr;
  for (const WorkerRole& role : workers) {
    const Cluster::Role* tasks = find_role(cluster, role);
    const auto count = tasks == nullptr ? 0 : static_cast<int64_t>(tasks->addresses.size());
    if (tasks != nullptr && tasks->sparse) {
      facts.intention = std::string(variable) + " names some tasks of " + role.name + " only";
      return facts;
    }
    if (leader == nullptr && count > 0) leader = &tasks->addresses.front();
    if (is_role(role, cluster.task_type)) {
      if (cluster.task_index.value_or(0) >= count) {
        return launch_error("out_of_range",
                            format("%s task.index=%d, but its cluster has %lld tasks of type %s; "
                                   "give every task the same cluster, itself included",
                                   variable, cluster.task_index.value_or(0),
                                   static_cast<long long>(count), cluster.task_type.c_str()));
      }
      before = size;
    }
    size += count;
  }
  const std::string where = std::string(variable);
  facts.at(Field::kRank) = NumberFact{static_cast<int32_t>(before) + cluster.task_index.value_or(0),
                                      where + " task.index"};
  facts.at(Field::kWorldSize) = NumberFact{static_cast<int32_t>(size), where + " cluster"};
  DT_TRY_VALUE(net::HostPort address, parse_host_port(where, *leader));
  facts.master_addr = TextFact{std::move(address.host), where};
  if (address.port != 0) facts.at(Field::kMasterPort) = NumberFact{address.port, where};
  set_one_per_node(facts);
  return facts;
}

}  // namespace dt::launch
