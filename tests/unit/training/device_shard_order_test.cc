// SPDX-License-Identifier: Apache-2.0
// Streams that use a shard's memory wait for each other, and the host for none of them.
#include <doctest/doctest.h>

#include <set>

#include "device_shards.h"

using namespace dt;
using namespace dt::test;

TEST_CASE("shard on GPUs: memory of a released unit waits for its last use") {
  run_on_gpus({"nccl", 2}, [](GpuRank& rank) {
    auto params = params_of(std::vector<std::pair<Dtype, int64_t>>(4, {Dtype::kF32, 500}));
    for (size_t p = 0; p < params.size(); ++p) params[p].unit = static_cast<int32_t>(p);
    ShardTrainer::Options options = at_stage(3);
    options.shard.prefetch = 0;
    ShardTrainer trainer(&rank, params, options);
    rank.expect_ok(trainer.created(), "create");
    const cuda::Stream uses = rank.new_stream();
    const cuda::Stream other = rank.new_stream();
    rank.expect_ok(trainer.set_all(uses), "set");
    rank.expect_ok(trainer.shard().gather(0, uses), "gather");
    auto* const early = static_cast<float*>(trainer.shard().param(0).value());
    Gate gate;
    const auto seen = std::make_shared<std::vector<float>>(500);
    rank.memory->push_back(seen);
    rank.expect_ok(gate.hold(*rank.cuda, uses), "hold");
    rank.expect_ok(
        rank.cuda->launch(uses, [=] { memcpy(seen->data(), early, 500 * sizeof(float)); }), "use");
    rank.expect_ok(trainer.shard().release(0, uses), "release");
    rank.expect_ok(trainer.shard().gather(1, other), "gather another");
    rank.expect(trainer.shard().param(1).value() == early, "the same memory");
    rank.meet();
    gate.open();
    rank.expect(rank.cuda->finish(other) && rank.cuda->finish(uses), "the streams end");
    for (int64_t i = 0; i < 500; ++i) {
      const auto right = static_cast<float>(given(1, 2, 0, i));
      if ((*seen)[static_cast<size_t>(i)] != right) {
        return rank.expect(false, format("element %d is %g, not %g", static_cast<int>(i),
                                         (*seen)[static_cast<size_t>(i)], right));
      }
    }
  });
}

TEST_CASE("shard on GPUs: each stream that writes a bucket in place waits for its memory") {
  run_on_gpus({"nccl", 2}, [](GpuRank& rank) {
    constexpr int64_t kElements = 300;
    auto params = params_of(std::vector<std::pair<Dtype, int64_t>>(10, {Dtype::kF32, kElements}));
    for (size_t p = 0; p < params.size(); ++p) params[p].unit = static_cast<int32_t>(p / 2);
    ShardTrainer trainer(&rank, params, at_stage(2));
    rank.expect_ok(trainer.created(), "create");
    const cuda::Stream streams[] = {rank.new_stream(), rank.new_stream(), rank.new_stream()};
    Gate gate;
    rank.expect_ok(gate.hold(*rank.cuda, streams[0]), "hold");
    std::set<void*> places;
    for (size_t p = params.size(); p-- > 0;) {
      const auto index = static_cast<int32_t>(p);
      // The last bucket's stream stands still; two others write into the memory that it gives back.
      const cuda::Stream stream = streams[p >= 8 ? 0 : 1 + p % 2];
      const Result<void*> place = trainer.reducer().grad(index, stream);
      if (!place.ok()) return rank.expect_ok(place.status(), "grad");
      places.insert(place.value());
      rank.expect_ok(rank.cuda->launch(stream,
                                       [=, to = place.value(), me = rank.rank] {
                                         fill(Dtype::kF32, to, kElements, 0, me, p);
                                       }),
                     "compute");
      rank.expect_ok(trainer.reducer().ready(index, nullptr, stream), "ready");
    }
    rank.expect(places.size() < params.size(), "buckets have the memory of others");
    rank.expect_ok(trainer.reducer().finish(streams[0]), "finish");
    rank.meet();
    gate.open();
    rank.expect(rank.cuda->finish(streams[0]), "the stream ends");
    for (size_t p = 0; p < params.size(); ++p) {
      const auto index = static_cast<int32_t>(p);
      const auto piece = trainer.shard().piece(index, streams[0]);
      if (!piece.ok()) return rank.expect_ok(piece.status(), "piece");
      const auto* const grad = static_cast<const float*>(piece.value().grad);
      for (int64_t i = 0; i < piece.value().count; ++i) {
        const int64_t at = piece.value().offset + i;
        const auto mean = static_cast<float>(given(0, 0, p, at) + given(0, 1, p, at)) / 2;
        if (grad[i] != mean) {
          return rank.expect(false, format("#%zu, element %d is %g, not %g", p,
                                           static_cast<int>(at), grad[i], mean));
        }
      }
    }
  });
}

TEST_CASE("shard on GPUs: no call waits for the GPU") {
  for (const int i : {0, 1, 2, 3, 4, 5}) {
    const int32_t stage = 1 + i / 2;
    const bool in_place = i % 2 == 1;
    CAPTURE(stage);
    CAPTURE(in_place);
    run_on_gpus({"nccl", 2}, [&](GpuRank& rank) {
      ShardTrainer::Options options = at_stage(stage);
      options.max_norm = 3;
      options.in_place = in_place;
      ShardTrainer trainer(&rank, ShardTrainer::model(), options);
      const cuda::Stream stream = rank.new_stream();
      rank.expect_ok(trainer.created(), "create");
      rank.expect_ok(trainer.set_all(stream), "set");
      for (int64_t step = 0; step < 2; ++step) rank.expect_ok(trainer.step(step, stream), "step");
      rank.expect(rank.cuda->finish(stream), "the stream ends");
      rank.meet();
      Gate gate;
      rank.expect_ok(gate.hold(*rank.cuda, stream), "hold");
      const auto before = rank.cuda->counters();
      for (int64_t step = 2; step < 4; ++step) rank.expect_ok(trainer.step(step, stream), "step");
      const auto after = rank.cuda->counters();
      rank.expect(after.allocations == before.allocations, "no step allocates");
      gate.open();
      rank.expect_ok(trainer.read(stream), "read");
      options.shard.stage = 0;
      rank.expect(
          trainer.values() == trained(rank, ShardTrainer::model(), options, 4, rank.new_stream()),
          "the right values");
    });
  }
}
