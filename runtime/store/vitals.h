// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "store/messages.h"

namespace dt::store {

/// Signs of life of a job's members: when each was heard, what it said it was doing, whether it is
/// away on purpose. Pure state, as JoinTable; times are of the monotonic clock.
class Vitals {
 public:
  /// Watches over this rank from now on.
  void begin(const Member& member, int64_t now_ns);
  /// It left or died.
  void end(int32_t rank);
  void heard(int32_t rank, int64_t now_ns);
  /// With the text of the report when this tells of a stall that was not reported yet.
  std::optional<std::string> tell(int32_t rank, Activity activity, int64_t now_ns);
  void busy(const Busy& busy, int64_t now_ns);

  /// Whoever watches was not running for a while: nobody could have been heard.
  void excuse_all(int64_t now_ns);
  /// Ranks that were silent for longer than `limit_ms`, and are not away on purpose.
  std::vector<int32_t> silent(int64_t now_ns, int64_t limit_ms) const;
  /// The number of ranks on other hosts than `host`, if none of them was heard for `ms`; else 0.
  int32_t unheard_elsewhere(const std::string& host, int64_t now_ns, int64_t ms) const;
  int64_t silence_ms(int32_t rank, int64_t now_ns) const;
  /// When the rank told last what it does; 0: never.
  int64_t told_ns(int32_t rank) const;
  bool empty() const { return signs_.empty(); }
  /// What the rank told takes.
  size_t kept_bytes(int32_t rank) const;
  /// What the rank told last; null: nothing.
  const Activity* last_told(int32_t rank) const;
  /// "left allreduce #811 on comm "world" 31.0 s ago", "is inside ...", "has entered no operation
  /// yet"; empty for a rank that never told.
  std::string whereabouts(int32_t rank, int64_t now_ns) const;

 private:
  struct Signs {
    Member member;
    int64_t heard_ns = 0;
    int64_t told_ns = 0;  ///< 0: has not told
    Activity activity;
    std::string busy_with;
    int64_t busy_since_ns = 0;
    int64_t busy_until_ns = 0;  ///< 0: not away
  };
  std::string stall_text(const Activity& stalled, int64_t now_ns) const;

  std::map<int32_t, Signs> signs_;
  bool not_reported_yet(const Activity& stalled);

  /// The latest stalled operations of each communicator that were reported, by sequence: ranks of
  /// one communicator can be held up in different operations at once.
  std::map<std::string, std::set<int64_t>> reported_;
};

}  // namespace dt::store
