// SPDX-License-Identifier: Apache-2.0
// Random collectives against a plain reference. Sizes, ways, buffers and arrivals change from one
// to the next, several are under way at once, in the world and in parts of it; all values change
// too, so that data of an earlier operation shows. RANDOM_EPISODES=1000 makes more of them.
#include <cstdlib>
#include <deque>
#include <random>

#include "play.h"

using namespace conformance;

namespace {

constexpr int kTurns = 60;  // collectives of an episode
constexpr Kind kKinds[] = {Kind::kAllreduce, Kind::kReduce,        Kind::kBroadcast, Kind::kBarrier,
                           Kind::kAllgather, Kind::kReduceScatter, Kind::kAlltoall};

/// What all ranks do alike.
struct Turn {
  uint32_t number;
  Kind kind;
  int64_t count;
  uint32_t root;
  bool in_part;     ///< among the ranks that are all even, or all odd
  bool all_shared;  ///< every buffer of every rank is dt_mem_alloc's
};

int32_t value_of(uint32_t turn, int32_t rank, int64_t index) {
  return static_cast<int32_t>(
      (turn * 7919u + static_cast<uint32_t>(rank) * 104729u + static_cast<uint32_t>(index) * 31u) %
      1000003u);
}

std::vector<Turn> random_turns(std::mt19937* random) {
  std::vector<Turn> turns;
  for (uint32_t number = 0; number < kTurns; ++number) {
    Turn turn;
    turn.number = number;
    turn.kind = kKinds[(*random)() % std::size(kKinds)];
    const int64_t most[] = {60, 500, 500, 500, 2500, 2500, 2500, 9000};
    turn.count = turn.kind == Kind::kBarrier ? 0 : 1 + (*random)() % most[(*random)() % 8];
    turn.root = (*random)();
    turn.in_part = (*random)() % 5 == 0;
    turn.all_shared = (*random)() % 4 == 0;
    turns.push_back(turn);
  }
  return turns;
}

Setup random_setup(std::mt19937* random) {
  Setup setup;
  setup.size = 2 + static_cast<int32_t>((*random)() % 4);
  if ((*random)() % 2 == 0) {
    for (int32_t rank = 0; rank < setup.size; ++rank) {
      setup.nodes.push_back(static_cast<int32_t>((*random)() % 2));
    }
  }
  const int64_t exchange_ranks[] = {1, 2, 2, 3, 8};
  const int64_t segment_bytes[] = {64, 256, 65536};
  setup.host.inline_bytes = 256;
  setup.host.slot_bytes = (*random)() % 3 == 0 ? 512 : 1024;
  setup.host.ring_bytes = (*random)() % 3 == 0 ? 2500 : 4096;
  setup.host.thresholds.exchange_ranks = exchange_ranks[(*random)() % 5];
  setup.host.thresholds.segment_bytes = segment_bytes[(*random)() % 3];
  setup.host.by_caller = (*random)() % 3 == 0;
  return setup;
}

class Player {
 public:
  Player(Rank& rank, dt::backend::Backend* part, uint32_t seed)
      : rank_(rank),
        part_(part),
        random_(seed * 977 + static_cast<uint32_t>(rank.rank)),
        depth_(1 + random_() % 4) {}

  void play(const std::vector<Turn>& turns) {
    for (const Turn& turn : turns) {
      if (under_way_.size() == depth_) end_first();
      begin(turn);
    }
    while (!under_way_.empty()) end_first();
  }

 private:
  struct Memory {
    std::vector<int32_t> own;
    int32_t* shared = nullptr;
    int32_t* data() { return shared != nullptr ? shared : own.data(); }
  };
  struct Operation {
    Turn turn;
    dt::backend::Backend* backend = nullptr;
    int32_t size = 0;  ///< of the communicator
    int32_t rank = 0;
    Memory send;
    Memory recv;
    const int32_t* result = nullptr;
    std::shared_ptr<Work> work = std::make_shared<Work>();

    int32_t root() const { return static_cast<int32_t>(turn.root % static_cast<uint32_t>(size)); }
  };

  Memory allocate(bool shared, int64_t elements) {
    Memory memory;
    if (!shared) {
      memory.own.assign(static_cast<size_t>(elements), -7);
      return memory;
    }
    auto allocated = rank_.backend->allocate(elements * 4);
    rank_.expect_ok(allocated.status(), "allocate");
    if (allocated.ok()) memory.shared = static_cast<int32_t*>(allocated.value());
    return memory;
  }

