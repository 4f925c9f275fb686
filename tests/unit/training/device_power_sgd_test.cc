// SPDX-License-Identifier: Apache-2.0
// PowerSGD on GPUs beside PowerSGD over host memory.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>

#include "../../sanitizers.h"
#include "device_shards.h"

using namespace dt;
using namespace dt::test;
using training::PowerSgd;

namespace {

struct Shape {
  Dtype dtype;
  int64_t rows;  ///< 0: no matrix
  int64_t count;
};
/// In several buckets, some with both kinds, one with none that is compressed.
const std::vector<Shape> kModel = {
    {Dtype::kF32, 40, 2400}, {Dtype::kF32, 0, 7},    {Dtype::kF32, 30, 1500},
    {Dtype::kF64, 4, 48},    {Dtype::kF32, 24, 576}, {Dtype::kF32, 0, 64},
    {Dtype::kI32, 0, 10},    {Dtype::kF32, 2, 6},    {Dtype::kF32, 100, 900},
};
using Results = std::vector<std::vector<double>>;

/// Of matrices: of many singular values. Of others of f32: not exact in 16 bits.
double gradient_of(int64_t step, int rank, size_t p, int64_t i) {
  const Shape& shape = kModel[p];
  if (shape.rows == 0 || shape.dtype != Dtype::kF32) {
    const auto number = static_cast<double>(given(step, rank, p, i));
    return shape.dtype == Dtype::kF32 ? number + 0.3 : number;
  }
  const int64_t columns = shape.count / shape.rows;
  const auto x = static_cast<double>(i % columns + 1);
  const auto y = static_cast<double>(i / columns + 1);
  const auto number = static_cast<double>(step);
  return std::sin(x * y * 0.1 + rank + number * 0.2) + 0.3 * x - y * 0.02 * (rank + 1) +
         0.1 * number;
}
/// Of rank 1, and the second matrix is zero.
double deficient_gradient(int64_t /*step*/, int rank, size_t p, int64_t i) {
  const Shape& shape = kModel[p];
  if (p == 2) return 0;
  if (shape.rows == 0) return rank;
  const int64_t columns = shape.count / shape.rows;
  return static_cast<double>((i % columns + 1) * (i / columns + 3)) * 0.01 * (rank + 1);
}

PowerSgd::Options of_rank(int32_t columns) {
  PowerSgd::Options options;
  options.rank = columns;
  options.seed = 11;
  return options;
}

/// A training loop without a model, on a GPU made of threads or in host memory.
class Compressed {
 public:
  using Gradient = double (*)(int64_t, int, size_t, int64_t);

  Compressed(const GpuRank* rank, const PowerSgd::Options& options, bool on_host = false,
             Gradient gradient = gradient_of)
      : rank_(rank), on_host_(on_host), gradient_(gradient) {
    rank->memory->push_back(memory_);
    std::vector<std::pair<Dtype, int64_t>> described;
    for (const Shape& each : kModel) {
      described.emplace_back(each.dtype, each.count);
      memory_->given.emplace_back(static_cast<size_t>(each.count * dtype_bytes(each.dtype)));
      memory_->found.emplace_back(static_cast<size_t>(each.count));
    }
    auto made = training::Reducer::create(on_host ? host_comm(*rank) : rank->comm,
                                          params_of(described), small_buckets());
    rank->expect_ok(made.status(), "create");
    if (!made.ok()) return;
    reducer_ = std::move(made).value();
    rank->expect_ok(compress(options), "compress");
    rank->meet();
  }

  Status compress(const PowerSgd::Options& options) {
    std::vector<int64_t> rows;
    for (const Shape& each : kModel) rows.push_back(each.rows);
    return reducer_->compress(rows, options);
  }
  training::Reducer& reducer() { return *reducer_; }
  void drop_reducer() { reducer_ = nullptr; }
  const Results& results() const { return memory_->found; }

