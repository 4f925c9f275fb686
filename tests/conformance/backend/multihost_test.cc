// SPDX-License-Identifier: Apache-2.0
// What only a backend over several hosts can do or get wrong.
#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <mutex>
#include <random>

#include "play.h"

using namespace conformance;

TEST_CASE(
    "Multihost: ranks that disagree all get one MISMATCH with both sides, wherever they are") {
  for (const int32_t odd : {1, 3}) {
    std::mutex guard;
    std::vector<std::string> texts;
    play(hosts({0, 0, 1, 1}), [&](Rank& rank) {
      std::vector<float> data(5000, 1);
      Collective reduce = allreduce_f32(data.data(), data.data(), rank.rank == odd ? 4001 : 4000);
      reduce.name = "bucket 3";
      const Status status = rank.backend->run(reduce);
      const std::string text = status.message();
      rank.expect(status.code() == Code::kMismatch, "MISMATCH: " + text);
      rank.expect(contains(text, "allreduce #1 on comm \"world\", rank ") &&
                      contains(text, "rank 0 (world rank 100, host0, pid ") &&
                      contains(text, " and 2 more: allreduce f32 sum x 4000 \"bucket 3\"") &&
                      contains(text, dt::format("rank %d (world rank %d, host%d, pid ", odd,
                                                100 + odd, odd / 2)) &&
                      contains(text, ": allreduce f32 sum x 4001 \"bucket 3\""),
                  text);
      rank.expect(status.info().rank == 100 + odd && status.info().sequence == 1 &&
                      status.info().host == dt::format("host%d", odd / 2),
                  "as data");
      rank.expect(data[0] == 1, "no data moved");
      rank.expect(rank.backend->run(Collective()).message() == text, "later calls");
      rank.meet();
      std::lock_guard lock(guard);
      texts.push_back(text.substr(text.find(": ranks disagree")));
    });
    for (const std::string& text : texts) CHECK(text == texts[0]);
  }
}

TEST_CASE("Multihost: each field that ranks must agree on is compared") {
  check_each_field_is_compared(hosts({0, 1}));
}

TEST_CASE("Multihost: a receiver that expects something else, or a collective, names both sides") {
  for (const bool collective : {false, true}) {
    std::atomic<int> told{0};
    Setup setup = hosts({0, 1});
    setup.on_broken = [&](const Status& status) {
      if (status.code() == Code::kMismatch) ++told;
    };
    play(setup, [&](Rank& rank) {
      std::vector<float> data(100, 1);
      Collective one = allreduce_f32(data.data(), data.data(), rank.rank == 0 ? 100 : 99);
      one.root = 1 - rank.rank;
      one.kind = rank.rank == 0 ? Kind::kSend : collective ? Kind::kAllreduce : Kind::kRecv;
      const Status status = rank.backend->run(one);
      // The sender is done when the bytes are on their way; the control plane tells it.
      if (rank.rank == 0) return rank.meet();
      rank.expect(status.code() == Code::kMismatch, "MISMATCH: " + status.message());
      rank.expect(contains(status.message(), "rank 0 (world rank 100, host0, pid ") &&
                      contains(status.message(), "): send f32 x 100, rank 1 (world rank 101") &&
                      contains(status.message(),
                               collective ? "): allreduce f32 sum x 99" : "): recv f32 x 99"),
                  status.message());
      rank.expect(status.info().rank == 100, "culprit");
      rank.meet();
    });
    CHECK(told.load() == 1);
  }
}

TEST_CASE(
    "Multihost: sums that ride with the agreement are right, with a name too, up to the last") {
  for (const std::vector<int32_t>& of_rank : {std::vector<int32_t>{0, 1}, {0, 0, 0, 1}}) {
    play(hosts(of_rank), [&](Rank& rank) {
      for (const char* name : {"", "bucket 3"}) {
        // 16384 floats are the most that ride.
        for (const int64_t count : {1, 7, 16'384, 16'385}) {
          for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
            std::vector<float> in(static_cast<size_t>(count));
            std::vector<float> out(in.size(), -1);
            float ranks = 0;
            for (int32_t each = 0; each < rank.size; ++each) ranks += static_cast<float>(4 * each);
            for (size_t i = 0; i < in.size(); ++i) {
              in[i] = static_cast<float>(4 * rank.rank) + static_cast<float>(i % 8) * 4;
            }
            for (const bool in_place : {false, true}) {
              Collective reduce =
                  allreduce_f32(in.data(), in_place ? in.data() : out.data(), count);
              reduce.op = op;
              reduce.name = name;
              rank.expect_ok(rank.backend->run(reduce), "sum");
              const float parts = op == ReduceOp::kAvg ? static_cast<float>(rank.size) : 1;
              int64_t wrong = 0;
              for (size_t i = 0; i < in.size(); ++i) {
                const float whole =
                    ranks + static_cast<float>(i % 8) * 4 * static_cast<float>(rank.size);
                wrong += (in_place ? in : out)[i] != whole / parts;
              }
              rank.expect(wrong == 0,
                          dt::format("%s x %lld: %lld wrong", name, static_cast<long long>(count),
                                     static_cast<long long>(wrong)));
            }
          }
        }
      }
    });
  }
}

