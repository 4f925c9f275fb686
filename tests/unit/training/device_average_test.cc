// SPDX-License-Identifier: Apache-2.0
// How averages are made, what gradients travel as, and their norm, on GPUs that are made of
// threads.
#include <doctest/doctest.h>

#include "../../sanitizers.h"
#include "device_trainer.h"

using namespace dt;
using namespace dt::test;

namespace {

constexpr size_t kAveraged = 7;
constexpr int64_t kLength = 500;

Dtype dtype_of(size_t param) {
  return param == 4 ? Dtype::kI32 : param == 5 ? Dtype::kF64 : Dtype::kF32;
}

bool has_gradient(const training::Reducer::Options& options, int64_t step, int rank, size_t param) {
  if (!options.find_unused) return true;
  return param != 0 && (step + rank * 3 + static_cast<int64_t>(param) * 5) % 3 != 0;
}

double right_result(const training::Reducer::Options& options, int size, int64_t step, size_t param,
                    int64_t i) {
  double sum = 0;
  int users = 0;
  for (int rank = 0; rank < size; ++rank) {
    if (!has_gradient(options, step, rank, param)) continue;
    sum += static_cast<double>(given(step, rank, param, i));
    ++users;
  }
  const int divisor = options.sum ? 1 : options.divide_by_users ? std::max(users, 1) : size;
  return dtype_of(param) == Dtype::kI32 ? std::trunc(sum / divisor) : sum / divisor;
}

/// `flat`: what lies in the reducer's memory lies in an array of the rank's own.
void run_steps(GpuRank& rank, const training::Reducer::Options& asked, Mode mode,
               bool flat = false) {
  training::Reducer::Options options = asked;
  std::vector<std::pair<Dtype, int64_t>> described;
  for (size_t p = 0; p < kAveraged; ++p) described.emplace_back(dtype_of(p), kLength);
  const auto params = params_of(described);
  const auto array = std::make_shared<std::vector<char>>();
  rank.memory->push_back(array);
  for (size_t p = 0; flat && p < kAveraged; ++p) {
    array->resize(array->size() + static_cast<size_t>(kLength * dtype_bytes(dtype_of(p))));
  }
  for (size_t p = 0, at = 0; flat && p < kAveraged; ++p) {
    options.places.push_back(array->data() + at);
    at += static_cast<size_t>(kLength * dtype_bytes(dtype_of(p)));
  }
  auto made = training::Reducer::create(rank.comm, params, options);
  rank.expect_ok(made.status(), "create");
  if (!made.ok()) return;
  training::Reducer& reducer = *made.value();
  if (flat) {
    rank.expect(reducer.grad(3).value() == options.places[3], "its place");
    const bool apart = options.wire.has_value();
    rank.expect(apart == (reducer.statistics().memory_bytes > 0), "no memory for gradients");
  }
  const auto own = std::make_shared<Tensors>(kAveraged + 1, std::vector<char>(kLength * 8));
  rank.memory->push_back(own);  // kernels may still be in it when this is gone
  const cuda::Stream stream = rank.new_stream();
  auto* const norm = reinterpret_cast<float*>(own->back().data());
  for (int64_t step = 0; step < 4; ++step) {
    std::vector<const char*> results(kAveraged);
    for (size_t p = 0; p < kAveraged; ++p) {
      const auto index = static_cast<int32_t>(p);
      const bool in_place = mode == Mode::kInPlace ||
                            (mode == Mode::kMixed && (p + static_cast<size_t>(rank.rank)) % 2 == 0);
      void* const grad = in_place ? reducer.grad(index, stream).value() : (*own)[p].data();
      results[p] = static_cast<const char*>(grad);
      void* const outside = in_place ? nullptr : grad;
      if (!has_gradient(options, step, rank.rank, p)) {
        rank.expect_ok(reducer.unused(index, outside, stream), "unused");
        continue;
      }
      rank.expect_ok(
          rank.cuda->launch(stream,
                            [=, me = rank.rank] { fill(dtype_of(p), grad, kLength, step, me, p); }),
          "compute");
      rank.expect_ok(reducer.ready(index, outside, stream), "ready");
    }
    rank.expect_ok(reducer.finish(stream), "finish");
    const auto seen = std::make_shared<Tensors>(kAveraged);
    rank.memory->push_back(seen);
    const auto look = [seen, results] {
      for (size_t p = 0; p < kAveraged; ++p) {
        (*seen)[p].assign(results[p], results[p] + kLength * dtype_bytes(dtype_of(p)));
      }
    };
    rank.expect_ok(rank.cuda->launch(stream, look), "use");
    rank.expect_ok(reducer.clip_norm(1, 2, stream, norm), "clip");
    const auto clipped = std::make_shared<std::vector<double>>();
    rank.memory->push_back(clipped);
    const auto look_again = [clipped, results] {
      clipped->push_back(static_cast<double>(load<float>(results[2], 3)));
    };
    rank.expect_ok(rank.cuda->launch(stream, look_again), "use");
    rank.expect(rank.cuda->finish(stream), "the stream ends");
    double squares = 0;
    for (size_t p = 0; p < kAveraged; ++p) {
      bool anybody = false;
      for (int other = 0; other < rank.size; ++other) {
        anybody = anybody || has_gradient(options, step, other, p);
      }
      if (!anybody) continue;
      with_dtype(dtype_of(p), [&](auto element) {
        for (int64_t i = 0; i < kLength; ++i) {
          const auto found = static_cast<double>(load<decltype(element)>((*seen)[p].data(), i));
          const double right = right_result(options, rank.size, step, p, i);
          if (dtype_of(p) != Dtype::kI32) squares += right * right;
          const double error = options.wire && dtype_of(p) == Dtype::kF32 ? 0.02 : 1e-5;
          if (std::abs(found - right) <= error * std::max(1.0, std::abs(right))) continue;
          return rank.expect(false, format("step %lld, #%zu: %g, not %g",
                                           static_cast<long long>(step), p, found, right));
        }
      });
    }
    const double root = std::sqrt(squares);
    rank.expect(std::abs(static_cast<double>(*norm) - root) <= 0.01 * root,
                format("norm %g, not %g", static_cast<double>(*norm), root));
    if (options.find_unused && step % 3 == 2) continue;  // nobody has used #2
    const double before = static_cast<double>(load<float>((*seen)[2].data(), 3));
    rank.expect(std::abs((*clipped)[0] - before / std::max(static_cast<double>(*norm), 1.0)) < 1e-4,
                format("%g is clipped to %g", before, (*clipped)[0]));
  }
  rank.meet();
  made.value() = nullptr;
}

}  // namespace

