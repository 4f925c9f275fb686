// SPDX-License-Identifier: Apache-2.0
// The cases that every backend passes. One line per implementation and number of ranks.
#include <doctest/doctest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>

#include "../../sanitizers.h"
#include "harness.h"

using namespace conformance;

namespace {

Setup setup(const char* backend, int32_t size) {
  Setup one;
  one.backend = backend;
  one.size = size;
  // Small, so that a few thousand elements go around the ring several times.
  one.host.inline_bytes = 256;
  one.host.slot_bytes = 1024;
  one.host.ring_bytes = 4096;
  return one;
}

/// dt.h has no messages to oneself, so these backends have none.
bool has_no_messages(const Rank& rank) {
  return rank.size == 1 &&
         (rank.backend->device() != nullptr || strcmp(rank.backend->name(), "self") == 0);
}

/// `hosts`: by rank, the number of its host.
Setup multihost(std::vector<int32_t> hosts) {
  Setup one = setup("multihost", static_cast<int32_t>(hosts.size()));
  one.hosts = std::move(hosts);
  return one;
}

const std::vector<Setup>& implementations() {
  // Other sizes have no other threads. ALL_WORLDS=1: under ThreadSanitizer all the same.
  static const std::vector<Setup> few = {
      setup("host", 2),     setup("host", 8), multihost({0, 0, 1}),
      multihost({0, 1, 2}), setup("nccl", 2), setup("staged", 3),
  };
  static const std::vector<Setup> all = {
      setup("self", 1),     setup("host", 1),        setup("host", 2),     setup("host", 3),
      setup("host", 4),     setup("host", 5),        setup("host", 8),     multihost({0, 1}),
      multihost({0, 0, 1}), multihost({0, 1, 0, 1}), multihost({0, 1, 2}), multihost({0, 0, 0, 1}),
      setup("nccl", 1),     setup("nccl", 2),        setup("nccl", 4),     setup("staged", 2),
      setup("staged", 3),
  };
  static const bool some = dt::test::kThreadSanitizer && getenv("ALL_WORLDS") == nullptr;
  return some ? few : all;
}

/// `body` also gets the number of the implementation.
void on_each(const std::function<void(Rank&, int)>& body) {
  int number = 0;
  for (const Setup& one : implementations()) {
    CAPTURE(one.backend);
    CAPTURE(one.size);
    std::string hosts;
    for (const int32_t host : one.hosts) hosts += dt::format("%d", host);
    CAPTURE(hosts);
    const auto run = [&body, number](Rank& rank) { body(rank, number); };
    for (const std::string& failure : run_ranks(one, run)) FAIL_CHECK(failure);
    ++number;
  }
}

void on_all(const std::function<void(Rank&)>& body) {
  on_each([&body](Rank& rank, int) { body(rank); });
}

constexpr Kind kMoving[] = {Kind::kAllreduce, Kind::kReduce, Kind::kBroadcast, Kind::kAllgather,
                            Kind::kReduceScatter};
constexpr Kind kReducing[] = {Kind::kAllreduce, Kind::kReduce, Kind::kReduceScatter};

}  // namespace

TEST_CASE("Backend: every collective gives the right elements wherever the buffers lie") {
  on_all([](Rank& rank) {
    std::vector<int64_t> counts = {0, rank.size + 1, 65, 5003};
    if (!dt::test::kThreadSanitizer) {
      for (const int64_t more : {1, rank.size - 1, 63, 64, 257, 2000}) counts.push_back(more);
    }
    int32_t root = 0;
    for (const Kind kind : kMoving) {
      for (const int64_t count : counts) {
        for (const Placement placement : kPlacements) {
          check_collective(rank, kind, Dtype::kF32, ReduceOp::kSum, count, root, placement);
          root = (root + 1) % rank.size;
        }
      }
    }
  });
}