TEST_CASE("Multihost: communicators do not wait for each other, in whatever order they are used") {
  play(hosts({0, 1, 0, 1}), [](Rank& rank) {
    std::vector<std::shared_ptr<Backend>> children;
    for (int i = 0; i < 3; ++i) {
      auto child =
          rank.backend->split(0, rank.rank, dt::format("child %d", i), Deadline::after_ms(30'000));
      rank.expect_ok(child.status(), "split");
      children.push_back(child.value().backend);
    }
    // More than sockets hold, so that one of them alone would block the others.
    constexpr int64_t kCount = 2'000'000;
    std::vector<float> data[3];
    std::shared_ptr<Work> works[3];
    for (int i = 0; i < 3; ++i) {
      const int index = rank.rank % 2 == 0 ? i : 2 - i;
      data[index].assign(kCount, 1);
      works[index] = std::make_shared<Work>();
      const Collective reduce = allreduce_f32(data[index].data(), data[index].data(), kCount);
      rank.expect_ok(children[index]->submit(reduce, works[index]), "submit");
    }
    for (int i = 0; i < 3; ++i) {
      const int index = rank.rank % 2 == 0 ? i : 2 - i;
      rank.expect(children[index]->wait(*works[index], {Deadline::after_ms(30'000)}), "wait");
      rank.expect_ok(works[index]->status(), "work");
      rank.expect(data[index][0] == 4 && data[index][kCount - 1] == 4, "result");
    }
  });
}

TEST_CASE("Multihost: a message that nobody receives yet blocks no other communicator") {
  play(hosts({0, 1}), [](Rank& rank) {
    auto child = rank.backend->split(0, rank.rank, "child", Deadline::after_ms(30'000));
    rank.expect_ok(child.status(), "split");
    constexpr int64_t kCount = 16 << 20;  // more than sockets hold
    std::vector<uint8_t> data(kCount, static_cast<uint8_t>(7 * (1 - rank.rank)));
    Collective message = allreduce_f32(nullptr, nullptr, kCount);
    message.dtype = Dtype::kU8;
    message.kind = rank.rank == 0 ? Kind::kSend : Kind::kRecv;
    message.send = message.recv = data.data();
    message.root = 1 - rank.rank;
    auto work = std::make_shared<Work>();
    if (rank.rank == 0) rank.expect_ok(rank.backend->submit(message, work), "send");
    for (int i = 0; i < 20; ++i) {
      check_collective({rank.rank, 2, child.value().backend, nullptr, rank.failures, {}},
                       Kind::kAllreduce, Dtype::kF32, ReduceOp::kSum, 30'000, 0,
                       Placement::kOrdinary);
    }
    if (rank.rank == 0) rank.expect(!work->done(), "held up by the receiver");
    rank.meet();
    if (rank.rank == 1) rank.expect_ok(rank.backend->submit(message, work), "recv");
    rank.expect(rank.backend->wait(*work, {Deadline::after_ms(30'000)}), "wait");
    rank.expect_ok(work->status(), "message");
    rank.expect(data[0] == 7 && data[kCount - 1] == 7, "bytes");
  });
}

TEST_CASE("Multihost: splits within hosts, across hosts and of splits") {
  play(hosts({0, 1, 0, 1, 2, 0}), [](Rank& rank) {
    const int32_t of_rank[] = {0, 1, 0, 1, 2, 0};
    const Deadline deadline = Deadline::after_ms(30'000);
    const auto check = [&](const Backend::Split& split, int32_t in_parent, const char* name) {
      Rank child = rank;
      child.backend = split.backend;
      child.size = static_cast<int32_t>(split.members.size());
      for (int32_t i = 0; i < child.size; ++i) {
        if (split.members[i] == in_parent) child.rank = i;
      }
      rank.expect(strcmp(child.backend->name(), name) == 0, child.backend->name());
      for (const int64_t count : {3, 20'000}) {
        check_collective(child, Kind::kAllreduce, Dtype::kF64, ReduceOp::kAvg, count, 0,
                         Placement::kOrdinary);
        check_collective(child, Kind::kReduceScatter, Dtype::kI64, ReduceOp::kSum, count, 0,
                         Placement::kInPlace);
        check_collective(child, Kind::kBroadcast, Dtype::kI32, ReduceOp::kSum, count,
                         child.size - 1, Placement::kShared);
      }
    };
    auto inside = rank.backend->split(of_rank[rank.rank], 0, "inside", deadline);
    rank.expect_ok(inside.status(), "inside");
    check(inside.value(), rank.rank, "host");
    auto across = rank.backend->split(0, -rank.rank, "across", deadline);
    rank.expect_ok(across.status(), "across");
    rank.expect(across.value().members[0] == 5, "by key");
    check(across.value(), rank.rank, "multihost");
    auto halves = across.value().backend->split(rank.rank < 3 ? 0 : 1, rank.rank, "half", deadline);
    rank.expect_ok(halves.status(), "half");
    check(halves.value(), 5 - rank.rank, "multihost");
    auto none = rank.backend->split(rank.rank == 1 ? -1 : 0, 0, "without", deadline);
    rank.expect_ok(none.status(), "without");
    rank.expect((none.value().backend == nullptr) == (rank.rank == 1), "takes no part");
    check_collective(rank, Kind::kAllgather, Dtype::kF32, ReduceOp::kSum, 1000, 0,
                     Placement::kOrdinary);
  });
}

TEST_CASE("Multihost: a split that fails on one rank fails on all that it concerns, at once") {
  play(hosts({0, 1, 1, 0}), [](Rank& rank) {
    const Deadline deadline = Deadline::after_ms(30'000);
    // Rank 1 cannot make its part, because of the name that it alone gives.
    const std::string name = rank.rank == 1 ? std::string(2000, 'x') : "child";
    const auto child = rank.backend->split(rank.rank == 3 ? 1 : 0, 0, name, deadline);
    const std::string text = child.status().message();
    if (rank.rank == 3) {
      rank.expect_ok(child.status(), "another color");
    } else {
      rank.expect(child.status().code() == Code::kInvalidArgument, "as rank 1: " + text);
      rank.expect(contains(text, "name has 2000 bytes, more than the 1024"), text);
    }
    if (rank.rank == 0 || rank.rank == 2) {
      rank.expect(
          contains(text, "communicator \"child\" was not made: rank 1 (world rank 101, host1"),
          text);
      rank.expect(child.status().info().rank == 101 && child.status().info().host == "host1",
                  "as data");
    }
    const auto all = rank.backend->split(0, 0, std::string(1025, 'x'), deadline);
    rank.expect(all.status().code() == Code::kInvalidArgument, all.status().message());
    const auto good = rank.backend->split(0, 0, std::string(1024, 'x'), deadline);
    rank.expect_ok(good.status(), "the longest name");
    rank.expect_ok(good.value().backend->run(Collective()), "barrier");
    check_collective(rank, Kind::kAllreduce, Dtype::kF32, ReduceOp::kSum, 1000, 0,
                     Placement::kOrdinary);
  });
}

TEST_CASE("Multihost: several segments, with any dtype that is rounded between the levels") {
  play(hosts({0, 0, 1}), [](Rank& rank) {
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
      const int64_t count = (9 << 19) / dt::dtype_bytes(dtype) + 13;
      for (const Kind kind : {Kind::kAllreduce, Kind::kReduce, Kind::kReduceScatter}) {
        const int64_t each = kind == Kind::kReduceScatter ? count / 3 : count;
        check_collective(rank, kind, dtype, ReduceOp::kSum, each, 2, Placement::kInPlace);
      }
    }
  });
}

TEST_CASE("Multihost: all ranks get the same bits, in every run, and NaN wins everywhere") {
  constexpr int64_t kCount = 50'000;
  std::vector<std::vector<float>> results(4 * 3);
  play(hosts({0, 1, 1, 0}), [&](Rank& rank) {
    for (int run = 0; run < 3; ++run) {
      std::mt19937 random(static_cast<uint32_t>(rank.rank));
      std::uniform_real_distribution<float> uniform(-1, 1);
      std::vector<float> data(kCount);
      for (float& value : data) value = uniform(random);
      rank.expect_ok(rank.backend->run(allreduce_f32(data.data(), data.data(), kCount)), "sum");
      results[static_cast<size_t>(4 * run + rank.rank)] = data;
    }
    for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
      for (const int64_t count : {int64_t{9}, kCount}) {
        std::vector<float> data(static_cast<size_t>(count), static_cast<float>(rank.rank));
        if (rank.rank == 2) data[5] = NAN;
        Collective reduce = allreduce_f32(data.data(), data.data(), count);
        reduce.op = op;
        rank.expect_ok(rank.backend->run(reduce), "reduce");
        rank.expect(std::isnan(data[5]), "NaN");
        rank.expect(data[4] == (op == ReduceOp::kMin ? 0 : 3), "beside it");
      }
    }
  });
  for (const auto& result : results)
    CHECK(memcmp(result.data(), results[0].data(), kCount * 4) == 0);
}
