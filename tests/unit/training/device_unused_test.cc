// SPDX-License-Identifier: Apache-2.0
// Parameters without a gradient on some ranks, on GPUs that are made of threads.
#include <doctest/doctest.h>

#include "device_trainer.h"

using namespace dt;
using namespace dt::test;

namespace {

constexpr size_t kParams = 9;
constexpr int64_t kElements = 600;
constexpr float kUntouched = -77;

/// In how many parts, each the same.
int uses(bool is_static, int64_t step, int rank, size_t param) {
  if (is_static) step = 0;
  const bool used = param != 0 && (step * 7 + rank * 3 + static_cast<int64_t>(param) * 5) % 3 != 0;
  return !used ? 0 : is_static && param % 4 == 0 ? 2 : 1;
}

float average(bool is_static, int64_t step, int size, size_t param, int64_t i) {
  float sum = 0;
  for (int rank = 0; rank < size; ++rank) {
    const auto parts = static_cast<float>(uses(is_static, step, rank, param));
    sum += parts * static_cast<float>(given(step, rank, param, i));
  }
  return sum / static_cast<float>(size);
}

}  // namespace

TEST_CASE("reducer on GPUs: what no rank used stays as it is, what some used is averaged") {
  for (const int way : {0, 1, 2, 3}) {
    const char* const backend = way % 2 == 0 ? "nccl" : "staged";
    const bool is_static = way >= 2;
    CAPTURE(backend);
    CAPTURE(is_static);
    run_on_gpus({backend, 3}, [is_static](GpuRank& rank) {
      const auto params =
          params_of(std::vector<std::pair<Dtype, int64_t>>(kParams, {Dtype::kF32, kElements}));
      training::Reducer::Options options = small_buckets(false, false);
      options.find_unused = !is_static;
      options.static_graph = is_static;
      auto made = training::Reducer::create(rank.comm, params, options);
      rank.expect_ok(made.status(), "create");
      if (!made.ok()) return;
      training::Reducer& reducer = *made.value();
      const auto own = std::make_shared<Tensors>(kParams, std::vector<char>(kElements * 4));
      rank.memory->push_back(own);  // kernels may still be in it when this is gone
      const cuda::Stream stream = rank.new_stream();
      for (int64_t step = 0; step < 5; ++step) {
        std::vector<bool> said(kParams, true);
        for (size_t p = 0; p < kParams; ++p) {
          const auto index = static_cast<int32_t>(p);
          auto* const grad = reinterpret_cast<float*>((*own)[p].data());
          const int parts = uses(is_static, step, rank.rank, p);
          const bool used = parts > 0;
          const auto kernel = [=, me = rank.rank] {
            for (int64_t i = 0; i < kElements; ++i) {
              grad[i] = used ? static_cast<float>(given(step, me, p, i)) : kUntouched;
            }
          };
          rank.expect_ok(rank.cuda->launch(stream, kernel), "compute");
          said[p] = used || p % 2 == 0;
          if (!said[p]) continue;
          for (int part = 0; part < parts; ++part) {
            rank.expect_ok(reducer.ready(index, grad, stream), "ready");
          }
          if (!used) rank.expect_ok(reducer.unused(index, grad, stream), "unused");
        }
        rank.expect_ok(reducer.finish(stream), "finish");
        rank.expect(rank.cuda->finish(stream), "the stream ends");
        for (size_t p = 0; p < kParams; ++p) {
          bool anybody = false;
          for (int other = 0; other < rank.size; ++other) {
            anybody = anybody || uses(is_static, step, other, p) > 0;
          }
          const auto found = reducer.used(static_cast<int32_t>(p));
          rank.expect(found.ok() && found.value() == anybody, "used");
          if (!said[p]) continue;
          const auto* const grad = reinterpret_cast<const float*>((*own)[p].data());
          for (int64_t i = 0; i < kElements; ++i) {
            const float wanted = anybody ? average(is_static, step, rank.size, p, i) : kUntouched;
            if (std::abs(grad[i] - wanted) <= 1e-4F) continue;
            rank.expect(false, format("step %lld, #%zu: %g, not %g", static_cast<long long>(step),
                                      p, grad[i], wanted));
            break;
          }
        }
      }
      rank.meet();
      made.value() = nullptr;
    });
  }
}