// An implementation runs half of the combinations of a reduction, a dtype, a length and a kind of
// memory, and the next implementation the other half. So each backend runs all of them.
TEST_CASE("Backend: every dtype and reduction, small and large") {
  on_each([](Rank& rank, int number) {
    const auto counts =
        dt::test::kThreadSanitizer ? std::vector<int64_t>{1501} : std::vector<int64_t>{7, 1501};
    const bool all = dt::test::kThreadSanitizer || rank.size == 1;
    for (int i = 0; i < dt::kDtypeCount; ++i) {
      const auto dtype = static_cast<Dtype>(i);
      for (const Placement placement : {Placement::kOrdinary, Placement::kShared}) {
        for (const int64_t count : counts) {
          check_collective(rank, Kind::kAllgather, dtype, ReduceOp::kSum, count, 0, placement);
          check_collective(rank, Kind::kBroadcast, dtype, ReduceOp::kSum, count, 0, placement);
        }
      }
      const int ops = dt::test::kThreadSanitizer ? 1 : dt::kReduceOpCount;
      for (int j = 0; j < ops; ++j) {
        const auto op = static_cast<ReduceOp>(j);
        if (!dt::can_reduce(dtype, op) || !rank.backend->has_reduction(dtype, op)) continue;
        for (const int64_t count : counts) {
          for (const Placement placement : {Placement::kOrdinary, Placement::kShared}) {
            const int odd = (count > 7 ? 1 : 0) + (placement == Placement::kShared ? 1 : 0);
            if (!all && (number + i + j + odd) % 2 != 0) continue;
            for (const Kind kind : kReducing) {
              check_collective(rank, kind, dtype, op, count, rank.size - 1, placement);
            }
          }
        }
      }
    }
  });
}

