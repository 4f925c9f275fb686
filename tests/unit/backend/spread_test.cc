// SPDX-License-Identifier: Apache-2.0
#include "backend/host/spread.h"

#include <doctest/doctest.h>
#include <sched.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "backend/host/spin_policy.h"
#include "base/numa.h"

using dt::Deadline;
using dt::backend::SpinPolicy;
using dt::backend::Spread;
using dt::shm::ArenaListener;
using dt::shm::HostArena;

namespace {

using Processors = std::vector<int32_t>;

/// Two ranks, as threads make them.
std::pair<std::shared_ptr<HostArena>, std::shared_ptr<HostArena>> two_ranks() {
  ArenaListener listeners[] = {ArenaListener::create().value(), ArenaListener::create().value()};
  const std::string leader = listeners[0].name();
  std::shared_ptr<HostArena> arenas[2];
  const auto join = [&](int32_t rank) {
    HostArena::Options options;
    options.local_rank = rank;
    options.local_size = 2;
    auto made = HostArena::create(std::move(listeners[rank]), leader, options,
                                  {Deadline::after_ms(20'000)});
    if (made.ok()) arenas[rank] = made.value();
  };
  std::thread other(join, 1);
  join(0);
  other.join();
  REQUIRE(arenas[0] != nullptr);
  REQUIRE(arenas[1] != nullptr);
  return {arenas[0], arenas[1]};
}

}  // namespace

TEST_CASE("Spread: where a rank is better off") {
  CHECK(Spread::better({0, 0}, 0, {0, 1}) == 1);
  CHECK(Spread::better({0, 1}, 0, {0, 1}) == -1);
  CHECK(Spread::better({0, 0, 0, 1}, 0, {0, 1}) == 1);
  CHECK(Spread::better({0, 0, 1, 1}, 0, {0, 1}) == -1);
  CHECK(Spread::better({0, 0, 1}, 0, {0, 1}) == -1);       // one of them has to share
  CHECK(Spread::better({0, 0}, 0, {0}) == -1);             // it may not leave
  CHECK(Spread::better({0, 0}, 0, {}) == -1);              // nobody knows where it may go
  CHECK(Spread::better({0, -1, -1}, 0, {0, 1}) == -1);     // who sleeps uses none
  CHECK(Spread::better({5, 5}, 5, {0, 1, 5, 7}) == 7);     // the nearest
  CHECK(Spread::better({5, 5, 7}, 5, {0, 1, 5, 7}) == 1);  // that has fewest
}

TEST_CASE("Spread: who polls beside another rank leaves, and may run where it might before") {
  const auto arenas = two_ranks();
  const Processors usable = dt::allowed_cpus();
  REQUIRE_FALSE(usable.empty());
  // The other rank is said to be wherever this one is found.
  Spread spread(arenas.first);
  arenas.second->own_header().processor.store(sched_getcpu());
  spread.look(1'000'000'000);
  const int32_t told = arenas.first->own_header().processor.load();
  CHECK(std::find(usable.begin(), usable.end(), told) != usable.end());
  CHECK(dt::allowed_cpus() == usable);
  if (usable.size() > 1 &&
      arenas.first->header(0).spread_ns.load() != 0) {  // else the system moved it
    CHECK(told != arenas.second->own_header().processor.load());
  }
  // The next look is not before some rest.
  arenas.first->own_header().processor.store(-7);
  spread.look(1'000'000'001);
  CHECK(arenas.first->own_header().processor.load() == -7);
  spread.look(3'000'000'000);
  CHECK(arenas.first->own_header().processor.load() >= 0);
  spread.sleep();
  CHECK(arenas.first->own_header().processor.load() == -1);
}

TEST_CASE("Spread: a spinning thread says where its rank runs, oversubscribed or not") {
  const auto arenas = two_ranks();
  for (const bool oversubscribed : {false, true}) {
    CAPTURE(oversubscribed);
    Spread spread(arenas.first);
    arenas.first->own_header().processor.store(-1);
    SpinPolicy policy(oversubscribed, /*spin_ns=*/1'000'000'000, /*contention=*/nullptr, &spread);
    for (int i = 0; i < 200; ++i) (void)policy.spin();
    CHECK(arenas.first->own_header().processor.load() >= 0);
  }
}
