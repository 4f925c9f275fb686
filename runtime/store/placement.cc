// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "store/join.h"
#include "store/text.h"

namespace dt::store {
namespace {

constexpr size_t kMaxKeysShown = 8;

struct Group {
  std::string value;
  std::vector<int32_t> ranks;
  std::vector<std::string> hosts;    // each once
  std::set<std::string_view> known;  // the same
};

std::vector<Group> groups_of(const std::string& key, const std::vector<JoinRecord>& records) {
  std::map<std::string, Group> by_value;
  for (const JoinRecord& record : records) {
    std::string value = "not set";
    for (const auto& entry : record.equal_config) {
      if (entry.first == key) value = entry.second;
    }
    Group& group = by_value[value];
    group.value = value;
    group.ranks.push_back(record.rank);
    if (group.known.insert(record.host_name).second) group.hosts.push_back(record.host_name);
  }
  std::vector<Group> groups;
  for (auto& entry : by_value) groups.push_back(std::move(entry.second));
  // What most ranks have comes first and is taken for right; the others are named with hosts.
  std::sort(groups.begin(), groups.end(), [](const Group& a, const Group& b) {
    if (a.ranks.size() != b.ranks.size()) return a.ranks.size() > b.ranks.size();
    return a.ranks.front() < b.ranks.front();
  });
  return groups;
}

// Whether `values` is {0, 1, ..., n-1}.
bool counts_up(std::vector<int32_t> values) {
  std::sort(values.begin(), values.end());
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] != static_cast<int32_t>(i)) return false;
  }
  return true;
}

}  // namespace

Status compare_configs(const std::vector<JoinRecord>& records) {
  const auto differs = [&](const JoinRecord& record) {
    return record.equal_config != records.front().equal_config;
  };
  // As it nearly always is: all ranks wait for this.
  if (std::none_of(records.begin(), records.end(), differs)) return {};
  std::set<std::string> keys;
  for (const JoinRecord& record : records) {
    for (const auto& entry : record.equal_config) keys.insert(entry.first);
  }
  std::vector<std::string> differences;
  const JoinRecord* culprit = nullptr;
  for (const std::string& key : keys) {
    const std::vector<Group> groups = groups_of(key, records);
    if (groups.size() == 1) continue;
    std::vector<std::string> sides;
    for (const Group& group : groups) {
      std::string side = group.value + " on " + ranks_text(group.ranks);
      if (!sides.empty()) side += " (" + item_list(group.hosts) + ")";
      sides.push_back(std::move(side));
    }
    if (culprit == nullptr) culprit = &records[static_cast<size_t>(groups[1].ranks.front())];
    differences.push_back(key + " is " + item_list(sides));
  }
  if (differences.empty()) return {};
  std::string message = "config differs between ranks: ";
  for (size_t i = 0; i < std::min(differences.size(), kMaxKeysShown); ++i) {
    message += (i == 0 ? "" : "; ") + differences[i];
  }
  if (differences.size() > kMaxKeysShown) {
    message += format("; and %zu more keys", differences.size() - kMaxKeysShown);
  }
  message += "; give every rank the same values";
  return refusal({culprit->rank, culprit->host_name, culprit->pid}, std::move(message));
}

std::vector<Placement> place_ranks(const std::vector<JoinRecord>& records) {
  // By order of first appearance, which is the order of the lowest ranks.
  std::map<std::string, size_t> index_of_host;
  std::vector<std::vector<size_t>> hosts;
  for (size_t rank = 0; rank < records.size(); ++rank) {
    const auto [entry, is_new] = index_of_host.try_emplace(records[rank].host_id, hosts.size());
    if (is_new) hosts.emplace_back();
    hosts[entry->second].push_back(rank);
  }
  std::vector<int32_t> node_hints;
  bool node_hints_agree = true;
  bool local_hints_agree = true;
  for (const std::vector<size_t>& ranks : hosts) {
    std::vector<int32_t> local_hints;
    node_hints.push_back(records[ranks.front()].node_rank);
    for (const size_t rank : ranks) {
      node_hints_agree &= records[rank].node_rank == node_hints.back();
      local_hints.push_back(records[rank].local_rank);
    }
    local_hints_agree &= counts_up(std::move(local_hints));
  }
  node_hints_agree &= counts_up(node_hints);
  std::vector<Placement> places(records.size());
  for (size_t host = 0; host < hosts.size(); ++host) {
    for (size_t i = 0; i < hosts[host].size(); ++i) {
      const size_t rank = hosts[host][i];
      places[rank].node_rank =
          node_hints_agree ? records[rank].node_rank : static_cast<int32_t>(host);
      places[rank].local_rank =
          local_hints_agree ? records[rank].local_rank : static_cast<int32_t>(i);
    }
  }
  return places;
}

}  // namespace dt::store
