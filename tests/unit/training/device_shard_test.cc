// SPDX-License-Identifier: Apache-2.0
// Parameters in shards on GPUs that are made of threads.
#include <doctest/doctest.h>

#include <chrono>
#include <filesystem>
#include <future>

#include "../../sanitizers.h"
#include "device_shards.h"

using namespace dt;
using namespace dt::test;

namespace {

/// NCCL rounds each sum of 16 bits, and a factor of clipping is an f32 on a GPU.
enum class OfHost { kNothing, kNorm, kAll };

/// All of 32 or 64 bits, whose sums are exact in any order.
std::vector<training::Param> wide_model() {
  auto params = ShardTrainer::model();
  for (training::Param& param : params) {
    if (dtype_bytes(param.dtype) == 2) param.dtype = Dtype::kF32;
  }
  return params;
}

constexpr int64_t kSteps = kThreadSanitizer ? 2 : 4;  // that a comparison of stages trains

/// Every stage on the GPU ends with the bits of stage 0, and of the host.
void compare_stages(const GpuRank& rank, ShardTrainer::Options options,
                    OfHost of_host = OfHost::kAll,
                    const std::vector<training::Param>& params = ShardTrainer::model()) {
  const cuda::Stream stream = rank.new_stream();
  std::optional<Tensors> first;
  float first_norm = 0;
  for (const int32_t stage : {0, 1, 2, 3}) {
    options.shard.stage = stage;
    float norm = 0;
    const Tensors values = trained(rank, params, options, kSteps, stream, &norm);
    if (!first) {
      first = values;
      first_norm = norm;
    }
    for (size_t p = 0; p < values.size(); ++p) {
      rank.expect(values[p] == (*first)[p], format("stage %d, #%zu", stage, p));
    }
    rank.expect(norm == first_norm, format("stage %d: norm %g, not %g", stage, norm, first_norm));
  }
  if (of_host == OfHost::kNothing) return;
  options.on_host = true;
  options.shard.stage = 2;
  float norm = 0;
  const Tensors values = trained(rank, params, options, kSteps, nullptr, &norm);
  for (size_t p = 0; of_host == OfHost::kAll && p < values.size(); ++p) {
    rank.expect(values[p] == (*first)[p], format("the host's bits, #%zu", p));
  }
  rank.expect(norm == first_norm, format("the host's norm %g, not %g", norm, first_norm));
}

}  // namespace

TEST_CASE("shard on GPUs: all stages have the bits of the host, with AdamW") {
  for (const auto& world :
       {GpuWorld{"nccl", 1}, GpuWorld{"nccl", 2}, GpuWorld{"nccl", 4}, GpuWorld{"staged", 2}}) {
    CAPTURE(world.backend);
    CAPTURE(world.size);
    run_on_gpus(world, [](GpuRank& rank) {
      rank.cuda->set_delay_us(rank.rank * 20);
      compare_stages(rank, at_stage(0));
    });
  }
}

TEST_CASE("shard on GPUs: SGD, sums, and a number of ranks that divides nothing") {
  run_on_gpus({"nccl", 3}, [](GpuRank& rank) {
    ShardTrainer::Options options = at_stage(0);
    options.optimizer = training::Sgd{0.5, 0, true};
    options.shard.reducer.sum = true;
    compare_stages(rank, options, OfHost::kNorm);
    compare_stages(rank, options, OfHost::kAll, wide_model());
    options.optimizer = training::Sgd{};
    compare_stages(rank, options, OfHost::kAll, wide_model());
  });
}

TEST_CASE("shard on GPUs: gradients in place, passes, and clipping") {
  for (const char* const backend : {"nccl", "staged"}) {
    CAPTURE(backend);
    run_on_gpus({backend, 2}, [](GpuRank& rank) {
      rank.cuda->set_delay_us(10);
      ShardTrainer::Options options = at_stage(0);
      options.max_norm = 3;
      options.in_place = true;
      compare_stages(rank, options, OfHost::kNorm);
      options.passes = 3;
      options.norm_type = 3;
      compare_stages(rank, options, OfHost::kNorm);
    });
  }
}