TEST_CASE("Backend: a barrier holds everybody until the last has come") {
  on_all([](Rank& rank) {
    for (int i = 0; i < 100; ++i) {
      Collective barrier;
      barrier.deadline = Deadline::after_ms(30'000);
      rank.expect_ok(rank.run(barrier), "barrier");
    }
  });
}

TEST_CASE("Backend: eight works in flight complete in order and add to the eventfd") {
  on_all([](Rank& rank) {
    constexpr int kWorks = 8;
    auto fd = rank.backend->completion_fd();
    rank.expect_ok(fd.status(), "completion_fd");
    std::vector<float> data[kWorks];
    std::shared_ptr<Work> works[kWorks];
    for (int i = 0; i < kWorks; ++i) {
      data[i].assign(static_cast<size_t>(i % 2 == 0 ? 8 : 3000 + i), static_cast<float>(i + 1));
      works[i] = std::make_shared<Work>();
      const auto count = static_cast<int64_t>(data[i].size());
      rank.expect_ok(
          rank.backend->submit(allreduce_f32(data[i].data(), data[i].data(), count), works[i]),
          "submit");
    }
    // Waiting for the last helps all; the order makes the others done before.
    rank.expect(rank.backend->wait(*works[kWorks - 1], {Deadline::after_ms(30'000)}), "wait");
    for (int i = 0; i < kWorks; ++i) {
      rank.expect(works[i]->done(), "a work is behind a later one");
      rank.expect_ok(works[i]->status(), "work");
      for (const float value : data[i]) {
        if (value != static_cast<float>((i + 1) * rank.size)) {
          rank.expect(false, dt::format("work %d gave %g", i, value));
          break;
        }
      }
    }
    pollfd polled{fd.value(), POLLIN, 0};
    rank.expect(poll(&polled, 1, 0) == 1, "the eventfd is readable");
    eventfd_t completions = 0;
    rank.expect(eventfd_read(fd.value(), &completions) == 0 && completions == kWorks,
                dt::format("%d completions", static_cast<int>(completions)));
  });
}

TEST_CASE("Backend: works complete although nobody waits for them") {
  on_all([](Rank& rank) {
    std::vector<float> data(5000, 1);
    auto work = std::make_shared<Work>();
    dt::Doorbell bell;
    work->watch(&bell);
    rank.expect_ok(rank.backend->submit(allreduce_f32(data.data(), data.data(), 5000), work),
                   "submit");
    const Deadline deadline = Deadline::after_ms(30'000);
    while (!work->done() && !deadline.passed()) {
      const uint32_t ticket = bell.prepare();
      if (work->done()) {
        bell.cancel();
      } else {
        bell.sleep(ticket, deadline);
      }
    }
    work->unwatch(&bell);
    rank.expect(work->done() && data[4999] == static_cast<float>(rank.size), "done by itself");
  });
}

TEST_CASE("Backend: run after submit keeps the order") {
  on_all([](Rank& rank) {
    std::vector<float> data(4000, 1);
    for (int i = 0; i < 20; ++i) {
      auto work = std::make_shared<Work>();
      std::fill(data.begin(), data.end(), 1.0f);
      rank.expect_ok(rank.backend->submit(allreduce_f32(data.data(), data.data(), 4000), work),
                     "submit");
      rank.expect_ok(rank.run(allreduce_f32(data.data(), data.data(), 4000)), "run");
      rank.expect(work->done(), "the submitted one came first");
      rank.expect(data[17] == static_cast<float>(rank.size * rank.size), "both were applied");
    }
  });
}

TEST_CASE("Backend: a rank with nothing to give fails the operation everywhere, not the comm") {
  on_all([](Rank& rank) {
    if (rank.backend->device() != nullptr) return;  // there it breaks the communicator
    for (const int64_t count : {4, 3000, 100'000}) {
      std::vector<float> data(100'000, 1);
      Collective reduce = allreduce_f32(data.data(), data.data(), count);
      const bool withholds = rank.rank == rank.size - 1;
      if (withholds) {
        reduce.withheld = std::make_shared<const std::string>("no gradient for #3 fc.bias");
        reduce.send = nullptr;
      }
      const Status status = rank.run(reduce);
      rank.expect(status.code() == Code::kInvalidState, "INVALID_STATE");
      rank.expect(status.message().find("no gradient for #3 fc.bias") != std::string::npos,
                  "the reason: " + status.message());
      rank.expect(data[0] == 1 && data[2999] == 1 && data.back() == 1, "no data moved");
      rank.expect_ok(rank.backend->broken(), "whole");
      check_collective(rank, Kind::kAllreduce, Dtype::kF32, ReduceOp::kSum, count, 0,
                       Placement::kOrdinary);
    }
  });
}

TEST_CASE("Backend: messages pass around the ring of ranks, issued in any order") {
  on_all([](Rank& rank) {
    if (has_no_messages(rank)) return;
    const int32_t next = (rank.rank + 1) % rank.size;
    const int32_t before = (rank.rank + rank.size - 1) % rank.size;
    for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{5000}, int64_t{40'000}}) {
      for (const bool shared : {false, true}) {
        std::vector<float> ordinary(static_cast<size_t>(count), static_cast<float>(rank.rank));
        std::vector<float> received(static_cast<size_t>(count), -1);
        float* out = ordinary.data();
        void* memory = nullptr;
        if (shared && count > 0) {
          auto allocated = rank.backend->allocate(count * 4);
          rank.expect_ok(allocated.status(), "allocate");
          memory = allocated.value();
          out = static_cast<float*>(memory);
          std::fill(out, out + count, static_cast<float>(rank.rank));
        }
        Collective send = allreduce_f32(out, nullptr, count);
        send.kind = Kind::kSend;
        send.root = next;
        Collective recv = allreduce_f32(nullptr, received.data(), count);
        recv.kind = Kind::kRecv;
        recv.root = before;
        auto sent = std::make_shared<Work>();
        auto got = std::make_shared<Work>();
        const bool send_first = rank.rank % 2 == 0;
        rank.expect_ok(rank.backend->submit(send_first ? send : recv, send_first ? sent : got),
                       "1");
        rank.expect_ok(rank.backend->submit(send_first ? recv : send, send_first ? got : sent),
                       "2");
        rank.expect(rank.backend->wait(*sent, {Deadline::after_ms(30'000)}), "sent");
        rank.expect(rank.backend->wait(*got, {Deadline::after_ms(30'000)}), "received");
        rank.expect_ok(sent->status(), "send");
        rank.expect_ok(got->status(), "recv");
        for (const float value : received) {
          if (value == static_cast<float>(before)) continue;
          rank.expect(false, dt::format("received %g from %d", value, before));
          break;
        }
        rank.expect_ok(rank.backend->release(memory), "release");
      }
    }
  });
}

TEST_CASE("Backend: interrupt fails what is queued and every later call, and keeps the first") {
  on_all([](Rank& rank) {
    if (has_no_messages(rank)) return;
    std::vector<float> data(5000, 1);
    Collective recv = allreduce_f32(nullptr, data.data(), 5000);
    recv.kind = Kind::kRecv;
    recv.root = rank.rank;
    auto work = std::make_shared<Work>();
    rank.expect_ok(rank.backend->submit(recv, work), "submit");
    std::thread control([&] { rank.backend->interrupt(Status(Code::kPeerLost, "first")); });
    rank.expect(rank.backend->wait(*work, {Deadline::after_ms(30'000)}), "wait ends");
    control.join();
    rank.backend->interrupt(Status(Code::kAborted, "second"));
    rank.expect(work->status().message() == "first", "queued: " + work->status().message());
    rank.expect(rank.run(Collective()).message() == "first", "later");
    rank.expect(rank.backend->broken().code() == Code::kPeerLost, "broken");
  });
}

TEST_CASE("Backend: memory is zeroed, aligned, checked, and comes back each time") {
  on_all([](Rank& rank) {
    for (int i = 0; i < (dt::test::kThreadSanitizer ? 100 : 1000); ++i) {
      const int64_t bytes = 1 + i * 37;
      auto memory = rank.backend->allocate(bytes);
      rank.expect_ok(memory.status(), "allocate");
      auto* data = static_cast<unsigned char*>(memory.value());
      const uintptr_t alignment = rank.backend->device() != nullptr ? 256 : 4096;
      rank.expect(reinterpret_cast<uintptr_t>(data) % alignment == 0, "aligned");
      rank.expect(data[0] == 0 && data[bytes - 1] == 0, "zeroed");
      data[0] = data[bytes - 1] = 0xff;
      rank.expect_ok(rank.backend->release(data), "release");
    }
    rank.expect_ok(rank.backend->release(nullptr), "null");
    int other = 0;
    rank.expect(rank.backend->release(&other).code() == Code::kInvalidArgument, "foreign pointer");
    rank.expect(!rank.backend->allocate(0).ok() && !rank.backend->allocate(-1).ok(),
                "not positive");
    const auto huge = rank.backend->allocate(int64_t{1} << 55);
    rank.expect(huge.status().code() == Code::kOutOfMemory, "absurd: " + huge.status().message());
  });
}

TEST_CASE("Backend: split makes communicators by color, ordered by key; negative takes no part") {
  on_all([](Rank& rank) {
    const Deadline deadline = Deadline::after_ms(30'000);
    const bool out = rank.size > 2 && rank.rank == 1;
    auto halves = rank.backend->split(out ? -1 : rank.rank % 2, -rank.rank, "half", deadline);
    rank.expect_ok(halves.status(), "split");
    if (!halves.ok()) return;
    rank.expect((halves.value().backend == nullptr) == out, "takes part");
    if (out) return;
    const auto& members = halves.value().members;
    Rank half = rank;
    half.backend = halves.value().backend;
    half.size = static_cast<int32_t>(members.size());
    for (int32_t i = 0; i < half.size; ++i) {
      rank.expect(members[i] % 2 == rank.rank % 2, "same color");
      if (i > 0) rank.expect(members[i] < members[i - 1], "descending keys");
      if (members[i] == rank.rank) half.rank = i;
    }
    for (const int64_t count : {5, 3000}) {
      check_collective(half, Kind::kAllreduce, Dtype::kF32, ReduceOp::kSum, count, 0,
                       Placement::kShared);
      check_collective(half, Kind::kAllgather, Dtype::kI64, ReduceOp::kSum, count, 0,
                       Placement::kOrdinary);
    }
  });
}

TEST_CASE("Backend: results have the same bits on every way") {
  // Random values, so that another order of the sum would round differently.
  constexpr int64_t kCount = 3001;
  for (const int32_t size : {2, 3, 7}) {
    std::vector<std::vector<float>> inputs(size);
    std::mt19937 random(static_cast<uint32_t>(size));
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (auto& input : inputs) {
      for (int64_t i = 0; i < kCount; ++i) input.push_back(uniform(random));
    }
    std::vector<float> expected = inputs[0];
    for (int32_t rank = 1; rank < size; ++rank) {
      for (int64_t i = 0; i < kCount; ++i) expected[i] += inputs[rank][i];
    }
    for (const int64_t inline_bytes : {256, 16384}) {
      Setup one = setup("host", size);
      one.host.inline_bytes = inline_bytes;
      const auto body = [&](Rank& rank) {
        for (int way = 0; way < 4; ++way) {
          std::vector<float> in = inputs[rank.rank];
          std::vector<float> result(kCount);
          auto memory = rank.backend->allocate(kCount * 8);
          auto* shared = static_cast<float*>(memory.value());
          std::copy(in.begin(), in.end(), shared);
          float* out = (way & 2) != 0 ? shared + kCount : result.data();
          const float* from = (way & 1) != 0 ? shared : in.data();
          rank.expect_ok(rank.run(allreduce_f32(from, out, kCount)), "allreduce");
          rank.expect(std::equal(expected.begin(), expected.end(), out),
                      dt::format("way %d has other bits", way));
          rank.expect_ok(rank.run(Collective()), "barrier");
          rank.expect_ok(rank.backend->release(shared), "release");
        }
      };
      for (const std::string& failure : run_ranks(one, body)) FAIL_CHECK(failure);
    }
  }
}
