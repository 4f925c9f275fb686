// SPDX-License-Identifier: Apache-2.0
// Runs schedules over plain arrays: what every rank does, in any order that the stages allow.
#include "collective/schedule.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <random>
#include <set>

using namespace dt::collective;
using dt::Dtype;
using dt::ReduceOp;

namespace {

template <class T>
T combine(ReduceOp op, T a, T b) {
  switch (op) {
    case ReduceOp::kProd: return a * b;
    case ReduceOp::kMin: return std::min(a, b);
    case ReduceOp::kMax: return std::max(a, b);
    default: return a + b;
  }
}

/// Ranks as state machines, local steps as meetings of the ranks of a host.
template <class T>
struct Simulation {
  struct RankState {
    std::vector<T> send, recv, scratch;
    int64_t round = 0;
    std::vector<Stage> stages;
    size_t stage = 0;
    bool sent = false;
    size_t local_done = 0;
    size_t received = 0;
    bool done = false;
  };

  Simulation(Collective operation, Topology where, std::optional<Way> way = {},
             bool sends_in_place = false)
      : call(operation),
        topology(std::move(where)),
        in_place(sends_in_place),
        ranks(topology.size()) {
    for (int32_t rank = 0; rank < topology.size(); ++rank) {
      RankState& state = ranks[rank];
      schedules.emplace_back(call, topology, rank, way);
      contacts.push_back(topology.contacts(rank));
      state.scratch.resize(schedules[rank].scratch_bytes() / sizeof(T));
      const int64_t in = call.kind == Kind::kReduceScatter ? call.count * size() : call.count;
      const int64_t out = call.kind == Kind::kAllgather ? call.count * size() : call.count;
      state.send.resize(in);
      state.recv.resize(out, T(-7));
      for (int64_t i = 0; i < in; ++i) state.send[i] = value(rank, i);
    }
  }

  int32_t size() const { return topology.size(); }
  /// Where the result begins in the buffer that is sent, if the operation is in place.
  int64_t result_begin(int32_t rank) const {
    return call.kind == Kind::kReduceScatter ? rank * call.count : 0;
  }
  T value(int32_t rank, int64_t index) const {
    const int64_t number = rank + size() * index;
    return static_cast<T>(call.op == ReduceOp::kProd ? number % 2 + 1 : number % 11 - 3);
  }
  T wanted(int64_t index) const {
    T result = value(0, index);
    for (int32_t rank = 1; rank < size(); ++rank) {
      result = combine(call.op, result, value(rank, index));
    }
    return call.op == ReduceOp::kAvg ? static_cast<T>(result / size()) : result;
  }

  T* at(int32_t rank, const Piece& piece, int64_t count) {
    RankState& state = ranks[rank];
    std::vector<T>& space = piece.space == Space::kSend || (in_place && piece.space == Space::kRecv)
                                ? state.send
                            : piece.space == Space::kRecv ? state.recv
                                                          : state.scratch;
    int64_t first = piece.offset_bytes / static_cast<int64_t>(sizeof(T));
    REQUIRE(piece.offset_bytes % static_cast<int64_t>(sizeof(T)) == 0);
    REQUIRE(first >= 0);
    if (in_place && piece.space == Space::kRecv) first += result_begin(rank);
    REQUIRE(first + count <= static_cast<int64_t>(space.size()));
    return space.data() + first;
  }

  bool load(int32_t rank) {
    RankState& state = ranks[rank];
    while (state.stage == state.stages.size()) {
      if (state.round == schedules[rank].rounds()) {
        state.done = true;
        return false;
      }
      state.stages = schedules[rank].round(state.round++);
      state.stage = 0;
      for (const Stage& stage : state.stages) REQUIRE(!stage.empty());
    }
    return true;
  }