  /// Up to a kernel that reads the results.
  Status enqueue(int64_t step, cuda::Stream stream) {
    for (size_t p = kModel.size(); p-- > 0;) {
      launch(stream, [step, p, gradient = gradient_, rank = rank_->rank, memory = memory_.get()] {
        with_dtype(kModel[p].dtype, [&](auto element) {
          using T = decltype(element);
          for (int64_t i = 0; i < kModel[p].count; ++i) {
            test::store<T>(memory->given[p].data(), i,
                           static_cast<Arithmetic<T>>(gradient(step, rank, p, i)));
          }
        });
      });
      DT_TRY(reducer_->ready(static_cast<int32_t>(p), memory_->given[p].data(), stream));
    }
    DT_TRY(reducer_->finish(stream));
    launch(stream, [memory = memory_.get()] {
      for (size_t p = 0; p < kModel.size(); ++p) {
        with_dtype(kModel[p].dtype, [&](auto element) {
          for (int64_t i = 0; i < kModel[p].count; ++i) {
            memory->found[p][static_cast<size_t>(i)] =
                static_cast<double>(load<decltype(element)>(memory->given[p].data(), i));
          }
        });
      }
    });
    return {};
  }
  const Results& step(int64_t number, cuda::Stream stream) {
    rank_->expect_ok(enqueue(number, stream), "step");
    if (!on_host_) rank_->expect(rank_->cuda->finish(stream), "the stream ends");
    return results();
  }

 private:
  void launch(cuda::Stream stream, std::function<void()> kernel) {
    if (on_host_) return kernel();
    rank_->expect_ok(rank_->cuda->launch(stream, std::move(kernel)), "launch");
  }

  const GpuRank* const rank_;
  const bool on_host_;
  const Gradient gradient_;
  // Kernels may still be in it when this is gone.
  struct Memory {
    Tensors given;
    Results found;
  };
  const std::shared_ptr<Memory> memory_ = std::make_shared<Memory>();
  std::unique_ptr<training::Reducer> reducer_;
};

/// The largest difference, by the largest number of the parameter.
double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double most = 0;
  double largest = 1e-30;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(a[i])) return std::numeric_limits<double>::infinity();
    most = std::max(most, std::abs(a[i] - b[i]));
    largest = std::max(largest, std::abs(b[i]));
  }
  return most / largest;
}

/// Which parameters are not the averages.
std::vector<size_t> changed(const Results& results, int64_t step, int size, double most = 1e-6) {
  std::vector<size_t> found;
  for (size_t p = 0; p < kModel.size(); ++p) {
    std::vector<double> right;
    for (int64_t i = 0; i < kModel[p].count; ++i) {
      double sum = 0;
      for (int rank = 0; rank < size; ++rank) sum += gradient_of(step, rank, p, i);
      right.push_back(kModel[p].dtype == Dtype::kI32 ? std::trunc(sum / size) : sum / size);
    }
    if (distance(results[p], right) > most) found.push_back(p);
  }
  return found;
}

bool equal_on_all(const std::vector<std::vector<Results>>& by_rank) {
  return std::all_of(by_rank.begin(), by_rank.end(),
                     [&](const auto& each) { return each == by_rank[0]; });
}

}  // namespace

