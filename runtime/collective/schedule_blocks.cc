// SPDX-License-Identifier: Apache-2.0
// What one rank does over several hosts where blocks keep their elements: alltoall and its like.
#include "collective/blocks.h"
#include "collective/schedule.h"

namespace dt::collective {
namespace {

/// Each block goes over the network once for each host, to the rank that deals with its sender
/// there, and on to the others of that host in the second stage.
std::vector<Stage> multicast_stages(const Collective& collective, const Topology& topology,
                                    int32_t rank, Stage first) {
  const int64_t element = dtype_bytes(collective.dtype);
  const int32_t size = topology.size();
  const int32_t home = topology.host[rank];
  const int64_t own_bytes = outgoing(collective, rank, size, rank).count * element;
  Stage second;
  for (int32_t i = 1; i < topology.host_count() && own_bytes > 0; ++i) {
    const int32_t host = (home + i) % topology.host_count();
    first.sends.push_back({topology.deputy(rank, host), {Space::kSend, 0}, own_bytes});
  }
  for (int32_t peer = 0; peer < size; ++peer) {
    if (topology.host[peer] == home) continue;
    const Extent block = incoming(collective, rank, size, peer);
    if (block.count == 0) continue;
    const Piece place{Space::kRecv, block.offset * element};
    const int32_t deputy = topology.deputy(peer, home);
    if (deputy == rank) first.receives.push_back({peer, place, block.count * element});
    if (topology.hosts[home].size() == 1) continue;
    LocalStep pass_on;
    pass_on.root = topology.local[deputy];
    pass_on.send = place;
    pass_on.recv = place;
    pass_on.count = block.count;
    second.local.push_back(std::move(pass_on));
  }
  std::vector<Stage> stages;
  stages.push_back(std::move(first));
  if (!second.empty()) stages.push_back(std::move(second));
  return stages;
}

}  // namespace

std::vector<Stage> block_stages(const Collective& collective, const Topology& topology,
                                int32_t rank) {
  const int32_t size = topology.size();
  const int64_t element = dtype_bytes(collective.dtype);
  const int32_t home = topology.host[rank];
  Stage stage;
  const Collective within = among(collective, size, topology.hosts[home], topology.local[rank]);
  LocalStep local;
  local.kind = within.kind;
  local.send = {Space::kSend, 0};
  local.recv = {Space::kRecv, 0};
  local.count = within.count;
  local.blocks = within.blocks;
  stage.local.push_back(std::move(local));
  if (is_multicast(collective.kind)) {
    return multicast_stages(collective, topology, rank, std::move(stage));
  }
  // Each rank begins with the one behind it, so that not all send to one.
  for (int32_t i = 1; i < size; ++i) {
    const int32_t to = (rank + i) % size;
    const int32_t from = (rank + size - i) % size;
    const Extent out = outgoing(collective, rank, size, to);
    const Extent in = incoming(collective, rank, size, from);
    if (topology.host[to] != home && out.count > 0) {
      stage.sends.push_back({to, {Space::kSend, out.offset * element}, out.count * element});
    }
    if (topology.host[from] != home && in.count > 0) {
      stage.receives.push_back({from, {Space::kRecv, in.offset * element}, in.count * element});
    }
  }
  std::vector<Stage> stages;
  stages.push_back(std::move(stage));
  return stages;
}

}  // namespace dt::collective
