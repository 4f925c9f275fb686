// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace dt::launch {

/// What TF_CONFIG and CLUSTER_SPEC hold: {"cluster": {role: [address, ...]}, "task": {"type":,
/// "index":}}.
struct Cluster {
  struct Role {
    std::vector<std::string> addresses;
    bool sparse = false;  ///< an object that names some of the tasks only
  };
  std::map<std::string, Role> roles;  ///< empty: no cluster is described
  std::string task_type;              ///< empty: not told
  std::optional<int32_t> task_index;
};

/// What SM_RESOURCE_CONFIG holds of interest.
struct Resource {
  std::string current_host;
  std::vector<std::string> hosts;
};

/// `variable` names the text in errors. All of them refuse what is too long or too deep: bad_json.
Result<Cluster> parse_cluster(const std::string& variable, const std::string& text);
Result<Resource> parse_resource(const std::string& variable, const std::string& text);
Result<std::vector<std::string>> parse_texts(const std::string& variable, const std::string& text);

}  // namespace dt::launch