TEST_CASE("PowerSGD on GPUs: near the host's results, with the same bits on all ranks") {
  struct Case {
    const char* name;
    PowerSgd::Options options;
    double near = 1e-3;   ///< what the host's results may differ by
    double exact = 1e-6;  ///< and averages, of what is not compressed
  };
  std::vector<Case> cases = {{"rank 1", of_rank(1)},
                             {"rank 3", of_rank(3)},
                             {"cold", of_rank(2)},
                             {"no feedback", of_rank(2)},
                             {"late", of_rank(2)},
                             {"bf16", of_rank(2), 0.1, 0.02},
                             {"f16, late", of_rank(1), 0.02, 0.002}};
  cases[2].options.warm_start = false;
  cases[3].options.error_feedback = false;
  cases[4].options.start_step = cases[6].options.start_step = 2;
  cases[5].options.wire = Dtype::kBf16;
  cases[6].options.wire = Dtype::kF16;
  constexpr int kSteps = 5;
  for (const char* const backend : {"nccl", "staged"}) {
    for (const int size : kThreadSanitizer ? std::vector{2} : std::vector{1, 2, 3}) {
      for (const Case& each : cases) {
        CAPTURE(backend);
        CAPTURE(size);
        CAPTURE(each.name);
        std::vector<std::vector<Results>> by_rank(static_cast<size_t>(size));
        run_on_gpus({backend, size}, [&](GpuRank& rank) {
          const PowerSgd::Options& options = each.options;
          const cuda::Stream stream = rank.new_stream();
          Compressed on_gpu(&rank, options);
          Compressed on_host(&rank, options, true);
          for (int64_t step = 0; step < kSteps; ++step) {
            const Results& found = on_gpu.step(step, stream);
            by_rank[static_cast<size_t>(rank.rank)].push_back(found);
            const Results& right = on_host.step(step, nullptr);
            for (size_t p = 0; p < kModel.size(); ++p) {
              const double off = distance(found[p], right[p]);
              rank.expect(off < each.near, format("step %lld, #%zu is off by %g",
                                                  static_cast<long long>(step), p, off));
            }
            const auto other = changed(found, step, rank.size, each.exact);
            const std::vector<size_t> matrices = {0, 2, 4, 8};
            const bool plain = step < options.start_step;
            rank.expect(other == (plain ? std::vector<size_t>() : matrices),
                        "matrices are compressed, the others are averages");
            const std::vector<size_t> rounded = {0, 1, 2, 4, 5, 7, 8};
            rank.expect(!options.wire || changed(found, step, rank.size) == rounded,
                        "all of f32 travels in 16 bits");
          }
          rank.meet();
          on_gpu.drop_reducer();
        });
        CHECK(equal_on_all(by_rank));
      }
    }
  }
}

TEST_CASE("PowerSGD on GPUs: columns that depend on others do no harm") {
  run_on_gpus({"nccl", 2}, [](GpuRank& rank) {
    const cuda::Stream stream = rank.new_stream();
    Compressed trainer(&rank, of_rank(3), false, deficient_gradient);
    constexpr int kSteps = 8;
    std::vector<Results> all;
    for (int64_t step = 0; step < kSteps; ++step) all.push_back(trainer.step(step, stream));
    for (const size_t p : {size_t{0}, size_t{2}, size_t{4}}) {
      std::vector<double> mean(static_cast<size_t>(kModel[p].count));
      std::vector<double> right = mean;
      for (size_t i = 0; i < mean.size(); ++i) {
        for (const Results& each : all) mean[i] += each[p][i] / kSteps;
        for (int r = 0; r < 2; ++r) {
          right[i] += deficient_gradient(0, r, p, static_cast<int64_t>(i)) / 2;
        }
      }
      if (p == 2) {
        rank.expect(mean == right, "zeros stay zeros");
      } else {
        const double off = distance(mean, right);
        // What rounding leaves of a column may point anywhere. What it adds, the error takes away.
        rank.expect(off < 0.2, format("#%zu is off by %g", p, off));
      }
    }
    rank.meet();
    trainer.drop_reducer();
  });
}

