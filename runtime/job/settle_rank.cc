// SPDX-License-Identifier: Apache-2.0
// Each process sets a key of its own and counts itself. The last one reads the keys and publishes
// how many processes each node has, "2 2 1", or why no ranks follow, after a "!".
#include "job/settle_rank.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <vector>

#include "store/text.h"

namespace dt::job {
namespace {

constexpr const char* kPlacePrefix = "dt.places/";
constexpr const char* kCountKey = "dt.places";
constexpr const char* kResultKey = "dt.node_sizes";
constexpr char kNoRanks = '!';
constexpr size_t kNamedMax = 8;
constexpr int64_t kNamingMs = 1000;  // for looking who is missing, while rank 0 still serves

using Places = std::set<std::pair<int32_t, int32_t>>;  // node rank, local rank

std::string place_text(int32_t node_rank, int32_t local_rank) {
  return format("node %d local rank %d", node_rank, local_rank);
}

Result<Places> places_of(store::Client& client, const Wait& wait) {
  DT_TRY_VALUE(const std::vector<std::string> keys, client.list(kPlacePrefix, wait));
  Places places;
  for (const std::string& key : keys) {
    const char* text = key.c_str() + std::string(kPlacePrefix).size();
    char* end = nullptr;
    const long node = strtol(text, &end, 10);
    if (*end == '.') places.insert({node, strtol(end + 1, nullptr, 10)});
  }
  return places;
}

/// What the last process publishes.
std::string result_of(const Places& places) {
  std::vector<int32_t> sizes;
  int32_t next = 0;  // local rank; the places are in order
  for (const auto& [node, local] : places) {
    const auto nodes = static_cast<int32_t>(sizes.size());
    if (node == nodes) {
      sizes.push_back(0);
      next = 0;
    }
    if (node > nodes || local != next) {
      const bool lower_node = node > nodes;
      return kNoRanks + format("all %zu processes have come, %s among them, but none has %s",
                               places.size(), place_text(node, local).c_str(),
                               lower_node ? format("NODE_RANK=%d", nodes).c_str()
                                          : place_text(node, next).c_str());
    }
    ++sizes.back();
    ++next;
  }
  std::string text;
  for (const int32_t size : sizes) text += (text.empty() ? "" : " ") + std::to_string(size);
  return text;
}

/// The missing places, as if all nodes had as many processes as the largest node that was seen.
/// Names kNamedMax of them, because a process with a wrong NODE_RANK may make them billions.
std::string missing_text(const Places& places, int32_t world_size) {
  int32_t nodes = 1;
  int32_t per_node = 1;
  for (const auto& [node, local] : places) {
    nodes = std::max(nodes, node + 1);
    per_node = std::max(per_node, local + 1);
  }
  if (world_size % per_node == 0) nodes = std::max(nodes, world_size / per_node);
  std::vector<std::string> missing;
  for (int32_t node = 0; node < nodes; ++node) {
    for (int32_t local = 0; local < per_node; ++local) {
      if (places.count({node, local}) != 0) continue;
      if (missing.size() == kNamedMax) return store::item_list(missing) + " and others";
      missing.push_back(place_text(node, local));
    }
  }
  return store::item_list(missing);
}

Status too_late(store::Client& client, const NodeProcess& self, const Wait& wait) {
  DT_TRY_VALUE(const Places places, places_of(client, wait));
  std::string text =
      format("%zu of %d processes have come, and the rank of this one (%s) follows from all",
             places.size(), self.world_size, place_text(self.node_rank, self.local_rank).c_str());
  const std::string missing = missing_text(places, self.world_size);
  if (!missing.empty()) text += "; missing: " + missing;
  return Status(Code::kTimeout, "rendezvous: " + text +
                                    "; look at what they printed, or raise rendezvous.timeout_ms");
}

Result<int32_t> rank_from(const std::string& sizes, const NodeProcess& self) {
  if (!sizes.empty() && sizes.front() == kNoRanks) {
    return Status(Code::kConfig, "rendezvous: " + sizes.substr(1) +
                                     "; NODE_RANK and LOCAL_RANK count from 0 without a gap");
  }
  int32_t rank = self.local_rank;
  const char* at = sizes.c_str();
  for (int32_t node = 0; node < self.node_rank; ++node) {
    char* end = nullptr;
    rank += static_cast<int32_t>(strtol(at, &end, 10));
    at = end;
  }
  return rank;
}

}  // namespace

Result<int32_t> settle_rank(store::Client& client, const NodeProcess& self, const Wait& wait) {
  const std::string process =
      format("%s pid %lld", self.host_name.c_str(), static_cast<long long>(self.pid));
  const std::string key = kPlacePrefix + format("%d.%d", self.node_rank, self.local_rank);
  DT_TRY_VALUE(const store::Swap claim, client.compare_set(key, std::nullopt, process, wait));
  if (!claim.swapped) {
    return Status(Code::kConfig,
                  format("rendezvous: NODE_RANK=%d and LOCAL_RANK=%d are those of two processes: "
                         "(%s) and (%s); give every node its own NODE_RANK",
                         self.node_rank, self.local_rank, claim.current.value_or("?").c_str(),
                         process.c_str()));
  }
  DT_TRY_VALUE(const int64_t come, client.add(kCountKey, 1, wait));
  if (come > self.world_size) {
    return Status(Code::kConfig,
                  format("rendezvous: WORLD_SIZE=%d processes have come before (%s), which is %s; "
                         "WORLD_SIZE must count the processes of all nodes",
                         self.world_size, process.c_str(),
                         place_text(self.node_rank, self.local_rank).c_str()));
  }
  if (come == self.world_size) {
    DT_TRY_VALUE(const Places places, places_of(client, wait));
    DT_TRY(client.set(kResultKey, result_of(places), wait));
  }
  if (self.node_rank == 0) return self.local_rank;
  const int64_t left_ms = wait.deadline.remaining_ms();
  const int64_t naming_ms = std::min(kNamingMs, left_ms / 4);
  const Deadline enough =
      wait.deadline.is_never() ? wait.deadline : Deadline::after_ms(left_ms - naming_ms);
  const Result<std::string> sizes = client.get(kResultKey, {enough, wait.interrupt});
  if (!sizes.ok() && sizes.status().code() == Code::kTimeout) {
    // Its own time, for a store that is slow at the end of a short deadline.
    return too_late(client, self, {Deadline::after_ms(kNamingMs), wait.interrupt});
  }
  DT_TRY(sizes.status());
  return rank_from(sizes.value(), self);
}

}  // namespace dt::job
