// SPDX-License-Identifier: Apache-2.0
// What only a backend over several hosts can do or get wrong.
#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>

#include "harness.h"
#include "transport/tcp/mesh.h"

using namespace conformance;

namespace {

Setup hosts(std::vector<int32_t> of_rank) {
  Setup one;
  one.backend = "multihost";
  one.size = static_cast<int32_t>(of_rank.size());
  one.hosts = std::move(of_rank);
  return one;
}

void play(const Setup& setup, const std::function<void(Rank&)>& body) {
  for (const std::string& failure : run_ranks(setup, body)) FAIL_CHECK(failure);
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

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
  const auto differ = [](const std::function<void(Collective&)>& change) {
    play(hosts({0, 1}), [&](Rank& rank) {
      std::vector<double> data(4, 1);
      Collective one;
      one.kind = Kind::kReduce;
      one.dtype = Dtype::kI32;
      one.send = one.recv = data.data();
      one.count = 2;
      one.deadline = Deadline::after_ms(30'000);
      if (rank.rank == 1) change(one);
      rank.expect(rank.backend->run(one).code() == Code::kMismatch, "MISMATCH");
    });
  };
  differ([](Collective& one) { one.kind = Kind::kBroadcast; });
  differ([](Collective& one) { one.kind = Kind::kBarrier; });
  differ([](Collective& one) { one.dtype = Dtype::kF32; });
  differ([](Collective& one) { one.op = ReduceOp::kMax; });
  differ([](Collective& one) { one.root = 1; });
  differ([](Collective& one) { one.count = 1; });
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

TEST_CASE("Multihost: a deadline names the rank of the other host that has not arrived") {
  for (const bool connected : {true, false}) {
    play(hosts({0, 1, 2}), [&](Rank& rank) {
      if (connected) rank.expect_ok(rank.backend->run(Collective()), "barrier");
      rank.meet();
      if (rank.rank != 2) {
        std::vector<float> data(5000, 1);
        Collective reduce = allreduce_f32(data.data(), data.data(), 5000);
        reduce.deadline = Deadline::after_ms(100);
        const Status status = rank.backend->run(reduce);
        const std::string text = status.message();
        rank.expect(status.code() == Code::kTimeout, "TIMEOUT: " + text);
        rank.expect(contains(text, "timed out: rank 2 (world rank 102, host2, pid ") &&
                        contains(text, ") at 127.0.0.1:") &&
                        contains(text, "has not arrived; look at") &&
                        !contains(text, "rank 1 (world rank 101, host1, pid "),
                    text);
        rank.expect(status.info().rank == 102 && status.info().host == "host2" &&
                        status.info().operation == "allreduce",
                    "as data");
      }
      rank.meet();
    });
  }
}

TEST_CASE("Multihost: a receive that may wait for ever does not hide the deadline of a later one") {
  play(hosts({0, 1}), [&](Rank& rank) {
    rank.expect_ok(rank.backend->run(Collective()), "barrier");
    if (rank.rank == 0) {
      int32_t values[2] = {};
      std::vector<std::shared_ptr<Work>> works;
      for (const Deadline deadline : {Deadline::never(), Deadline::after_ms(100)}) {
        Collective receive;
        receive.kind = Kind::kRecv;
        receive.dtype = Dtype::kI32;
        receive.root = 1;
        receive.recv = &values[works.size()];
        receive.count = 1;
        receive.deadline = deadline;
        works.push_back(std::make_shared<Work>());
        rank.expect_ok(rank.backend->submit(receive, works.back()), "submit");
      }
      const Wait patient{Deadline::after_ms(20'000), nullptr};
      for (const auto& work : works) {
        rank.expect(rank.backend->wait(*work, patient) && work->status().code() == Code::kTimeout,
                    "TIMEOUT: " + work->status().message());
      }
    }
    rank.meet();
  });
}

TEST_CASE("Multihost: of several receives the one whose deadline comes first is what fails") {
  play(hosts({0, 1, 2}), [&](Rank& rank) {
    rank.expect_ok(rank.backend->run(Collective()), "barrier");
    const auto transfer = [&](Kind kind, int32_t peer, int32_t* value, Deadline deadline) {
      Collective one;
      one.kind = kind;
      one.dtype = Dtype::kI32;
      one.root = peer;
      one.send = one.recv = value;
      one.count = 1;
      one.deadline = deadline;
      auto work = std::make_shared<Work>();
      rank.expect_ok(rank.backend->submit(one, work), "submit");
      return work;
    };
    if (rank.rank == 0) {
      int32_t values[4] = {};
      // One that ends in time and whose deadline then passes, one for ever, one long, one short.
      const Deadline soon = Deadline::after_ms(400);
      const auto good = transfer(Kind::kRecv, 1, &values[0], soon);
      rank.meet();
      const Wait patient{Deadline::after_ms(30'000), nullptr};
      rank.expect(rank.backend->wait(*good, patient), "good");
      rank.expect_ok(good->status(), "good");
      rank.expect(values[0] == 7, "value");
      const auto never = transfer(Kind::kRecv, 1, &values[1], Deadline::never());
      const auto longer = transfer(Kind::kRecv, 1, &values[2], Deadline::after_ms(25'000));
      const auto shorter = transfer(Kind::kRecv, 2, &values[3], Deadline::after_ms(800));
      rank.expect(rank.backend->wait(*shorter, patient), "shorter");
      rank.expect(soon.passed(), "not by the deadline of the one that has ended");
      const std::string text = shorter->status().message();
      rank.expect(contains(text, "timed out: rank 2 (world rank 102, host2, pid ") &&
                      contains(text, "has not sent") && !contains(text, "rank 1 ("),
                  text);
      rank.expect(shorter->status().info().rank == 102, "culprit");
      rank.expect(never->done() && longer->done(), "they go with their communicator");
    } else {
      int32_t value = 7;
      if (rank.rank == 1) {
        rank.expect_ok(rank.backend->run([&] {
          Collective one;
          one.kind = Kind::kSend;
          one.dtype = Dtype::kI32;
          one.send = &value;
          one.count = 1;
          return one;
        }()),
                       "send");
      }
      rank.meet();
    }
    rank.meet();
  });
}

TEST_CASE("Multihost: a collective that is queued behind a transfer keeps its own deadline") {
  for (const Kind kind : {Kind::kRecv, Kind::kSend}) {
    play(hosts({0, 1}), [&](Rank& rank) {
      rank.expect_ok(rank.backend->run(Collective()), "barrier");
      if (rank.rank == 0) {
        std::vector<uint8_t> data(64 << 20);  // more than sockets hold
        Collective transfer;
        transfer.kind = kind;
        transfer.root = 1;
        transfer.send = transfer.recv = data.data();
        transfer.count = 64 << 20;
        auto endless = std::make_shared<Work>();
        rank.expect_ok(rank.backend->submit(transfer, endless), "submit");
        Collective barrier;
        barrier.deadline = Deadline::after_ms(100);
        auto work = std::make_shared<Work>();
        rank.expect_ok(rank.backend->submit(barrier, work), "submit");
        rank.expect(rank.backend->wait(*work, {Deadline::after_ms(30'000)}), "wait");
        const std::string text = work->status().message();
        rank.expect(work->status().code() == Code::kTimeout, "TIMEOUT: " + text);
        rank.expect(
            contains(text,
                     dt::format("barrier on comm \"world\", rank 0 (host0): timed out before "
                                "it began: it waited behind %s rank 1 (world rank 101, host1, "
                                "pid ",
                                kind == Kind::kRecv ? "recv from" : "send to")) &&
                contains(text, "), which has no deadline; "),
            text);
        rank.expect(work->status().info().rank == 101 && endless->done(), "as data");
      }
      rank.meet();
    });
  }
}

TEST_CASE("Multihost: a rank of this host that does not arrive is named, a wait cancels nothing") {
  play(hosts({0, 0, 1}), [&](Rank& rank) {
    rank.expect_ok(rank.backend->run(Collective()), "barrier");
    rank.meet();
    if (rank.rank == 0) {
      Collective barrier;
      barrier.deadline = Deadline::after_ms(200);
      auto work = std::make_shared<Work>();
      rank.expect_ok(rank.backend->submit(barrier, work), "submit");
      rank.expect(!rank.backend->wait(*work, {Deadline::after_ms(1)}), "not done");
      rank.expect(rank.backend->wait(*work, {Deadline::after_ms(30'000)}), "done");
      const std::string text = work->status().message();
      rank.expect(contains(text,
                           "barrier #2 on comm \"world\", rank 0 (host0): among the ranks of "
                           "this host: ") &&
                      contains(text, "has not arrived: rank 101 (host0, pid "),
                  text);
      rank.expect(work->status().info().rank == 101, "culprit");
    }
    rank.meet();
  });
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

TEST_CASE("Multihost: nobody sees a failure before the control plane has it") {
  for (const bool answers : {true, false}) {
    std::mutex guard;
    std::function<void()> handed_over;
    dt::Event told;
    Setup setup = hosts({0, 1});
    setup.on_telling = [&](std::function<void()> call) {
      std::lock_guard lock(guard);
      handed_over = std::move(call);
      told.set();
    };
    play(setup, [&](Rank& rank) {
      rank.expect_ok(rank.backend->run(Collective()), "barrier");
      rank.meet();
      if (rank.rank == 1) return rank.meet();
      auto work = std::make_shared<Work>();
      auto fd = rank.backend->completion_fd();
      rank.expect_ok(fd.status(), "completion_fd");
      Collective barrier;
      barrier.deadline = Deadline::after_ms(20);
      rank.expect_ok(rank.backend->submit(barrier, work), "submit");
      rank.expect(told.wait({Deadline::after_ms(30'000)}), "told");
      // Nothing happens on the backend's thread until it is called, or 2 s later.
      pollfd polled{fd.value(), POLLIN, 0};
      rank.expect(!work->done() && poll(&polled, 1, 50) == 0 && !work->done(), "seen too early");
      if (answers) {
        std::lock_guard lock(guard);
        handed_over();
      }
      rank.expect(poll(&polled, 1, 30'000) == 1 && work->done(), "seen");
      rank.expect(work->status().code() == Code::kTimeout, work->status().message());
      rank.meet();
    });
    handed_over();  // the backend is gone
  }
}

TEST_CASE("Multihost: interrupt wakes a call that waits for another host") {
  play(hosts({0, 1, 1}), [](Rank& rank) {
    std::vector<float> data(200'000, 1);
    if (rank.rank == 2) return rank.meet();
    auto work = std::make_shared<Work>();
    rank.expect_ok(rank.backend->submit(allreduce_f32(data.data(), data.data(), 200'000), work),
                   "submit");
    std::thread control(
        [&] { rank.backend->interrupt(Status(Code::kPeerLost, "rank 2 is gone")); });
    rank.expect(rank.backend->wait(*work, {Deadline::after_ms(30'000)}), "wait");
    control.join();
    rank.expect(work->status().message() == "rank 2 is gone", work->status().message());
    rank.expect(rank.backend->run(Collective()).code() == Code::kPeerLost, "later");
    rank.meet();
  });
}

TEST_CASE("Multihost: backends are destroyed with works queued, in any order") {
  for (int round = 0; round < 10; ++round) {
    play(hosts({0, 0, 1}), [&](Rank& rank) {
      auto child = rank.backend->split(0, 0, "child", Deadline::after_ms(30'000));
      rank.expect_ok(child.status(), "split");
      auto work = std::make_shared<Work>();
      std::vector<float> data(100'000);
      if (rank.rank == round % 3) {
        rank.expect_ok(
            child.value().backend->submit(allreduce_f32(data.data(), data.data(), 100'000), work),
            "submit");
      }
      if (round % 2 == 0) rank.backend.reset();
      child = Backend::Split();
      if (rank.rank == round % 3) {
        rank.expect(work->done() && !work->status().ok(), "failed");
        rank.expect(contains(work->status().message(), "\"child\" was destroyed while") ||
                        contains(work->status().message(), " broke: "),
                    work->status().message());
      }
    });
  }
}

TEST_CASE("Multihost: a peer whose connection breaks is named with both addresses") {
  play(hosts({0, 1}), [](Rank& rank) {
    rank.expect_ok(rank.backend->run(Collective()), "barrier");
    rank.meet();
    if (rank.rank == 1) {
      rank.backend->interrupt(Status(Code::kPeerLost, "failed here"));
      return rank.meet();
    }
    Collective barrier;
    barrier.deadline = Deadline::after_ms(30'000);
    const Status status = rank.backend->run(barrier);
    const std::string text = status.message();
    rank.expect(status.code() == Code::kPeerLost && status.info().rank == 101, text);
    rank.expect(contains(text,
                         "barrier #2 on comm \"world\", rank 0 (host0): the connection "
                         "between rank 100 (host0) at 127.0.0.1:") &&
                    contains(text, " and rank 101 (host1 pid ") && contains(text, " broke: "),
                text);
    rank.meet();
  });
}

TEST_CASE("Multihost: a rank that destroyed its communicator is named by whoever meets it") {
  enum class Way { kCollective, kRecv, kSend, kLargeSend, kSendPastUnread, kDial };
  for (const Way way : {Way::kCollective, Way::kRecv, Way::kSend, Way::kLargeSend,
                        Way::kSendPastUnread, Way::kDial}) {
    CAPTURE(static_cast<int>(way));
    play(hosts({0, 1}), [&](Rank& rank) {
      const Deadline deadline = Deadline::after_ms(30'000);
      auto child = rank.backend->split(0, rank.rank, "child", deadline);
      rank.expect_ok(child.status(), "split");
      Backend& backend = *child.value().backend;
      // Less than sockets hold, and more than that.
      std::vector<float> data(way == Way::kLargeSend || way == Way::kSendPastUnread ? 16 << 20 : 1);
      Collective one = allreduce_f32(data.data(), data.data(), static_cast<int64_t>(data.size()));
      one.root = 1 - rank.rank;
      one.deadline = deadline;
      if (way != Way::kDial) rank.expect_ok(backend.run(Collective()), "barrier");
      if (way == Way::kSendPastUnread) {
        Collective unread = one;
        unread.kind = Kind::kSend;
        unread.count = 1;
        rank.expect_ok(backend.run(unread), "send");
      }
      auto work = std::make_shared<Work>();
      if (way == Way::kLargeSend && rank.rank == 0) {  // it is half sent when the peer leaves
        one.kind = Kind::kSend;
        rank.expect_ok(backend.submit(one, work), "submit");
      }
      rank.meet();
      if (rank.rank == 1) {
        child = Backend::Split();
        rank.meet();
        return rank.meet();
      }
      rank.meet();
      if (way == Way::kRecv) one.kind = Kind::kRecv;
      if (way == Way::kSend || way == Way::kSendPastUnread) one.kind = Kind::kSend;
      if (way != Way::kLargeSend) rank.expect_ok(backend.submit(one, work), "submit");
      rank.expect(backend.wait(*work, {deadline, nullptr}), "wait");
      const std::string text = work->status().message();
      rank.expect(work->status().code() == Code::kAborted, "ABORTED: " + text);
      const std::string kind = one.kind == Kind::kAllreduce ? "allreduce #" : kind_name(one.kind);
      rank.expect(text.rfind(kind, 0) == 0 &&
                      contains(text,
                               " on comm \"child\", rank 0 (host0): rank 1 "
                               "(world rank 101, host1, pid ") &&
                      contains(text, ") has destroyed this communicator; let all ranks end"),
                  text);
      rank.expect(work->status().info().rank == 101 && work->status().info().host == "host1",
                  "as data");
      rank.meet();
    });
  }
}

TEST_CASE("Multihost: what was sent before a communicator was destroyed still arrives") {
  play(hosts({0, 1}), [](Rank& rank) {
    auto child = rank.backend->split(0, rank.rank, "child", Deadline::after_ms(30'000));
    rank.expect_ok(child.status(), "split");
    rank.expect_ok(child.value().backend->run(Collective()), "barrier");
    std::vector<float> data(50'000, static_cast<float>(rank.rank));
    Collective message = allreduce_f32(data.data(), data.data(), 50'000);
    message.root = 1 - rank.rank;
    message.kind = rank.rank == 1 ? Kind::kSend : Kind::kRecv;
    if (rank.rank == 1) {
      rank.expect_ok(child.value().backend->run(message), "send");
      child = Backend::Split();
    }
    rank.meet();
    if (rank.rank == 0) {
      rank.expect_ok(child.value().backend->run(message), "recv");
      rank.expect(data[0] == 1 && data[49'999] == 1, "bytes");
    }
    rank.meet();
  });
}

TEST_CASE("Mesh: a call for another job or another rank is refused, garbage is dropped") {
  const auto loopback = dt::net::resolve_now("127.0.0.1", 0, true);
  REQUIRE(loopback.ok());
  std::vector<dt::tcp::Peer> peers;
  std::vector<dt::tcp::Socket> sockets;
  for (int32_t rank = 0; rank < 2; ++rank) {
    auto socket = dt::tcp::listen_on(loopback.value()[0], {});
    REQUIRE(socket.ok());
    peers.push_back({rank, dt::format("host%d", rank), getpid(), socket.value().local()});
    sockets.push_back(std::move(socket).value());
  }
  const auto start = [&](int32_t rank, uint64_t session, dt::tcp::Socket socket) {
    dt::tcp::Mesh::Options options;
    options.session = session;
    options.rank = rank;
    options.world_size = 6;
    options.host = dt::format("host%d", rank);
    options.look_up = [&](const std::vector<int32_t>& ranks, const Wait&) {
      std::vector<dt::tcp::Peer> found;
      for (const int32_t each : ranks) {
        found.push_back(peers[1]);
        found.back().rank = each;
      }
      return dt::Result<std::vector<dt::tcp::Peer>>(std::move(found));
    };
    auto mesh = dt::tcp::Mesh::start(std::move(socket), std::move(options));
    REQUIRE(mesh.ok());
    return mesh.value();
  };
  const Wait wait{Deadline::after_ms(30'000)};
  const auto answering = start(1, 77, std::move(sockets[1]));
  {
    const auto same = start(0, 77, std::move(sockets[0]));
    CHECK(same->probe(1, wait).message() == "");
    const Status other = same->probe(5, wait);  // the list says that rank 5 listens there too
    CHECK(contains(other.message(), "it refuses: this is rank 1 (host1) at 127.0.0.1:"));
    CHECK(contains(other.message(), ", not rank 5"));
    CHECK(other.info().rank == 5);
  }
  auto socket = dt::tcp::listen_on(loopback.value()[0], {});
  REQUIRE(socket.ok());
  const auto stranger = start(0, 78, std::move(socket).value());
  const Status refused = stranger->probe(1, wait);
  CHECK(contains(refused.message(), "rank 0 (host0) at 127.0.0.1:"));
  CHECK(contains(refused.message(), "cannot reach rank 1 (host1 pid "));
  CHECK(contains(refused.message(), "belongs to another job or attempt"));
  // Bytes that are no greeting: the connection ends, nothing else happens.
  auto garbage = dt::tcp::begin_connect(peers[1].address, {});
  REQUIRE(garbage.ok());
  const std::string bytes(4096, 'x');
  const int blocking = garbage.value().fd();
  for (const Deadline limit = Deadline::after_ms(30'000); !limit.passed();) {
    if (send(blocking, bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0 && errno != EAGAIN) break;
    std::this_thread::yield();
  }
  CHECK(stranger->probe(1, wait).message() == refused.message());
  // A port at which nobody listens any more.
  auto last = dt::tcp::listen_on(loopback.value()[0], {});
  auto gone = dt::tcp::listen_on(loopback.value()[0], {});
  REQUIRE(last.ok());
  REQUIRE(gone.ok());
  peers[1].address = gone.value().local();
  gone.value().close();
  const auto late = start(0, 77, std::move(last).value());
  CHECK(contains(late->probe(1, wait).message(),
                 "Connection refused: the host answers, but not at this port: a firewall rejects "
                 "it; open TCP between the hosts"));
}

TEST_CASE("Mesh: nobody at the port, and a port range that is used up, are said") {
  const auto loopback = dt::net::resolve_now("127.0.0.1", 0, true);
  REQUIRE(loopback.ok());
  auto first = dt::tcp::listen_on(loopback.value()[0], {});
  REQUIRE(first.ok());
  const uint16_t port = first.value().local().port();
  const auto taken = dt::tcp::listen_on(loopback.value()[0], {port, port});
  CHECK(taken.status().code() == Code::kConfig);
  CHECK(contains(taken.status().message(), dt::format("every port from %u to %u of 127.0.0.1 is in "
                                                      "use; widen network.port_range",
                                                      port, port)));
  CHECK(dt::tcp::parse_port_range("4700-4799").value().last == 4799);
  CHECK(dt::tcp::parse_port_range("4700").value().last == 4700);
  for (const char* bad : {"4800-4700", "x", "70000", "1-", "-5", "1-2-3"}) {
    CHECK(contains(dt::tcp::parse_port_range(bad).status().message(),
                   dt::format("network.port_range is \"%s\"", bad)));
  }
}