TEST_CASE("PowerSGD on GPUs: what is saved goes on with the same bits, and over host memory") {
  const auto folder = std::filesystem::temp_directory_path() / format("dt-powersgd-%d", getpid());
  std::filesystem::create_directory(folder);
  for (const bool feedback : {true, false}) {
    for (const int saved : {0, 3}) {
      CAPTURE(feedback);
      CAPTURE(saved);
      run_on_gpus({"nccl", 2}, [&](GpuRank& rank) {
        const std::string path = folder / std::to_string(rank.rank);
        const cuda::Stream stream = rank.new_stream();
        PowerSgd::Options options = of_rank(2);
        options.error_feedback = feedback;
        Compressed whole(&rank, options);
        for (int64_t step = 0; step < saved; ++step) {
          rank.expect_ok(whole.enqueue(step, stream), "before");
        }
        rank.expect_ok(whole.reducer().save(path), "save");
        Compressed second(&rank, options);
        second.step(0, stream);  // its state is replaced
        rank.expect_ok(second.reducer().load(path), "load");
        Compressed on_host(&rank, options, true);
        rank.expect_ok(on_host.reducer().load(path), "load over host memory");
        for (int64_t step = saved; step < saved + 3; ++step) {
          const Results& right = whole.step(step, stream);
          rank.expect(second.step(step, stream) == right, "the same bits");
          const Results& near = on_host.step(step, nullptr);
          rank.expect(distance(near[0], right[0]) < 1e-3, "the host goes on from it");
        }
        rank.expect_ok(on_host.reducer().save(path), "save over host memory");
        rank.expect_ok(second.reducer().load(path), "load from host memory");
        rank.meet();
      });
    }
  }
  std::filesystem::remove_all(folder);
}

TEST_CASE("PowerSGD on GPUs: a step neither waits nor makes anything") {
  for (const bool warm : {true, false}) {
    run_on_gpus({"nccl", 2}, [warm](GpuRank& rank) {
      PowerSgd::Options options = of_rank(2);
      options.warm_start = warm;
      Compressed trainer(&rank, options);
      Compressed reference(&rank, options);
      const cuda::Stream stream = rank.new_stream();
      for (int64_t step = 0; step < 3; ++step) trainer.step(step, stream);
      const auto before = rank.cuda->counters();
      const Results last = trainer.results();
      Gate gate;
      rank.expect_ok(gate.hold(*rank.cuda, stream), "hold");
      for (int64_t step = 3; step < 6; ++step) {
        rank.expect_ok(trainer.enqueue(step, stream), "enqueue");
      }
      rank.expect(trainer.results() == last, "the GPU stands still");
      const auto after = rank.cuda->counters();
      rank.expect(after.allocations == before.allocations &&
                      after.pinned_allocations == before.pinned_allocations &&
                      after.releases == before.releases && after.streams == before.streams,
                  "nothing is made");
      rank.meet();
      gate.open();
      rank.expect(rank.cuda->finish(stream), "the stream ends");
      const int64_t events = rank.cuda->counters().events;
      trainer.step(6, stream);
      rank.expect(rank.cuda->counters().events == events, "no event is made");
      for (int64_t step = 0; step < 7; ++step) reference.step(step, stream);
      rank.expect(trainer.results() == reference.results(), "what was enqueued ahead is right");
      rank.meet();
    });
  }
}

