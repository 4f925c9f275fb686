// SPDX-License-Identifier: Apache-2.0
// Deadlines of operations that are queued on the host backend behind others.
#include <doctest/doctest.h>

#include <thread>

#include "play.h"

using namespace conformance;

namespace {

Setup two_ranks(bool by_caller) {
  Setup one;
  one.size = 2;
  one.host.by_caller = by_caller;
  return one;
}

Collective barrier_until(Deadline deadline) {
  Collective barrier;
  barrier.deadline = deadline;
  return barrier;
}

Collective receive_from_1(int32_t* into, Deadline deadline) {
  Collective receive;
  receive.kind = Kind::kRecv;
  receive.dtype = Dtype::kI32;
  receive.root = 1;
  receive.recv = into;
  receive.count = 1;
  receive.deadline = deadline;
  return receive;
}

/// Nothing is under way afterwards, also where the test fails.
Status status_at_end(const Rank& rank, Work& work, Deadline limit) {
  if (!rank.backend->wait(work, {limit})) {
    rank.backend->interrupt(Status(Code::kAborted, "it did not end"));
    rank.expect(rank.backend->wait(work, {Deadline::after_ms(20'000)}), "interrupted");
  }
  return work.done() ? work.status() : Status(Code::kInternal, "it is still under way");
}

void expect_timed_out_behind(const Rank& rank, const Status& status, const std::string& operation,
                             const std::string& obstacle) {
  const std::string text = status.message();
  rank.expect(status.code() == Code::kTimeout, "TIMEOUT: " + text);
  rank.expect(contains(text, operation +
                                 " on comm \"world\", rank 0: timed out before it began: "
                                 "it waited behind " +
                                 obstacle),
              text);
  rank.expect(contains(text, "; look at why that does not end"), text);
  rank.expect(status.info().rank == 101 && status.info().sequence == -1, "as data");
}

}  // namespace

TEST_CASE("Host: a queued operation keeps its own deadline, and says what it waited behind") {
  enum class Pair { kCollectives, kBehindReceive, kReceives };
  for (const bool by_caller : {false, true}) {
    for (const bool only_looks : {false, true}) {
      for (const Pair pair : {Pair::kCollectives, Pair::kBehindReceive, Pair::kReceives}) {
        play(two_ranks(by_caller), [&](Rank& rank) {
          if (rank.rank == 1) return rank.meet();
          int32_t values[2] = {};
          const Deadline later =
              pair == Pair::kReceives ? Deadline::after_ms(30'000) : Deadline::never();
          const Deadline soon = Deadline::after_ms(50);
          const auto first = std::make_shared<Work>();
          const auto second = std::make_shared<Work>();
          rank.expect_ok(
              rank.backend->submit(pair == Pair::kCollectives ? barrier_until(later)
                                                              : receive_from_1(&values[0], later),
                                   first),
              "first");
          rank.expect_ok(
              rank.backend->submit(
                  pair == Pair::kReceives ? receive_from_1(&values[1], soon) : barrier_until(soon),
                  second),
              "second");
          const Deadline limit = Deadline::after_ms(20'000);
          if (only_looks) {
            while (!rank.backend->wait(*second, {Deadline::after_ms(0)}) && !limit.passed()) {
              std::this_thread::yield();
            }
          }
          const Status status = status_at_end(rank, *second, limit);
          rank.expect(soon.passed(), "not before its deadline");
          expect_timed_out_behind(
              rank, status, pair == Pair::kReceives ? "recv" : "barrier",
              pair == Pair::kCollectives ? "barrier #1, which waits for rank 1 (world rank 101, "
              : pair == Pair::kBehindReceive ? "recv from rank 1 (world rank 101, thishost, pid "
                                             : "recv from rank 1 (world rank 101");
          rank.expect(contains(status.message(),
                               pair == Pair::kReceives      ? ", which has a later deadline; "
                               : pair == Pair::kCollectives ? ") and has no deadline; "
                                                            : ", which has no deadline; "),
                      status.message());
          rank.expect(first->done(), "the first goes with its communicator");
          rank.meet();
        });
      }
    }
  }
}

TEST_CASE("Host: what is queued behind a blocking call keeps its own deadline") {
  enum class Way { kSubmit, kCallerWaits, kRun };
  for (const bool by_caller : {false, true}) {
    for (const Way way : {Way::kSubmit, Way::kCallerWaits, Way::kRun}) {
      play(two_ranks(by_caller), [&](Rank& rank) {
        if (rank.rank == 1) return rank.meet();
        const Deadline limit = Deadline::after_ms(20'000);
        Status of_call;
        std::thread caller([&] { of_call = rank.backend->run(barrier_until(limit)); });
        while (!rank.backend->pulse().inside && !limit.passed()) std::this_thread::yield();
        Collective second = barrier_until(Deadline::after_ms(50));
        second.caller_waits = way == Way::kCallerWaits;
        Status status;
        if (way == Way::kRun) {
          status = rank.backend->run(second);
        } else {
          const auto work = std::make_shared<Work>();
          rank.expect_ok(rank.backend->submit(second, work), "submit");
          status = status_at_end(rank, *work, limit);
        }
        caller.join();
        for (const Status& each : {status, of_call}) {
          expect_timed_out_behind(rank, each, "barrier",
                                  "barrier #1, which waits for rank 1 (world rank 101, ");
        }
        rank.meet();
      });
    }
  }
}

TEST_CASE("Host: a queued operation whose turn comes in time does not time out early") {
  play(two_ranks(false), [&](Rank& rank) {
    if (rank.rank == 1) {
      rank.meet();
      rank.expect_ok(rank.backend->run(barrier_until(Deadline::after_ms(30'000))), "first");
      rank.expect_ok(rank.backend->run(barrier_until(Deadline::after_ms(30'000))), "second");
      return;
    }
    // The second has the earlier deadline.
    const auto works = [&] {
      std::vector<std::shared_ptr<Work>> all;
      for (const int64_t ms : {30'000, 25'000}) {
        all.push_back(std::make_shared<Work>());
        rank.expect_ok(rank.backend->submit(barrier_until(Deadline::after_ms(ms)), all.back()),
                       "submit");
      }
      return all;
    }();
    rank.expect(!rank.backend->wait(*works[1], {Deadline::after_ms(5)}), "it waits");
    rank.meet();
    for (const auto& work : works) {
      rank.expect(rank.backend->wait(*work, {Deadline::after_ms(30'000)}), "it ends");
      rank.expect_ok(work->status(), "barrier");
    }
  });
}
