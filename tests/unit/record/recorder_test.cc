// SPDX-License-Identifier: Apache-2.0
#include "record/recorder.h"

#include <doctest/doctest.h>

#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "base/wait.h"

using dt::Code;
using dt::record::Call;
using dt::record::CommunicatorRecord;
using dt::record::Entry;
using dt::record::Recorded;
using dt::record::Recorder;
using dt::record::Slot;
using dt::record::State;

namespace {

constexpr uint8_t kF32 = 8;

CommunicatorRecord world_of(int32_t size, const char* name = "world") {
  CommunicatorRecord record;
  record.name = name;
  for (int32_t rank = 0; rank < size; ++rank) record.world_ranks.push_back(rank);
  return record;
}

Call call_of(int64_t count) {
  Call call;
  call.dtype = kF32;
  call.count = count;
  return call;
}

}  // namespace

TEST_CASE("no entries: no recorder") {
  CHECK(Recorder::create(0) == nullptr);
  CHECK(Recorder::create(1)->capacity() == 1);
  CHECK(Recorder::create(5)->capacity() == 8);
  CHECK(Recorder::create(4096)->capacity() == 4096);
}

TEST_CASE("a count that makes no sense is kept as the largest that a trace can hold") {
  const auto recorder = Recorder::create(8);
  const auto track = recorder->open(world_of(3));
  REQUIRE(recorder->begin(*track, call_of(INT64_MAX)) != nullptr);
  const Recorded read = recorder->read();
  REQUIRE(read.entries.size() == 1);
  CHECK(read.entries[0].count == int64_t{1} << 58);
  CHECK(read.entries[0].bytes == int64_t{1} << 60);
}

TEST_CASE("an operation is read as it was described, in each of its states") {
  const auto recorder = Recorder::create(8);
  const auto track = recorder->open(world_of(3, "grad"));
  const std::string label = "bucket 3";
  Call call = call_of(25);
  call.kind = 1;
  call.op = 2;
  call.root = 2;
  call.label = &label;
  call.queued = true;
  const int64_t before = dt::monotonic_ns();
  Slot* const slot = recorder->begin(*track, call);
  REQUIRE(slot != nullptr);
  Recorded read = recorder->read();
  REQUIRE(read.communicators.size() == 1);
  CHECK(read.communicators[0].name == "grad");
  CHECK(read.communicators[0].issued == 1);
  CHECK(read.communicators[0].world_ranks == std::vector<int32_t>{0, 1, 2});
  REQUIRE(read.entries.size() == 1);
  Entry entry = read.entries[0];
  CHECK(entry.state == State::kQueued);
  CHECK(entry.kind == 1);
  CHECK(entry.dtype == kF32);
  CHECK(entry.op == 2);
  CHECK(entry.root == 2);
  CHECK(entry.position == 1);
  CHECK(entry.count == 25);
  CHECK(entry.bytes == 100);
  CHECK(entry.label == label);
  CHECK(entry.started_ns == 0);
  CHECK(entry.completed_ns == 0);
  constexpr int64_t kSlackNs = 1'000'000;  // two clocks that are read one after the other
  CHECK(entry.enqueued_ns >= before - kSlackNs);
  CHECK(entry.enqueued_ns <= read.monotonic_ns + kSlackNs);

  recorder->started(slot);
  entry = recorder->read().entries[0];
  CHECK(entry.state == State::kStarted);
  CHECK(entry.started_ns >= entry.enqueued_ns);
  CHECK(entry.completed_ns == 0);

  recorder->complete(slot, Code::kTimeout);
  entry = recorder->read().entries[0];
  CHECK(entry.state == State::kDone);
  CHECK(entry.status == Code::kTimeout);
  CHECK(entry.completed_ns >= entry.started_ns);
}

TEST_CASE("a label of an earlier round is not the next one's, a long one is cut") {
  const auto recorder = Recorder::create(1);
  const auto track = recorder->open(world_of(1));
  const std::string label(100, 'x');
  Call call = call_of(1);
  call.label = &label;
  recorder->complete(recorder->begin(*track, call), Code::kOk);
  CHECK(recorder->read().entries[0].label == std::string(Slot::kLabelBytes, 'x'));
  call.label = nullptr;
  recorder->complete(recorder->begin(*track, call), Code::kOk);
  CHECK(recorder->read().entries[0].label.empty());
}

TEST_CASE("the last operations stay, in the order of the calls") {
  const auto recorder = Recorder::create(8);
  const auto track = recorder->open(world_of(2));
  for (int64_t i = 1; i <= 29; ++i) {
    recorder->complete(recorder->begin(*track, call_of(i)), Code::kOk);
  }
  const Recorded read = recorder->read();
  REQUIRE(read.entries.size() == 8);
  for (size_t i = 0; i < 8; ++i) {
    CHECK(read.entries[i].position == static_cast<int64_t>(i) + 22);
    CHECK(read.entries[i].count == static_cast<int64_t>(i) + 22);
  }
  CHECK(read.communicators[0].issued == 29);
}

TEST_CASE("operations under way are never overwritten; with no room the next is only counted") {
  const auto recorder = Recorder::create(4);
  const auto track = recorder->open(world_of(2));
  Slot* const oldest = recorder->begin(*track, call_of(1000));
  for (int64_t i = 0; i < 100; ++i) {
    recorder->complete(recorder->begin(*track, call_of(i)), Code::kOk);
  }
  CHECK(recorder->read().entries[0].count == 1000);
  std::vector<Slot*> open;
  for (int64_t i = 0; i < 3; ++i) open.push_back(recorder->begin(*track, call_of(i)));
  CHECK(recorder->begin(*track, call_of(7)) == nullptr);
  recorder->started(nullptr);
  recorder->complete(nullptr, Code::kOk);
  const Recorded full = recorder->read();
  CHECK(full.dropped == 1);
  CHECK(full.communicators[0].issued == 105);
  recorder->complete(oldest, Code::kOk);
  CHECK(recorder->begin(*track, call_of(8)) == oldest);
}

