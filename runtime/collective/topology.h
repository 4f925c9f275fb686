// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

namespace dt::collective {

/// Which ranks of a communicator share a host. Equal on all ranks. Constant once made.
struct Topology {
  std::vector<std::vector<int32_t>> hosts;  ///< ranks of each, ascending; by lowest rank
  std::vector<int32_t> host;                ///< by rank: index into `hosts`
  std::vector<int32_t> local;               ///< by rank: index into hosts[host]
  int32_t local_size_min = 0;               ///< ranks on the host that has the fewest
  /// The most ranks of other hosts that one rank stands for, see Topology::deputy().
  int32_t represented_max = 0;

  /// `host_ids[r]` is any number that is equal for ranks of one host.
  static Topology of(const std::vector<int32_t>& host_ids);

  int32_t size() const { return static_cast<int32_t>(host.size()); }
  int32_t host_count() const { return static_cast<int32_t>(hosts.size()); }
  /// The rank on `on_host` that deals with `rank`: itself at home, else one in turn.
  int32_t deputy(int32_t rank, int32_t on_host) const {
    const std::vector<int32_t>& members = hosts[on_host];
    return members[static_cast<size_t>(local[rank]) % members.size()];
  }
  /// The ranks of other hosts that `rank` exchanges with in collectives, but for those that
  /// block_stages() is for: the deputies of ranks for which it is the deputy on its own host.
  std::set<int32_t> contacts(int32_t rank) const;
};

}  // namespace dt::collective
