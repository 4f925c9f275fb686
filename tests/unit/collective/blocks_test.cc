// SPDX-License-Identifier: Apache-2.0
#include "collective/blocks.h"

#include <doctest/doctest.h>

#include <deque>
#include <map>
#include <random>

#include "collective/schedule.h"

using namespace dt::collective;
using dt::Dtype;

namespace {

/// What each of `size` ranks calls; rank i sends j counts[i][j] elements, blocks lie in rank order.
std::vector<Collective> calls_of(const std::vector<std::vector<int64_t>>& counts, Kind kind) {
  const size_t size = counts.size();
  std::vector<Collective> calls(size);
  for (size_t rank = 0; rank < size; ++rank) {
    auto blocks = std::make_shared<Blocks>();
    int64_t out = 0;
    int64_t in = 0;
    for (size_t peer = 0; peer < size; ++peer) {
      blocks->outgoing.push_back({is_multicast(kind) ? 0 : out, counts[rank][peer]});
      blocks->incoming.push_back({in, counts[peer][rank]});
      out += counts[rank][peer];
      in += counts[peer][rank];
    }
    calls[rank].kind = kind;
    calls[rank].dtype = Dtype::kI64;
    calls[rank].blocks = std::move(blocks);
  }
  return calls;
}

uint64_t sum_of_balances(const std::vector<Collective>& calls) {
  uint64_t sum = 0;
  const auto size = static_cast<int32_t>(calls.size());
  for (int32_t rank = 0; rank < size; ++rank) {
    sum += balance(calls[static_cast<size_t>(rank)], rank, size);
  }
  return sum;
}

std::vector<std::vector<int64_t>> random_counts(int32_t size, uint32_t seed, bool multicast) {
  std::mt19937 random(seed);
  std::vector<std::vector<int64_t>> counts(static_cast<size_t>(size));
  for (auto& row : counts) {
    for (int32_t to = 0; to < size; ++to) {
      const auto count = static_cast<int64_t>(random() % 4 == 0 ? 0 : random() % 9);
      row.push_back(multicast && to > 0 ? row[0] : count);
    }
  }
  return counts;
}

int64_t element_of(int32_t from, int32_t to, int64_t index, bool multicast) {
  return from * 1'000'000 + (multicast ? 0 : to) * 1'000 + index;
}

/// The buffers of a rank, and its messages from others.
struct Seat {
  std::vector<int64_t> send;
  std::vector<int64_t> recv;
  std::map<int32_t, std::deque<std::vector<int64_t>>> inbox;

