// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace dt::training {

/// Finds the cap of buckets with which steps are fastest: each cap is used for the same number of
/// steps, and the fastest one stays. All ranks make the same calls, with times that they agree on.
class BucketTuner {
 public:
  static constexpr int32_t kUntimed = 2;  ///< first steps of each cap: its memory is new
  static constexpr int64_t kSlowest = std::numeric_limits<int64_t>::max();

  /// `caps`: not empty; the first is in use already. `steps`: with each, more than kUntimed.
  BucketTuner(std::vector<int64_t> caps, int32_t steps);

  /// Whether steps are still measured.
  bool tuning() const { return left_ > 0; }
  /// Whether the time at the end of this step is needed: the timing of a cap begins or ends with
  /// it.
  bool wants_time() const { return steps_ + 1 == kUntimed || steps_ + 1 == of_each_; }
  /// `now_ns` counts where wants_time() said so.
  void end_step(int64_t now_ns);
  /// All steps with this cap have ended; next_cap() must be called, and further steps do not count.
  bool has_result() const { return tuning() && steps_ >= of_each_; }
  int64_t result_ns() const { return lost_ ? kSlowest : ended_ns_ - began_ns_; }
  /// A time of this cap could not be taken: no other cap is slower.
  void lose_time() { lost_ = true; }
  /// The cap to use from now on. `slowest_ns`: result_ns() of the slowest rank.
  int64_t next_cap(int64_t slowest_ns);

 private:
  const std::vector<int64_t> caps_;
  const int32_t of_each_;
  size_t left_;  // caps that have no result yet
  int32_t steps_ = 0;
  int64_t began_ns_ = 0;
  int64_t ended_ns_ = 0;
  bool lost_ = false;
  int64_t best_ns_ = kSlowest;
  int64_t best_cap_ = 0;
};

}  // namespace dt::training
