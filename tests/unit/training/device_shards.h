// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <limits>
#include <optional>
#include <set>

#include "device_trainer.h"
#include "training/optimizer.h"
#include "training/shard.h"
#include "training/shard_checkpoint.h"

namespace dt::test {

/// A training loop over a shard, on a GPU made of threads or in host memory. Gradients depend on
/// the parameters, so that one that comes too early or too late is seen.
class ShardTrainer {
 public:
  struct Options {
    training::Shard::Options shard;
    std::variant<training::AdamW, training::Sgd> optimizer = training::AdamW{};
    double decay = 0.01;  ///< of parameters with an even index
    bool on_host = false;
    bool in_place = false;  ///< gradients are written where dt_reducer_grad() says
    int passes = 1;         ///< that gradients are accumulated over
    double max_norm = 0;    ///< 0: not clipped
    double norm_type = 2;
    bool skip_non_finite = false;
    std::set<int64_t> bad_steps = {};  ///< in which one rank has a gradient that is not finite
    /// Empty: none are.
    std::function<bool(int64_t step, size_t param)> is_unused = {};
  };

  static std::vector<training::Param> model(bool integers_too = false) {
    std::vector<std::pair<Dtype, int64_t>> described = {
        {Dtype::kF32, 700}, {Dtype::kF32, 1},   {Dtype::kBf16, 333}, {Dtype::kF32, 0},
        {Dtype::kF64, 250}, {Dtype::kF16, 401}, {Dtype::kF32, 1200}, {Dtype::kBf16, 64},
        {Dtype::kF32, 90},  {Dtype::kF32, 515},
    };
    if (integers_too) described.emplace_back(Dtype::kI32, 300);
    auto params = params_of(described);
    for (size_t p = 0; p < params.size(); ++p) params[p].unit = static_cast<int32_t>(p / 3);
    return params;
  }
  static training::Shard::Options options(int32_t stage, bool sum = false) {
    training::Shard::Options made;
    made.stage = stage;
    made.reducer = small_buckets(sum);
    made.reducer.bucket_cap_bytes = 3'000;
    return made;
  }

  ShardTrainer(const GpuRank* rank, std::vector<training::Param> params, Options options)
      : rank_(rank), params_(std::move(params)), options_(std::move(options)) {
    rank->memory->push_back(memory_);
    for (const training::Param& param : params_) {
      const auto bytes = static_cast<size_t>(param.count * dtype_bytes(param.dtype));
      memory_->gradients.emplace_back(bytes);
      memory_->values.emplace_back(bytes);
      units_ = std::max(units_, param.unit + 1);
    }
    comm_ = options_.on_host ? host_comm(*rank) : rank->comm;
    auto made = training::Shard::create(comm_, params_, options_.shard);
    created_ = made.status();
    if (!created_.ok()) return;
    shard_ = std::move(made).value();
    training::Optimizer::Options how;
    how.kind = options_.optimizer;
    how.skip_non_finite = options_.skip_non_finite;
    for (size_t p = 0; p < params_.size(); ++p) {
      how.weight_decay.push_back(p % 2 == 0 ? options_.decay : 0);
    }
    auto optimizer = training::Optimizer::create(shard_, std::move(how));
    if (optimizer.ok()) optimizer_ = std::move(optimizer).value();
  }

  const Status& created() const { return created_; }
  training::Shard& shard() { return *shard_; }
  training::Reducer& reducer() { return *shard_->reducer(); }
  training::Optimizer* optimizer() { return optimizer_.get(); }
  const Tensors& values() const { return memory_->values; }
  float norm() const { return memory_->norm; }
  void drop() {
    optimizer_ = nullptr;
    shard_ = nullptr;
  }