TEST_CASE("PowerSGD on GPUs: what the GPU still uses stays when it is taken away or destroyed") {
  for (const bool reducer_too : {true, false}) {
    CAPTURE(reducer_too);
    run_on_gpus({"nccl", 2}, [reducer_too](GpuRank& rank) {
      Compressed trainer(&rank, of_rank(2));
      const cuda::Stream stream = rank.new_stream();
      for (int64_t step = 0; step < 2; ++step) trainer.step(step, stream);
      const int64_t live = rank.cuda->counters().live_allocations;
      Gate gate;
      rank.expect_ok(gate.hold(*rank.cuda, stream), "hold");
      rank.expect_ok(trainer.enqueue(2, stream), "enqueue");
      const int64_t begin_ns = monotonic_ns();
      if (reducer_too) {
        trainer.drop_reducer();
      } else {
        rank.expect_ok(trainer.reducer().set_hook({}), "take it away");
      }
      rank.expect(monotonic_ns() - begin_ns < 10'000'000'000, "it does not wait for the GPU");
      rank.expect(rank.cuda->counters().live_allocations == live, "nothing was released");
      rank.meet();
      gate.open();
      rank.expect(rank.cuda->finish(stream), "the stream ends");
      if (!reducer_too) {
        rank.expect(changed(trainer.step(3, stream), 3, rank.size).empty(), "averages again");
        rank.expect_ok(trainer.compress(of_rank(1)), "compress");
        trainer.step(4, stream);
        const int64_t now = rank.cuda->counters().live_allocations;
        rank.expect_ok(trainer.compress(of_rank(3)), "compress otherwise");
        rank.expect(rank.cuda->counters().live_allocations == now, "the last memory was released");
        trainer.step(5, stream);
      }
      rank.meet();
    });
  }
}

TEST_CASE("PowerSGD on GPUs: without memory on one rank all refuse it, and go on without it") {
  run_on_gpus({"nccl", 2}, [](GpuRank& rank) {
    Compressed trainer(&rank, of_rank(2));
    rank.expect_ok(trainer.reducer().set_hook({}), "take it away");
    if (rank.rank == 1) rank.cuda->fail("cudaMalloc", 0, 1);
    const Status refused = trainer.compress(of_rank(2));
    rank.expect(
        contains(refused, rank.rank == 1
                              ? "dt_reducer_power_sgd on comm \"world\": cudaMalloc on device 1"
                              : "another rank has no memory for its buckets or for what they"),
        refused.message());
    const cuda::Stream stream = rank.new_stream();
    rank.expect(changed(trainer.step(0, stream), 0, rank.size).empty(), "averages");
    trainer.drop_reducer();
    rank.meet();
  });
}

TEST_CASE("PowerSGD on GPUs: a step that fails leaves what the GPU may still use") {
  run_on_gpus({"nccl", 2}, [](GpuRank& rank) {
    Compressed trainer(&rank, of_rank(2));
    const cuda::Stream stream = rank.new_stream();
    trainer.step(0, stream);
    if (rank.rank == 1) rank.cuda->fail("cudaMemcpyAsync", 0, 1);
    Status status = trainer.enqueue(1, stream);
    if (status.ok()) status = rank.await_broken();
    rank.expect(contains(status, "cudaMemcpyAsync on device 1"), status.message());
    trainer.drop_reducer();
    rank.meet();
  });
}

TEST_CASE("PowerSGD on GPUs: the same values in shards of each stage") {
  std::vector<Tensors> by_rank(2);
  run_on_gpus({"nccl", 2}, [&](GpuRank& rank) {
    std::optional<Tensors> first;
    for (const int32_t stage : {0, 1, 2, 3}) {
      const auto model = ShardTrainer::model();
      ShardTrainer trainer(&rank, model, at_stage(stage));
      rank.expect_ok(trainer.created(), "create");
      const cuda::Stream stream = rank.new_stream();
      rank.expect_ok(trainer.set_all(stream), "set");
      for (int64_t step = 0; step < 2; ++step) rank.expect_ok(trainer.step(step, stream), "step");
      std::vector<int64_t> rows(model.size());
      rows[0] = 20;
      rows[6] = 30;
      rows[9] = 5;
      PowerSgd::Options options = of_rank(1);
      options.start_step = 1;
      rank.expect_ok(trainer.reducer().compress(rows, options), "compress");
      for (int64_t step = 2; step < 6; ++step) rank.expect_ok(trainer.step(step, stream), "step");
      rank.expect_ok(trainer.read(stream), "read");
      if (!first) first = trainer.values();
      rank.expect(trainer.values() == *first, format("stage %d", stage));
    }
    ShardTrainer plain(&rank, ShardTrainer::model(), at_stage(1));
    rank.expect_ok(plain.train(6, rank.new_stream()), "train");
    rank.expect(plain.values() != *first, "it compresses");
    by_rank[static_cast<size_t>(rank.rank)] = *first;
  });
  CHECK(by_rank[0] == by_rank[1]);
}
