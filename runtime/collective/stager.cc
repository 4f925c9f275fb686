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
constexpr int64_t kFirstCopies = 4;
constexpr int64_t kTries = 2;        // of the other kind in a round
constexpr int64_t kPromising = 5;    // a try takes up to so many times as long, and is worth more
constexpr int64_t kCalmCopies = 16;  // between tries, on a machine where nothing is steady
constexpr int64_t kWeight = 4;       // of the past, against one new sample, less one

}  // namespace

StoreChoice::Trial StoreChoice::next() {
  if (first_ < kFirstCopies) return {first_++ % 2 == 1 ? !streaming_ : streaming_, true};
  if (longer_ > 0) {
    --longer_;
    return {!streaming_, true};
  }
  if (at_ == round_) begin_round(std::min(2 * round_, kRoundMax));
  const bool other = at_ >= round_ - kTries;
  const bool timed = other || at_ % kTimedEvery == 0;
  ++at_;
  return {other != streaming_, timed};
}

void StoreChoice::begin_round(int64_t copies) {
  at_ = 0;
  longer_ = 0;
  prolonged_ = false;
  round_ = copies;
  usual_ = chosen().estimate;
}

bool StoreChoice::is_steady() {
  const int64_t now = chosen().estimate;
  if (usual_ == 0) usual_ = now;
  return now <= 2 * usual_ && 2 * now >= usual_;
}

void StoreChoice::learn(bool streaming, int64_t bytes, int64_t ns) {
  Kind& kind = kinds_[streaming ? 1 : 0];
  const int64_t sample = std::max<int64_t>(ns * 1000 / bytes, 1);
  const int64_t believed = kind.last == 0 ? sample : std::min(sample, kind.last);
  kind.last = sample;
  // Of the kind that is not chosen there are two samples in a round: no time to be careful.
  const bool first = kind.estimate == 0 || streaming != streaming_;
  kind.estimate =
      first ? believed : (kind.estimate * (kWeight - 1) + believed + kWeight / 2) / kWeight;
  if (kinds_[0].estimate == 0 || kinds_[1].estimate == 0) return;
  const bool before = streaming_;
  streaming_ = kinds_[1].estimate * 100 < kinds_[0].estimate * kMarginPercent;
  if (streaming_ != before) {
    begin_round(kRoundMin);
  } else if (streaming_ && !streaming && !prolonged_ &&
             kinds_[0].estimate < kPromising * kinds_[1].estimate) {
    prolonged_ = true;
    longer_ = kLongTry;
  } else if (streaming == streaming_ && !is_steady() && at_ >= kCalmCopies &&
             at_ < round_ - kTries) {
    begin_round(kRoundMin);
    at_ = kRoundMin - kTries;
  }
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
