// SPDX-License-Identifier: Apache-2.0
// The choice is fed with times, never measured here.
#include "collective/stager.h"

#include <doctest/doctest.h>

#include <cstddef>
#include <vector>

using dt::collective::Stager;
using dt::collective::Staging;
using dt::collective::StoreChoice;

namespace {

constexpr int64_t kBytes = 32 << 10;

struct Machine {
  int64_t cached_ns;
  int64_t streaming_ns;
};

/// How many of the copies were streaming.
int64_t feed(StoreChoice& choice, const Machine& machine, int64_t copies) {
  int64_t streaming = 0;
  for (int64_t i = 0; i < copies; ++i) {
    const StoreChoice::Trial trial = choice.next();
    streaming += trial.streaming ? 1 : 0;
    if (!trial.timed) continue;
    choice.learn(trial.streaming, kBytes,
                 trial.streaming ? machine.streaming_ns : machine.cached_ns);
  }
  return streaming;
}

constexpr Machine kOneCache = {1500, 3000};
constexpr Machine kTwoCaches = {15000, 3000};

}  // namespace

TEST_CASE("the faster stores are known after four copies, the others tried less and less often") {
  constexpr int64_t kFirst = 4;
  StoreChoice near;
  (void)feed(near, kOneCache, kFirst);
  CHECK_FALSE(near.streaming());
  StoreChoice far;
  (void)feed(far, kTwoCaches, kFirst);
  CHECK(far.streaming());
  for (int64_t round = StoreChoice::kRoundMin; round < StoreChoice::kRoundMax; round *= 2) {
    CAPTURE(round);
    CHECK(feed(near, kOneCache, round) == 2);
    CHECK(feed(far, kTwoCaches, round) == round - 2);
  }
  for (int i = 0; i < 3; ++i) CHECK(feed(near, kOneCache, StoreChoice::kRoundMax) == 2);
}

TEST_CASE("streaming stores that are hardly faster are not chosen: the reader pays for them") {
  StoreChoice choice;
  (void)feed(choice, {3000, 2500}, 10 * StoreChoice::kRoundMin);
  CHECK_FALSE(choice.streaming());
}

TEST_CASE("the choice follows threads that move between caches, in both directions") {
  // Within a few copies, however long the rounds have become.
  constexpr int64_t kSoon = 4 * StoreChoice::kRoundMin;
  StoreChoice choice;
  for (int i = 0; i < 5; ++i) {
    (void)feed(choice, kOneCache, 10 * StoreChoice::kRoundMax);
    REQUIRE_FALSE(choice.streaming());
    (void)feed(choice, kTwoCaches, kSoon);
    CHECK(choice.streaming());
    (void)feed(choice, kTwoCaches, 10 * StoreChoice::kRoundMax);
    CHECK(choice.streaming());
    // Streaming takes as long as before: only the next try shows that the others are faster.
    (void)feed(choice, kOneCache, 3 * StoreChoice::kRoundMax);
    CHECK_FALSE(choice.streaming());
  }
}

TEST_CASE("where times jump all the while, the other kind is still tried seldom") {
  StoreChoice choice;
  int64_t streaming = 0;
  constexpr int kTimes = 400;
  constexpr int64_t kCopies = 8;
  for (int i = 0; i < kTimes; ++i) {
    const int64_t factor = i % 2 == 0 ? 1 : 8;
    streaming += feed(choice, {1500 * factor, 9000 * factor}, kCopies);
  }
  CHECK_FALSE(choice.streaming());
  CHECK(streaming <= kTimes * kCopies / 5);
}

TEST_CASE("a first impression that was wrong lasts for one round") {
  // Fresh memory: the pages behind the first streaming stores had to be found.
  StoreChoice choice;
  (void)feed(choice, {15000, 90000}, 4);
  CHECK_FALSE(choice.streaming());
  (void)feed(choice, kTwoCaches, StoreChoice::kRoundMin);
  CHECK(choice.streaming());
}

TEST_CASE("usual stores that found the ring in memory are tried until they find it in the cache") {
  // 31 slots. Where the copy before went past the caches, a usual one first fetches the slot.
  std::vector<bool> cached(31, false);
  StoreChoice choice;
  int64_t at = 0;
  const auto play = [&](int64_t copies) {
    int64_t streaming = 0;
    for (int64_t i = 0; i < copies; ++i, ++at) {
      const StoreChoice::Trial trial = choice.next();
      const size_t slot = static_cast<size_t>(at) % cached.size();
      const int64_t ns = trial.streaming ? 3000 : cached[slot] ? 1500 : 9000;
      cached[slot] = !trial.streaming;
      streaming += trial.streaming ? 1 : 0;
      if (trial.timed) choice.learn(trial.streaming, kBytes, ns);
    }
    return streaming;
  };
  (void)play(4);
  CHECK(choice.streaming());  // so it seems
  (void)play(StoreChoice::kRoundMin + StoreChoice::kLongTry);
  CHECK_FALSE(choice.streaming());
  CHECK(play(10 * StoreChoice::kRoundMax) < 100);
}

TEST_CASE("a copy that was interrupted for long changes nothing") {
  StoreChoice choice;
  (void)feed(choice, kOneCache, StoreChoice::kRoundMin);
  for (int round = 0; round < 10; ++round) {
    choice.learn(false, kBytes, 4'000'000);
    CHECK_FALSE(choice.streaming());
    (void)feed(choice, kOneCache, StoreChoice::kRoundMin);
  }
}

TEST_CASE("each kind of staging copies every byte and none beside them") {
  for (const Staging staging : {Staging::kAuto, Staging::kCached, Staging::kStreaming}) {
    CAPTURE(static_cast<int>(staging));
    Stager stager(staging);
    for (const int64_t bytes : {0, 1, 63, 64, 65, 200, 4096, 8192, 70001}) {
      CAPTURE(bytes);
      for (int64_t shift = 0; shift<66; shift += bytes> 4096 ? 13 : 1) {
        std::vector<char> source(static_cast<size_t>(bytes) + 1);
        for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<char>(1 + i % 101);
        std::vector<char> target(static_cast<size_t>(bytes + shift) + 64, '\0');
        std::vector<char> wanted = target;
        for (int64_t i = 0; i < bytes; ++i) {
          wanted[static_cast<size_t>(shift + i)] = source[static_cast<size_t>(i + 1)];
        }
        stager.begin(bytes);
        stager.copy(target.data() + shift, source.data() + 1, bytes);
        CHECK(target == wanted);
      }
    }
  }
}
