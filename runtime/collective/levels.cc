// SPDX-License-Identifier: Apache-2.0
#include "collective/levels.h"

#include <algorithm>
#include <map>

namespace dt::collective {

Levels::Levels(const std::vector<int32_t>& nodes, int32_t self) {
  const auto size = static_cast<int32_t>(nodes.size());
  std::map<int32_t, std::vector<int32_t>> members;
  for (int32_t rank = 0; rank < size; ++rank) members[nodes[rank]].push_back(rank);
  const bool shared = std::any_of(members.begin(), members.end(),
                                  [](const auto& node) { return node.second.size() > 1; });
  if (members.size() < 2 || members.begin()->first < 0 || !shared) return;
  duties_.resize(nodes.size());
  std::map<int32_t, size_t> dealt;  // sources, by the node they are relayed to
  for (int32_t source = 0; source < size; ++source) {
    via_.push_back(source);
    lane_.push_back(-1);
    for (const auto& [node, own] : members) {
      if (node == nodes[source] || own.size() == 1) continue;
      const int32_t relay = own[dealt[node]++ % own.size()];
      std::vector<int32_t>& duties = duties_[relay];
      if (node == nodes[self]) {
        via_.back() = relay;
        lane_.back() = static_cast<int32_t>(duties.size());
      }
      duties.push_back(source);
      most_duties_ = std::max(most_duties_, static_cast<int32_t>(duties.size()));
    }
  }
  neighbours_ = members[nodes[self]];
  std::erase(neighbours_, self);
}

}  // namespace dt::collective