  int64_t* at(const Piece& piece, int64_t count) {
    std::vector<int64_t>& space = piece.space == Space::kSend ? send : recv;
    const int64_t first = piece.offset_bytes / 8;
    REQUIRE(piece.offset_bytes % 8 == 0);
    REQUIRE(first + count <= static_cast<int64_t>(space.size()));
    return space.data() + first;
  }
};

/// All ranks of a host, at one local step.
void move_locally(std::vector<Seat>& seats, const std::vector<int32_t>& members,
                  const std::vector<LocalStep>& steps) {
  for (size_t to = 0; to < members.size(); ++to) {
    const LocalStep& mine = steps[to];
    REQUIRE(mine.kind == steps[0].kind);
    Seat& seat = seats[static_cast<size_t>(members[to])];
    if (mine.kind == Kind::kBroadcast) {
      const auto root = static_cast<size_t>(mine.root);
      REQUIRE(mine.count == steps[root].count);
      const int64_t* from =
          seats[static_cast<size_t>(members[root])].at(steps[root].send, mine.count);
      std::copy(from, from + mine.count, seat.at(mine.recv, mine.count));
      continue;
    }
    for (size_t from = 0; from < members.size(); ++from) {
      const Extent out = steps[from].blocks->outgoing[to];
      const Extent in = mine.blocks->incoming[from];
      REQUIRE(out.count == in.count);
      const int64_t* source =
          seats[static_cast<size_t>(members[from])].at({Space::kSend, out.offset * 8}, out.count);
      std::copy(source, source + in.count, seat.at({Space::kRecv, in.offset * 8}, in.count));
    }
  }
}

/// Stage by stage on all ranks: sends, then receives, then what is local.
void carry_out(const std::vector<Collective>& calls, const Topology& topology,
               std::vector<Seat>& seats) {
  const auto size = static_cast<size_t>(topology.size());
  std::vector<std::vector<Stage>> plans;
  size_t stages = 0;
  for (size_t rank = 0; rank < size; ++rank) {
    plans.push_back(block_stages(calls[rank], topology, static_cast<int32_t>(rank)));
    stages = std::max(stages, plans.back().size());
  }
  for (size_t stage = 0; stage < stages; ++stage) {
    for (size_t rank = 0; rank < size; ++rank) {
      if (stage >= plans[rank].size()) continue;
      for (const NetworkStep& step : plans[rank][stage].sends) {
        REQUIRE(topology.host[static_cast<size_t>(step.peer)] != topology.host[rank]);
        const int64_t* from = seats[rank].at(step.at, step.bytes / 8);
        seats[static_cast<size_t>(step.peer)].inbox[static_cast<int32_t>(rank)].emplace_back(
            from, from + step.bytes / 8);
      }
    }
    for (size_t rank = 0; rank < size; ++rank) {
      if (stage >= plans[rank].size()) continue;
      for (const NetworkStep& step : plans[rank][stage].receives) {
        auto& messages = seats[rank].inbox[step.peer];
        REQUIRE(!messages.empty());
        REQUIRE(static_cast<int64_t>(messages.front().size()) * 8 == step.bytes);
        std::copy(messages.front().begin(), messages.front().end(),
                  seats[rank].at(step.at, step.bytes / 8));
        messages.pop_front();
      }
    }
    for (const auto& members : topology.hosts) {
      const auto& first = plans[static_cast<size_t>(members[0])];
      const size_t steps = stage < first.size() ? first[stage].local.size() : 0;
      for (size_t step = 0; step < steps; ++step) {
        std::vector<LocalStep> together;
        for (const int32_t member : members) {
          const auto& plan = plans[static_cast<size_t>(member)];
          REQUIRE(plan[stage].local.size() == steps);
          together.push_back(plan[stage].local[step]);
        }
        move_locally(seats, members, together);
      }
    }
  }
  for (Seat& seat : seats) {
    for (const auto& [peer, messages] : seat.inbox) CHECK(messages.empty());
  }
}

}  // namespace

TEST_CASE("Blocks: the balances of all ranks are zero together only where all counts fit") {
  for (const int32_t size : {1, 2, 3, 8, 60}) {
    const auto counts = random_counts(size, 3, false);
    const std::vector<Collective> calls = calls_of(counts, Kind::kAlltoallv);
    CHECK(sum_of_balances(calls) == 0);
    for (int32_t from = 0; from < size && size > 1; ++from) {
      std::vector<Collective> wrong = calls;
      auto changed = std::make_shared<Blocks>(*calls[static_cast<size_t>(from)].blocks);
      const auto to = static_cast<size_t>((from + 1) % size);
      ++changed->incoming[to].count;
      wrong[static_cast<size_t>(from)].blocks = changed;
      CHECK(sum_of_balances(wrong) != 0);
      // Two that are wrong by the same number do not make up for each other.
      --changed->incoming[to].count;
      ++changed->outgoing[to].count;
      auto other = std::make_shared<Blocks>(*calls[to].blocks);
      ++other->outgoing[static_cast<size_t>(from)].count;
      wrong[to].blocks = other;
      CHECK(sum_of_balances(wrong) != 0);
    }
  }
}

TEST_CASE("Blocks: counts swapped between two ranks do not go unnoticed") {
  auto calls = calls_of({{1, 2, 3}, {4, 5, 6}, {7, 8, 9}}, Kind::kAlltoallv);
  auto swapped = std::make_shared<Blocks>(*calls[0].blocks);
  std::swap(swapped->outgoing[1], swapped->outgoing[2]);
  calls[0].blocks = swapped;
  CHECK(sum_of_balances(calls) != 0);
}