  /// A kernel of the stream.
  void launch(cuda::Stream stream, std::function<void()> kernel) {
    if (options_.on_host) return kernel();
    rank_->expect_ok(rank_->cuda->launch(stream, std::move(kernel)), "launch");
  }
  Status set_all(cuda::Stream stream) {
    for (size_t p = 0; p < params_.size(); ++p) {
      // A copy of the fake GPU does not wait for the stream, as one of CUDA does.
      std::vector<char>& values = memory_->first.emplace_back(memory_->values[p].size());
      fill(params_[p].dtype, values.data(), params_[p].count, 1, 2, p);
      DT_TRY(shard_->set(static_cast<int32_t>(p), values.data(), stream));
    }
    return shard_->updated(stream);
  }
  /// The gradient of a parameter, from its values now.
  void compute(int64_t step, size_t p, int pass, void* to, cuda::Stream stream) {
    const auto index = static_cast<int32_t>(p);
    const Result<void*> from = shard_->param(index);
    rank_->expect_ok(from.status(), "param");
    if (!from.ok()) return;
    const bool is_bad = options_.bad_steps.count(step) > 0 && rank_->rank == step % rank_->size &&
                        p == kBadParams[step % 4];
    launch(stream, [=, param = params_[p], me = rank_->rank, from = from.value()] {
      with_dtype(param.dtype, [&](auto element) {
        using T = decltype(element);
        using A = Arithmetic<T>;
        for (int64_t i = 0; i < param.count; ++i) {
          const auto value = static_cast<double>(load<T>(from, i));
          const auto given_now = static_cast<double>(given(step + pass, me, p, i)) - 32;
          test::store<T>(to, i, static_cast<A>(given_now / 8 + std::trunc(value * 16) / 16));
        }
        if (!is_bad || param.count == 0) return;
        using Limits = std::numeric_limits<A>;
        test::store<T>(to, param.count / 2,
                       step % 2 == 0 ? Limits::infinity() : Limits::quiet_NaN());
      });
    });
  }
  Status give(int64_t step, size_t p, int pass, cuda::Stream stream) {
    const auto index = static_cast<int32_t>(p);
    if (options_.in_place) {
      // Parts after the first are added by the reducer, from outside.
      if (pass == 0) {
        DT_TRY_VALUE(void* const place, reducer().grad(index, stream));
        compute(step, p, pass, place, stream);
        return reducer().ready(index, nullptr, stream);
      }
    }
    compute(step, p, pass, memory_->gradients[p].data(), stream);
    return reducer().ready(index, memory_->gradients[p].data(), stream);
  }
  Status pass_forward(cuda::Stream stream) {
    for (int32_t unit = 0; unit < units_; ++unit) {
      DT_TRY(shard_->gather(unit, stream));
      DT_TRY(shard_->release(unit, stream));
    }
    return {};
  }
  Status pass_backward(int64_t step, int pass, cuda::Stream stream) {
    for (int32_t unit = units_; unit-- > 0;) {
      DT_TRY(shard_->gather(unit, stream));
      for (size_t p = params_.size(); p-- > 0;) {
        if (params_[p].unit != unit) continue;
        if (options_.is_unused && options_.is_unused(step, p)) {
          DT_TRY(reducer().unused(static_cast<int32_t>(p), nullptr, stream));
        } else {
          DT_TRY(give(step, p, pass, stream));
        }
      }
      DT_TRY(shard_->release(unit, stream));
    }
    return {};
  }
  /// Up to the results of the reducer.
  Status gradients(int64_t step, cuda::Stream stream) {
    for (int pass = 0; pass < options_.passes; ++pass) {
      reducer().accumulate(pass + 1 < options_.passes);
      DT_TRY(pass_forward(stream));
      DT_TRY(pass_backward(step, pass, stream));
    }
    DT_TRY(reducer().finish(stream));
    if (options_.max_norm > 0) {
      DT_TRY(reducer().clip_norm(options_.max_norm, options_.norm_type, stream, &memory_->norm));
    }
    return {};
  }
  Status step(int64_t number, cuda::Stream stream) {
    DT_TRY(gradients(number, stream));
    return optimizer_->step(0.125, stream);
  }
  /// Copies the whole parameters to values().
  Status read(cuda::Stream stream) {
    for (int32_t unit = 0; unit < units_; ++unit) {
      DT_TRY(shard_->gather(unit, stream));
      for (size_t p = 0; p < params_.size(); ++p) {
        if (params_[p].unit != unit) continue;
        DT_TRY_VALUE(void* const from, shard_->param(static_cast<int32_t>(p)));
        launch(stream, [from, to = &memory_->values[p]] {
          if (!to->empty()) memcpy(to->data(), from, to->size());
        });
      }
      DT_TRY(shard_->release(unit, stream));
    }
    if (options_.on_host || rank_->cuda->finish(stream)) return {};
    return Status(Code::kTimeout, "the stream does not end");
  }
  /// Whole training; what came of it is in values().
  Status train(int steps, cuda::Stream stream) {
    DT_TRY(created_);
    DT_TRY(set_all(stream));
    for (int64_t number = 0; number < steps; ++number) DT_TRY(step(number, stream));
    return read(stream);
  }

 private:
  static constexpr size_t kBadParams[] = {0, 1, 2, 4};  // in turn

  const GpuRank* const rank_;
  const std::vector<training::Param> params_;
  const Options options_;
  int32_t units_ = 0;
  // Kernels may still be in it when this is gone.
  struct Memory {
    Tensors gradients;
    Tensors values;
    std::deque<std::vector<char>> first;
    float norm = 0;
  };
  const std::shared_ptr<Memory> memory_ = std::make_shared<Memory>();
  Status created_;
  std::shared_ptr<comm::Communicator> comm_;
  std::shared_ptr<training::Shard> shard_;
  std::unique_ptr<training::Optimizer> optimizer_;
};

inline ShardTrainer::Options at_stage(int32_t stage) {
  ShardTrainer::Options options;
  options.shard = ShardTrainer::options(stage);
  return options;
}

/// The parameters after some steps.
inline Tensors trained(const GpuRank& rank, const std::vector<training::Param>& params,
                       const ShardTrainer::Options& options, int steps, cuda::Stream stream,
                       float* norm = nullptr) {
  ShardTrainer trainer(&rank, params, options);
  rank.expect_ok(trainer.train(steps, stream), format("stage %d", options.shard.stage));
  if (norm != nullptr) *norm = trainer.norm();
  return trainer.values();
}

}  // namespace dt::test