  /// A local step happens when all ranks of the host have reached it.
  bool try_local(int32_t rank) {
    const auto& members = topology.hosts[topology.host[rank]];
    for (const int32_t member : members) {
      RankState& state = ranks[member];
      if (state.done || state.stages.empty() || state.stage == state.stages.size()) return false;
      if (state.local_done == state.stages[state.stage].local.size()) return false;
    }
    const auto step_of = [&](int32_t member) {
      RankState& state = ranks[member];
      return state.stages[state.stage].local[state.local_done];
    };
    const LocalStep step = step_of(rank);
    const int32_t root = members[step.root];
    std::vector<T> result(step.count);
    if (step.kind == Kind::kBroadcast) {
      const T* from = at(root, step_of(root).send, step.count);
      result.assign(from, from + step.count);
    }
    for (const int32_t member : members) {
      const LocalStep mine = step_of(member);
      REQUIRE(mine.kind == step.kind);
      REQUIRE(mine.root == step.root);
      REQUIRE(mine.count == step.count);
      REQUIRE(mine.op == step.op);
      if (step.kind == Kind::kBroadcast) {
        std::copy(result.begin(), result.end(), at(member, mine.recv, step.count));
        continue;
      }
      const T* from = at(member, mine.send, step.count);
      for (int64_t i = 0; i < step.count; ++i) {
        const T scaled =
            step.op == ReduceOp::kAvg ? static_cast<T>(from[i] / step.divisor) : from[i];
        result[i] = member == members[0] ? scaled : combine(step.op, result[i], scaled);
      }
    }
    if (step.kind == Kind::kReduce) {
      std::copy(result.begin(), result.end(), at(root, step_of(root).recv, step.count));
    }
    for (const int32_t member : members) ++ranks[member].local_done;
    return true;
  }

  bool advance(int32_t rank) {
    if (ranks[rank].done || !load(rank)) return false;
    RankState& state = ranks[rank];
    const Stage& stage = state.stages[state.stage];
    bool moved = false;
    if (!state.sent) {
      for (const NetworkStep& step : stage.sends) {
        REQUIRE(topology.host[step.peer] != topology.host[rank]);
        REQUIRE(contacts[rank].count(step.peer) == 1);
        REQUIRE(contacts[step.peer].count(rank) == 1);
        const auto count = step.bytes / static_cast<int64_t>(sizeof(T));
        const T* from = at(rank, step.at, count);
        wires[{rank, step.peer}].push_back(std::vector<T>(from, from + count));
      }
      state.sent = moved = true;
    }
    moved |= try_local(rank);
    while (state.received < stage.receives.size()) {
      const NetworkStep& step = stage.receives[state.received];
      auto& wire = wires[{step.peer, rank}];
      if (wire.empty()) break;
      REQUIRE(static_cast<int64_t>(wire.front().size() * sizeof(T)) == step.bytes);
      std::copy(wire.front().begin(), wire.front().end(),
                at(rank, step.at, static_cast<int64_t>(wire.front().size())));
      wire.pop_front();
      ++state.received;
      moved = true;
    }
    if (state.received < stage.receives.size() || state.local_done < stage.local.size()) {
      return moved;
    }
    for (const SumStep& sum : stage.sums) {
      REQUIRE(sum.sources.size() >= 2);
      std::vector<T> result(sum.count);
      for (size_t source = 0; source < sum.sources.size(); ++source) {
        const T* from = at(rank, sum.sources[source], sum.count);
        for (int64_t i = 0; i < sum.count; ++i) {
          result[i] = source == 0 ? from[i] : combine(sum.op, result[i], from[i]);
        }
      }
      for (T& each : result) {
        if (sum.op == ReduceOp::kAvg) each = static_cast<T>(each / sum.divisor);
      }
      std::copy(result.begin(), result.end(), at(rank, sum.target, sum.count));
    }
    ++state.stage;
    state.sent = false;
    state.local_done = state.received = 0;
    load(rank);
    return true;
  }

  /// Every rank moves when it can, in a random order.
  void run() {
    std::mt19937 random(7);
    std::vector<int32_t> order;
    for (int32_t rank = 0; rank < size(); ++rank) order.push_back(rank);
    for (bool moved = true; moved;) {
      moved = false;
      std::shuffle(order.begin(), order.end(), random);
      for (const int32_t rank : order) moved |= advance(rank);
    }
    for (int32_t rank = 0; rank < size(); ++rank) REQUIRE(ranks[rank].done);
    for (const auto& [pair, wire] : wires) REQUIRE(wire.empty());
  }

  T wanted(int32_t rank, int64_t index) const {
    switch (call.kind) {
      case Kind::kBroadcast: return value(call.root, index);
      case Kind::kAllgather:
        return value(static_cast<int32_t>(index / call.count), index % call.count);
      case Kind::kReduceScatter: return wanted(rank * call.count + index);
      default: return wanted(index);
    }
  }

