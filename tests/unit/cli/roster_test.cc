// SPDX-License-Identifier: Apache-2.0
#include "cli/run/roster.h"

#include <doctest/doctest.h>

#include <bit>

using dt::cli::decode;
using dt::cli::encode;
using dt::cli::judge;
using dt::cli::Judgement;
using dt::cli::next_roster;
using dt::cli::note_begun;
using dt::cli::note_joined;
using dt::cli::Offer;
using dt::cli::Presence;
using dt::cli::Roster;
using dt::cli::RosterRules;
using dt::cli::Seat;
using dt::cli::seek_order;
using dt::cli::take_doubles;

namespace {

/// The agent of node `node`; another `life` is another process.
Seat seat(int node, int life = 0) {
  Seat made;
  made.node = node;
  made.nonce = static_cast<uint64_t>(100 * life + node + 1);
  made.host = "n" + std::to_string(node);
  made.pid = 1000 * life + node;
  return made;
}

Roster roster(int attempt, const std::vector<Seat>& seats) {
  Roster made;
  made.attempt = attempt;
  made.job_id = "job";
  made.max_restarts = 2;
  made.restarts = 1;
  made.seats = seats;
  made.host = "10.0.0.1";
  made.port = 4711;
  return made;
}

Presence presence(const Seat& who, const Roster& last = {}) {
  Presence made;
  made.seat = who;
  made.serial = 7;
  made.last = made.begun = last;
  return made;
}

RosterRules three_nodes(int min_nodes) {
  RosterRules rules;
  rules.node_count = 3;
  rules.min_nodes = min_nodes;
  return rules;
}

std::vector<int> nodes_of(const Roster& made) {
  std::vector<int> nodes;
  for (const Seat& each : made.seats) nodes.push_back(each.node);
  return nodes;
}

const Roster kThree = roster(4, {seat(0), seat(1), seat(2)});

}  // namespace

TEST_CASE("the first attempt begins with all, or after the wait with enough") {
  const std::vector<Presence> two{presence(seat(0)), presence(seat(2))};
  CHECK_FALSE(judge(three_nodes(2), two, {}, true).go);
  CHECK(judge(three_nodes(2), two, {}, false).go);
  const Judgement judged = judge(three_nodes(3), two, {}, false);
  CHECK_FALSE(judged.go);
  CHECK_FALSE(judged.minority);
  CHECK(judged.why ==
        "2 of 3 nodes are there: node 0 (host n0, dt run pid 0), node 2 (host n2, dt run pid 2); "
        "missing: node 1");
  std::vector<Presence> all = two;
  all.push_back(presence(seat(1)));
  CHECK(judge(three_nodes(2), all, {}, true).go);
}

TEST_CASE("after a loss the others begin at once, when they are all there") {
  const std::vector<Presence> two{presence(seat(0), kThree), presence(seat(1), kThree)};
  CHECK(judge(three_nodes(1), two, {seat(2).nonce}, true).go);
  // Node 2 may come yet: it was not seen to be lost.
  CHECK_FALSE(judge(three_nodes(1), two, {}, true).go);
  CHECK(judge(three_nodes(1), two, {}, false).go);
  // Another process of it tells the same.
  std::vector<Presence> back = two;
  back.push_back(presence(seat(2, 1)));
  CHECK(judge(three_nodes(1), back, {}, true).go);
}

TEST_CASE("a minority of the last attempt does not begin, and says whom it misses") {
  const std::vector<Presence> one{presence(seat(1), kThree)};
  const Judgement judged = judge(three_nodes(1), one, {seat(0).nonce, seat(2).nonce}, true);
  CHECK_FALSE(judged.go);
  CHECK(judged.minority);
  CHECK(judged.why ==
        "1 of the 3 agents of attempt 4 is there, and the next attempt needs 2 of them, so that "
        "two sides of a broken network never go on both; missing: node 0 (host n0, dt run pid 0), "
        "node 2 (host n2, dt run pid 2)");
  RosterRules allowed = three_nodes(1);
  allowed.allow_minority = true;
  CHECK(judge(allowed, one, {seat(0).nonce, seat(2).nonce}, true).go);
}

TEST_CASE("half of the last attempt is no majority, whoever it is") {
  const Roster pair = roster(0, {seat(0), seat(1)});
  for (const int left : {0, 1}) {
    const Judgement judged =
        judge(three_nodes(1), {presence(seat(left), pair)}, {seat(1 - left).nonce}, false);
    CHECK_FALSE(judged.go);
    CHECK(judged.minority);
  }
}

TEST_CASE("processes in the place of others are no part of the majority") {
  const std::vector<Presence> there{presence(seat(0), kThree), presence(seat(1, 1)),
                                    presence(seat(2, 1))};
  const Judgement judged = judge(three_nodes(1), there, {}, false);
  CHECK_FALSE(judged.go);
  CHECK(judged.minority);
}

