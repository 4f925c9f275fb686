// SPDX-License-Identifier: Apache-2.0
// Gradients as rows in host memory, beside dense ones on GPUs that are made of threads.
#include <doctest/doctest.h>

#include <map>

#include "device_trainer.h"

using namespace dt;
using namespace dt::test;

namespace {

constexpr int64_t kRows = 12;
constexpr int64_t kColumns = 3;
constexpr int64_t kDense = 300;

training::Param table() {
  training::Param param{0, Dtype::kF32, "table"};
  param.rows = kRows;
  param.row_elements = kColumns;
  return param;
}

/// Rank r gives rows r, r + step and r + step again, all of whose elements are 1 + r.
std::vector<int64_t> rows_of(int rank, int64_t step) {
  const int64_t row = (rank + step) % kRows;
  return {rank, row, row};
}

void refuses(const GpuRank& rank, const Status& status, Code code, const std::string& text) {
  rank.expect(status.code() == code && status.message().find(text) != std::string::npos,
              text + ": " + status.message());
}

}  // namespace

TEST_CASE("reducer on GPUs: rows in host memory beside dense gradients on the GPU") {
  for (const auto& world : {GpuWorld{"nccl", 1}, GpuWorld{"nccl", 3}, GpuWorld{"staged", 2}}) {
    CAPTURE(world.backend);
    CAPTURE(world.size);
    run_on_gpus(world, [](GpuRank& rank) {
      rank.cuda->set_delay_us(rank.rank * 20);
      const auto params = std::vector<training::Param>{{kDense, Dtype::kF32, "dense"}, table()};
      auto made = training::Reducer::create(rank.comm, params, small_buckets());
      rank.expect_ok(made.status(), "create");
      if (!made.ok()) return;
      training::Reducer& reducer = *made.value();
      const cuda::Stream stream = rank.new_stream();
      const auto own = std::make_shared<std::vector<float>>(kDense);
      rank.memory->push_back(own);  // kernels may still be in it when this is gone
      for (int64_t step = 0; step < 5; ++step) {
        std::map<int64_t, float> wanted;
        for (int each = 0; each < rank.size; ++each) {
          for (const int64_t row : rows_of(each, step)) {
            wanted[row] += static_cast<float>(1 + each) / static_cast<float>(rank.size);
          }
        }
        const std::vector<int64_t> rows = rows_of(rank.rank, step);
        const std::vector<float> values(rows.size() * kColumns, static_cast<float>(1 + rank.rank));
        rank.expect_ok(reducer.ready_rows(1, rows, values.data()), "ready_rows");
        rank.expect_ok(rank.cuda->launch(stream,
                                         [=, me = rank.rank] {
                                           fill(Dtype::kF32, own->data(), kDense, step, me, 0);
                                         }),
                       "compute");
        rank.expect_ok(reducer.ready(0, own->data(), stream), "ready");
        rank.expect_ok(reducer.finish(stream), "finish");
        const auto found = reducer.rows(1);
        rank.expect_ok(found.status(), "rows");
        if (!found.ok()) return;
        const auto* const sums = static_cast<const float*>(found.value()->values());
        const std::vector<int64_t>& indices = found.value()->indices();
        for (size_t i = 0; i < indices.size(); ++i) {
          for (int64_t c = 0; c < kColumns; ++c) {
            const float sum = sums[static_cast<int64_t>(i) * kColumns + c];
            rank.expect(std::fabs(sum - wanted[indices[i]]) < 1e-6F, "the mean of a row");
          }
        }
        rank.expect(indices.size() == wanted.size(), "each row once");
        rank.expect(rank.cuda->finish(stream), "the stream ends");
        for (int64_t i = 0; i < kDense; ++i) {
          const double mean = test::wanted(Dtype::kF32, false, rank.size, step, 0, i);
          rank.expect(std::fabs(static_cast<double>((*own)[static_cast<size_t>(i)]) - mean) < 1e-5,
                      "the dense mean");
        }
      }
      const int64_t each_step = kDense * 4;
      const int64_t total = reducer.statistics().total_bytes;
      rank.expect(total > 5 * each_step && total <= 5 * (each_step + kRows * kColumns * 4),
                  "rows are counted");
      refuses(rank, reducer.clip_norm(1, 2, stream, nullptr), Code::kUnsupported,
              "some gradients come as rows, which are in host memory");
    });
  }
}

TEST_CASE("reducer on GPUs: rows that lie on the GPU, or that a rank lacks, are named") {
  run_on_gpus({"nccl", 2}, [](GpuRank& rank) {
    auto made = training::Reducer::create(rank.comm, {table()}, small_buckets());
    rank.expect_ok(made.status(), "create");
    if (!made.ok()) return;
    training::Reducer& reducer = *made.value();
    const Result<void*> there = rank.cuda->allocate(kColumns * sizeof(float));
    const std::vector<int64_t> rows = {4};
    refuses(rank, reducer.ready_rows(0, rows, there.value()), Code::kInvalidArgument,
            "values of parameter #0 \"table\" are in a GPU's memory; copy them to the host");
    rank.expect_ok(rank.cuda->release(there.value()), "release");
    const std::vector<float> values(kColumns, 1);
    if (rank.rank == 0) rank.expect_ok(reducer.ready_rows(0, rows, values.data()), "ready_rows");
    const Status finished = reducer.finish(rank.new_stream());
    rank.expect(
        !finished.ok() && finished.message().find("no rows for #0 \"table\"") != std::string::npos,
        "both hear of it: " + finished.message());
  });
}

TEST_CASE("reducer on GPUs: all gradients come as rows, also with a hook") {
  run_on_gpus({"nccl", 2}, [](GpuRank& rank) {
    for (const bool hooked : {false, true}) {
      auto made = training::Reducer::create(rank.comm, {table()}, small_buckets());
      rank.expect_ok(made.status(), "create");
      if (!made.ok()) return;
      training::Reducer& reducer = *made.value();
      if (hooked) {
        rank.expect_ok(reducer.set_hook([](const training::HookBucket&, int32_t) {
          return Result<training::HookWork>(training::HookWork());
        }),
                       "set_hook");
      }
      const cuda::Stream stream = rank.new_stream();
      const std::vector<float> values(kColumns, static_cast<float>(1 + rank.rank));
      for (int64_t step = 0; step < 3; ++step) {
        const std::vector<int64_t> rows(rank.rank == 0 ? 1 : 0, step);
        rank.expect_ok(reducer.ready_rows(0, rows, rows.empty() ? nullptr : values.data()), "rows");
        rank.expect_ok(reducer.finish(stream), "finish");
        const auto found = reducer.rows(0);
        rank.expect(found.ok() && found.value()->indices() == std::vector<int64_t>{step}, "a row");
      }
      const auto statistics = reducer.statistics();
      rank.expect(statistics.steps == 3 && statistics.total_bytes == 3 * kColumns * 4,
                  format("%d steps, %d bytes", static_cast<int>(statistics.steps),
                         static_cast<int>(statistics.total_bytes)));
      rank.meet();
    }
  });
}
