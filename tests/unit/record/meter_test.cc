// SPDX-License-Identifier: Apache-2.0
#include "record/meter.h"

#include <doctest/doctest.h>

#include <thread>
#include <vector>

#include "base/wait.h"
#include "collective/operation.h"
#include "record/recorder.h"

using dt::Code;
using dt::Dtype;
using dt::collective::Kind;
using dt::record::Meter;
using dt::record::Totals;

namespace {

Meter::Ended ended(Kind kind, uint8_t size_class, int64_t count, Code status = Code::kOk) {
  Meter::Ended ended;
  ended.kind = static_cast<uint8_t>(kind);
  ended.size_class = size_class;
  ended.dtype = Dtype::kF32;
  ended.status = status;
  ended.count = count;
  ended.ticks = 1;
  return ended;
}

const Totals::Kind& of(const Totals& totals, Kind kind) {
  return totals.kinds[static_cast<size_t>(kind)];
}

dt::record::CommunicatorRecord ranks(int32_t size) {
  dt::record::CommunicatorRecord record;
  for (int32_t rank = 0; rank < size; ++rank) record.world_ranks.push_back(rank);
  return record;
}

}  // namespace

TEST_CASE("a new meter has counted nothing") {
  const Totals totals = Meter(2).read();
  for (const Totals::Kind& kind : totals.kinds) {
    CHECK(kind.operations == 0);
    CHECK(kind.busy_ns == 0);
    CHECK(dt::record::bus_bandwidth(kind) == 0.0);
  }
  CHECK(totals.peers.size() == 2);
  CHECK(dt::record::hidden_share(totals.steps) == 1.0);
}

TEST_CASE("bytes and bus bytes are those of nccl-tests, for each kind and number of ranks") {
  for (const int32_t size : {1, 2, 3, 8}) {
    CAPTURE(size);
    Meter meter(size);
    const uint8_t size_class = meter.size_class(size);
    CHECK(size_class != 0);
    CHECK(meter.size_class(size) == size_class);
    for (int kind = 0; kind < dt::kKindCount; ++kind) {
      meter.count(ended(static_cast<Kind>(kind), size_class, 2400));
    }
    const Totals totals = meter.read();
    for (const Kind kind : {Kind::kReduce, Kind::kBroadcast, Kind::kSend, Kind::kRecv}) {
      CHECK(of(totals, kind).bytes == 9600);
      CHECK(of(totals, kind).bus_bytes == 9600);
    }
    CHECK(of(totals, Kind::kAllreduce).bytes == 9600);
    CHECK(of(totals, Kind::kAllreduce).bus_bytes == 2 * 9600 / size * (size - 1));
    for (const Kind kind :
         {Kind::kAllgather, Kind::kReduceScatter, Kind::kAlltoall, Kind::kGather, Kind::kScatter}) {
      CHECK(of(totals, kind).bytes == 9600 * size);
      CHECK(of(totals, kind).bus_bytes == 9600 * (size - 1));
    }
    for (const Kind kind : {Kind::kAlltoallv, Kind::kGatherv, Kind::kScatterv, Kind::kAllgatherv}) {
      CHECK(of(totals, kind).bytes == 9600);
      CHECK(of(totals, kind).bus_bytes == 9600 / size * (size - 1));
    }
    CHECK(of(totals, Kind::kBarrier).operations == 1);
  }
}

TEST_CASE("more sizes than there are classes: the rest counts plain bytes") {
  Meter meter(1);
  for (int32_t size = 1; size < 128; ++size) CHECK(meter.size_class(size) == size);
  CHECK(meter.size_class(128) == 0);
  CHECK(meter.size_class(1000) == 0);
  CHECK(meter.size_class(77) == 77);
  CHECK(meter.size_class(0) == 0);
  meter.count(ended(Kind::kAllreduce, 0, 10));
  CHECK(of(meter.read(), Kind::kAllreduce).bus_bytes == 40);
}

TEST_CASE("what does not end well is a failure, and an operation, too") {
  Meter meter(2);
  meter.count(ended(Kind::kBarrier, 0, 0));
  meter.count(ended(Kind::kBarrier, 0, 0, Code::kTimeout));
  CHECK(of(meter.read(), Kind::kBarrier).operations == 2);
  CHECK(of(meter.read(), Kind::kBarrier).failures == 1);
}

TEST_CASE("a kind beyond the table is left out") {
  Meter meter(1);
  Meter::Ended split;
  split.kind = dt::record::kSplitKind;
  meter.count(split);
  for (const Totals::Kind& kind : meter.read().kinds) CHECK(kind.operations == 0);
}

TEST_CASE("waits, steps and stalls add up") {
  Meter meter(3);
  meter.waited(2, 5);
  meter.waited(2, 7);
  meter.waited(-1, 100);
  meter.waited(3, 100);
  meter.stepped(1000, 80, 20);
  meter.stepped(1000, 120, 30);
  meter.stalled();
  const Totals totals = meter.read();
  CHECK(totals.peers[0].waits == 0);
  CHECK(totals.peers[2].waits == 2);
  CHECK(totals.peers[2].waited_ns == 12);
  CHECK(meter.peer(2).waited_ns == 12);
  CHECK(meter.peer(3).waits == 0);
  CHECK(totals.steps.steps == 2);
  CHECK(totals.steps.bytes == 2000);
  CHECK(dt::record::hidden_share(totals.steps) == doctest::Approx(0.75));
  CHECK(totals.stalls == 1);
}

TEST_CASE("no count is lost where many threads count and one reads") {
  constexpr int kThreads = 6;
  constexpr int kCounts = 5000;
  Meter meter(4);
  const uint8_t four = meter.size_class(4);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kCounts; ++i) meter.count(ended(Kind::kAllreduce, four, 2));
    });
  }
  Totals::Kind last;
  for (int i = 0; i < 50; ++i) {
    const Totals::Kind now = of(meter.read(), Kind::kAllreduce);
    CHECK(now.operations >= last.operations);
    CHECK(now.bytes >= last.bytes);
    CHECK(now.busy_ns >= last.busy_ns);
    last = now;
  }
  for (std::thread& thread : threads) thread.join();
  const Totals::Kind all = of(meter.read(), Kind::kAllreduce);
  CHECK(all.operations == kThreads * kCounts);
  CHECK(all.bytes == kThreads * kCounts * 8);
  CHECK(all.bus_bytes == kThreads * kCounts * 12);
}

TEST_CASE("the recorder hands over what ends, from its start, with its communicator's size") {
  const auto meter = std::make_shared<Meter>(4);
  const auto recorder = dt::record::Recorder::create(8, meter);
  const auto track = recorder->open(ranks(4));
  const int64_t before = dt::monotonic_ns();
  dt::record::Call call;
  call.dtype = static_cast<uint8_t>(Dtype::kF64);
  call.count = 10;
  const std::string label = "bucket 3";
  call.label = &label;
  dt::record::Slot* const slot = recorder->begin(*track, call);
  recorder->complete(slot, Code::kOk);
  call.queued = true;  // never started
  recorder->complete(recorder->begin(*track, call), Code::kAborted);
  const int64_t took = dt::monotonic_ns() - before;
  const Totals::Kind kind = of(meter->read(), Kind::kAllreduce);
  CHECK(kind.operations == 2);
  CHECK(kind.failures == 1);
  CHECK(kind.bytes == 80);  // what fails moves nothing that counts
  CHECK(kind.bus_bytes == 120);
  CHECK(kind.busy_ns >= 0);
  CHECK(kind.busy_ns <= took + took / 4 + 1000);  // two clocks
  CHECK(recorder->read().entries.at(0).label == label);
}
