// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "record/trace.h"

namespace dt::test {

inline constexpr int64_t kSecondNs = 1'000'000'000;
inline constexpr int64_t kHour = 1'700'000'000 * kSecondNs;  // since 1970

/// The trace of one rank, built by hand. Times are seconds since the job began; hosts have clocks
/// of their own, which began at different times.
class Built {
 public:
  explicit Built(int32_t rank, int32_t world_size = 3, double written_s = 100) {
    trace_.identity = {"job", 0, 7, rank, world_size, "host" + std::to_string(rank), 1000 + rank};
    offset_ns_ = int64_t{rank + 1} * 5000 * kSecondNs;
    trace_.recorded.monotonic_ns = at(written_s);
    trace_.recorded.realtime_ns = kHour + static_cast<int64_t>(written_s * 1e9);
    std::vector<int32_t> all;
    for (int32_t each = 0; each < world_size; ++each) all.push_back(each);
    open("world", all);
  }
  /// Operations that follow are on this communicator.
  Built& open(const std::string& name, std::vector<int32_t> ranks, bool on_device = false) {
    record::CommunicatorRecord record;
    record.name = name;
    for (size_t i = 0; i < ranks.size(); ++i) {
      if (ranks[i] == trace_.identity.rank) record.rank = static_cast<int32_t>(i);
    }
    record.world_ranks = std::move(ranks);
    record.on_device = on_device;
    trace_.recorded.communicators.push_back(record);
    return on(trace_.recorded.communicators.size() - 1);
  }
  Built& on(size_t communicator) {
    communicator_ = communicator;
    return *this;
  }
  /// An allreduce, called at `begin_s`. Ended at `end_s`; < 0: not.
  Built& allreduce(double begin_s, double end_s, int64_t count = 8) {
    return add(0, begin_s, end_s, count, -1);
  }
  Built& add(uint8_t kind, double begin_s, double end_s, int64_t count, int32_t root,
             int64_t position = 0) {
    record::Entry entry;
    auto& communicator = trace_.recorded.communicators[communicator_];
    entry.communicator = static_cast<uint32_t>(communicator_);
    entry.kind = kind;
    entry.dtype = 8;
    entry.root = root;
    entry.count = count;
    entry.bytes = 4 * count;
    entry.position = position > 0 ? position : ++communicator.issued;
    entry.enqueued_ns = at(begin_s);
    entry.started_ns = at(begin_s);
    entry.state = end_s < 0 ? record::State::kStarted : record::State::kDone;
    if (end_s >= 0) entry.completed_ns = at(end_s);
    trace_.recorded.entries.push_back(entry);
    return *this;
  }
  record::Entry& last() { return trace_.recorded.entries.back(); }
  Built& with_dtype(uint8_t dtype) {
    last().dtype = dtype;
    return *this;
  }
  Built& labelled(const std::string& label) {
    last().label = label;
    return *this;
  }
  Built& ended_with(Code code) {
    last().status = code;
    return *this;
  }
  Built& failed(Code code, int32_t culprit, double at_s, const std::string& text = "why") {
    trace_.reason = record::Reason::kFailed;
    trace_.failure.code = code;
    trace_.failure.rank = culprit;
    trace_.failure.host = culprit < 0 ? "" : "host" + std::to_string(culprit);
    trace_.failure.pid = culprit < 0 ? 0 : 1000 + culprit;
    trace_.failure.message = text;
    trace_.failure_realtime_ns = kHour + static_cast<int64_t>(at_s * 1e9);
    return *this;
  }
  Built& let_go() {
    trace_.recorded.communicators[communicator_].ended = true;
    return *this;
  }
  record::Trace& trace() { return trace_; }
  operator record::Trace() const { return trace_; }  // NOLINT: lists of traces read better

 private:
  int64_t at(double seconds) const { return offset_ns_ + static_cast<int64_t>(seconds * 1e9); }

  record::Trace trace_;
  int64_t offset_ns_ = 0;
  size_t communicator_ = 0;
};

}  // namespace dt::test
