// SPDX-License-Identifier: Apache-2.0
#include "training/outer.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/xxh64.h"
#include "kernels/host/cast.h"
#include "training/file_call.h"

namespace dt::training {
namespace {

using backend::Collective;
using backend::Kind;

constexpr int64_t kCutAt = 64;          // elements: fragments begin at multiples of it
constexpr int32_t kTags = 1 << 20;      // see Collective::tag
constexpr int64_t kCastAtOnce = 1'024;  // elements
constexpr char kOtherModel[] =
    "have different parameters or options; build the same model with the same options on every "
    "rank";

template <class T>
void add(Xxh64* hash, const T& value) {
  hash->update(&value, sizeof value);
}

}  // namespace

Outer::Outer(std::shared_ptr<comm::Communicator> comm, std::vector<OuterParam> params,
             Options options)
    : comm_(std::move(comm)), params_(std::move(params)), options_(options) {
  for (const OuterParam& param : params_) total_ += param.count;
}

template <class F>
void Outer::for_each_part(int64_t from, int64_t to, F&& function) const {
  int64_t start = 0;
  for (const OuterParam& param : params_) {
    const int64_t begin = std::max(from, start);
    const int64_t end = std::min(to, start + param.count);
    if (begin < end) function(param, begin - start, end - begin, begin);
    start += param.count;
  }
}

Result<std::unique_ptr<Outer>> Outer::create(std::shared_ptr<comm::Communicator> comm,
                                             std::vector<OuterParam> params, Options options) {
  DT_TRY(comm->check_ungrouped("dt_outer_create"));
  if (comm->backend().device() != nullptr) {
    return Status(Code::kUnsupported,
                  "dt_outer_create on comm \"" + comm->name() +
                      "\": parameters are in host memory for now; use a communicator over it");
  }
  std::unique_ptr<Outer> outer(new Outer(std::move(comm), std::move(params), options));
  DT_TRY(outer->check());
  outer->for_each_part(
      0, outer->total_, [&](const OuterParam& param, int64_t, int64_t count, int64_t at) {
        kernels::cast(param.dtype, param.data, Dtype::kF32, &outer->state_.global[at], count);
      });
  DT_TRY_VALUE(outer->mean_, outer->make_mean(*outer->comm_, "outer_create"));
  return outer;
}

Result<std::unique_ptr<OuterMean>> Outer::make_mean(comm::Communicator& comm,
                                                    const char* operation) const {
  int64_t largest = 0;
  for (int32_t fragment = 0; fragment < options_.fragments; ++fragment) {
    const auto [from, to] = range(fragment);
    largest = std::max(largest, to - from);
  }
  return OuterMean::create(comm, options_.format, largest, operation);
}

Status Outer::allocate(State* state) const {
  try {
    state->global.resize(static_cast<size_t>(total_));
    if (options_.momentum != 0) state->momentum.resize(state->global.size());
  } catch (const std::bad_alloc&) {
    return Status(Code::kOutOfMemory, format("no memory for the global values of %lld elements",
                                             static_cast<long long>(total_)));
  }
  return {};
}

int64_t Outer::digest_of_model() const {
  Xxh64 model;
  for (const OuterParam& param : params_) {
    add(&model, param.count);
    add(&model, param.dtype);
    model.update(param.name.data(), param.name.size());
  }
  add(&model, options_.sync_every);
  add(&model, options_.fragments);
  add(&model, options_.delay);
  for (const double each : {options_.alpha, options_.rate, options_.momentum}) add(&model, each);
  add(&model, options_.nesterov);
  add(&model, options_.format);
  return static_cast<int64_t>(model.digest());
}

/// That all ranks mean the same model, and begin with the same values.
Status Outer::check() {
  FileCall call(*comm_, "outer_create");
  DT_TRY(call.agree_on({allocate(&state_)}, digest_of_model(), kOtherModel));
  Xxh64 values;
  for (const OuterParam& param : params_) {
    values.update(param.data, static_cast<size_t>(param.count * dtype_bytes(param.dtype)));
  }
  return call.agree_on({}, static_cast<int64_t>(values.digest()),
                       "begin with different values; broadcast the parameters before");
}

std::pair<int64_t, int64_t> Outer::range(int32_t fragment) const {
  const int64_t lines = (total_ + kCutAt - 1) / kCutAt;
  const auto begin = [&](int64_t f) {
    return std::min(total_, lines / options_.fragments * f * kCutAt +
                                std::min<int64_t>(f, lines % options_.fragments) * kCutAt);
  };
  return {begin(fragment), begin(fragment + 1)};
}

Status Outer::begin(int32_t fragment) {
  const auto [from, to] = range(fragment);
  float* const difference = mean_->values();
  for_each_part(
      from, to,
      [&, from = from](const OuterParam& param, int64_t offset, int64_t count, int64_t at) {
        float local[kCastAtOnce];
        float global[kCastAtOnce];
        uint16_t rounded[kCastAtOnce];
        const int64_t element = dtype_bytes(param.dtype);
        for (int64_t i = 0; i < count; i += kCastAtOnce) {
          const int64_t here = std::min(kCastAtOnce, count - i);
          const float* const exact = &state_.global[static_cast<size_t>(at + i)];
          kernels::cast(param.dtype, static_cast<const char*>(param.data) + (offset + i) * element,
                        Dtype::kF32, local, here);
          if (param.dtype != Dtype::kF32) {
            kernels::cast(Dtype::kF32, exact, param.dtype, rounded, here);
            kernels::cast(param.dtype, rounded, Dtype::kF32, global, here);
          }
          const float* const reference = param.dtype != Dtype::kF32 ? global : exact;
          for (int64_t j = 0; j < here; ++j)
            difference[at - from + i + j] = reference[j] - local[j];
        }
      });
  DT_TRY(mean_->begin(to - from,
                      format("fragment %d at step %lld", fragment, static_cast<long long>(steps_)),
                      static_cast<int32_t>(steps_ % kTags)));
  pending_ = fragment;
  pending_to_ = steps_ + options_.delay;
  return {};
}

/// The mean is a gradient: SGD with momentum, as PyTorch has it.
Status Outer::end(double alpha, bool only_if_trained) {
  const auto [from, to] = range(std::exchange(pending_, -1));
  DT_TRY(mean_->end());
  const float* const gradient = mean_->values();
  if (only_if_trained && std::all_of(gradient, gradient + (to - from),
                                     [](float difference) { return difference == 0; })) {
    copy_from_global(from, to, alpha);
    return {};
  }
  const auto momentum = static_cast<float>(options_.momentum);
  const auto rate = static_cast<float>(options_.rate);
  for (int64_t i = from; i < to; ++i) {
    float step = gradient[i - from];
    if (!state_.momentum.empty()) {
      float& velocity = state_.momentum[static_cast<size_t>(i)];
      velocity = velocity * momentum + step;
      step = options_.nesterov ? step + momentum * velocity : velocity;
    }
    state_.global[static_cast<size_t>(i)] -= rate * step;
  }
  ++means_;
  copy_from_global(from, to, alpha);
  return {};
}

void Outer::copy_from_global(int64_t from, int64_t to, double alpha) {
  const auto kept = static_cast<float>(alpha);
  for_each_part(from, to, [&](const OuterParam& param, int64_t offset, int64_t count, int64_t at) {
    char* const local = static_cast<char*>(param.data) + offset * dtype_bytes(param.dtype);
    const float* const global = &state_.global[static_cast<size_t>(at)];
    if (alpha == 0) {
      kernels::cast(Dtype::kF32, global, param.dtype, local, count);
      return;
    }
    float mixed[kCastAtOnce];
    for (int64_t i = 0; i < count; i += kCastAtOnce) {
      const int64_t here = std::min(kCastAtOnce, count - i);
      char* const place = local + i * dtype_bytes(param.dtype);
      kernels::cast(param.dtype, place, Dtype::kF32, mixed, here);
      for (int64_t j = 0; j < here; ++j) {
        mixed[j] = kept * mixed[j] + (1 - kept) * global[i + j];
      }
      kernels::cast(Dtype::kF32, mixed, param.dtype, place, here);
    }
  });
}

Result<bool> Outer::step() {
  DT_TRY(comm_->check_ungrouped("dt_outer_step"));
  ++steps_;
  bool changed = false;
  if (pending_ >= 0 && steps_ >= pending_to_) {
    DT_TRY(end(options_.alpha));
    changed = true;
  } else if (pending_ >= 0) {
    mean_->advance();
  }
  if (steps_ % interval() != 0) return changed;
  DT_TRY(begin(static_cast<int32_t>((steps_ / interval() - 1) % options_.fragments)));
  if (options_.delay > 0) return changed;
  DT_TRY(end(options_.alpha));
  return true;
}

Status Outer::sync() {
  DT_TRY(comm_->check_ungrouped("dt_outer_sync"));
  if (pending_ >= 0) DT_TRY(end(options_.alpha));
  for (int32_t fragment = 0; fragment < options_.fragments; ++fragment) {
    DT_TRY(begin(fragment));
    // The momentum alone would move parameters that were synchronised already.
    DT_TRY(end(0, /*only_if_trained=*/true));
  }
  return {};
}

Status Outer::move(std::shared_ptr<comm::Communicator> comm) {
  DT_TRY(comm->check_ungrouped("dt_outer_move"));
  if (comm->backend().device() != nullptr) {
    return Status(Code::kUnsupported, "dt_outer_move: comm \"" + comm->name() +
                                          "\" is over GPUs; use one over host memory");
  }
  FileCall call(*comm, "outer_move");
  State found;
  DT_TRY(call.agree_on({allocate(&found)}, digest_of_model(), kOtherModel));
  DT_TRY_VALUE(auto mean, make_mean(*comm, "outer_move"));
  // Who has the most means; of several the first.
  int64_t ahead[] = {means_ * comm->size() + (comm->size() - 1 - comm->rank()), steps_};
  DT_TRY(call.reduce(ahead, ReduceOp::kMax));
  const int64_t means = ahead[0] / comm->size();
  const auto root = static_cast<int32_t>(comm->size() - 1 - ahead[0] % comm->size());
  if (comm->rank() == root) found = state_;
  for (std::vector<float>* each : {&found.global, &found.momentum}) {
    Collective broadcast;
    broadcast.kind = Kind::kBroadcast;
    broadcast.dtype = Dtype::kF32;
    broadcast.root = root;
    broadcast.send = broadcast.recv = each->data();
    broadcast.count = static_cast<int64_t>(each->size());
    broadcast.name = "global parameters";
    DT_TRY(comm->run(broadcast));
  }
  const bool is_behind = found.global != state_.global;
  state_ = std::move(found);
  mean_ = std::move(mean);
  comm_ = std::move(comm);
  pending_ = -1;
  means_ = means;
  steps_ = ahead[1];
  if (is_behind) copy_from_global(0, total_, 0);
  return {};
}

}  // namespace dt::training
