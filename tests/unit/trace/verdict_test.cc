// SPDX-License-Identifier: Apache-2.0
// Each case with traces that are built for it.
#include "cli/trace/verdict.h"

#include <doctest/doctest.h>

#include "../contains.h"
#include "built.h"
#include "cli/trace/report.h"

using dt::Code;
using dt::cli::trace::Case;
using dt::cli::trace::judge;
using dt::cli::trace::Verdict;
using dt::record::kRecvKind;
using dt::record::kSendKind;
using dt::record::Trace;
using dt::test::Built;
using Ranks = std::vector<int32_t>;
using dt::test::contains;

namespace {

constexpr uint8_t kBroadcast = 2;
constexpr uint8_t kBarrier = 5;

Built well(int32_t rank, int32_t world_size = 3) {
  Built built(rank, world_size);
  built.allreduce(1, 1.1).allreduce(2, 2.1);
  return built;
}

}  // namespace

TEST_CASE("nothing wrong") {
  const Verdict verdict = judge({well(0), well(1), well(2)});
  CHECK(verdict.found == Case::kNothingWrong);
  CHECK(verdict.sentence == "nothing is wrong in the traces of 3 of 3 ranks, with 6 operations");
  REQUIRE(verdict.rows.size() == 3);
  CHECK(verdict.rows[2].last == "allreduce #2 on comm \"world\"");
  CHECK(verdict.rows[2].current.empty());
  CHECK(judge({}).found == Case::kNothingWrong);
}

TEST_CASE("missing call: who, what, and what it does instead") {
  const Verdict verdict =
      judge({well(0).allreduce(10, -1), well(1), well(2).allreduce(10.1, -1).labelled("bucket 3")});
  CHECK(verdict.found == Case::kMissingCall);
  CHECK(verdict.ranks == Ranks{1});
  CHECK(verdict.communicator == "world");
  CHECK(verdict.position == 3);
  CHECK(verdict.sentence ==
        "rank 1 (host1 pid 1001) never called allreduce #3 on comm \"world\", in which ranks 0, 2 "
        "wait: it is in no operation; it last completed allreduce #2 on comm \"world\", 97.9 s "
        "before");
  CHECK(verdict.rows[0].current == "allreduce #3 on comm \"world\"");
  CHECK(verdict.rows[0].outcome == "inside");
  CHECK(verdict.rows[2].current == "allreduce #3 \"bucket 3\" on comm \"world\"");
}

TEST_CASE("missing call after a time-out: the operations have ended, badly") {
  const Verdict verdict = judge(
      {well(0).allreduce(10, 99).ended_with(Code::kTimeout).failed(Code::kTimeout, 1, 99),
       well(1).failed(Code::kTimeout, 1, 99.1),
       well(2).allreduce(10, 99.1).ended_with(Code::kTimeout).failed(Code::kTimeout, 1, 99.1)});
  CHECK(verdict.found == Case::kMissingCall);
  CHECK(verdict.ranks == Ranks{1});
  CHECK(verdict.rows[0].outcome == "TIMEOUT");
  CHECK(verdict.failure == "rank 0 (host0 pid 1000) saw first: TIMEOUT: why");
  CHECK(contains(dt::cli::trace::report_text(verdict), "\n" + verdict.failure + "\n\nrank  host"));
}

TEST_CASE("a rank that has destroyed the communicator") {
  const Verdict verdict = judge({well(0).allreduce(10, -1), well(1).let_go(), well(2)});
  CHECK(verdict.found == Case::kMissingCall);
  CHECK(verdict.ranks == Ranks{1, 2});
  CHECK(contains(verdict.sentence, "ranks 1, 2 never called allreduce #3"));
  CHECK(contains(verdict.sentence, "it has destroyed its communicator"));
}

