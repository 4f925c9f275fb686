// SPDX-License-Identifier: Apache-2.0
// What the thresholds decide, as pure functions, and that the keys ship what the struct says.
#include "collective/thresholds.h"

#include <doctest/doctest.h>

#include "backend/host/host.h"
#include "config/config.h"

using dt::collective::Thresholds;

namespace {

constexpr int64_t kKiB = 1 << 10;
constexpr int64_t kMiB = 1 << 20;

}  // namespace

TEST_CASE("Thresholds: how many ranks sum a message themselves") {
  const Thresholds shipped;
  CHECK(shipped.exchanges(2));
  CHECK_FALSE(shipped.exchanges(3));
  CHECK_FALSE(Thresholds{.exchange_ranks = 1}.exchanges(2));
  CHECK(Thresholds{.exchange_ranks = 4}.exchanges(4));
  CHECK_FALSE(Thresholds{.exchange_ranks = 4}.exchanges(5));
}

TEST_CASE("Thresholds: from which size on stores go past the caches, over all buffers together") {
  const Thresholds shipped;
  CHECK_FALSE(shipped.streams(16 * kMiB - 1, 4));
  CHECK(shipped.streams(16 * kMiB, 4));
  CHECK_FALSE(shipped.streams(16 * kMiB, 3));
  const Thresholds early{.streaming_bytes = kMiB};
  CHECK(early.streams(kMiB / 4, 4));
  CHECK_FALSE(early.streams(kMiB / 4 - 1, 4));
  const Thresholds always{.streaming_bytes = 0};
  CHECK(always.streams(1, 4));
  CHECK_FALSE(always.streams(0, 4));
}

TEST_CASE("Thresholds: a message is cut into segments between the least and the most") {
  const Thresholds shipped;
  CHECK(shipped.segment(16 * kKiB, 64 * kKiB) == 64 * kKiB);  // never below, though it is shorter
  CHECK(shipped.segment(25 * kMiB, 64 * kKiB) == 64 * kKiB);
  CHECK(shipped.segment(25 * kMiB, 4 * kKiB) == 4 * kKiB);  // the slot is shorter than the least
  const Thresholds early{.segment_bytes = 32 * kKiB};
  CHECK(early.segment(256 * kKiB, 64 * kKiB) == 32 * kKiB);  // an eighth
  CHECK(early.segment(400 * kKiB, 64 * kKiB) == 50 * kKiB);
  CHECK(early.segment(400 * kKiB + 8, 64 * kKiB) == 50 * kKiB + 64);  // whole lines
  const Thresholds fine{.segment_bytes = 4 * kKiB, .segments = 32};
  CHECK(fine.segment(256 * kKiB, 64 * kKiB) == 8 * kKiB);
  CHECK(fine.segment(64 * kKiB, 64 * kKiB) == 4 * kKiB);
  const Thresholds whole{.segment_bytes = 32 * kKiB, .segments = 1};
  CHECK(whole.segment(48 * kKiB, 64 * kKiB) == 48 * kKiB);
}

TEST_CASE("Thresholds: which messages out of shared buffers are read where they lie") {
  const Thresholds shipped;
  CHECK_FALSE(shipped.maps(4 * kKiB - 1));
  CHECK(shipped.maps(4 * kKiB));
  CHECK(Thresholds{.mapped_bytes = 0}.maps(1));
}

TEST_CASE("Thresholds: the keys of [host] ship the same values") {
  const dt::Config config;
  const dt::backend::HostEngine::Options engine;
  const Thresholds& shipped = engine.thresholds;
  CHECK(config.integer("host.inline_bytes") == engine.inline_bytes);
  CHECK(config.integer("host.slot_bytes") == engine.slot_bytes);
  CHECK(config.integer("host.ring_bytes") == engine.ring_bytes);
  CHECK(config.integer("host.segment_bytes") == shipped.segment_bytes);
  CHECK(config.integer("host.segments") == shipped.segments);
  CHECK(config.integer("host.exchange_ranks") == shipped.exchange_ranks);
  CHECK(config.integer("host.streaming_bytes") == shipped.streaming_bytes);
  CHECK(config.integer("host.push_bytes") == shipped.push_bytes);
  CHECK(config.integer("host.mapped_bytes") == shipped.mapped_bytes);
}