  void begin(const Turn& turn) {
    Operation& operation = under_way_.emplace_back();
    operation.turn = turn;
    operation.backend = turn.in_part ? part_ : rank_.backend.get();
    operation.size = turn.in_part ? (rank_.size + 1 - rank_.rank % 2) / 2 : rank_.size;
    operation.rank = turn.in_part ? rank_.rank / 2 : rank_.rank;
    const int64_t count = turn.count;
    const int64_t whole = count * operation.size;
    const bool scatters = turn.kind == Kind::kReduceScatter || turn.kind == Kind::kAlltoall;
    const bool gathers = turn.kind == Kind::kAllgather || turn.kind == Kind::kAlltoall;
    const bool in_place = turn.kind != Kind::kAlltoall && random_() % 3 == 0;
    operation.send = allocate(turn.all_shared || random_() % 5 == 0, whole + 1);
    int32_t* send = operation.send.data();
    int32_t* recv = send;
    if (in_place && turn.kind == Kind::kAllgather) send += operation.rank * count;
    if (in_place && turn.kind == Kind::kReduceScatter) recv += operation.rank * count;
    if (!in_place) {
      operation.recv =
          allocate(turn.all_shared || random_() % 5 == 0, (gathers ? whole : count) + 1);
      recv = operation.recv.data();
    }
    for (int64_t i = 0; i < (scatters ? whole : count); ++i) {
      send[i] = value_of(turn.number, rank_.rank, i);
    }
    operation.result = recv;
    Collective collective;
    collective.kind = turn.kind;
    collective.dtype = Dtype::kI32;
    collective.op = ReduceOp::kSum;
    collective.count = count;
    collective.root = operation.root();
    collective.deadline = dt::Deadline::after_ms(kLimitMs);
    collective.send = send;
    collective.recv = recv;
    rank_.expect_ok(operation.backend->submit(collective, operation.work), "submit");
  }

  void end_first() {
    Operation& operation = under_way_.front();
    // Now and then it looks in vain first.
    if (random_() % 4 == 0) (void)operation.backend->wait(*operation.work, {soon()});
    const bool done = operation.backend->wait(*operation.work, {dt::Deadline::after_ms(kLimitMs)});
    rank_.expect(done, what(operation) + " has not ended");
    if (done) rank_.expect_ok(operation.work->status(), what(operation));
    if (done && operation.work->status().ok()) check(operation);
    for (Memory* memory : {&operation.send, &operation.recv}) {
      if (memory->shared == nullptr) continue;
      rank_.expect_ok(rank_.backend->release(memory->shared), "release");
    }
    under_way_.pop_front();
  }

  void check(const Operation& operation) {
    const Turn& turn = operation.turn;
    const bool gathers = turn.kind == Kind::kAllgather || turn.kind == Kind::kAlltoall;
    if (turn.kind == Kind::kReduce && operation.rank != operation.root()) return;
    for (int64_t i = 0; i < turn.count * (gathers ? operation.size : 1); ++i) {
      const int32_t wanted = reference(operation, i);
      if (operation.result[i] == wanted) continue;
      rank_.expect(false, what(operation) + dt::format(": element %lld is %d, not %d",
                                                       static_cast<long long>(i),
                                                       operation.result[i], wanted));
      return;
    }
  }

  int32_t reference(const Operation& operation, int64_t i) const {
    const Turn& turn = operation.turn;
    const auto from = [&](int64_t member, int64_t index) {
      const auto rank = static_cast<int32_t>(member);
      return value_of(turn.number, turn.in_part ? 2 * rank + rank_.rank % 2 : rank, index);
    };
    const int64_t mine = operation.rank * turn.count;
    switch (turn.kind) {
      case Kind::kBroadcast: return from(operation.root(), i);
      case Kind::kAllgather: return from(i / turn.count, i % turn.count);
      case Kind::kAlltoall: return from(i / turn.count, mine + i % turn.count);
      default: break;
    }
    int32_t sum = 0;
    for (int32_t member = 0; member < operation.size; ++member) {
      sum += from(member, turn.kind == Kind::kReduceScatter ? mine + i : i);
    }
    return sum;
  }

  std::string what(const Operation& operation) const {
    return dt::format("turn %u, %s x %lld", operation.turn.number,
                      dt::kind_name(operation.turn.kind),
                      static_cast<long long>(operation.turn.count));
  }
  dt::Deadline soon() { return dt::Deadline::after_ms(static_cast<int64_t>(random_() % 2)); }

  static constexpr int64_t kLimitMs = 60'000;

  Rank& rank_;
  dt::backend::Backend* const part_;
  std::mt19937 random_;  // what this rank does in its own way
  const size_t depth_;   // so many under way
  std::deque<Operation> under_way_;
};

}  // namespace

TEST_CASE("Host: random collectives give what a plain reference gives") {
  const char* const given = getenv("RANDOM_EPISODES");
  const uint32_t episodes = given == nullptr ? 30 : static_cast<uint32_t>(atoi(given));
  for (uint32_t seed = 1; seed <= episodes; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const Setup setup = random_setup(&random);
    const std::vector<Turn> turns = random_turns(&random);
    play(setup, [&](Rank& rank) {
      auto part =
          rank.backend->split(rank.rank % 2, rank.rank, "part", dt::Deadline::after_ms(60'000));
      rank.expect_ok(part.status(), "split");
      if (!part.ok()) return;
      Player(rank, part.value().backend.get(), seed).play(turns);
      rank.meet();
    });
  }
}