TEST_CASE("the latest attempt that anybody has agreed to counts") {
  // Node 0 knows of attempt 5, which 1 and 2 make on the other side: one of 1, 2 must be there.
  const Roster newer = roster(5, {seat(1), seat(2)});
  const std::vector<Presence> old{presence(seat(0), kThree), presence(seat(1), newer)};
  CHECK(judge(three_nodes(1), old, {}, false).minority);
  const std::vector<Presence> both{presence(seat(0), kThree), presence(seat(1), newer),
                                   presence(seat(2), newer)};
  CHECK(judge(three_nodes(1), both, {}, true).go);
  CHECK(next_roster(both, 0).attempt == 6);
}

TEST_CASE("no two sides of any cut begin both") {
  // Every way to split five agents in two, each side as patient as can be.
  std::vector<Seat> seats;
  for (int node = 0; node < 5; ++node) seats.push_back(seat(node));
  const Roster base = roster(3, seats);
  RosterRules rules;
  rules.node_count = 5;
  for (unsigned cut = 0; cut < 32; ++cut) {
    int going = 0;
    for (const bool inside : {false, true}) {
      std::vector<Presence> side;
      for (unsigned node = 0; node < 5; ++node) {
        if (((cut >> node) & 1) == static_cast<unsigned>(inside)) {
          side.push_back(presence(seats[node], base));
        }
      }
      going += judge(rules, side, {}, false).go ? 1 : 0;
    }
    CHECK(going == 1);
  }
}

namespace {

/// Five agents took part in attempt 3. Nodes 0, 1 and 2 were to make attempt 4: each node of
/// `joined` has joined its meeting, and each of `saw` has seen it begin.
std::vector<Presence> five_agents(unsigned joined, unsigned saw) {
  std::vector<Seat> seats;
  for (int node = 0; node < 5; ++node) seats.push_back(seat(node));
  const Roster next = roster(4, {seat(0), seat(1), seat(2)});
  std::vector<Presence> agents;
  for (unsigned node = 0; node < 5; ++node) {
    agents.push_back(presence(seats[node], roster(3, seats)));
    if (((joined >> node) & 1) == 0) continue;
    agents.back().last = next;
    note_joined(&agents.back());
    if (((saw >> node) & 1) != 0) note_begun(&agents.back());
  }
  return agents;
}

RosterRules five_nodes() {
  RosterRules rules;
  rules.node_count = 5;
  return rules;
}

std::vector<Presence> side_of(const std::vector<Presence>& agents, unsigned nodes) {
  std::vector<Presence> side;
  for (unsigned node = 0; node < agents.size(); ++node) {
    if (((nodes >> node) & 1) != 0) side.push_back(agents[node]);
  }
  return side;
}

}  // namespace

TEST_CASE("an attempt that was agreed upon and did not begin replaces nothing") {
  // Node 2 was cut off before it joined: it is free to go on with 3 and 4.
  const auto agents = five_agents(0b00011, 0);
  const Judgement two = judge(five_nodes(), side_of(agents, 0b00011), {}, false);
  CHECK(two.minority);
  CHECK(two.why.find("2 of the 5 agents of attempt 3 are there, and the next attempt needs 3") ==
        0);
  CHECK(judge(five_nodes(), side_of(agents, 0b11100), {}, false).go);
}

TEST_CASE("an attempt that may have begun unnoticed asks for a majority, too") {
  const auto agents = five_agents(0b00111, 0b00011);  // node 2 has not heard that it began
  CHECK(judge(five_nodes(), side_of(agents, 0b00011), {}, false).go);
  const Judgement three = judge(five_nodes(), side_of(agents, 0b11100), {}, false);
  CHECK(three.minority);
  CHECK(three.why ==
        "1 of the 3 agents of attempt 4, which may have begun, is there, and the next attempt "
        "needs 2 of them, so that two sides of a broken network never go on both; missing: node 0 "
        "(host n0, dt run pid 0), node 1 (host n1, dt run pid 1)");
  RosterRules allowed = five_nodes();
  allowed.allow_minority = true;
  CHECK(judge(allowed, side_of(agents, 0b11100), {}, false).go);
  // Together they know it all, and the next number is free on both sides.
  CHECK(judge(five_nodes(), agents, {}, false).go);
  CHECK(next_roster(agents, 0).attempt == 5);
}

