// SPDX-License-Identifier: Apache-2.0
#include "collective/stager.h"

#include <algorithm>

#include "base/wait.h"
#include "kernels/host/reduce.h"

namespace dt::collective {
namespace {

constexpr int64_t kTimedBytesMin = 8 << 10;  // below, the clock would be a part of the time
// Streaming costs the reader a trip to memory, which the writer's time does not show: it has to be
// twice as fast. Across caches it is three to five times.
constexpr int64_t kMarginPercent = 50;
constexpr int64_t kWeight = 4;  // of the past, against one new sample, less one

}  // namespace

StoreChoice::Trial StoreChoice::next() {
  const int64_t number = copies_++;
  const int64_t at = number % kRound;
  const bool early = number < 4;
  const bool other = early ? number % 2 == 1 : at >= kRound - 2;
  return {other != streaming_, other || early || at % kTimedEvery == 0};
}

void StoreChoice::learn(bool streaming, int64_t bytes, int64_t ns) {
  Kind& kind = kinds_[streaming ? 1 : 0];
  const int64_t sample = std::max<int64_t>(ns * 1000 / bytes, 1);
  const int64_t believed = kind.last == 0 ? sample : std::min(sample, kind.last);
  kind.last = sample;
  kind.estimate = kind.estimate == 0
                      ? believed
                      : (kind.estimate * (kWeight - 1) + believed + kWeight / 2) / kWeight;
  if (kinds_[0].estimate == 0 || kinds_[1].estimate == 0) return;
  streaming_ = kinds_[1].estimate * 100 < kinds_[0].estimate * kMarginPercent;
}

void Stager::begin(int64_t operation_bytes) {
  size_t index = 0;
  while (index < kClassBytes.size() && operation_bytes > kClassBytes[index]) ++index;
  choice_ = &choices_[index];
}

void Stager::copy(void* destination, const void* source, int64_t bytes) {
  StoreChoice::Trial trial{staging_ == Staging::kStreaming, false};
  if (staging_ == Staging::kAuto) {
    trial =
        bytes < kTimedBytesMin ? StoreChoice::Trial{choice_->streaming(), false} : choice_->next();
  }
  const int64_t began_ns = trial.timed ? monotonic_ns() : 0;
  kernels::copy(destination, source, bytes,
                trial.streaming ? kernels::Stores::kStreaming : kernels::Stores::kTemporal);
  if (trial.timed) choice_->learn(trial.streaming, bytes, monotonic_ns() - began_ns);
}

}  // namespace dt::collective
