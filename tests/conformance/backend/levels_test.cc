// SPDX-License-Identifier: Apache-2.0
// Ranks of one host that pretend to live on several NUMA nodes: what crosses over is relayed.
#include <doctest/doctest.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <thread>

#include "backend/host/host_backend.h"
#include "collective/blocks.h"
#include "play.h"

using namespace conformance;
using dt::collective::Blocks;

namespace {

constexpr Kind kMoved[] = {Kind::kAllreduce, Kind::kReduce, Kind::kBroadcast, Kind::kAllgather,
                           Kind::kReduceScatter};

/// `nodes`: by rank.
Setup on_nodes(std::vector<int32_t> nodes) {
  Setup one;
  one.size = static_cast<int32_t>(nodes.size());
  one.nodes = std::move(nodes);
  // A few thousand elements go around the ring several times.
  one.host.inline_bytes = 256;
  one.host.slot_bytes = 2048;
  one.host.ring_bytes = 8192;
  return one;
}

/// `counts`: ranks on each node, in order.
std::vector<int32_t> in_order(const std::vector<int32_t>& counts) {
  std::vector<int32_t> nodes;
  for (size_t node = 0; node < counts.size(); ++node) {
    nodes.insert(nodes.end(), static_cast<size_t>(counts[node]), static_cast<int32_t>(node));
  }
  return nodes;
}

/// A rank that announces an operation also takes the steps that it can take at once: it fills its
/// ring, or reads one. So the message goes around the ring several times.
constexpr int64_t kLong = 20'000;

std::shared_ptr<const Blocks> uneven_blocks(Kind kind, int32_t rank, int32_t size) {
  auto blocks = std::make_shared<Blocks>();
  for (int32_t other = 0; other < size; ++other) {
    const bool same = kind == Kind::kAllgatherv;
    const auto count = [&](int32_t from, int32_t to) {
      return kLong - 1000 * (same ? from : (from + 2 * to) % size);
    };
    blocks->outgoing.push_back({same ? 0 : other * kLong, count(rank, other)});
    blocks->incoming.push_back({other * kLong, count(other, rank)});
  }
  return blocks;
}

/// Rank `late` stops after it has announced the operation, or before; rank 1 is the root. With
/// `shares` the send buffers of the other even ranks lie in the arena.
void check_late(const std::vector<int32_t>& nodes, Kind kind, bool announces, int32_t late,
                bool shares) {
  CAPTURE(announces);
  CAPTURE(late);
  CAPTURE(shares);
  Setup setup = on_nodes(nodes);
  setup.host.by_caller = true;  // what a rank does not ask for stands still
  std::atomic<int64_t> moved{0};
  play(setup, [&](Rank& rank) {
    auto* const backend = dynamic_cast<dt::backend::HostBackend*>(rank.backend.get());
    std::vector<float> send(5 * kLong, 1);
    std::vector<float> recv(5 * kLong);
    Collective one = allreduce_f32(send.data(), recv.data(), kLong);
    one.kind = kind;
    one.root = dt::is_irregular(kind) ? 0 : 1;
    if (dt::is_irregular(kind)) one.blocks = uneven_blocks(kind, rank.rank, rank.size);
    void* memory = nullptr;
    if (shares && rank.rank % 2 == 0 && rank.rank != late) {
      auto allocated = backend->allocate(static_cast<int64_t>(send.size() * sizeof(float)));
      rank.expect_ok(allocated.status(), "allocate");
      one.send = memory = allocated.value();
    }
    const auto work = std::make_shared<Work>();
    const bool waits = rank.rank != late;
    if (waits || announces) rank.expect_ok(backend->submit(one, work), "submit");
    // All other ranks go on until nothing moves on any of them.
    dt::backend::HostBackend::Advance advance;
    for (bool over = false; !over;) {
      rank.meet();
      moved = 0;
      rank.meet();
      while (waits && backend->try_advance(&advance, true) &&
             advance.step == dt::collective::Step::kProgressed) {
        ++moved;
      }
      rank.meet();
      over = moved == 0;
    }
    if (waits) {
      rank.expect(advance.awaited == std::vector<int32_t>{late},
                  dt::format("waits for %zu, first %d", advance.awaited.size(),
                             advance.awaited.empty() ? -1 : advance.awaited[0]));
      rank.expect(!work->done(), "not done");
    }
    rank.meet();
    backend->interrupt(Status(Code::kAborted, "over"));
    if (waits || announces) {
      rank.expect(backend->wait(*work, {Deadline::after_ms(30'000)}), "ends");
    }
    rank.expect_ok(backend->release(memory), "release");
  });
}

}  // namespace

TEST_CASE("Levels: every collective gives the right elements wherever ranks and buffers are") {
  const std::vector<int32_t> all[] = {
      in_order({2, 2}), in_order({4, 4}), {1, 0, 2, 1, 0}, in_order({3, 1, 2}), in_order({2, 1}),
  };
  for (const std::vector<int32_t>& nodes : all) {
    CAPTURE(&nodes - all);
    play(on_nodes(nodes), [](Rank& rank) {
      int32_t root = 0;
      for (const Kind kind : kMoved) {
        for (const int64_t count : {1, 257, 5003}) {
          for (const Placement placement : kPlacements) {
            check_collective(rank, kind, Dtype::kF32, ReduceOp::kSum, count, root, placement);
            root = (root + 1) % rank.size;
          }
        }
      }
    });
  }
}

TEST_CASE("Levels: eighteen ranks on two and three nodes") {
  for (const std::vector<int32_t>& nodes : {in_order({9, 9}), in_order({7, 6, 5})}) {
    play(on_nodes(nodes), [](Rank& rank) {
      for (const Kind kind : kMoved) {
        for (const int64_t count : {3, 4001}) {
          for (const Placement placement :
               {Placement::kOrdinary, Placement::kInPlace, Placement::kShared}) {
            check_collective(rank, kind, Dtype::kI32, ReduceOp::kSum, count, 13, placement);
          }
        }
      }
    });
  }
}

TEST_CASE("Levels: the bits are those of one level, and of the plain loop") {
  constexpr int64_t kCount = 6007;
  for (const std::vector<int32_t>& nodes :
       {in_order({2, 2}), in_order({4, 4}), std::vector<int32_t>{0, 1, 1, 0, 1}}) {
    const auto size = static_cast<int32_t>(nodes.size());
    // Random values: another order of the sum would round differently.
    std::vector<std::vector<float>> inputs(static_cast<size_t>(size));
    std::mt19937 random(static_cast<uint32_t>(size));
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (auto& input : inputs) {
      for (int64_t i = 0; i < kCount; ++i) input.push_back(uniform(random));
    }
    std::vector<float> expected = inputs[0];
    for (int32_t rank = 1; rank < size; ++rank) {
      for (int64_t i = 0; i < kCount; ++i) expected[i] += inputs[rank][i];
    }
    Setup two = on_nodes(nodes);
    Setup one = two;
    one.nodes.clear();
    for (const Setup& setup : {one, two}) {
      play(setup, [&](Rank& rank) {
        for (int round = 0; round < 5; ++round) {
          std::vector<float> result(kCount);
          rank.expect_ok(rank.run(allreduce_f32(inputs[rank.rank].data(), result.data(), kCount)),
                         "allreduce");
          rank.expect(result == expected, "other bits");
        }
      });
    }
  }
}

TEST_CASE("Levels: operations of all kinds and sizes follow each other without a pause") {
  // The counters and the ring go on from one to the next, whichever of them relay.
  play(on_nodes({0, 1, 0, 1, 1}), [](Rank& rank) {
    for (int round = 0; round < 100; ++round) {
      const Kind kind = kMoved[round % 5];
      const int64_t count = 70 + round * 37 % 3000;
      const Placement placement = kPlacements[round / 5 % 8];
      check_collective(rank, kind, Dtype::kF32, ReduceOp::kSum, count, round % rank.size,
                       placement);
    }
  });
}

TEST_CASE("Levels: parts of a split communicator have nodes of their own") {
  play(on_nodes({0, 0, 1, 1, 0, 1}), [](Rank& rank) {
    auto part = rank.backend->split(rank.rank % 2, -rank.rank, "part", Deadline::after_ms(30'000));
    rank.expect_ok(part.status(), "split");
    if (!part.ok()) return;
    Rank inside = rank;
    inside.backend = part.value().backend;
    inside.size = 3;
    inside.rank = 2 - rank.rank / 2;  // descending
    for (const Kind kind : kMoved) {
      check_collective(inside, kind, Dtype::kF32, ReduceOp::kSum, 3001, 1, Placement::kOrdinary);
    }
  });
}

TEST_CASE("Levels: between hosts, too") {
  Setup setup = on_nodes({0, 0, 1, 1, 0, 1});
  setup.backend = "multihost";
  setup.hosts = {0, 0, 0, 0, 1, 1};
  play(setup, [](Rank& rank) {
    for (const Kind kind : kMoved) {
      check_collective(rank, kind, Dtype::kF32, ReduceOp::kSum, 3001, 1, Placement::kOrdinary);
    }
  });
}

TEST_CASE("Levels: who is late is named, and not the relay that waits for it") {
  for (const Kind kind : {Kind::kAllreduce, Kind::kBroadcast, Kind::kAllgather}) {
    for (const bool announces : {false, true}) {
      for (const int32_t late : {0, 1, 2, 3, 4}) {
        CAPTURE(static_cast<int>(kind));
        check_late(in_order({2, 3}), kind, announces, late, false);
      }
    }
  }
}

TEST_CASE("Levels: gather and its like name the late rank, not the ranks that wait for it") {
  for (const Kind kind :
       {Kind::kGather, Kind::kScatter, Kind::kAlltoall, Kind::kAlltoallv, Kind::kAllgatherv}) {
    for (const bool shares : {false, true}) {
      for (const int32_t late : {0, 1, 2, 3, 4}) {
        CAPTURE(std::string(dt::kind_name(kind)));
        check_late(std::vector<int32_t>(5, 0), kind, true, late, shares);
      }
    }
  }
}

TEST_CASE("Levels: the error of a deadline names the late rank") {
  play(on_nodes(in_order({2, 2})), [&](Rank& rank) {
    rank.meet();
    if (rank.rank != 2) {
      std::vector<float> data(5000, 1);
      Collective reduce = allreduce_f32(data.data(), data.data(), 5000);
      reduce.deadline = Deadline::after_ms(500);
      const Status status = rank.backend->run(reduce);
      rank.expect(status.code() == Code::kTimeout, "TIMEOUT: " + status.message());
      rank.expect(
          contains(status.message(), "has not arrived: rank 2 (world rank 102, thishost, pid "),
          status.message());
      rank.expect(status.info().rank == 102, "as data");
    }
    rank.meet();
  });
}

TEST_CASE("Levels: interrupt wakes whoever relays and whoever waits for a relay") {
  for (const Kind kind : {Kind::kAllreduce, Kind::kBroadcast, Kind::kAllgather}) {
    play(on_nodes(in_order({2, 2})), [&](Rank& rank) {
      std::vector<float> data(4 * 5000, 1);
      Collective one = allreduce_f32(data.data() + rank.rank * 5000, data.data(), 5000);
      one.kind = kind;
      one.root = 3;
      if (rank.rank != 3) {
        std::thread control(
            [&] { rank.backend->interrupt(Status(Code::kPeerLost, "rank 3 died")); });
        const Status status = rank.backend->run(one);
        rank.expect(status.message() == "rank 3 died", "status: " + status.message());
        control.join();
      }
      rank.meet();
    });
  }
}
