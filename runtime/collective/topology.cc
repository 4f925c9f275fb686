// SPDX-License-Identifier: Apache-2.0
#include "collective/topology.h"

#include <algorithm>
#include <map>

namespace dt::collective {

Topology Topology::of(const std::vector<int32_t>& host_ids) {
  Topology result;
  std::map<int32_t, int32_t> index_of_id;
  for (size_t rank = 0; rank < host_ids.size(); ++rank) {
    const auto next = static_cast<int32_t>(result.hosts.size());
    const auto [found, is_new] = index_of_id.try_emplace(host_ids[rank], next);
    if (is_new) result.hosts.emplace_back();
    std::vector<int32_t>& members = result.hosts[found->second];
    result.host.push_back(found->second);
    result.local.push_back(static_cast<int32_t>(members.size()));
    members.push_back(static_cast<int32_t>(rank));
  }
  std::vector<int32_t> with_local;  // ranks by local index, over all hosts
  for (const auto& members : result.hosts) {
    const auto size = static_cast<int32_t>(members.size());
    result.local_size_min =
        result.local_size_min == 0 ? size : std::min(result.local_size_min, size);
    if (with_local.size() < members.size()) with_local.resize(members.size());
    for (size_t i = 0; i < members.size(); ++i) ++with_local[i];
  }
  for (const auto& members : result.hosts) {
    std::vector<int32_t> represented(members.size());
    for (size_t i = 0; i < with_local.size(); ++i) {
      const int32_t at_home = i < members.size() ? 1 : 0;
      represented[i % members.size()] += with_local[i] - at_home;
    }
    for (const int32_t count : represented) {
      result.represented_max = std::max(result.represented_max, count);
    }
  }
  return result;
}

std::set<int32_t> Topology::contacts(int32_t rank) const {
  std::set<int32_t> found;
  for (int32_t represented = 0; represented < size(); ++represented) {
    if (deputy(represented, host[rank]) != rank) continue;
    for (int32_t other = 0; other < host_count(); ++other) {
      if (other != host[rank]) found.insert(deputy(represented, other));
    }
  }
  return found;
}

}  // namespace dt::collective
