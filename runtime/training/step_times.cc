// SPDX-License-Identifier: Apache-2.0
#include "training/step_times.h"

#include <algorithm>

namespace dt::training {
namespace {

constexpr double kNsPerMs = 1e6;

}  // namespace

StepTimes::~StepTimes() {
  for (const Set& set : sets_) {
    if (set.came != nullptr) (void)runtime_->destroy_event(set.came);
    for (const cuda::Event event : set.began) (void)runtime_->destroy_event(event);
    for (const cuda::Event event : set.ended) (void)runtime_->destroy_event(event);
  }
}

Status StepTimes::reserve(size_t buckets) {
  std::lock_guard lock(mutex_);
  for (Set& set : sets_) {
    if (set.came == nullptr) {
      DT_TRY_VALUE(set.came, runtime_->create_event(/*timed=*/true));
    }
    for (auto* events : {&set.began, &set.ended}) {
      while (events->size() < buckets) {
        DT_TRY_VALUE(const cuda::Event event, runtime_->create_event(/*timed=*/true));
        events->push_back(event);
      }
    }
  }
  return {};
}

void StepTimes::begin_step() {
  std::lock_guard lock(mutex_);
  const auto free =
      std::find_if(sets_.begin(), sets_.end(), [](const Set& set) { return !set.under_way; });
  current_ = free == sets_.end() ? nullptr : &*free;
}

cuda::Event StepTimes::began(size_t bucket) const {
  std::lock_guard lock(mutex_);
  return current_ == nullptr ? nullptr : current_->began[bucket];
}

cuda::Event StepTimes::ended(size_t bucket) const {
  std::lock_guard lock(mutex_);
  return current_ == nullptr ? nullptr : current_->ended[bucket];
}

Status StepTimes::record_came(cuda::Stream stream) {
  std::lock_guard lock(mutex_);
  return current_ == nullptr ? Status() : runtime_->record(current_->came, stream);
}

bool StepTimes::end_step(size_t buckets) {
  std::lock_guard lock(mutex_);
  if (current_ == nullptr) return false;
  current_->buckets = buckets;
  current_->under_way = true;
  under_way_.push_back(current_);
  current_ = nullptr;
  return true;
}

std::vector<StepTimes::Times> StepTimes::take_passed() {
  std::lock_guard lock(mutex_);
  std::vector<Times> passed;
  while (!under_way_.empty() && has_passed(*under_way_.front())) {
    passed.push_back(read(*under_way_.front()));
    under_way_.front()->under_way = false;
    under_way_.pop_front();
  }
  return passed;
}

/// The other events lie on the communicator's stream before the last `ended`.
bool StepTimes::has_passed(const Set& set) const {
  for (const cuda::Event event : {set.ended[set.buckets - 1], set.came}) {
    const auto passed = runtime_->passed(event);
    if (!passed.ok() || !passed.value()) return false;
  }
  return true;
}

StepTimes::Times StepTimes::read(const Set& set) const {
  const auto elapsed_ns = [&](cuda::Event from, cuda::Event to) -> int64_t {
    const auto ms = runtime_->elapsed_ms(from, to);  // below zero where `to` came first
    return ms.ok() ? std::max<int64_t>(static_cast<int64_t>(ms.value() * kNsPerMs), 0) : 0;
  };
  Times times;
  for (size_t bucket = 0; bucket < set.buckets; ++bucket) {
    times.communication_ns += elapsed_ns(set.began[bucket], set.ended[bucket]);
  }
  times.exposed_ns =
      std::min(elapsed_ns(set.came, set.ended[set.buckets - 1]), times.communication_ns);
  return times;
}

}  // namespace dt::training
