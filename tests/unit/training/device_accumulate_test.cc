// SPDX-License-Identifier: Apache-2.0
// Gradients that come in parts, on GPUs that are made of threads.
#include <doctest/doctest.h>

#include <thread>

#include "device_trainer.h"

using namespace dt;
using namespace dt::test;

namespace {

constexpr size_t kPartParams = 9;
constexpr int64_t kPartElements = 600;

/// How often a rank gives a parameter in a pass before the last.
int times(int64_t step, int rank, size_t param, int pass) {
  return static_cast<int>((step + rank * 3 + static_cast<int64_t>(param) * 5 + pass * 2) % 3);
}

int parts(int64_t step, int rank, size_t param, int uses, int passes) {
  int sum = uses;
  for (int pass = 0; pass < passes; ++pass) sum += times(step, rank, param, pass);
  return sum;
}

}  // namespace

TEST_CASE("reducer on GPUs: passes and parts from several streams are summed") {
  for (const char* const backend : {"nccl", "staged"}) {
    CAPTURE(backend);
    run_on_gpus({backend, 3}, [](GpuRank& rank) {
      std::vector<std::pair<Dtype, int64_t>> described(kPartParams, {Dtype::kF32, kPartElements});
      described[3].first = Dtype::kI32;
      described[5].first = Dtype::kF64;
      auto params = params_of(described);
      for (size_t p = 0; p < kPartParams; p += 2) params[p].uses = 2;
      auto made = training::Reducer::create(rank.comm, params, small_buckets(true, false));
      rank.expect_ok(made.status(), "create");
      if (!made.ok()) return;
      training::Reducer& reducer = *made.value();
      const auto own = std::make_shared<std::vector<Tensors>>();
      rank.memory->push_back(own);  // kernels may still be in it when this is gone
      const std::vector<cuda::Stream> streams = {rank.new_stream(), rank.new_stream()};
      size_t turn = 0;
      Tensors last(kPartParams);
      for (int64_t step = 0; step < 5; ++step) {
        const int passes = static_cast<int>(step) % 3;  // before the last
        std::vector<const void*> results(kPartParams);
        const auto give = [&](size_t p, bool in_place) {
          const cuda::Stream stream = streams[turn++ % 2];
          own->push_back(Tensors(1, std::vector<char>(kPartElements * 8)));
          void* const grad = in_place ? reducer.grad(static_cast<int32_t>(p), stream).value()
                                      : own->back()[0].data();
          rank.expect_ok(rank.cuda->launch(stream,
                                           [=, me = rank.rank, dtype = params[p].dtype] {
                                             fill(dtype, grad, kPartElements, step, me, p);
                                           }),
                         "compute");
          rank.expect_ok(reducer.ready(static_cast<int32_t>(p), in_place ? nullptr : grad, stream),
                         "ready");
          results[p] = grad;
        };
        reducer.accumulate(true);
        for (int pass = 0; pass < passes; ++pass) {
          for (size_t p = 0; p < kPartParams; ++p) {
            for (int i = times(step, rank.rank, p, pass); i > 0; --i) give(p, false);
          }
        }
        reducer.accumulate(false);
        for (size_t p = 0; p < kPartParams; ++p) {
          for (int i = 0; i < params[p].uses; ++i) {
            const bool nothing_yet = parts(step, rank.rank, p, 0, passes) == 0;
            give(p, nothing_yet && params[p].uses == 1 && p % 3 == 0);
          }
        }
        rank.expect_ok(reducer.finish(streams[0]), "finish");
        const auto copy = [&last, results, params] {
          for (size_t p = 0; p < kPartParams; ++p) {
            const auto* const from = static_cast<const char*>(results[p]);
            last[p].assign(from, from + kPartElements * dtype_bytes(params[p].dtype));
          }
        };
        rank.expect_ok(rank.cuda->launch(streams[0], copy), "use");
        rank.expect(rank.cuda->finish(streams[0]), "the stream ends");
        for (size_t p = 0; p < kPartParams; ++p) {
          with_dtype(params[p].dtype, [&](auto element) {
            for (int64_t i = 0; i < kPartElements; ++i) {
              double sum = 0;
              for (int other = 0; other < rank.size; ++other) {
                sum += parts(step, other, p, params[p].uses, passes) *
                       static_cast<double>(given(step, other, p, i));
              }
              const auto found =
                  static_cast<double>(test::load<decltype(element)>(last[p].data(), i));
              if (found == sum) continue;
              return rank.expect(false, format("step %lld, #%zu: %g, not %g",
                                               static_cast<long long>(step), p, found, sum));
            }
          });
        }
      }
      rank.meet();
      made.value() = nullptr;
    });
  }
}

TEST_CASE("reducer on GPUs: cudaStreamPerThread is another stream in each thread") {
  constexpr size_t kMine = 0;
  constexpr size_t kOther = 1;
  // One thread gives half of a bucket, or of a gradient, and another thread the rest.
  for (const bool in_parts : {false, true}) {
    CAPTURE(in_parts);
    run_on_gpus({"nccl", 2}, [in_parts](GpuRank& rank) {
      const size_t params = in_parts ? 1 : 2;
      auto described =
          params_of(std::vector<std::pair<Dtype, int64_t>>(params, {Dtype::kF32, kPartElements}));
      if (in_parts) described[0].uses = 2;
      training::Reducer::Options options = small_buckets(true, false);
      options.first_bucket_bytes = options.bucket_cap_bytes;
      auto made = training::Reducer::create(rank.comm, described, options);
      rank.expect_ok(made.status(), "create");
      if (!made.ok()) return;
      training::Reducer& reducer = *made.value();
      rank.expect(reducer.bucket_count() == 1, "one bucket");
      const auto own = std::make_shared<Tensors>(2, std::vector<char>(kPartElements * 4));
      const auto seen = std::make_shared<Tensors>(*own);
      rank.memory->push_back(own);
      rank.memory->push_back(seen);
      const auto give = [&](size_t which, int64_t delay_ms) {
        auto* const grad = reinterpret_cast<float*>((*own)[which].data());
        const auto kernel = [=, value = static_cast<float>(which + 1)] {
          Event never;
          if (delay_ms > 0) (void)never.wait({Deadline::after_ms(delay_ms)});
          std::fill_n(grad, kPartElements, value);
        };
        rank.expect_ok(rank.cuda->launch(FakeCuda::per_thread(), kernel), "compute");
        const auto index = static_cast<int32_t>(in_parts ? 0 : which);
        rank.expect_ok(reducer.ready(index, grad, FakeCuda::per_thread()), "ready");
      };
      give(kMine, 50);
      std::thread([&] { give(kOther, 0); }).join();
      const cuda::Stream stream = rank.new_stream();
      rank.expect_ok(reducer.finish(stream), "finish");
      const auto kernel = [=] { *seen = *own; };
      rank.expect_ok(rank.cuda->launch(stream, kernel), "use");
      rank.expect(rank.cuda->finish(stream), "the stream ends");
      for (const size_t which : {kMine, kOther}) {
        if (in_parts && which == kMine) continue;  // the sum is where the last part was
        const float found = *reinterpret_cast<const float*>((*seen)[which].data());
        const auto wanted = static_cast<float>(in_parts ? 6 : 2 * (which + 1));
        rank.expect(found == wanted, format("#%zu: %g, not %g", which, found, wanted));
      }
      rank.expect(rank.cuda->finish(FakeCuda::per_thread()), "this thread's stream ends");
      rank.meet();
      made.value() = nullptr;
    });
  }
}