TEST_CASE("shard on GPUs: parts of unequal size, and integers, which no optimizer updates") {
  run_on_gpus({"nccl", 3}, [](GpuRank& rank) {
    auto params = ShardTrainer::model();
    for (training::Param& param : params) param.granule = 97;
    compare_stages(rank, at_stage(0), OfHost::kAll, params);

    params = ShardTrainer::model(/*integers_too=*/true);
    ShardTrainer trainer(&rank, params, at_stage(2));
    rank.expect_ok(trainer.created(), "create");
    rank.expect(trainer.optimizer() == nullptr, "UNSUPPORTED");
    const cuda::Stream stream = rank.new_stream();
    rank.expect_ok(trainer.set_all(stream), "set");
    rank.expect_ok(trainer.gradients(0, stream), "gradients");
    const auto whole = std::make_shared<std::vector<int32_t>>(300);
    rank.memory->push_back(whole);
    const auto index = static_cast<int32_t>(params.size() - 1);
    rank.expect_ok(trainer.shard().full_grad(index, whole->data(), stream), "full_grad");
    rank.expect(rank.cuda->finish(stream), "the stream ends");
    for (int64_t i = 0; i < 300; ++i) {
      int64_t sum = 0;
      for (int each = 0; each < rank.size; ++each) {
        const auto value = given(1, 2, params.size() - 1, i);
        sum += static_cast<int64_t>(
            (static_cast<double>(given(0, each, params.size() - 1, i)) - 32) / 8 +
            static_cast<double>(value));
      }
      const auto found = (*whole)[static_cast<size_t>(i)];
      if (found != sum / rank.size) {
        return rank.expect(false, format("element %d is %d, not %d", static_cast<int>(i), found,
                                         static_cast<int>(sum / rank.size)));
      }
    }
  });
}

TEST_CASE("shard on GPUs: gradients that travel as bf16 and are divided beforehand") {
  run_on_gpus({"nccl", 2}, [](GpuRank& rank) {
    ShardTrainer::Options options = at_stage(0);
    options.shard.reducer.wire = Dtype::kBf16;
    compare_stages(rank, options, OfHost::kNothing);
    options.shard.reducer.predivide = 4;
    compare_stages(rank, options, OfHost::kNothing);
    options.in_place = true;
    compare_stages(rank, options, OfHost::kNothing);
  });
}

TEST_CASE("shard on GPUs: replicas") {
  for (const char* const backend : {"nccl", "staged"}) {
    CAPTURE(backend);
    run_on_gpus({backend, 4}, [](GpuRank& rank) {
      ShardTrainer::Options options = at_stage(0);
      options.shard.shard_ranks = 2;
      options.max_norm = 3;
      auto params = wide_model();
      if (!kThreadSanitizer) compare_stages(rank, options, OfHost::kNorm, params);
      for (training::Param& param : params) param.granule = 97;
      compare_stages(rank, options, OfHost::kNorm, params);
    });
  }
}

TEST_CASE("shard on GPUs: parameters without a gradient") {
  run_on_gpus({"nccl", 3}, [](GpuRank& rank) {
    for (const bool by_users : {false, true}) {
      std::optional<Tensors> first;
      for (const int32_t stage : {0, 1, 2, 3}) {
        ShardTrainer::Options options = at_stage(stage);
        options.shard.reducer.find_unused = true;
        options.shard.reducer.divide_by_users = by_users;
        const auto params = ShardTrainer::model();
        ShardTrainer trainer(&rank, params, options);
        if (!trainer.created().ok()) return rank.expect_ok(trainer.created(), "create");
        const cuda::Stream stream = rank.new_stream();
        rank.expect_ok(trainer.set_all(stream), "set");
        for (int64_t step = 0; step < 4; ++step) {
          for (int32_t unit = 4; unit-- > 0;) {
            rank.expect_ok(trainer.shard().gather(unit, stream), "gather");
            for (size_t p = params.size(); p-- > 0;) {
              const bool none = p == 6 || (p % 3 == 0 && rank.rank == 1 && step % 2 == 0);
              if (params[p].unit != unit) continue;
              if (!none) {
                rank.expect_ok(trainer.give(step, p, 0, stream), "give");
              } else if (stage == 3) {  // else gathers would take their turn before this bucket
                const auto index = static_cast<int32_t>(p);
                rank.expect_ok(trainer.reducer().unused(index, nullptr, stream), "unused");
              }
            }
            rank.expect_ok(trainer.shard().release(unit, stream), "release");
          }
          rank.expect_ok(trainer.reducer().finish(stream), "finish");
          rank.expect(!trainer.reducer().used(6).value(), "nobody used it");
          rank.expect_ok(trainer.optimizer()->step(0.125, stream), "step");
        }
        rank.expect_ok(trainer.read(stream), "read");
        if (!first) first = trainer.values();
        rank.expect(trainer.values() == *first, format("stage %d", stage));
      }
    }
  });
}