  /// What the first rank has to have is right; where all have to have the same, they have what it
  /// has.
  void check() {
    const bool same = call.kind != Kind::kReduce && call.kind != Kind::kReduceScatter;
    for (int32_t rank = 0; rank < size(); ++rank) {
      if (call.kind == Kind::kReduce && rank != call.root) continue;
      std::vector<T>& got = ranks[rank].recv;
      if (in_place) {
        const auto begin = ranks[rank].send.begin() + result_begin(rank);
        got.assign(begin, begin + call.count);
      }
      if (same && rank > 0 && got == ranks[0].recv) continue;
      for (int64_t i = 0; i < static_cast<int64_t>(got.size()); ++i) {
        const T expected = wanted(rank, i);
        if (got[i] == expected || got[i] == doctest::Approx(static_cast<double>(expected))) {
          continue;
        }
        FAIL("rank " << rank << " element " << i << " is " << got[i] << ", not " << expected);
      }
    }
  }

  Collective call;
  Topology topology;
  bool in_place;
  std::vector<Schedule> schedules;
  std::vector<std::set<int32_t>> contacts;
  std::vector<RankState> ranks;
  std::map<std::pair<int32_t, int32_t>, std::deque<std::vector<T>>> wires;
};

// By rank, the number of its host.
const std::vector<std::vector<int32_t>> kTopologies = {
    {0, 1},
    {0, 0, 1},
    {1, 0, 0},
    {0, 0, 0, 1},           // 3 + 1
    {0, 0, 1, 1},           // block
    {0, 1, 0, 1},           // cyclic
    {5, 9, 9, 5, 7},        // split with keys
    {0, 1, 2},              // one rank each
    {0, 1, 2, 3, 4, 5, 6},  // likewise
    {0, 1, 2, 3, 4, 0, 1, 2, 3, 4},
    {0, 1, 2, 3, 0, 1, 2, 3},     // cyclic on four
    {0, 0, 0, 0, 0, 1, 1, 2},     // 5 + 2 + 1
    {3, 3, 1, 1, 2, 2, 0, 0, 3},  // four hosts, one with three
    {0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2},
};

const std::vector<Kind> kKinds = {Kind::kAllreduce, Kind::kReduce, Kind::kBroadcast,
                                  Kind::kAllgather, Kind::kReduceScatter};

template <class T>
void check_all(Dtype dtype, std::optional<Way> way, std::initializer_list<ReduceOp> ops,
               std::initializer_list<int64_t> counts) {
  for (const auto& hosts : kTopologies) {
    for (const Kind kind : kKinds) {
      for (const ReduceOp op : ops) {
        for (const int64_t count : counts) {
          Collective call;
          call.kind = kind;
          call.dtype = dtype;
          call.op = op;
          call.count = count;
          call.root = static_cast<int32_t>((count + static_cast<int>(kind)) %
                                           static_cast<int64_t>(hosts.size()));
          CAPTURE(kind_name(kind));
          CAPTURE(reduce_op_name(op));
          CAPTURE(count);
          CAPTURE(hosts.size());
          for (const bool in_place : {false, true}) {
            if (in_place && !reduces(kind)) continue;
            CAPTURE(in_place);
            Simulation<T> simulation(call, Topology::of(hosts), way, in_place);
            simulation.run();
            simulation.check();
          }
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("Topology: hosts are ordered by lowest rank, ranks ascend, whatever the numbers") {
  const Topology topology = Topology::of({5, 9, 9, 5, 7});
  CHECK(topology.hosts == std::vector<std::vector<int32_t>>{{0, 3}, {1, 2}, {4}});
  CHECK(topology.host == std::vector<int32_t>{0, 1, 1, 0, 2});
  CHECK(topology.local == std::vector<int32_t>{0, 0, 1, 1, 0});
  CHECK(topology.local_size_min == 1);
  CHECK(topology.deputy(3, 0) == 3);
  CHECK(topology.deputy(3, 1) == 2);
  CHECK(topology.deputy(3, 2) == 4);
  CHECK(topology.represented_max == 4);
}

TEST_CASE("Schedule: every collective gives the right elements on every topology") {
  for (const Way way : {Way::kDirect, Way::kHalving, Way::kRing}) {
    CAPTURE(static_cast<int>(way));
    check_all<int64_t>(Dtype::kI64, way, {ReduceOp::kSum, ReduceOp::kAvg},
                       {0, 1, 2, 3, 7, 64, 1000, 5003});
    check_all<double>(Dtype::kF64, way,
                      {ReduceOp::kAvg, ReduceOp::kProd, ReduceOp::kMin, ReduceOp::kMax},
                      {0, 1, 3, 7, 5003});
  }
}

TEST_CASE("Schedule: buffers beyond a segment take rounds and bounded scratch memory") {
  // A first round, one in the middle, and a short last one.
  constexpr int64_t kSegment = Schedule::kSegmentBytes / 8;
  for (const auto& hosts :
       {std::vector<int32_t>{0, 1}, {0, 0, 1, 1}, {0, 1, 2, 0}, {0, 1, 2, 0, 1, 2}}) {
    for (const Kind kind : kKinds) {
      for (const Way way : {Way::kDirect, Way::kHalving, Way::kRing}) {
        CAPTURE(kind_name(kind));
        CAPTURE(static_cast<int>(way));
        Collective call;
        call.kind = kind;
        call.dtype = Dtype::kI64;
        call.count = kind == Kind::kReduceScatter ? kSegment + 5 : 2 * kSegment + 17;
        Simulation<int64_t> simulation(call, Topology::of(hosts), way);
        CHECK(simulation.schedules[0].rounds() > 1);
        CHECK(simulation.schedules[0].scratch_bytes() <= 4 * Schedule::kSegmentBytes);
        simulation.run();
        simulation.check();
      }
    }
  }
}

TEST_CASE("Schedule: the way follows from the hosts and the bytes") {
  constexpr int64_t kMany = int64_t{1} << 30;
  for (const Kind kind : kKinds) CHECK(choose_way(kind, Dtype::kF32, 2, kMany) == Way::kDirect);
  CHECK(choose_way(Kind::kAllreduce, Dtype::kF32, 3, Schedule::kDirectBytes) == Way::kDirect);
  CHECK(choose_way(Kind::kAllreduce, Dtype::kF32, 3, Schedule::kDirectBytes + 1) == Way::kHalving);
  CHECK(choose_way(Kind::kAllreduce, Dtype::kF32, 9, 8) == Way::kHalving);
  CHECK(choose_way(Kind::kAllreduce, Dtype::kF32, 4, Schedule::kRingFromBytes) == Way::kRing);
  CHECK(choose_way(Kind::kAllreduce, Dtype::kF32, 64, Schedule::kRingFromBytes) == Way::kHalving);
  CHECK(choose_way(Kind::kAllreduce, Dtype::kF32, 64, 64 * Schedule::kRingPartBytes) == Way::kRing);
  CHECK(choose_way(Kind::kAllgather, Dtype::kF32, 4, Schedule::kRingFromBytes / 4) == Way::kRing);
  CHECK(choose_way(Kind::kReduceScatter, Dtype::kF32, 4, Schedule::kDirectBytes / 4) ==
        Way::kDirect);
  CHECK(choose_way(Kind::kBroadcast, Dtype::kF32, 3, Schedule::kChainFromBytes - 1) ==
        Way::kDirect);
  CHECK(choose_way(Kind::kReduce, Dtype::kF32, 3, Schedule::kChainFromBytes) == Way::kRing);
  // No ring where each hop would round.
  CHECK(choose_way(Kind::kAllreduce, Dtype::kBf16, 4, kMany) == Way::kHalving);
  CHECK(choose_way(Kind::kReduce, Dtype::kF16, 4, kMany) == Way::kDirect);
  CHECK(choose_way(Kind::kBroadcast, Dtype::kF16, 4, kMany) == Way::kRing);
}

TEST_CASE("Schedule: on a chain no host sends or receives more than the buffer once") {
  Collective call;
  call.dtype = Dtype::kF32;
  call.count = 1 << 20;
  call.root = 2;
  const Topology topology = Topology::of({0, 1, 2, 3, 4, 0, 1, 2, 3, 4});
  for (const Kind kind : {Kind::kBroadcast, Kind::kReduce}) {
    call.kind = kind;
    for (int32_t rank = 0; rank < topology.size(); ++rank) {
      const Schedule schedule(call, topology, rank);
      int64_t sent = 0;
      int64_t received = 0;
      for (int64_t round = 0; round < schedule.rounds(); ++round) {
        for (const Stage& stage : schedule.round(round)) {
          for (const NetworkStep& step : stage.sends) sent += step.bytes;
          for (const NetworkStep& step : stage.receives) received += step.bytes;
        }
      }
      CHECK((sent == 0 || sent == call.count * 4));
      CHECK((received == 0 || received == call.count * 4));
    }
  }
}

TEST_CASE("Schedule: a host with several ranks sums and hands out while a segment is on the wire") {
  constexpr int64_t kSegments = 5;
  Collective call;
  call.kind = Kind::kAllreduce;
  call.dtype = Dtype::kF32;
  call.count = kSegments * 2 * Schedule::kOverlappedBytes / 4;  // of two movers
  const Topology topology = Topology::of({0, 0, 1, 1});
  for (int32_t rank = 0; rank < 4; ++rank) {
    const Schedule schedule(call, topology, rank);
    REQUIRE(schedule.rounds() == kSegments + 3);
    for (int64_t round = 0; round < schedule.rounds(); ++round) {
      const std::vector<Stage> stages = schedule.round(round);
      REQUIRE(stages.size() == 1);
      int64_t reduced = 0;
      int64_t broadcast = 0;
      for (const LocalStep& step : stages[0].local) {
        (step.kind == Kind::kReduce ? reduced : broadcast) += step.count * 4;
      }
      const bool scatters = round >= 1 && round <= kSegments;
      const bool gathers = round >= 2 && round <= kSegments + 1;
      CHECK(reduced == (round < kSegments ? 2 * Schedule::kOverlappedBytes : 0));
      CHECK(broadcast == (round >= 3 ? 2 * Schedule::kOverlappedBytes : 0));
      CHECK(stages[0].sends.size() == static_cast<size_t>(scatters) + gathers);
      CHECK(stages[0].sums.size() == static_cast<size_t>(scatters));
    }
  }
}

TEST_CASE("Schedule: a rank that has its host to itself copies nothing before it sends") {
  for (const auto& hosts : {std::vector<int32_t>{0, 1}, {0, 0, 1}, {0, 1, 2, 3}, {0, 1, 2}}) {
    const Topology topology = Topology::of(hosts);
    const auto last = static_cast<int32_t>(hosts.size()) - 1;
    for (const Kind kind : {Kind::kAllreduce, Kind::kReduce, Kind::kReduceScatter}) {
      for (const Way way : {Way::kDirect, Way::kHalving, Way::kRing}) {
        Collective call;
        call.kind = kind;
        call.dtype = Dtype::kF32;
        call.count = 1 << 20;
        CAPTURE(kind_name(kind));
        CAPTURE(static_cast<int>(way));
        CAPTURE(hosts.size());
        const auto copies = [&] {
          const Schedule schedule(call, topology, last, way);
          size_t count = 0;
          for (int64_t round = 0; round < schedule.rounds(); ++round) {
            for (const Stage& stage : schedule.round(round)) {
              for (const LocalStep& step : stage.local) count += step.kind == Kind::kReduce;
            }
          }
          return count;
        };
        // Halves of an odd number of parts: one of them is summed later than its neighbours.
        const bool mixed =
            topology.host_count() == 3 && way == Way::kHalving && kind != Kind::kReduce;
        CHECK((copies() == 0) == !mixed);
        // A float is scaled before the first sum but where there is one sum only.
        call.op = ReduceOp::kAvg;
        const bool one_sum =
            topology.size() == topology.host_count() &&
            (way == Way::kDirect || (kind == Kind::kReduce && way == Way::kHalving));
        CHECK((copies() == 0) == one_sum);
      }
    }
  }
}

TEST_CASE("Schedule: counts beyond 2^31 elements overflow nowhere") {
  Collective call;
  call.kind = Kind::kAllreduce;
  call.dtype = Dtype::kF64;
  call.count = (int64_t{5} << 31) + 3;
  const Topology topology = Topology::of({0, 1, 2, 0, 1, 2});
  for (int32_t rank = 0; rank < 6; ++rank) {
    const Schedule schedule(call, topology, rank);
    const std::vector<Stage> last = schedule.round(schedule.rounds() - 1);
    int64_t end = 0;
    for (const Stage& stage : last) {
      for (const LocalStep& step : stage.local) {
        REQUIRE(step.recv.offset_bytes >= 0);
        end = std::max(end, step.recv.offset_bytes + step.count * 8);
      }
    }
    CHECK(end == call.count * 8);
  }
}

TEST_CASE("Schedule: data of a slice crosses between hosts once each way") {
  // Two hosts: each mover sends half its slice, receives half, then again for the gathering.
  Collective call;
  call.kind = Kind::kAllreduce;
  call.dtype = Dtype::kF32;
  call.count = 1 << 18;
  const Topology topology = Topology::of({0, 0, 1, 1});
  for (int32_t rank = 0; rank < 4; ++rank) {
    const Schedule schedule(call, topology, rank);
    int64_t sent = 0;
    for (int64_t round = 0; round < schedule.rounds(); ++round) {
      for (const Stage& stage : schedule.round(round)) {
        for (const NetworkStep& step : stage.sends) sent += step.bytes;
      }
    }
    CHECK(sent == call.count * 4 / 2);
  }
}
