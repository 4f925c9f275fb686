// SPDX-License-Identifier: Apache-2.0
// Deadlines of a backend over several hosts, and whom their errors name.
#include <doctest/doctest.h>

#include "play.h"

using namespace conformance;

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