TEST_CASE("where all are under way few are looked at, and room is found again all the same") {
  constexpr size_t kEntries = 1024;
  const auto recorder = Recorder::create(kEntries);
  const auto track = recorder->open(world_of(2));
  std::vector<Slot*> open;
  for (size_t i = 0; i < kEntries; ++i) open.push_back(recorder->begin(*track, call_of(1)));
  for (int i = 0; i < 1000; ++i) REQUIRE(recorder->begin(*track, call_of(2)) == nullptr);
  // One of them ends, anywhere: at eight a time all have been looked at after 128 calls.
  recorder->complete(open[500], Code::kOk);
  Slot* found = nullptr;
  for (size_t i = 0; i < kEntries / 8 && found == nullptr; ++i) {
    found = recorder->begin(*track, call_of(3));
  }
  CHECK(found == open[500]);
  for (Slot* each : open) recorder->complete(each, Code::kOk);
  for (size_t i = 0; i < kEntries; ++i) REQUIRE(recorder->begin(*track, call_of(4)) != nullptr);
}

TEST_CASE("sends and receives are counted by peer and direction, apart from collectives") {
  const auto recorder = Recorder::create(64);
  const auto track = recorder->open(world_of(3));
  const auto position = [&](uint8_t kind, int32_t root) {
    Call call = call_of(1);
    call.kind = kind;
    call.root = root;
    recorder->complete(recorder->begin(*track, call), Code::kOk);
    return recorder->read().entries.back().position;
  };
  CHECK(position(dt::record::kSendKind, 1) == 1);
  CHECK(position(dt::record::kSendKind, 1) == 2);
  CHECK(position(dt::record::kSendKind, 2) == 1);
  CHECK(position(dt::record::kRecvKind, 1) == 1);
  CHECK(position(0, -1) == 1);
  CHECK(position(dt::record::kSplitKind, -1) == 2);
  CHECK(recorder->read().communicators[0].issued == 2);
}

TEST_CASE("communicators that are gone stay for a while, and not for ever") {
  const auto recorder = Recorder::create(1024);
  const auto kept = recorder->open(world_of(2, "kept"));
  for (int i = 0; i < 1000; ++i) {
    const auto track = recorder->open(world_of(2, "short"));
    recorder->complete(recorder->begin(*track, call_of(i)), Code::kOk);
    track->end();
  }
  const Recorded read = recorder->read();
  CHECK(read.communicators.size() <= 258);
  CHECK(read.communicators[0].name == "kept");
  CHECK_FALSE(read.communicators[0].ended);
  CHECK(read.communicators.back().ended);
  CHECK(read.entries.back().count == 999);
  for (const Entry& entry : read.entries) CHECK(entry.communicator < read.communicators.size());
}

TEST_CASE(
    "several threads write while one reads: every entry that is read is one that was written") {
  constexpr int kWriters = 4;
  constexpr int64_t kEach = 20'000;
  const auto recorder = Recorder::create(64);
  std::vector<std::shared_ptr<dt::record::Track>> tracks;
  for (int i = 0; i < kWriters; ++i) tracks.push_back(recorder->open(world_of(i + 1)));
  std::atomic<int> writing{kWriters};
  std::vector<std::thread> threads;
  for (int writer = 0; writer < kWriters; ++writer) {
    threads.emplace_back([&, writer] {
      // Two operations at a time, ended in the other order. What belongs together is computed from
      // one number, so that a mixture of two operations shows.
      const std::string label(static_cast<size_t>(writer) + 1, static_cast<char>('a' + writer));
      for (int64_t i = 1; i <= kEach; i += 2) {
        Slot* slots[2];
        for (int64_t k = 0; k < 2; ++k) {
          Call call = call_of((i + k) * kWriters + writer);
          call.root = static_cast<int32_t>((i + k) % 1000);
          call.op = static_cast<uint8_t>((i + k) % 5);
          call.label = (i + k) % 3 == 0 ? &label : nullptr;
          call.queued = true;
          slots[k] = recorder->begin(*tracks[static_cast<size_t>(writer)], call);
          recorder->started(slots[k]);
        }
        recorder->complete(slots[1], Code::kOk);
        recorder->complete(slots[0], static_cast<Code>(i % 7));
      }
      writing.fetch_sub(1);
    });
  }
  const auto check = [&](const Recorded& read) {
    std::set<std::pair<uint32_t, int64_t>> seen;
    size_t wrong = 0;
    for (const Entry& entry : read.entries) {
      const auto writer = static_cast<int64_t>(entry.communicator);
      const int64_t i = entry.position;
      bool good = entry.count == i * kWriters + writer && entry.root == i % 1000 &&
                  entry.op == i % 5 && seen.emplace(entry.communicator, i).second;
      const std::string label(static_cast<size_t>(writer) + 1, static_cast<char>('a' + writer));
      good = good && entry.label == (i % 3 == 0 ? label : "");
      if (entry.state == State::kDone) {
        good = good && static_cast<int64_t>(entry.status) == (i % 2 == 0 ? 0 : i % 7);
      }
      wrong += good ? 0 : 1;
    }
    return wrong;
  };
  size_t wrong = 0;
  do {
    wrong += check(recorder->read());
  } while (writing.load() > 0);
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  const Recorded last = recorder->read();
  CHECK(check(last) == 0);
  CHECK(last.entries.size() == 64);
  for (const auto& each : last.communicators) CHECK(each.issued == kEach);
}
