// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "launch/facts.h"
#include "launch/json.h"
#include "launch/variables.h"

namespace dt::launch {

/// A role of a cluster.
struct ClusterRole {
  const char* name;
  const char* other_name;  ///< an older name, nullptr none
};

/// A variable that holds a cluster, and what its roles are called there.
struct ClusterShape {
  const char* variable;
  const char* launcher;                  ///< the family that reads it
  std::span<const ClusterRole> workers;  ///< whose tasks are ranks, in rank order
  ClusterRole servers;
  ClusterRole evaluators;
  const char* mark;  ///< a text without it is of other software; nullptr: none is
};

inline constexpr ClusterRole kTfWorkers[] = {{"chief", "master"}, {"worker", nullptr}};
inline constexpr ClusterShape kTfConfig = {
    "TF_CONFIG", "tf_config", kTfWorkers, {"ps", nullptr}, {"evaluator", nullptr}, nullptr};

inline constexpr ClusterRole kVertexWorkers[] = {{"workerpool0", nullptr},
                                                 {"workerpool1", nullptr}};
inline constexpr ClusterShape kVertexSpec = {"CLUSTER_SPEC",           "vertex",
                                             kVertexWorkers,           {"workerpool2", nullptr},
                                             {"workerpool3", nullptr}, "workerpool"};

/// The cluster that the variable of `shape` holds; without roles where it is not set, or is of
/// other software. Error: bad_json.
Result<Cluster> read_cluster(Variables& variables, const ClusterShape& shape);

/// Turns a cluster of TensorFlow's shape into facts: the tasks of the workers are the ranks, one
/// process each; the first leads, and its address is the master's. Facts without rank and size: the
/// text describes no cluster. Errors: out_of_range, not_a_worker, bad_address.
Result<Facts> facts_of_cluster(const Cluster& cluster, const ClusterShape& shape);

enum class TaskKind { kWorker, kServer, kEvaluator, kOther };

/// What one task of a cluster is for parameter servers.
struct ClusterTask {
  TaskKind kind = TaskKind::kOther;
  int32_t index = 0;    ///< in its role
  int32_t workers = 0;  ///< tasks that are ranks; 0: the cluster does not name all of them
  std::vector<std::string> servers;
};

/// Error: out_of_range, of a server's index.
Result<ClusterTask> task_of_cluster(const Cluster& cluster, const ClusterShape& shape);

}  // namespace dt::launch
