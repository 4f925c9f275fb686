// SPDX-License-Identifier: Apache-2.0
#include "store/vitals.h"

#include <doctest/doctest.h>

using namespace dt::store;

namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kBegin = 1'000'000 * kMs;

Member living(int32_t rank) { return {rank, "node" + std::to_string(rank), 100 + rank}; }

Activity inside(int64_t sequence, int64_t age_ms, std::vector<int32_t> members = {}) {
  Activity activity;
  activity.inside = true;
  activity.stalled = !members.empty();
  activity.communicator = "world";
  activity.operation = "allreduce";
  activity.sequence = sequence;
  activity.label = "bucket 3";
  activity.age_ms = age_ms;
  activity.members = std::move(members);
  return activity;
}

Activity behind(int64_t sequence, int64_t age_ms) {
  Activity activity = inside(sequence, age_ms);
  activity.inside = false;
  activity.label.clear();
  return activity;
}

struct Watched {
  Vitals vitals;
  explicit Watched(int32_t ranks) {
    for (int32_t rank = 0; rank < ranks; ++rank) vitals.begin(living(rank), kBegin);
  }
};

using Ranks = std::vector<int32_t>;

}  // namespace

TEST_CASE("Vitals: who was not heard for longer than the limit is silent") {
  Watched watched(3);
  Vitals& vitals = watched.vitals;
  vitals.heard(1, kBegin + 900 * kMs);
  CHECK(vitals.silent(kBegin + 1000 * kMs, 1000).empty());
  CHECK(vitals.silent(kBegin + 1001 * kMs, 1000) == Ranks{0, 2});
  CHECK(vitals.silence_ms(0, kBegin + 1001 * kMs) == 1001);
  vitals.end(0);
  CHECK(vitals.silent(kBegin + 1001 * kMs, 1000) == Ranks{2});
  vitals.excuse_all(kBegin + 1001 * kMs);
  CHECK(vitals.silent(kBegin + 1901 * kMs, 1000).empty());
  vitals.heard(7, kBegin);  // no member
  CHECK(vitals.silence_ms(7, kBegin) == 0);
}

TEST_CASE("Vitals: whether nobody of another host was heard") {
  Vitals vitals;
  const char* const hosts[] = {"A", "A", "B", "C"};
  for (int32_t rank = 0; rank < 4; ++rank) vitals.begin({rank, hosts[rank], 100 + rank}, kBegin);
  vitals.heard(2, kBegin + 100 * kMs);
  CHECK(vitals.unheard_elsewhere("A", kBegin + 600 * kMs, 500) == 0);
  vitals.heard(0, kBegin + 600 * kMs);
  CHECK(vitals.unheard_elsewhere("A", kBegin + 601 * kMs, 500) == 2);
  CHECK(vitals.unheard_elsewhere("B", kBegin + 601 * kMs, 500) == 0);
  CHECK(Vitals().unheard_elsewhere("A", kBegin, 500) == 0);
}

TEST_CASE("Vitals: a rank that is away on purpose is not silent before its time is over") {
  Watched watched(2);
  Vitals& vitals = watched.vitals;
  vitals.heard(0, kBegin + 5000 * kMs);
  vitals.busy({1, "checkpoint", 5000}, kBegin);
  CHECK(vitals.silent(kBegin + 6000 * kMs, 1000).empty());
  CHECK(vitals.whereabouts(1, kBegin + 2000 * kMs) ==
        "is busy with \"checkpoint\" for 2.0 s now, of at most 5.0 s");
  CHECK(vitals.silent(kBegin + 6001 * kMs, 1000) == Ranks{0, 1});
  CHECK(vitals.whereabouts(1, kBegin + 6000 * kMs) ==
        "was to be back from \"checkpoint\" 1.0 s ago");
  vitals.tell(1, inside(7, 400), kBegin + 6000 * kMs);
  CHECK(vitals.whereabouts(1, kBegin + 6600 * kMs) ==
        "is inside allreduce #7 \"bucket 3\" on comm \"world\" for 1.0 s, and was to be back from "
        "\"checkpoint\" 1.6 s ago");
  vitals.busy({1, "", 0}, kBegin + 3000 * kMs);
  CHECK(vitals.silent(kBegin + 4001 * kMs, 1000) == Ranks{1});
  CHECK(vitals.whereabouts(1, kBegin + 6600 * kMs) ==
        "is inside allreduce #7 \"bucket 3\" on comm \"world\" for 1.0 s");
}