TEST_CASE("what is under way for a moment is no news, but after a failure it is") {
  CHECK(judge({well(0).allreduce(99.5, -1), well(1), well(2)}).found == Case::kNothingWrong);
  CHECK(
      judge({well(0).allreduce(99.5, -1).failed(Code::kTimeout, 1, 100), well(1), well(2)}).found ==
      Case::kMissingCall);
  // The one that is missing wrote its trace before the others called.
  Built early(1, 3, 5);
  early.allreduce(1, 1.1).allreduce(2, 2.1);
  CHECK(judge({well(0).allreduce(10, -1), early, well(2).allreduce(10, -1)}).found ==
        Case::kNothingWrong);
}

TEST_CASE("the rank at the end of a chain is the one") {
  // 0 and 1 wait in world for 2, which waits in "pair" for 3, which is nowhere.
  const auto rank = [](int32_t number) {
    Built built = well(number, 4);
    if (number > 1) built.open("pair", {2, 3}).on(0);
    return built;
  };
  const Verdict verdict = judge({rank(0).allreduce(10, -1), rank(1).allreduce(10, -1),
                                 rank(2).on(1).add(kBarrier, 9, -1, 0, -1), rank(3)});
  CHECK(verdict.found == Case::kMissingCall);
  CHECK(verdict.ranks == Ranks{3});
  CHECK(verdict.communicator == "pair");
}

TEST_CASE("other order: communicators in different order wait for each other") {
  const auto rank = [](int32_t number) { return well(number, 2).open("b", {0, 1}).on(0); };
  const Verdict verdict =
      judge({rank(0).allreduce(10, -1), rank(1).on(1).add(kBarrier, 10.5, -1, 0, -1)});
  CHECK(verdict.found == Case::kOtherOrder);
  CHECK(verdict.sentence ==
        "ranks wait for each other: rank 0 is in allreduce #3 on comm \"world\", which waits for "
        "rank 1 (host1 pid 1001), rank 1 is in barrier #1 on comm \"b\", which waits for rank 0 "
        "(host0 pid 1000)");
}

TEST_CASE("other order: another operation at the same place") {
  const Verdict verdict = judge({well(0).allreduce(10, -1), well(1).add(kBroadcast, 10, -1, 8, 0),
                                 well(2).allreduce(10, -1)});
  CHECK(verdict.found == Case::kOtherOrder);
  CHECK(verdict.ranks == Ranks{1});
  CHECK(verdict.sentence ==
        "call #3 on comm \"world\" differs: rank 1 (host1 pid 1001) calls broadcast of 8 x f32, "
        "root 0, but ranks 0, 2 call allreduce of 8 x f32, sum");
}

TEST_CASE("another size, dtype or reduction: both sides") {
  Verdict verdict =
      judge({well(0).allreduce(10, -1), well(1).allreduce(10, -1), well(2).allreduce(10, -1, 4)});
  CHECK(verdict.found == Case::kMismatch);
  CHECK(verdict.ranks == Ranks{2});
  CHECK(verdict.sentence ==
        "call #3 on comm \"world\" differs: rank 2 (host2 pid 1002) calls allreduce of 4 x f32, "
        "sum, but ranks 0, 1 call allreduce of 8 x f32, sum");
  // Also where a GPU went on with it.
  verdict = judge({well(0).allreduce(10, 11).with_dtype(9), well(1).allreduce(10, 11),
                   well(2).allreduce(10, 11)});
  CHECK(verdict.found == Case::kMismatch);
  CHECK(verdict.ranks == Ranks{0});
  CHECK(contains(verdict.sentence, "8 x f64"));
}