/// Trains, and looks at how many steps were skipped. Without `skip_non_finite` the bad steps are
/// left out. `file`: a checkpoint is made and read between two steps.
Tensors trained_with_bad(const GpuRank& rank, const ShardTrainer::Options& options, int64_t steps,
                         cuda::Stream stream, const std::string& file = "") {
  ShardTrainer trainer(&rank, ShardTrainer::model(), options);
  rank.expect_ok(trainer.created(), "create");
  if (!trainer.created().ok()) return {};
  rank.expect_ok(trainer.set_all(stream), "set");
  int64_t skipped = 0;
  std::vector<bool> bad;
  for (int64_t step = 0; step < steps; ++step) {
    bad.push_back(options.bad_steps.count(step) > 0);
    if (bad.back() && !options.skip_non_finite) continue;
    rank.expect_ok(trainer.step(step, stream), "step");
    if (bad.back()) ++skipped;
    const Result<int64_t> before = trainer.optimizer()->skipped(7);
    rank.expect_ok(before.status(), "skipped");
    const auto behind = std::min<int64_t>(step + 1, 7);
    rank.expect(before.ok() &&
                    (!options.skip_non_finite ||
                     before.value() == skipped - std::count(bad.end() - behind, bad.end(), true)),
                "those before the last 7");
    if (step != steps / 2 || file.empty()) continue;
    rank.expect_ok(training::save_shard(trainer.shard(), trainer.optimizer(), file), "save");
    rank.expect_ok(training::load_shard(trainer.shard(), trainer.optimizer(), file), "load");
  }
  const Result<int64_t> all = trainer.optimizer()->skipped(0);
  rank.expect(all.ok() && all.value() == skipped, format("%d skipped", static_cast<int>(skipped)));
  rank.expect_ok(trainer.read(stream), "read");
  return trainer.values();
}

TEST_CASE("shard on GPUs: steps that are not finite change nothing and count for nothing") {
  const auto folder = std::filesystem::temp_directory_path() / format("dt-skipped-%d", getpid());
  std::filesystem::create_directory(folder);
  const std::string path = folder / "model.safetensors";
  struct Variant {
    GpuWorld world;
    int32_t stage;
    std::variant<training::AdamW, training::Sgd> optimizer;
    float max_norm;
  };
  const training::Sgd sgd{0.5, 0.25, false};
  std::vector<Variant> variants = {{{"nccl", 3}, 3, training::AdamW{}, 0},
                                   {{"staged", 2}, 1, sgd, 3}};
  if (!kThreadSanitizer) {
    variants.push_back({{"nccl", 2}, 0, sgd, 0});
    variants.push_back({{"nccl", 2}, 0, training::AdamW{}, 3});
    variants.push_back({{"staged", 2}, 3, sgd, 0});
  }
  for (const Variant& variant : variants) {
    CAPTURE(variant.stage);
    run_on_gpus(variant.world, [&](GpuRank& rank) {
      rank.cuda->set_delay_us(rank.rank * 10);
      const cuda::Stream stream = rank.new_stream();
      ShardTrainer::Options options = at_stage(variant.stage);
      options.optimizer = variant.optimizer;
      options.max_norm = variant.max_norm;
      options.shard.reducer.find_unused = true;
      options.is_unused = [](int64_t step, size_t p) {
        return p > 4 && (step + static_cast<int64_t>(p)) % 3 == 0;
      };
      options.bad_steps = {0, 1, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14};
      constexpr int64_t kGuardedSteps = 16;
      const Tensors plain = trained_with_bad(rank, options, kGuardedSteps, stream);
      options.skip_non_finite = true;
      rank.expect(trained_with_bad(rank, options, kGuardedSteps, stream) == plain,
                  "the GPU decides");
      rank.expect(trained_with_bad(rank, options, kGuardedSteps, stream, path) == plain,
                  "a checkpoint");
      options.shard.offload = folder;
      rank.expect(trained_with_bad(rank, options, kGuardedSteps, stream) == plain,
                  "state with the host");
    });
  }
  std::filesystem::remove_all(folder);
}

