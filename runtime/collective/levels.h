// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace dt::collective {

/// Two levels of members: those of one NUMA node read each other's memory, and what lies on another
/// node crosses over once, in place of once for each reader.
///
/// What member s has for all is brought to each other node by one member there, its *relay*, which
/// puts it into its own memory; the others of that node read it there. The members of a node take
/// the sources of the others in turn. A member that is alone on its node reads everything itself.
/// Nothing is summed on the way, so no bit depends on it.
///
/// Follows from the nodes of the members alone, which all members know alike. Immutable.
class Levels {
 public:
  /// One level.
  Levels() = default;
  /// `nodes`: by member. One level where one of them is not known (below 0), all are alike, or no
  /// node has two members.
  Levels(const std::vector<int32_t>& nodes, int32_t self);

  bool two() const { return !via_.empty(); }
  /// Only with two levels, the others as well. The member in whose memory the caller finds what
  /// `source` has: that one, or its relay, which may be the caller.
  int32_t via(int32_t source) const { return via_[static_cast<size_t>(source)]; }
  /// Of a source that has a relay: its index among those that the relay brings.
  int32_t lane(int32_t source) const { return lane_[static_cast<size_t>(source)]; }
  /// The members of other nodes that `member` relays, ascending.
  const std::vector<int32_t>& duties(int32_t member) const {
    return duties_[static_cast<size_t>(member)];
  }
  /// Of the member that has most of them.
  int32_t most_duties() const { return most_duties_; }
  /// The other members of the caller's node, ascending.
  const std::vector<int32_t>& neighbours() const { return neighbours_; }

 private:
  std::vector<int32_t> via_;
  std::vector<int32_t> lane_;
  std::vector<std::vector<int32_t>> duties_;
  std::vector<int32_t> neighbours_;
  int32_t most_duties_ = 0;
};

}  // namespace dt::collective