TEST_CASE("rank dead: no trace, and the others saw it") {
  const auto witness = [](int32_t rank) {
    return well(rank).allreduce(10, 20).ended_with(Code::kPeerLost).failed(Code::kPeerLost, 1, 20);
  };
  Verdict verdict = judge({witness(0), witness(2)});
  CHECK(verdict.found == Case::kRankDead);
  CHECK(verdict.ranks == Ranks{1});
  CHECK(verdict.sentence ==
        "rank 1 (host1 pid 1001) is dead: ranks 0, 2 say so, ranks 0, 2 were in allreduce #3 on "
        "comm \"world\"");
  CHECK_FALSE(verdict.rows[1].traced);
  // A trace that it was asked for before does not make it live.
  CHECK(judge({witness(0), well(1), witness(2)}).found == Case::kRankDead);
  // It ended because of something else, which it saw first.
  verdict = judge(
      {witness(0), well(1).failed(Code::kAborted, 1, 19, "rank 1 aborted the job"), witness(2)});
  CHECK(verdict.found == Case::kFailure);
  CHECK(verdict.ranks == Ranks{1});
}

TEST_CASE("rank silent: no trace, and the others wait for it") {
  const Verdict verdict =
      judge({well(0).allreduce(10, -1).failed(Code::kTimeout, 2, 99), well(1).allreduce(10, -1)});
  CHECK(verdict.found == Case::kRankSilent);
  CHECK(verdict.ranks == Ranks{2});
  CHECK(
      verdict.sentence ==
      "rank 2 (host2 pid 1002) is dead, stopped or cut off: no trace is here, and ranks 0, 1 wait "
      "in allreduce #3 on comm \"world\"");
}

TEST_CASE("rank slow: by how much") {
  const Verdict verdict = judge(
      {well(0).allreduce(10, 15.1), well(1).allreduce(10.5, 15.1), well(2).allreduce(15, 15.1)});
  CHECK(verdict.found == Case::kRankSlow);
  CHECK(verdict.ranks == Ranks{2});
  CHECK(verdict.sentence ==
        "rank 2 (host2 pid 1002) is slow: it called allreduce #3 on comm "
        "\"world\" 4.5 s after the last of the others");
  dt::cli::trace::JudgeOptions patient;
  patient.slow_ns = 10 * dt::test::kSecondNs;
  CHECK(
      judge({well(0).allreduce(10, 15.1), well(1).allreduce(15, 15.1), well(2).allreduce(10, 15.1)},
            patient)
          .found == Case::kNothingWrong);
}

TEST_CASE("GPU not finished: all called it") {
  const auto rank = [](int32_t number, double end_s) {
    return well(number).open("gpu", {0, 1, 2}, true).allreduce(10, end_s);
  };
  Verdict verdict = judge({rank(0, -1), rank(1, -1), rank(2, -1)});
  CHECK(verdict.found == Case::kGpuNotFinished);
  CHECK(verdict.sentence ==
        "all ranks called allreduce #1 on comm \"gpu\", but the GPU of any rank "
        "has not finished it, 90.0 s after the call");
  verdict = judge({rank(0, 10.1), rank(1, -1), rank(2, 10.1)});
  CHECK(verdict.found == Case::kGpuNotFinished);
  CHECK(verdict.ranks == Ranks{1});
  // Also where a rank came late to another operation, which ended.
  const auto rank_late_before = [](int32_t number) {
    const double called = number == 0 ? 8 : 3;
    return Built(number).open("gpu", {0, 1, 2}, true).allreduce(called, 8.1).allreduce(10, -1);
  };
  verdict = judge({rank_late_before(0), rank_late_before(1), rank_late_before(2)});
  CHECK(verdict.found == Case::kGpuNotFinished);
  CHECK(verdict.position == 2);
  // The same on the host.
  verdict =
      judge({well(0).allreduce(10, -1), well(1).allreduce(10, -1), well(2).allreduce(10, 11)});
  CHECK(verdict.found == Case::kUnfinished);
  CHECK(verdict.ranks == Ranks{0, 1});
}