TEST_CASE("shard on GPUs: the host does not wait to learn whether a step was finite") {
  run_on_gpus({"nccl", 1}, [](GpuRank& rank) {
    const cuda::Stream stream = rank.new_stream();
    ShardTrainer::Options options = at_stage(0);
    options.bad_steps = {1, 3, 4};
    ShardTrainer reference(&rank, ShardTrainer::model(), options);
    rank.expect_ok(reference.set_all(stream), "set");
    for (const int64_t step : {0, 2, 5, 6, 7}) rank.expect_ok(reference.step(step, stream), "step");
    rank.expect_ok(reference.read(stream), "read");

    options.skip_non_finite = true;
    ShardTrainer trainer(&rank, ShardTrainer::model(), options);
    rank.expect_ok(trainer.set_all(stream), "set");
    const auto opened = std::make_shared<std::promise<void>>();
    trainer.launch(
        stream, [gate = opened->get_future().share()] { gate.wait_for(std::chrono::seconds(30)); });
    for (int64_t step = 0; step < 7; ++step) rank.expect_ok(trainer.step(step, stream), "step");
    const Result<int64_t> before = trainer.optimizer()->skipped(7);
    rank.expect(before.ok() && before.value() == 0, "no step is known of yet");
    rank.expect_ok(trainer.step(7, stream), "the eighth step");
    opened->set_value();
    const Result<int64_t> all = trainer.optimizer()->skipped(0);
    rank.expect(all.ok() && all.value() == 3, "three were not finite");
    rank.expect_ok(trainer.read(stream), "read");
    rank.expect(trainer.values() == reference.values(), "the values of the others");
  });
}

TEST_CASE("shard on GPUs: a hook reduces whole buckets, and each rank keeps its part") {
  run_on_gpus({"nccl", 2}, [](GpuRank& rank) {
    std::optional<Tensors> first;
    for (const int32_t stage : {0, 1, 2, 3}) {
      ShardTrainer trainer(&rank, ShardTrainer::model(), at_stage(stage));
      rank.expect_ok(trainer.created(), "create");
      const auto hook = [&](const training::HookBucket& bucket,
                            int32_t at) -> Result<training::HookWork> {
        if (at > 0) return training::HookWork{};
        backend::Collective sum;
        sum.kind = backend::Kind::kAllreduce;
        sum.dtype = bucket.dtype;
        sum.send = sum.recv = bucket.data;
        sum.count = bucket.count;
        sum.stream = bucket.stream;
        const auto work = rank.comm->new_work();
        DT_TRY(rank.comm->submit(sum, work));
        return training::HookWork{rank.comm, work};
      };
      rank.expect_ok(trainer.reducer().set_hook(hook), "set_hook");
      rank.expect_ok(trainer.train(3, rank.new_stream()), "train");
      if (!first) first = trainer.values();
      rank.expect(trainer.values() == *first, format("stage %d", stage));
    }
  });
}

