// SPDX-License-Identifier: Apache-2.0
#include "training/optimizer.h"

#include <algorithm>
#include <cmath>

#include "kernels/host/cast.h"
#include "kernels/host/optimize.h"

namespace dt::training {
namespace {

constexpr int64_t kWidened = 4096;  // elements of 16 bits that are widened at a time

constexpr int64_t kLineBytes = 64;  // of a cache, at which the arrays of the state begin

Dtype wide(Dtype dtype) { return dtype == Dtype::kF64 ? Dtype::kF64 : Dtype::kF32; }

}  // namespace

Result<std::unique_ptr<Optimizer>> Optimizer::create(std::shared_ptr<Shard> shard,
                                                     Options options) {
  const char* const kind = std::holds_alternative<Sgd>(options.kind) ? "sgd" : "adamw";
  const auto& params = shard->params();
  for (size_t i = 0; i < params.size(); ++i) {
    if (is_floating(params[i].dtype)) continue;
    return Status(Code::kUnsupported,
                  format("dt_optimizer_%s: parameter #%zu \"%s\" is of %s; an optimizer updates "
                         "floating-point numbers, so leave it out of the shard",
                         kind, i, params[i].name.c_str(), dtype_name(params[i].dtype)));
  }
  options.weight_decay.resize(params.size());
  std::unique_ptr<Optimizer> made(new Optimizer(std::move(shard), std::move(options)));
  DT_TRY(made->allocate().within(
      format("dt_optimizer_%s on comm \"%s\"", kind, made->shard_->comm()->name().c_str())));
  return made;
}

Status Optimizer::allocate() {
  const auto* sgd = std::get_if<Sgd>(&options_.kind);
  int64_t total = 0;
  std::vector<std::pair<char**, int64_t>> arrays;  // and where they begin
  for (size_t i = 0; i < states_.size(); ++i) {
    State& state = states_[i];
    const Dtype dtype = shard_->params()[i].dtype;
    const int64_t count = shard_->reducer()->result(static_cast<int32_t>(i)).count;
    const auto add = [&](char** array, bool wanted) {
      if (!wanted || count == 0) return;
      arrays.emplace_back(array, total);
      total += (count * dtype_bytes(wide(dtype)) + kLineBytes - 1) / kLineBytes * kLineBytes;
    };
    add(&state.first, sgd == nullptr || sgd->momentum != 0);
    add(&state.second, sgd == nullptr);
    add(&state.master, dtype != wide(dtype));
  }
  if (total == 0) return {};
  DT_TRY_VALUE(memory_, MappedMemory::create(total, shard_->offload()));
  for (const auto& [array, begin] : arrays) *array = memory_->data() + begin;
  return {};
}

Status Optimizer::step(double rate, cuda::Stream stream) {
  DT_TRY(shard_->comm()->check_ungrouped("dt_optimizer_step"));
  Reducer& reducer = *shard_->reducer();
  if (!reducer.has_results()) {
    return Status(Code::kInvalidState,
                  "dt_optimizer_step on comm \"" + shard_->comm()->name() +
                      "\": there are no gradients; call it between dt_reducer_finish and the "
                      "next step's first dt_reducer_ready");
  }
  for (int32_t i = 0; i < reducer.param_count(); ++i) {
    if (reducer.has_users() && !reducer.used(i).value()) continue;
    DT_TRY_VALUE(const Shard::Piece piece, shard_->piece(i, stream));
    if (piece.count > 0) update(i, piece, rate);
  }
  return shard_->updated(stream);
}

void Optimizer::update(int32_t index, const Shard::Piece& piece, double rate) {
  const Dtype dtype = shard_->params()[static_cast<size_t>(index)].dtype;
  State& state = states_[static_cast<size_t>(index)];
  ++state.steps;
  if (dtype == wide(dtype)) {
    update_wide(index, state, dtype, piece.param, piece.grad, 0, piece.count, rate);
    return;
  }
  auto* const master = reinterpret_cast<float*>(state.master);
  follow(index, piece);
  float gradient[kWidened];
  for (int64_t i = 0; i < piece.count; i += kWidened) {
    const int64_t here = std::min(kWidened, piece.count - i);
    const int64_t skipped = i * dtype_bytes(dtype);
    kernels::cast(dtype, static_cast<const char*>(piece.grad) + skipped, Dtype::kF32, gradient,
                  here);
    update_wide(index, state, Dtype::kF32, master + i, gradient, i, here, rate);
    kernels::cast(Dtype::kF32, master + i, dtype, static_cast<char*>(piece.param) + skipped, here);
  }
}

void Optimizer::follow(int32_t index, const Shard::Piece& piece) {
  State& state = states_[static_cast<size_t>(index)];
  if (state.master == nullptr) return;
  const Dtype dtype = shard_->params()[static_cast<size_t>(index)].dtype;
  const bool written =
      std::exchange(state.written_count, shard_->written_count()) != shard_->written_count();
  if (state.set_count != shard_->set_count(index)) {
    kernels::cast(dtype, piece.param, Dtype::kF32, state.master, piece.count);
    state.set_count = shard_->set_count(index);
  } else if (written) {
    follow_written(dtype, piece, reinterpret_cast<float*>(state.master));
  }
}

/// An element that is its f32 value, rounded, was not written, or to no effect.
void Optimizer::follow_written(Dtype dtype, const Shard::Piece& piece, float* master) {
  uint16_t rounded[kWidened];
  float wide[kWidened];
  const auto* const param = static_cast<const uint16_t*>(piece.param);
  for (int64_t i = 0; i < piece.count; i += kWidened) {
    const int64_t here = std::min(kWidened, piece.count - i);
    kernels::cast(Dtype::kF32, master + i, dtype, rounded, here);
    kernels::cast(dtype, param + i, Dtype::kF32, wide, here);
    for (int64_t j = 0; j < here; ++j) {
      if (rounded[j] != param[i + j]) master[i + j] = wide[j];
    }
  }
}

Optimizer::Held Optimizer::held(int32_t index, const Shard::Piece& piece) {
  follow(index, piece);
  const State& state = states_[static_cast<size_t>(index)];
  return {wide(shard_->params()[static_cast<size_t>(index)].dtype), state.first, state.second,
          state.master, state.steps};
}

void Optimizer::restored(int32_t index, int64_t steps, bool master) {
  State& state = states_[static_cast<size_t>(index)];
  state.steps = steps;
  state.set_count = master ? shard_->set_count(index) : -1;
  state.written_count = shard_->written_count();
}

/// Elements `begin` and on of the piece; `param` and `gradient` point at these.
void Optimizer::update_wide(int32_t index, State& state, Dtype dtype, void* param,
                            const void* gradient, int64_t begin, int64_t count, double rate) {
  const double decay = options_.weight_decay[static_cast<size_t>(index)];
  const int64_t skipped = begin * dtype_bytes(dtype);
  const auto times = static_cast<double>(state.steps);
  if (const auto* adamw = std::get_if<AdamW>(&options_.kind)) {
    kernels::AdamWStep step;
    step.first_share = 1 - adamw->beta1;
    step.second_kept = adamw->beta2;
    step.second_share = 1 - adamw->beta2;
    step.kept = 1 - rate * decay;
    step.rate = rate / (1 - std::pow(adamw->beta1, times));
    step.unbias = 1 / std::sqrt(1 - std::pow(adamw->beta2, times));
    step.epsilon = adamw->epsilon;
    kernels::adamw(dtype, step,
                   {param, gradient, state.first + skipped, state.second + skipped, count});
    return;
  }
  const Sgd& sgd = std::get<Sgd>(options_.kind);
  kernels::SgdStep step;
  step.decay = decay;
  step.momentum_kept = sgd.momentum;
  step.share = state.steps == 1 ? 1 : 1 - sgd.dampening;  // PyTorch begins with the gradient
  step.rate = rate;
  step.nesterov = sgd.nesterov;
  void* const momentum = state.first == nullptr ? nullptr : state.first + skipped;
  kernels::sgd(dtype, step, {param, gradient, momentum, count});
}

}  // namespace dt::training