TEST_CASE("Blocks: a message names the pairs that differ, the first few with both counts") {
  const auto found = difference(
      Dtype::kF32, 4, [](int32_t rank, int32_t peer) { return int64_t{10} * rank + peer; },
      [](int32_t rank, int32_t peer) { return int64_t{10} * peer + rank + (rank == 2 ? 1 : 0); },
      [](int32_t rank) { return dt::format("rank %d", rank); });
  CHECK(found.first == 0);
  CHECK(found.text ==
        "ranks disagree about counts of f32: rank 0 sends 2 to rank 2, which expects 3; rank 1 "
        "sends 12 to rank 2, which expects 13; rank 3 sends 32 to rank 2, which expects 33; make "
        "both sides name the same count, then go on with dt_comm_shrink");
  const auto all = difference(
      Dtype::kI8, 3, [](int32_t, int32_t) { return int64_t{1}; },
      [](int32_t, int32_t) { return int64_t{2}; }, [](int32_t) { return std::string("r"); });
  CHECK(all.text.find("; and 2 other pairs; make both sides") != std::string::npos);
}

TEST_CASE("Blocks: regular kinds have equal blocks, of which the root has some") {
  Collective call;
  call.count = 5;
  call.root = 2;
  const auto is = [](Extent extent, int64_t offset, int64_t count) {
    return extent.offset == offset && extent.count == count;
  };
  call.kind = Kind::kAlltoall;
  CHECK(is(outgoing(call, 1, 4, 3), 15, 5));
  CHECK(is(incoming(call, 1, 4, 0), 0, 5));
  call.kind = Kind::kGather;
  CHECK(is(outgoing(call, 1, 4, 2), 0, 5));
  CHECK(is(outgoing(call, 1, 4, 3), 0, 0));
  CHECK(is(incoming(call, 2, 4, 3), 15, 5));
  CHECK(is(incoming(call, 1, 4, 3), 0, 0));
  call.kind = Kind::kScatter;
  CHECK(is(outgoing(call, 2, 4, 3), 15, 5));
  CHECK(is(outgoing(call, 3, 4, 2), 0, 0));
  CHECK(is(incoming(call, 0, 4, 2), 0, 5));
  CHECK(is(incoming(call, 0, 4, 1), 0, 0));
}

TEST_CASE("Blocks: over several hosts every block reaches its place") {
  const std::vector<std::vector<int32_t>> topologies = {
      {0, 1}, {0, 0, 1}, {0, 1, 0, 1}, {5, 9, 9, 5, 7}, {0, 0, 0, 0, 0, 1, 1, 2}, {0, 1, 2, 3}};
  for (const auto& hosts : topologies) {
    const Topology topology = Topology::of(hosts);
    const int32_t size = topology.size();
    for (const Kind kind : {Kind::kAlltoallv, Kind::kAllgatherv}) {
      const bool multicast = is_multicast(kind);
      for (uint32_t seed = 0; seed < 5; ++seed) {
        CAPTURE(hosts.size());
        CAPTURE(kind_name(kind));
        CAPTURE(seed);
        const auto counts = random_counts(size, seed, multicast);
        const auto calls = calls_of(counts, kind);
        std::vector<Seat> seats(hosts.size());
        for (int32_t rank = 0; rank < size; ++rank) {
          Seat& seat = seats[static_cast<size_t>(rank)];
          for (int32_t to = 0; to < (multicast ? 1 : size); ++to) {
            for (int64_t i = 0; i < counts[static_cast<size_t>(rank)][static_cast<size_t>(to)];
                 ++i) {
              seat.send.push_back(element_of(rank, to, i, multicast));
            }
          }
          for (int32_t from = 0; from < size; ++from) {
            const int64_t count = counts[static_cast<size_t>(from)][static_cast<size_t>(rank)];
            seat.recv.insert(seat.recv.end(), static_cast<size_t>(count), -1);
          }
        }
        carry_out(calls, topology, seats);
        for (int32_t rank = 0; rank < size; ++rank) {
          std::vector<int64_t> wanted;
          for (int32_t from = 0; from < size; ++from) {
            for (int64_t i = 0; i < counts[static_cast<size_t>(from)][static_cast<size_t>(rank)];
                 ++i) {
              wanted.push_back(element_of(from, rank, i, multicast));
            }
          }
          CHECK(seats[static_cast<size_t>(rank)].recv == wanted);
        }
      }
    }
  }
}
