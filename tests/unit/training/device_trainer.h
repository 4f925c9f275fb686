// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstring>
#include <numeric>

#include "device_ranks.h"
#include "elements.h"

namespace dt::test {

/// Calls function(T()) with the element type of one of the dtypes that the tests use.
template <class F>
void with_dtype(Dtype dtype, F&& function) {
  switch (dtype) {
    case Dtype::kF16: return function(F16());
    case Dtype::kBf16: return function(Bf16());
    case Dtype::kF32: return function(float());
    case Dtype::kF64: return function(double());
    default: return function(int32_t());
  }
}

/// What a rank gives: small enough for sums and quarters of four to be exact in every dtype.
inline int64_t given(int64_t step, int rank, size_t param, int64_t i) {
  return (step + 4 * rank + 8 * static_cast<int64_t>(param) + i) % 64;
}

/// Writes what a rank gives.
inline void fill(Dtype dtype, void* to, int64_t count, int64_t step, int rank, size_t param) {
  with_dtype(dtype, [&](auto element) {
    using T = decltype(element);
    for (int64_t i = 0; i < count; ++i) {
      test::store<T>(to, i, static_cast<Arithmetic<T>>(given(step, rank, param, i)));
    }
  });
}

/// The plain loop.
inline double wanted(Dtype dtype, bool sum, int size, int64_t step, size_t param, int64_t i) {
  double total = 0;
  for (int rank = 0; rank < size; ++rank) {
    total += static_cast<double>(given(step, rank, param, i));
  }
  if (sum) return total;
  return dtype == Dtype::kI32 ? std::trunc(total / size) : total / size;
}

inline std::vector<training::Param> params_of(
    const std::vector<std::pair<Dtype, int64_t>>& described) {
  std::vector<training::Param> params;
  for (const auto& [dtype, count] : described) {
    params.push_back({count, dtype, "layer" + std::to_string(params.size())});
  }
  return params;
}

/// Buckets of a few parameters each.
inline training::Reducer::Options small_buckets(bool sum = false, bool rebuild = true) {
  training::Reducer::Options options;
  options.sum = sum;
  options.first_bucket_bytes = 2'000;
  options.bucket_cap_bytes = 10'000;
  options.rebuild = rebuild;
  return options;
}

enum class Mode {
  kInPlace,   ///< written where grad() says
  kPointers,  ///< all outside their buckets
  kMixed,     ///< on odd ranks all outside, on even ranks every second
};

using Tensors = std::vector<std::vector<char>>;

/// A training loop without a model. All ranks make one at once, and leave the constructor at once:
/// what a test breaks next does not reach into another rank's creation.
class Trainer {
 public:
  Trainer(const GpuRank* rank, std::vector<training::Param> params,
          const training::Reducer::Options& options, Mode mode = Mode::kPointers)
      : rank_(rank), mode_(mode), sum_(options.sum), params_(std::move(params)) {
    rank->memory->push_back(memory_);
    for (const training::Param& param : params_) {
      own_.emplace_back(static_cast<size_t>(param.count * dtype_bytes(param.dtype)));
    }
    results_ = own_;
    order_.resize(params_.size());
    std::iota(order_.begin(), order_.end(), 0);
    auto made = training::Reducer::create(rank->comm, params_, options);
    created_ = made.status();
    rank->expect_ok(created_, "create");
    if (created_.ok()) reducer_ = std::move(made).value();
    rank->meet();
  }

  training::Reducer& reducer() { return *reducer_; }
  void drop_reducer() { reducer_ = nullptr; }
  std::vector<int32_t>& order() { return order_; }
  const Tensors& results() const { return results_; }
  /// Gradients by pointer lie somewhere else from now on; the old memory stays.
  void move_gradients() {
    memory_->moved.push_back(own_);
    memory_->moved.back().swap(own_);
  }

  /// A kernel of `stream` computes the gradient.
  void compute(int64_t step, int32_t index, cuda::Stream stream) {
    const auto p = static_cast<size_t>(index);
    void* const to = in_place(index) ? reducer_->grad(index, stream).value() : own_[p].data();
    const auto kernel = [to, step, p, rank = rank_->rank, param = params_[p]] {
      fill(param.dtype, to, param.count, step, rank, p);
    };
    rank_->expect_ok(rank_->cuda->launch(stream, kernel), "compute");
  }
  Status ready(int32_t index, cuda::Stream stream) {
    void* const from =
        in_place(index) ? nullptr : static_cast<void*>(own_[static_cast<size_t>(index)].data());
    return reducer_->ready(index, from, stream);
  }
  /// Streams in turn compute the gradients, in order(); until the first error.
  Status backward(int64_t step, const std::vector<cuda::Stream>& streams) {
    DT_TRY(created_);
    size_t turn = 0;
    for (const int32_t index : order_) {
      const cuda::Stream stream = streams[turn++ % streams.size()];
      compute(step, index, stream);
      DT_TRY(ready(index, stream));
    }
    return {};
  }
  /// A kernel of `stream` uses the gradients.
  void use(cuda::Stream stream) {
    std::vector<const void*> from;
    for (size_t p = 0; p < params_.size(); ++p) {
      const auto index = static_cast<int32_t>(p);
      from.push_back(in_place(index) ? reducer_->grad(index, stream).value() : own_[p].data());
    }
    const auto kernel = [from, results = &results_] {
      for (size_t p = 0; p < from.size(); ++p) {
        auto& to = (*results)[p];
        if (!to.empty()) memcpy(to.data(), from[p], to.size());
      }
    };
    rank_->expect_ok(rank_->cuda->launch(stream, kernel), "use");
  }
  /// What use() saw is right.
  void check(int64_t step) const {
    for (size_t p = 0; p < params_.size(); ++p) {
      const Dtype dtype = params_[p].dtype;
      with_dtype(dtype, [&](auto element) {
        for (int64_t i = 0; i < params_[p].count; ++i) {
          const auto found = static_cast<double>(load<decltype(element)>(results_[p].data(), i));
          const double right = wanted(dtype, sum_, rank_->size, step, p, i);
          if (found == right) continue;
          return rank_->expect(false, format("step %lld, #%zu (%s), element %lld is %g, not %g",
                                             static_cast<long long>(step), p, dtype_name(dtype),
                                             static_cast<long long>(i), found, right));
        }
      });
    }
  }
  void step(int64_t number, const std::vector<cuda::Stream>& streams) {
    const Status status = backward(number, streams);
    rank_->expect_ok(status, "backward");
    if (!status.ok()) return;
    rank_->expect_ok(reducer_->finish(streams[0]), "finish");
    use(streams[0]);
    rank_->expect(rank_->cuda->finish(streams[0]), "the stream ends");
    check(number);
  }

 private:
  bool in_place(int32_t index) const {
    if (mode_ == Mode::kMixed) return rank_->rank % 2 == 0 && index % 2 == 0;
    return mode_ == Mode::kInPlace;
  }
  const GpuRank* const rank_;
  const Mode mode_;
  const bool sum_;
  const std::vector<training::Param> params_;
  Status created_;
  std::unique_ptr<training::Reducer> reducer_;
  // Kernels may still be in it when this is gone.
  struct Memory {
    Tensors own;
    Tensors results;
    std::vector<Tensors> moved;
  };
  const std::shared_ptr<Memory> memory_ = std::make_shared<Memory>();
  Tensors& own_ = memory_->own;
  Tensors& results_ = memory_->results;
  std::vector<int32_t> order_;
};

}  // namespace dt::test