TEST_CASE(
    "reducer on GPUs: a bucket that a rank never uses waits for readers of its last average") {
  constexpr size_t kLast = 4;  // used on rank 1 only, and alone in the first bucket
  constexpr int64_t kSteps = 3;
  for (const bool hooked : {false, true}) {
    CAPTURE(hooked);
    run_on_gpus({"nccl", 2}, [hooked](GpuRank& rank) {
      training::Reducer::Options options = small_buckets(false, false);
      options.static_graph = true;
      auto made = training::Reducer::create(
          rank.comm,
          params_of(std::vector<std::pair<Dtype, int64_t>>(kLast + 1, {Dtype::kF32, kElements})),
          options);
      rank.expect_ok(made.status(), "create");
      if (!made.ok()) return;
      training::Reducer& reducer = *made.value();
      rank.expect(reducer.bucket_of(kLast) == 0 && reducer.bucket_of(kLast - 1) == 1, "the plan");
      const auto hook = [&rank](const training::HookBucket& bucket,
                                int32_t stage) -> Result<training::HookWork> {
        if (stage == 1) return training::HookWork{};
        backend::Collective collective;
        collective.kind = backend::Kind::kAllreduce;
        collective.dtype = bucket.dtype;
        collective.op = ReduceOp::kAvg;
        collective.send = collective.recv = bucket.data;
        collective.count = bucket.count;
        collective.stream = bucket.stream;
        training::HookWork started{rank.comm, rank.comm->new_work()};
        DT_TRY(rank.comm->submit(collective, started.work));
        return started;
      };
      if (hooked) rank.expect_ok(reducer.set_hook(hook), "set_hook");
      const auto own = std::make_shared<Tensors>(kLast + 1, std::vector<char>(kElements * 4));
      const auto seen = std::make_shared<std::vector<float>>(kElements);
      rank.memory->push_back(own);
      rank.memory->push_back(seen);
      const cuda::Stream stream = rank.new_stream();
      for (int64_t step = 0; step < kSteps; ++step) {
        for (size_t p = 0; p <= kLast; ++p) {
          if (p == kLast && rank.rank == 0) continue;
          void* const grad = (*own)[p].data();
          const auto kernel = [=, me = rank.rank] {
            fill(Dtype::kF32, grad, kElements, step, me, p);
          };
          rank.expect_ok(rank.cuda->launch(stream, kernel), "compute");
          rank.expect_ok(reducer.ready(static_cast<int32_t>(p), grad, stream), "ready");
        }
        rank.expect_ok(reducer.finish(stream), "finish");
        if (step != 1 || rank.rank != 0) continue;
        const auto* const place = static_cast<const float*>(reducer.grad(kLast).value());
        // The next step is enqueued meanwhile, and must not change the average.
        const auto read_late = [=] {
          const Deadline late = Deadline::after_ms(100);
          const float first = place[0];
          while (place[0] == first && !late.passed()) sched_yield();
          std::copy_n(place, kElements, seen->begin());
        };
        rank.expect_ok(rank.cuda->launch(stream, read_late), "read");
      }
      rank.expect(rank.cuda->finish(stream), "the stream ends");
      for (int64_t i = 0; rank.rank == 0 && i < kElements; ++i) {
        const float wanted = static_cast<float>(given(1, 1, kLast, i)) / 2;
        const float found = (*seen)[static_cast<size_t>(i)];
        if (found == wanted) continue;
        rank.expect(false,
                    format("element %lld: %g, not %g", static_cast<long long>(i), found, wanted));
        break;
      }
      rank.meet();
      made.value() = nullptr;
    });
  }
}

TEST_CASE("reducer on GPUs: what fails on one rank where a gradient is missing is told to all") {
  for (const char* const call : {"cudaEventRecord", "cudaMemcpyAsync"}) {
    CAPTURE(call);
    run_on_gpus({"nccl", 2}, [call](GpuRank& rank) {
      training::Reducer::Options options = small_buckets(false, false);
      options.find_unused = true;
      auto made = training::Reducer::create(
          rank.comm, params_of({{Dtype::kF32, kElements}, {Dtype::kF32, kElements}}), options);
      rank.expect_ok(made.status(), "create");
      if (!made.ok()) return;
      training::Reducer& reducer = *made.value();
      const auto own = std::make_shared<Tensors>(2, std::vector<char>(kElements * 4));
      rank.memory->push_back(own);
      const cuda::Stream stream = rank.new_stream();
      const bool copies = std::string(call) == "cudaMemcpyAsync";
      rank.expect_ok(reducer.ready(0, (*own)[0].data(), stream), "ready");
      if (rank.rank == 0) {
        rank.expect_ok(reducer.ready(1, (*own)[1].data(), stream), "ready");
      } else if (copies) {  // the average is copied there
        rank.expect_ok(reducer.unused(1, (*own)[1].data(), stream), "unused");
      }
      rank.meet();  // the failure breaks the communicator, in which nobody may still be ready
      if (rank.rank == 1) rank.cuda->fail(call, 0, 1);
      Status status = reducer.finish(stream);
      if (status.ok()) status = rank.await_broken();
      rank.expect(contains(status, format("%s on device 1", call).c_str()), status.message());
      rank.meet();
      made.value() = nullptr;
    });
  }
}