TEST_CASE("Vitals: a stall is reported once, with who is inside and who is missing") {
  Watched watched(6);
  Vitals& vitals = watched.vitals;
  const int64_t now = kBegin + 30'000 * kMs;
  CHECK_FALSE(vitals.tell(2, inside(812, 29'000), now).has_value());
  CHECK_FALSE(vitals.tell(3, inside(812, 29'500), now).has_value());
  CHECK_FALSE(vitals.tell(1, behind(811, 31'000), now).has_value());
  vitals.busy({4, "checkpoint", 60'000}, now - 1000 * kMs);
  const auto report = vitals.tell(0, inside(812, 30'000, {0, 1, 2, 3, 4, 5}), now + 500 * kMs);
  REQUIRE(report.has_value());
  CHECK(
      *report ==
      "allreduce #812 \"bucket 3\" on comm \"world\" is under way for 30.0 s: inside are ranks 0, "
      "2, 3; missing: rank 1 (node1 pid 101), which left allreduce #811 on comm \"world\" 31.5 s "
      "ago, rank 4 (node4 pid 104), which is busy with \"checkpoint\" for 1.5 s now, of at most "
      "60.0 s, rank 5 (node5 pid 105), which has told nothing yet");
  CHECK_FALSE(vitals.tell(2, inside(812, 31'000, {0, 1, 2, 3, 4, 5}), now).has_value());
  CHECK(vitals.tell(2, inside(813, 31'000, {0, 1, 2, 3, 4, 5}), now).has_value());
}

TEST_CASE(
    "Vitals: ranks held up in different operations are reported once each, however they tell") {
  Watched watched(2);
  Vitals& vitals = watched.vitals;
  for (int64_t second = 0; second < 3; ++second) {
    CHECK(vitals.tell(0, inside(6, 30'000, {0, 1}), kBegin).has_value() == (second == 0));
    CHECK(vitals.tell(1, inside(5, 30'000, {0, 1}), kBegin).has_value() == (second == 0));
  }
  for (int64_t later = 7; later < 40; ++later) {
    CHECK(vitals.tell(0, inside(later, 30'000, {0, 1}), kBegin).has_value());
  }
  CHECK_FALSE(vitals.tell(1, inside(5, 30'000, {0, 1}), kBegin).has_value());
}

TEST_CASE("Vitals: a stall in which nobody is missing says so") {
  Watched watched(2);
  CHECK_FALSE(watched.vitals.tell(0, inside(5, 100), kBegin).has_value());
  const auto report = watched.vitals.tell(1, inside(5, 30'000, {0, 1}), kBegin);
  REQUIRE(report.has_value());
  CHECK(
      *report ==
      "allreduce #5 \"bucket 3\" on comm \"world\" is under way for 30.0 s: inside are ranks 0, 1, "
      "so nobody is missing: it is slow, or the data does not get through");
}

TEST_CASE("Vitals: whereabouts follow the time since the last word") {
  Watched watched(1);
  CHECK(watched.vitals.whereabouts(0, kBegin).empty());
  watched.vitals.tell(0, Activity(), kBegin);
  CHECK(watched.vitals.whereabouts(0, kBegin) == "has entered no operation yet");
  CHECK(watched.vitals.whereabouts(0, kBegin + 3100 * kMs) ==
        "had entered no operation when it last told, 3.1 s ago");
  watched.vitals.tell(0, inside(7, 400), kBegin);
  CHECK(watched.vitals.whereabouts(0, kBegin + 600 * kMs) ==
        "is inside allreduce #7 \"bucket 3\" on comm \"world\" for 1.0 s");
  CHECK(watched.vitals.whereabouts(9, kBegin).empty());
}

TEST_CASE("Vitals: a rank whose call was refused says why") {
  Watched watched(1);
  Activity activity;
  activity.refused = "dt_allreduce: count is -1; it must be >= 0";
  watched.vitals.tell(0, activity, kBegin);
  CHECK(watched.vitals.whereabouts(0, kBegin) ==
        "has entered no operation yet; a call of it was refused: dt_allreduce: count is -1; it "
        "must be >= 0");
}
