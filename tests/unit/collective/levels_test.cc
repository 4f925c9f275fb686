// SPDX-License-Identifier: Apache-2.0
#include "collective/levels.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

using dt::collective::Levels;
using Ranks = std::vector<int32_t>;

TEST_CASE("Levels: one node, an unknown one, or nobody who shares one are one level") {
  CHECK_FALSE(Levels().two());
  CHECK_FALSE(Levels({0, 0, 0, 0}, 1).two());
  CHECK_FALSE(Levels({0, 0, -1, 1}, 0).two());
  CHECK_FALSE(Levels({0, 1, 2}, 2).two());
  CHECK_FALSE(Levels({3}, 0).two());
  CHECK(Levels({0, 0, 1}, 2).two());
}

TEST_CASE("Levels: two nodes of two, in any order of ranks") {
  const Levels first({0, 0, 1, 1}, 0);
  REQUIRE(first.two());
  CHECK(first.neighbours() == Ranks{1});
  CHECK(first.via(0) == 0);
  CHECK(first.via(1) == 1);
  CHECK(first.via(2) == 0);  // the first source for the first relay
  CHECK(first.via(3) == 1);
  CHECK(first.duties(0) == Ranks{2});
  CHECK(first.duties(1) == Ranks{3});
  CHECK(first.duties(2) == Ranks{0});
  CHECK(first.most_duties() == 1);
  const Levels mixed({1, 0, 1, 0}, 2);
  CHECK(mixed.neighbours() == Ranks{0});
  CHECK(mixed.via(1) == 0);
  CHECK(mixed.via(3) == 2);
}

TEST_CASE("Levels: who is alone on a node reads everything itself and relays nothing") {
  const Levels alone({0, 0, 1}, 2);
  CHECK(alone.via(0) == 0);
  CHECK(alone.via(1) == 1);
  CHECK(alone.duties(2).empty());
  CHECK(alone.neighbours().empty());
  const Levels pair({0, 0, 1}, 1);
  CHECK(pair.via(2) == 0);
  CHECK(pair.lane(2) == 0);
}

TEST_CASE("Levels: each source has one relay in each other node, which all there agree on") {
  // 18 ranks on three nodes of 7, 6 and 5.
  Ranks nodes;
  for (int32_t rank = 0; rank < 18; ++rank) nodes.push_back(rank < 7 ? 4 : rank < 13 ? 2 : 9);
  std::vector<Levels> all;
  for (int32_t rank = 0; rank < 18; ++rank) all.emplace_back(nodes, rank);
  int32_t most = 0;
  for (int32_t rank = 0; rank < 18; ++rank) {
    const Levels& own = all[static_cast<size_t>(rank)];
    most = std::max(most, static_cast<int32_t>(own.duties(rank).size()));
    CHECK(own.duties(rank) == all[0].duties(rank));
    for (const int32_t source : own.duties(rank)) {
      CHECK(nodes[source] != nodes[rank]);
      CHECK(own.via(source) == rank);
      CHECK(own.duties(rank)[static_cast<size_t>(own.lane(source))] == source);
    }
    for (int32_t source = 0; source < 18; ++source) {
      const int32_t via = own.via(source);
      CHECK((via == source) == (nodes[source] == nodes[rank]));
      CHECK(nodes[via] == nodes[rank]);
      for (const int32_t neighbour : own.neighbours()) {
        CHECK(all[static_cast<size_t>(neighbour)].via(source) == via);
        CHECK(all[static_cast<size_t>(neighbour)].lane(source) == own.lane(source));
      }
    }
  }
  CHECK(most == all[0].most_duties());
  CHECK(most == 3);  // thirteen sources for five relays
}