TEST_CASE("reducer on GPUs: averages over ranks and users, divided before, as another dtype") {
  const auto modes = kThreadSanitizer ? std::vector{Mode::kMixed}
                                      : std::vector{Mode::kPointers, Mode::kInPlace, Mode::kMixed};
  for (const char* const backend : {"nccl", "staged"}) {
    for (const Mode mode : modes) {
      for (const bool users : {false, true}) {
        CAPTURE(backend);
        CAPTURE(static_cast<int>(mode));
        CAPTURE(users);
        run_on_gpus({backend, 3}, [mode, users](GpuRank& rank) {
          training::Reducer::Options options = small_buckets(false, false);
          options.find_unused = users;
          options.divide_by_users = users;
          run_steps(rank, options, mode);
          options.predivide = 4;
          run_steps(rank, options, mode);
          options.wire = Dtype::kBf16;
          run_steps(rank, options, mode);
          options.predivide = 0;
          options.divide_by_users = false;
          run_steps(rank, options, mode);
          options.sum = true;
          options.wire = Dtype::kF16;
          run_steps(rank, options, mode);
          run_steps(rank, options, mode, /*flat=*/true);
          options.sum = false;
          options.wire = {};
          run_steps(rank, options, mode, /*flat=*/true);
        });
      }
    }
  }
}

TEST_CASE("reducer on GPUs: a hook reduces the buckets in the order of its stream") {
  const auto modes = kThreadSanitizer ? std::vector{Mode::kMixed}
                                      : std::vector{Mode::kPointers, Mode::kInPlace, Mode::kMixed};
  for (const char* const backend : {"nccl", "staged"}) {
    for (const Mode mode : modes) {
      CAPTURE(backend);
      CAPTURE(static_cast<int>(mode));
      run_on_gpus({backend, 3}, [mode](GpuRank& rank) {
        Trainer trainer(&rank,
                        params_of({{Dtype::kF32, 300},
                                   {Dtype::kF32, 900},
                                   {Dtype::kF64, 7},
                                   {Dtype::kF32, 40},
                                   {Dtype::kI32, 100}}),
                        small_buckets(true, false), mode);
        const auto hook = [&](const training::HookBucket& bucket,
                              int32_t stage) -> Result<training::HookWork> {
          if (stage == 2) return training::HookWork{};
          backend::Collective collective;
          collective.kind = backend::Kind::kAllreduce;
          collective.dtype = bucket.dtype;
          collective.op = stage == 0 ? ReduceOp::kSum : ReduceOp::kMax;
          collective.send = collective.recv = bucket.data;
          collective.count = bucket.count;
          collective.stream = bucket.stream;
          training::HookWork started{rank.comm, rank.comm->new_work()};
          DT_TRY(rank.comm->submit(collective, started.work));
          return started;
        };
        rank.expect_ok(trainer.reducer().set_hook(hook), "set_hook");
        const std::vector<cuda::Stream> streams = {rank.new_stream(), rank.new_stream()};
        for (int64_t step = 0; step < 4; ++step) trainer.step(step, streams);
        rank.meet();
        trainer.drop_reducer();
      });
    }
  }
}