TEST_CASE("shard on GPUs: a checkpoint goes from and to host memory, and to any stage") {
  const auto folder = std::filesystem::temp_directory_path() / format("dt-shard-%d", getpid());
  std::filesystem::create_directory(folder);
  const std::string path = folder / "model.safetensors";
  run_on_gpus({"nccl", 3}, [&](GpuRank& rank) {
    const cuda::Stream stream = rank.new_stream();
    const auto params = ShardTrainer::model();
    ShardTrainer whole(&rank, params, at_stage(1));
    rank.expect_ok(whole.train(6, stream), "undisturbed");
    for (const bool from_host : {false, true}) {
      for (const int32_t stage : {0, 2, 3}) {
        ShardTrainer::Options options = at_stage(stage);
        options.on_host = from_host;
        ShardTrainer first(&rank, params, options);
        rank.expect_ok(first.train(3, stream), "before");
        rank.expect_ok(training::save_shard(first.shard(), first.optimizer(), path), "save");
        options = at_stage(3 - stage);
        options.on_host = !from_host && stage == 3;
        ShardTrainer second(&rank, params, options);
        rank.expect_ok(training::load_shard(second.shard(), second.optimizer(), path), "load");
        for (int64_t step = 3; step < 6; ++step) {
          rank.expect_ok(second.step(step, stream), "step");
        }
        rank.expect_ok(second.read(stream), "read");
        rank.expect(second.values() == whole.values(), format("from stage %d", stage));
      }
    }
  });
  std::filesystem::remove_all(folder);
}

/// Two updates by the gradients of one step: the second begins while the gathers behind the first
/// are under way.
Tensors updated_twice(const GpuRank& rank, const std::vector<training::Param>& params,
                      const ShardTrainer::Options& options, cuda::Stream stream) {
  ShardTrainer trainer(&rank, params, options);
  rank.expect_ok(trainer.created(), "create");
  if (!trainer.created().ok()) return {};
  rank.expect_ok(trainer.set_all(stream), "set");
  for (int64_t step = 0; step < 2; ++step) {
    rank.expect_ok(trainer.step(step, stream), "step");
    rank.expect_ok(trainer.optimizer()->step(0.125, stream), "again");
  }
  rank.expect_ok(trainer.read(stream), "read");
  return trainer.values();
}

/// The parameters after three steps, of which a file holds what was there after `before` of them.
Tensors saved_between(const GpuRank& rank, const std::vector<training::Param>& params,
                      const ShardTrainer::Options& options, int64_t before, const std::string& path,
                      cuda::Stream stream) {
  ShardTrainer first(&rank, params, options);
  rank.expect_ok(first.created(), "create");
  if (!first.created().ok()) return {};
  const bool on_host = !options.shard.offload.empty() && options.shard.stage == 3;
  rank.expect(first.shard().keeps_pieces_on_host() == on_host, "where pieces are");
  rank.expect_ok(first.set_all(stream), "set");
  for (int64_t step = 0; step < before; ++step) {
    rank.expect_ok(first.step(step, stream), "before");
  }
  rank.expect_ok(training::save_shard(first.shard(), first.optimizer(), path), "save");
  ShardTrainer second(&rank, params, options);
  rank.expect_ok(training::load_shard(second.shard(), second.optimizer(), path), "load");
  rank.expect_ok(second.shard().updated(stream), "updated");
  for (int64_t step = before; step < 3; ++step) {
    rank.expect_ok(second.step(step, stream), "behind");
  }
  rank.expect_ok(second.read(stream), "read");
  return second.values();
}