TEST_CASE("a late rank held up an operation only if the others waited less after it had come") {
  const auto rank = [](int32_t number, double called_s, double end_s) {
    return well(number).open("gpu", {0, 1, 2}, true).allreduce(called_s, end_s);
  };
  Verdict verdict = judge({rank(0, 11.5, -1), rank(1, 10, -1), rank(2, 10, -1)});
  CHECK(verdict.found == Case::kGpuNotFinished);
  CHECK(verdict.sentence ==
        "all ranks called allreduce #1 on comm \"gpu\", but the GPU of any rank has not finished "
        "it, 88.5 s after the call");
  // The last one came just before the others gave up; itself it ended well.
  verdict = judge({rank(0, 10, 40).ended_with(Code::kTimeout).failed(Code::kTimeout, 2, 40),
                   rank(1, 10.5, 40.1).ended_with(Code::kTimeout).failed(Code::kTimeout, 2, 40.1),
                   rank(2, 39.9, 40.1)});
  CHECK(verdict.found == Case::kRankSlow);
  CHECK(verdict.ranks == Ranks{2});
}

TEST_CASE("a rank that was late before does not hide a failure") {
  const auto rank = [](int32_t number) {
    return Built(number)
        .allreduce(number == 0 ? 8 : 3, 8.1)
        .allreduce(10, 20)
        .ended_with(Code::kPeerLost)
        .failed(Code::kPeerLost, 1, number == 1 ? 20.5 : 20, "rank 1 closed the connection");
  };
  const Verdict verdict = judge({rank(0), rank(1), rank(2)});
  CHECK(verdict.found == Case::kFailure);
  CHECK(verdict.ranks == Ranks{1});
  CHECK(contains(verdict.sentence, "saw first: PEER_LOST: rank 1 closed the connection"));
}

TEST_CASE("a receive whose message was never sent") {
  const auto pair = [](int32_t rank) { return Built(rank, 2); };
  Verdict verdict = judge({pair(0).add(kRecvKind, 10, -1, 4, 1, 1), pair(1)});
  CHECK(verdict.found == Case::kMissingCall);
  CHECK(verdict.ranks == Ranks{1});
  CHECK(contains(verdict.sentence,
                 "rank 1 (host1 pid 1001) never called the other side of recv #1 "
                 "on comm \"world\" from its rank 1, in which rank 0 waits"));
  verdict =
      judge({pair(0).add(kRecvKind, 10, 12, 4, 1, 1), pair(1).add(kSendKind, 10, 12, 4, 0, 1)});
  CHECK(verdict.found == Case::kNothingWrong);
  // Both send first.
  verdict =
      judge({pair(0).add(kRecvKind, 10, -1, 4, 1, 1), pair(1).add(kRecvKind, 10, -1, 4, 0, 1)});
  CHECK(verdict.found == Case::kOtherOrder);
}

TEST_CASE("what a rank withheld is no failure") {
  const auto rank = [](int32_t number) {
    return well(number).allreduce(10, 10.1).ended_with(Code::kInvalidState);
  };
  CHECK(judge({rank(0), rank(1), rank(2)}).found == Case::kNothingWrong);
}

TEST_CASE("another failure is told as the first rank saw it") {
  const Verdict verdict =
      judge({well(0).failed(Code::kAborted, 2, 21, "later"),
             well(1).failed(Code::kAborted, 2, 20, "rank 2 aborted the job: no data")});
  CHECK(verdict.found == Case::kFailure);
  CHECK(verdict.ranks == Ranks{2});
  CHECK(verdict.sentence ==
        "the job failed, as rank 1 (host1 pid 1001) saw first: ABORTED: rank 2 "
        "aborted the job: no data");
}

TEST_CASE("the table") {
  const std::string text = dt::cli::trace::report_text(
      judge({well(0).allreduce(10, -1), well(1), well(2).allreduce(10, -1)}));
  CHECK(text.find("missing call: rank 1 (host1 pid 1001) never called") == 0);
  CHECK(contains(text, "\n\nrank  host   pid   last completed"));
  CHECK(contains(text,
                 "\n0     host0  1000  allreduce #2 on comm \"world\", 97.9 s ago  allreduce #3 "
                 "on comm \"world\" (inside, 90.0 s)\n"));
  CHECK(contains(text, "\n1     host1  1001  allreduce #2 on comm \"world\", 97.9 s ago  -\n"));
}
