// SPDX-License-Identifier: Apache-2.0
// Plays the steps of all hosts, each part of a host being the set of the hosts that are in it.
#include "collective/exchange.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bitset>
#include <vector>

using namespace dt::collective;

namespace {

constexpr int32_t kMostHosts = 40;
using Contributions = std::bitset<kMostHosts>;
using Parts = std::vector<std::vector<Contributions>>;  // by host, part

struct Count {
  size_t steps = 0;
  int32_t messages = 0;
  int32_t parts = 0;
};

const Move& counterpart(const std::vector<Move>& receives, int32_t sender, const Move& sent) {
  const auto found = std::find_if(receives.begin(), receives.end(),
                                  [&](const Move& move) { return move.host == sender; });
  REQUIRE(found != receives.end());
  REQUIRE(found->first == sent.first);
  REQUIRE(found->parts == sent.parts);
  return *found;
}

/// What host 0 does; the state of all hosts moves on.
template <class Arrive>
Count play(const std::vector<std::vector<ExchangeStep>>& plans, Parts* state, Arrive arrive) {
  const auto hosts = static_cast<int32_t>(plans.size());
  Count count;
  count.steps = plans[0].size();
  for (size_t i = 0; i < count.steps; ++i) {
    const Parts before = *state;
    for (int32_t host = 0; host < hosts; ++host) {
      REQUIRE(plans[host].size() == count.steps);
      REQUIRE(plans[host][i].sends.size() == plans[host][i].receives.size());
      for (const Move& sent : plans[host][i].sends) {
        counterpart(plans[sent.host][i].receives, host, sent);
        for (int32_t k = 0; k < sent.parts; ++k) {
          const int32_t part = (sent.first + k) % hosts;
          arrive(&(*state)[sent.host][part], before[host][part]);
        }
        count.messages += host == 0;
        count.parts += host == 0 ? sent.parts : 0;
      }
    }
  }
  return count;
}

void check_count(Way way, int32_t hosts, const Count& count) {
  int32_t rounds = 0;
  while (1 << rounds < hosts) ++rounds;
  CHECK(count.parts == hosts - 1);
  CHECK(count.steps == (way == Way::kDirect ? 1u : way == Way::kRing ? hosts - 1u : rounds + 0u));
  CHECK(count.messages == (way == Way::kHalving ? rounds : hosts - 1));
}

}  // namespace

TEST_CASE("Exchange: each way sums every part, and brings every part to all, in as many parts") {
  for (const Way way : {Way::kDirect, Way::kHalving, Way::kRing}) {
    for (int32_t hosts = 2; hosts <= kMostHosts; ++hosts) {
      CAPTURE(static_cast<int>(way));
      CAPTURE(hosts);
      std::vector<std::vector<ExchangeStep>> scatter;
      std::vector<std::vector<ExchangeStep>> gather;
      Parts sums(hosts, std::vector<Contributions>(hosts));
      Parts parts = sums;
      for (int32_t host = 0; host < hosts; ++host) {
        scatter.push_back(reduce_scatter_steps(way, hosts, host));
        gather.push_back(allgather_steps(way, hosts, host));
        for (Contributions& each : sums[host]) each.set(host);
        parts[host][host].set();
      }
      check_count(way, hosts, play(scatter, &sums, [](Contributions* into, Contributions what) {
                    REQUIRE((*into & what).none());  // each contribution once
                    *into |= what;
                  }));
      check_count(way, hosts, play(gather, &parts, [](Contributions* into, Contributions what) {
                    REQUIRE(into->none());
                    REQUIRE(what.any());
                    *into = what;
                  }));
      for (int32_t host = 0; host < hosts; ++host) {
        REQUIRE(sums[host][host].count() == static_cast<size_t>(hosts));
        for (const Contributions& each : parts[host]) REQUIRE(each.any());
      }
    }
  }
}