TEST_CASE("shard on GPUs: an optimizer's state with the host has the same bits") {
  const auto folder = std::filesystem::temp_directory_path() / format("dt-offload-%d", getpid());
  std::filesystem::create_directory(folder);
  struct Layout {
    GpuWorld world;
    int32_t shard_ranks;
    int64_t granule;
  };
  std::vector<Layout> layouts = {{{"nccl", 4}, 2, 97}};
  if (!kThreadSanitizer) {
    layouts.push_back({{"nccl", 1}, 0, 1});
    layouts.push_back({{"nccl", 2}, 0, 1});
    layouts.push_back({{"nccl", 3}, 0, 97});
    layouts.push_back({{"staged", 2}, 0, 97});
  }
  for (const Layout& layout : layouts) {
    CAPTURE(layout.world.backend);
    CAPTURE(layout.world.size);
    run_on_gpus(layout.world, [&](GpuRank& rank) {
      rank.cuda->set_delay_us(rank.rank == 1 ? 50 : 5);
      const cuda::Stream stream = rank.new_stream();
      auto params = ShardTrainer::model();
      if (layout.world.size == 1) params[4].count = 530'000;  // of f64: two parts
      for (training::Param& param : params) param.granule = layout.granule;
      for (const int32_t stage : {0, 3}) {
        ShardTrainer::Options options = at_stage(stage);
        options.shard.shard_ranks = layout.shard_ranks;
        const Tensors plain = trained(rank, params, options, 3, stream);
        const Tensors twice = updated_twice(rank, params, options, stream);
        options.shard.offload = folder;
        const std::string path = folder / format("%d", stage);
        rank.expect(trained(rank, params, options, 3, stream) == plain, format("stage %d", stage));
        rank.expect(updated_twice(rank, params, options, stream) == twice,
                    format("twice, stage %d", stage));
        for (const int64_t before : {0, 2}) {
          rank.expect(
              saved_between(rank, params, options, before, path, stream) == plain,
              format("saved after %lld steps, stage %d", static_cast<long long>(before), stage));
        }
      }
    });
  }
  std::filesystem::remove_all(folder);
}

/// An optimizer of the caller's: the values after two steps in which kernels halve the pieces.
Tensors halved(const GpuRank& rank, const std::string& offload) {
  ShardTrainer::Options options = at_stage(3);
  options.shard.offload = offload;
  const auto params = ShardTrainer::model();
  ShardTrainer trainer(&rank, params, options);
  const cuda::Stream stream = rank.new_stream();
  rank.expect_ok(trainer.created(), "create");
  rank.expect_ok(trainer.set_all(stream), "set");
  for (int64_t step = 0; step < 2; ++step) {
    rank.expect_ok(trainer.gradients(step, stream), "gradients");
    for (size_t p = 0; p < params.size(); ++p) {
      const auto got = trainer.shard().piece(static_cast<int32_t>(p), stream);
      rank.expect_ok(got.status(), "piece");
      if (!got.ok() || got.value().count == 0) continue;
      const training::Shard::Piece piece = got.value();
      const auto kind = rank.cuda->pointer_info(piece.param);
      const auto wanted = offload.empty() ? cuda::Memory::kDevice : cuda::Memory::kPinned;
      rank.expect(kind.ok() && kind.value().memory == wanted, "where the piece lies");
      trainer.launch(stream, [piece, dtype = params[p].dtype] {
        with_dtype(dtype, [&](auto element) {
          using T = decltype(element);
          for (int64_t i = 0; i < piece.count; ++i) {
            const auto value = static_cast<double>(load<T>(piece.param, i)) / 2;
            test::store<T>(piece.param, i, static_cast<Arithmetic<T>>(value));
          }
        });
      });
    }
    trainer.shard().written();
    rank.expect_ok(trainer.shard().updated(stream), "updated");
  }
  rank.expect_ok(trainer.read(stream), "read");
  return trainer.values();
}

TEST_CASE("shard on GPUs: kernels may write pieces that are with the host") {
  for (const auto& world : {GpuWorld{"nccl", 3}, GpuWorld{"staged", 2}}) {
    CAPTURE(world.backend);
    run_on_gpus(world, [](GpuRank& rank) {
      rank.cuda->set_delay_us(rank.rank * 20);
      rank.expect(halved(rank, "/dev/shm") == halved(rank, ""), "the same values");
    });
  }
}

TEST_CASE("shard on GPUs: a host without pinned memory for the pieces is named on all ranks") {
  run_on_gpus({"nccl", 2}, [](GpuRank& rank) {
    ShardTrainer::Options options = at_stage(3);
    options.shard.offload = "/dev/shm";
    if (rank.rank == 1) rank.cuda->fail("cudaHostAlloc");
    const Status made =
        training::Shard::create(rank.comm, ShardTrainer::model(), options.shard).status();
    if (rank.rank == 1) rank.cuda->fail("cudaHostAlloc", 0, 0);
    rank.expect(contains(made, "dt_shard_create on comm \"world\": rank 1 (") &&
                    contains(made, "cudaHostAlloc on device 1"),
                made.message());
  });
}

