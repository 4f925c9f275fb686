// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "launch/facts.h"
#include "launch/json.h"

namespace dt::launch {

/// A role whose tasks are ranks, in rank order.
struct WorkerRole {
  const char* name;
  const char* other_name;  ///< an older name, nullptr none
};

/// Turns a cluster of TensorFlow's shape into facts: the tasks of `workers` are the ranks, one
/// process each; the first leads, and its address is the master's. Facts without rank and size: the
/// text describes no cluster. Errors: out_of_range, not_a_worker, bad_address.
Result<Facts> facts_of_cluster(const Cluster& cluster, const char* variable,
                               std::span<const WorkerRole> workers);

}  // namespace dt::launch
