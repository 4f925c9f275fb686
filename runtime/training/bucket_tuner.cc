// SPDX-License-Identifier: Apache-2.0
#include "training/bucket_tuner.h"

#include <utility>

namespace dt::training {

BucketTuner::BucketTuner(std::vector<int64_t> caps, int32_t steps)
    : caps_(std::move(caps)), of_each_(steps), left_(caps_.size()), best_cap_(caps_[0]) {}

void BucketTuner::end_step(int64_t now_ns) {
  if (!tuning() || has_result()) return;
  ++steps_;
  if (steps_ == kUntimed) began_ns_ = now_ns;
  if (steps_ == of_each_) ended_ns_ = now_ns;
}

int64_t BucketTuner::next_cap(int64_t slowest_ns) {
  const size_t used = caps_.size() - left_;
  if (slowest_ns < best_ns_) {
    best_ns_ = slowest_ns;
    best_cap_ = caps_[used];
  }
  --left_;
  steps_ = 0;
  lost_ = false;
  return left_ > 0 ? caps_[used + 1] : best_cap_;
}

}  // namespace dt::training