TEST_CASE("shard on GPUs: what is refused, and in which words") {
  run_on_gpus({"nccl", 2}, [](GpuRank& rank) {
    training::Shard::Options offloaded;
    offloaded.offload = "/nowhere";
    const Status made =
        training::Shard::create(rank.comm, ShardTrainer::model(), offloaded).status();
    rank.expect(made.code() == Code::kSystem && contains(made, "/nowhere"), made.message());

    ShardTrainer trainer(&rank, ShardTrainer::model(), at_stage(3));
    const cuda::Stream stream = rank.new_stream();
    rank.cuda->set_capturing(stream, true);
    for (const Status& status :
         {trainer.shard().updated(stream), trainer.shard().gather(0, stream),
          trainer.shard().release(0, stream), trainer.shard().piece(0, stream).status(),
          trainer.reducer().grad(0, stream).status()}) {
      rank.expect(status.code() == Code::kInvalidArgument, "INVALID_ARGUMENT");
      rank.expect(contains(status, " on comm \"world\": the stream records a CUDA graph"),
                  status.message());
    }
    rank.cuda->set_capturing(stream, false);
    const Status early = trainer.optimizer()->step(0.1, stream);
    rank.expect(contains(early, "there are no gradients"), early.message());
  });
}

TEST_CASE("shard on GPUs: a step on a stream that records a graph is refused, and may follow") {
  for (const bool skip : {false, true}) {
    CAPTURE(skip);
    run_on_gpus({"nccl", 2}, [skip](GpuRank& rank) {
      ShardTrainer::Options options = at_stage(1);
      options.skip_non_finite = skip;
      const cuda::Stream stream = rank.new_stream();
      const Tensors wanted = trained(rank, ShardTrainer::model(), options, 1, stream);
      ShardTrainer trainer(&rank, ShardTrainer::model(), options);
      rank.expect_ok(trainer.created(), "create");
      rank.expect_ok(trainer.set_all(stream), "set");
      rank.expect_ok(trainer.gradients(0, stream), "gradients");
      if (rank.rank == 1) {
        const cuda::Stream other = rank.new_stream();
        rank.cuda->set_capturing(other, true);
        const Status refused = trainer.optimizer()->step(0.125, other);
        rank.expect(refused.code() == Code::kInvalidArgument, "INVALID_ARGUMENT");
        rank.expect(
            contains(refused, "dt_optimizer_step on comm \"world\": the stream records a CUDA"),
            refused.message());
        rank.cuda->set_capturing(other, false);
      }
      rank.expect_ok(trainer.optimizer()->step(0.125, stream), "step");
      rank.expect_ok(trainer.read(stream), "read");
      rank.expect(trainer.values() == wanted, "other values");
      if (skip) {
        const Result<int64_t> skipped = trainer.optimizer()->skipped(0);
        rank.expect(skipped.ok() && skipped.value() == 0, "no step was skipped");
      }
    });
  }
}

TEST_CASE("shard on GPUs: a rank without memory for a unit fails all") {
  run_on_gpus({"nccl", 2}, [](GpuRank& rank) {
    ShardTrainer trainer(&rank, ShardTrainer::model(), at_stage(3));
    const cuda::Stream stream = rank.new_stream();
    rank.expect_ok(trainer.created(), "create");
    rank.expect_ok(trainer.set_all(stream), "set");
    if (rank.rank == 1) rank.cuda->fail("cudaMalloc", 0);
    Status status;
    for (int i = 0; status.ok() && i < 1000; ++i) {
      status = trainer.shard().gather(i % 4, stream);
      if (status.ok()) (void)rank.cuda->finish(stream);
    }
    if (rank.rank == 1) {
      rank.expect(contains(status, "cudaMalloc on device 1"), status.message());
      rank.cuda->fail("cudaMalloc", 0, 0);
    } else {
      rank.expect(!status.ok(), "rank 0 hears of it");
    }
    (void)rank.await_broken();
    rank.expect(rank.cuda->finish(stream), "the stream ends");
    trainer.drop();
    rank.meet();
  });
}
