// SPDX-License-Identifier: Apache-2.0
// A static graph: what step 1 had, each later step has.
#include <algorithm>
#include <numeric>

#include "training/reducer.h"

namespace dt::training {

/// finish() has completed every slot, which counts as one more ready().
Status Reducer::learn() {
  Status mine;
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].rows != nullptr || slots_[i].unused || slots_[i].times_ready > 1) continue;
    mine =
        Status(Code::kInvalidState,
               format("dt_reducer_finish: parameter #%zu \"%s\" had a gradient on rank %d only "
                      "while the reducer accumulated; with static_graph the last backward pass "
                      "of a step has one for all parameters that the step uses; make the reducer "
                      "with find_unused",
                      i, params_[i].name.c_str(), comm_->rank()));
    break;
  }
  DT_TRY_VALUE(const bool all, all_say(mine.ok(), "static graph?"));
  DT_TRY(mine);
  if (!all) {
    return Status(Code::kInvalidState,
                  "dt_reducer_finish: another rank had a gradient only while its reducer "
                  "accumulated, which static_graph does not allow; its own message names the "
                  "parameter");
  }
  for (Slot& slot : slots_) {
    if (slot.rows == nullptr) slot.uses = slot.unused ? 0 : slot.times_ready - 1;
  }
  last_arrivals_.resize(params_.size());
  std::iota(last_arrivals_.rbegin(), last_arrivals_.rend(), 0);
  std::stable_sort(last_arrivals_.begin(), last_arrivals_.end(), [this](int32_t a, int32_t b) {
    const auto when = [this](int32_t index) {
      const int64_t at = slots_[static_cast<size_t>(index)].last_ready;
      return at < 0 ? calls_.load(std::memory_order_relaxed) : at;
    };
    return when(a) < when(b);
  });
  learnt_ = true;
  return {};
}

Status Reducer::place_unused(int32_t index, void* grad, cuda::Stream stream) {
  Slot& slot = slots_[static_cast<size_t>(index)];
  const Param& param = params_[static_cast<size_t>(index)];
  if (device_ != nullptr) DT_TRY(check_on_device(param, index, grad, stream));
  std::lock_guard lock(slot.mutex);
  if (slot.begun || (learnt_ && slot.uses > 0)) {
    return Status(
        Code::kInvalidState,
        format("dt_reducer_unused: parameter #%d \"%s\" has a gradient in %s on rank %d, "
               "and with static_graph every step is alike; make the reducer with "
               "find_unused",
               index, param.name.c_str(), learnt_ ? "each step" : "this step", comm_->rank()));
  }
  slot.copied_from = outside(slot, grad);
  return {};
}

/// Under launching_. place_unused() may come at the same time; the result goes to what it gave
/// last. On a GPU the last step's result may still be read in the order of `stream`, so the bucket
/// waits for it.
Status Reducer::bring_zeros(const Bucket& bucket, cuda::Stream stream) {
  bool any = false;
  for (const int32_t index : bucket.params) {
    Slot& slot = slots_[static_cast<size_t>(index)];
    if (slot.uses > 0 || slot.rows != nullptr) continue;
    std::lock_guard lock(slot.mutex);
    slot.unused = true;
    any = true;
    if (device_ != nullptr) continue;  // steps_around() says where
    DT_TRY(deliver(slot, params_[static_cast<size_t>(index)], slot.copied_from, /*unused=*/true));
  }
  if (device_ == nullptr || !any) return {};
  return device_->record(next_bucket_, stream);
}

int32_t Reducer::expected_in(const Bucket& bucket) const {
  const auto unused = [this](int32_t index) {
    return slots_[static_cast<size_t>(index)].uses == 0;
  };
  return static_cast<int32_t>(
      bucket.params.size() -
      static_cast<size_t>(std::count_if(bucket.params.begin(), bucket.params.end(), unused)));
}

}  // namespace dt::training