TEST_CASE("no two sides of any cut begin both, however far the attempt before has come") {
  for (unsigned joined = 0; joined < 8; ++joined) {
    for (unsigned saw = 0; saw < (joined == 7 ? 8u : 1u); ++saw) {
      const auto agents = five_agents(joined, saw);
      for (unsigned cut = 0; cut < 32; ++cut) {
        CAPTURE(joined);
        CAPTURE(saw);
        CAPTURE(cut);
        const auto goes = [&](unsigned nodes) {
          return judge(five_nodes(), side_of(agents, nodes), {}, false).go;
        };
        CHECK_FALSE((goes(cut) && goes(~cut & 31u)));
        // Where it has begun somewhere, nobody goes on without a majority of it.
        const int kept = std::popcount(cut & 7u);
        if (joined == 7 && saw == 7) CHECK(goes(cut) == (kept >= 2));
      }
    }
  }
}

TEST_CASE("meetings of the same agents that fail one after the other are remembered once") {
  Presence agent = presence(seat(0), kThree);
  for (int attempt = 5; attempt < 9; ++attempt) {
    agent.last = roster(attempt, {seat(0), attempt == 6 ? seat(2) : seat(1)});
    note_joined(&agent);
  }
  REQUIRE(agent.unsure.size() == 2);
  CHECK(agent.unsure[0].attempt == 6);
  CHECK(agent.unsure[1].attempt == 8);
  CHECK(agent.begun.attempt == 4);
  agent.last = roster(9, {seat(1), seat(0)});  // another one of them leads
  note_joined(&agent);
  REQUIRE(agent.unsure.size() == 2);
  CHECK(agent.unsure[1].attempt == 9);
  note_begun(&agent);
  CHECK(agent.unsure.empty());
  CHECK(agent.begun.attempt == 9);
}

TEST_CASE("whoever serves is node 0 of the attempt, the others follow in their order") {
  const std::vector<Presence> there{presence(seat(2), kThree), presence(seat(0), kThree),
                                    presence(seat(1), kThree)};
  const Roster next = next_roster(there, 1);
  CHECK(nodes_of(next) == std::vector<int>{1, 0, 2});
  CHECK(next.attempt == 5);
  CHECK(next.restarts == 1);
  CHECK(next.job_id == "job");
  CHECK(next.lead_node() == 1);
  CHECK(next.rank_of(seat(0).nonce) == 1);
  CHECK(next.rank_of(seat(0, 1).nonce) == -1);
}

TEST_CASE("of two agents of one node that of the last attempt stays, else the first") {
  std::vector<Presence> there{presence(seat(1, 1)), presence(seat(1), kThree), presence(seat(2, 1)),
                              presence(seat(2, 2))};
  const std::vector<Presence> doubles = take_doubles(&there);
  REQUIRE(doubles.size() == 2);
  CHECK(doubles[0].seat.nonce == seat(1, 1).nonce);
  CHECK(doubles[1].seat.nonce == seat(2, 2).nonce);
  CHECK(there.size() == 2);
}

TEST_CASE("agents look for the lead in one order") {
  CHECK(seek_order(3, -1, -1) == std::vector<int>{0, 1, 2});
  CHECK(seek_order(3, -1, 0) == std::vector<int>{1, 2, 0});
  CHECK(seek_order(3, 2, -1) == std::vector<int>{2, 0, 1});
  CHECK(seek_order(3, 2, 2) == std::vector<int>{2, 0, 1});
  CHECK(seek_order(2, -1, 5) == std::vector<int>{0, 1});
}

TEST_CASE("what agents tell each other comes over whole, and nonsense is refused") {
  Presence said = presence(seat(2, 3), kThree);
  said.last = roster(5, {seat(2, 3)});
  note_joined(&said);
  Presence heard;
  REQUIRE(decode(encode(said), &heard));
  CHECK(heard.seat.nonce == said.seat.nonce);
  CHECK(heard.seat.host == "n2");
  CHECK(heard.serial == 7);
  CHECK(heard.last.attempt == 5);
  CHECK(heard.last.port == 4711);
  CHECK(heard.begun.attempt == 4);
  CHECK(heard.begun.seats.size() == 3);
  REQUIRE(heard.unsure.size() == 1);
  CHECK(heard.unsure[0].attempt == 5);
  CHECK(heard.unsure[0].seats[0].nonce == seat(2, 3).nonce);
  Offer offer;
  offer.end_code = 3;
  offer.end_text = "over";
  Offer got;
  REQUIRE(decode(encode(offer), &got));
  CHECK(got.end_code == 3);
  CHECK(got.end_text == "over");
  CHECK(got.roster.attempt == -1);
  const std::string bytes = encode(said);
  for (size_t size = 0; size < bytes.size(); ++size) {
    CHECK_FALSE(decode(std::string_view(bytes).substr(0, size), &heard));
  }
  CHECK_FALSE(decode(bytes + "x", &heard));
  CHECK_FALSE(decode(encode(presence(seat(0), roster(-2, {}))), &heard));
  CHECK_FALSE(decode(encode(presence(seat(0), roster(1, {}))), &heard));
}