TEST_CASE("reducer on GPUs: a norm that is not finite scales nothing") {
  run_on_gpus({"nccl", 2}, [](GpuRank& rank) {
    auto made =
        training::Reducer::create(rank.comm, params_of({{Dtype::kF32, 4}}), small_buckets());
    rank.expect_ok(made.status(), "create");
    if (!made.ok()) return;
    training::Reducer& reducer = *made.value();
    const auto own = std::make_shared<std::vector<float>>(6, INFINITY);
    rank.memory->push_back(own);
    const cuda::Stream stream = rank.new_stream();
    (*own)[1] = 3;
    rank.expect(reducer.clip_norm(1, 2, stream, nullptr).code() == Code::kInvalidState, "early");
    rank.expect_ok(reducer.ready(0, own->data(), stream), "ready");
    rank.expect_ok(reducer.finish(stream), "finish");
    rank.expect_ok(reducer.clip_norm(1, 1, stream, nullptr), "norm 1");
    rank.expect_ok(reducer.clip_norm(1, 2, stream, own->data() + 5), "clip");
    rank.expect(rank.cuda->finish(stream), "the stream ends");
    rank.expect(std::isinf((*own)[5]) && (*own)[1] == 3, "it is left alone");
    rank.meet();
    made.value() = nullptr;
  });
}

TEST_CASE(
    "reducer on GPUs: a norm whose square f32 cannot hold clips, one it cannot hold does not") {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF64}) {
    CAPTURE(dtype_name(dtype));
    run_on_gpus({"nccl", 1}, [dtype](GpuRank& rank) {
      auto made = training::Reducer::create(rank.comm, params_of({{dtype, 3}}), small_buckets());
      rank.expect_ok(made.status(), "create");
      if (!made.ok()) return;
      training::Reducer& reducer = *made.value();
      struct Buffers {
        double doubles[3] = {};
        float floats[3] = {};
        float norm = 0;
      };
      const auto own = std::make_shared<Buffers>();
      rank.memory->push_back(own);
      const cuda::Stream stream = rank.new_stream();
      for (const double type : {2.0, 3.0}) {
        for (const double largest : {2e19, 1e60}) {
          if (largest > 1e38 && dtype == Dtype::kF32) continue;
          for (size_t i = 0; i < 3; ++i) {
            own->doubles[i] = i == 0 ? largest : static_cast<double>(i + 2);
            own->floats[i] = static_cast<float>(own->doubles[i]);
          }
          void* const grad = dtype == Dtype::kF32 ? static_cast<void*>(own->floats) : own->doubles;
          rank.expect_ok(reducer.ready(0, grad, stream), "ready");
          rank.expect_ok(reducer.finish(stream), "finish");
          rank.expect_ok(reducer.clip_norm(1, type, stream, &own->norm), "clip");
          rank.expect(rank.cuda->finish(stream), "the stream ends");
          const double clipped =
              dtype == Dtype::kF32 ? static_cast<double>(own->floats[0]) : own->doubles[0];
          const bool holds = largest < 1e38;
          rank.expect(std::isfinite(own->norm) == holds, format("norm %g of %g", type, largest));
          rank.expect(holds ? std::fabs(clipped - 1) < 1e-6 : clipped == largest,
                      format("norm %g: %g became %g", type, largest, clipped));
        }
      }
      rank.meet();
      made.value() = nullptr;
    });
  }
}

TEST_CASE("reducer on GPUs: other norms than 2") {
  run_on_gpus({"nccl", 2}, [](GpuRank& rank) {
    auto made =
        training::Reducer::create(rank.comm, params_of({{Dtype::kF32, 4}}), small_buckets());
    rank.expect_ok(made.status(), "create");
    if (!made.ok()) return;
    training::Reducer& reducer = *made.value();
    struct Clipped {
      double type;
      double max_norm;
      std::vector<float> values;  // and the norm of before
    };
    const std::vector<Clipped> all = {{1, 5, {1.5, -2, 0, -1.5, 10}},
                                      {3, 1, {0.6116371F, -0.8155162F, 0, -0.6116371F, 4.904868F}},
                                      {INFINITY, 2, {1.5, -2, 0, -1.5, 4}}};
    const auto own = std::make_shared<std::vector<float>>(5);
    rank.memory->push_back(own);
    const cuda::Stream stream = rank.new_stream();
    for (const Clipped& each : all) {
      *own = {3, -4, 0, -3, 0};
      rank.expect_ok(reducer.ready(0, own->data(), stream), "ready");
      rank.expect_ok(reducer.finish(stream), "finish");
      rank.expect_ok(reducer.clip_norm(each.max_norm, each.type, stream, own->data() + 4), "clip");
      rank.expect(rank.cuda->finish(stream), "the stream ends");
      for (size_t i = 0; i < own->size(); ++i) {
        rank.expect(std::fabs((*own)[i] - each.values[i]) < 1e-5F,
                    format("norm %g, #%zu: %g", each.type, i, static_cast<double>((*own)[i])));
      }
    }
    rank.meet();
    made.value() = nullptr;
  });
}
