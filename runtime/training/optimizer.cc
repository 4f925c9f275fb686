// SPDX-License-Identifier: Apache-2.0
#include "training/optimizer.h"

#include <sched.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/host/cast.h"
#include "kernels/host/optimize.h"

namespace dt::training {
namespace {

constexpr int64_t kWidened = 4096;  // elements of 16 bits that are widened at a time

constexpr int64_t kLineBytes = 64;  // of a cache, at which the arrays of the state begin

constexpr size_t kMostLists = 64;          // that stay although other parameters have gradients now
constexpr int64_t kListsLimitMs = 60'000;  // what a GPU was given before ends sooner, or hangs

Dtype wide(Dtype dtype) { return dtype == Dtype::kF64 ? Dtype::kF64 : Dtype::kF32; }

}  // namespace

struct Optimizer::DeviceState {
  explicit DeviceState(std::shared_ptr<comm::Communicator> of, const StreamMarks& marks_of)
      : comm(std::move(of)), kernels(comm->backend().kernels()), marks(marks_of) {}

  struct List {
    std::vector<kernels::UpdatedTensor> tensors;
    std::shared_ptr<kernels::UpdateList> list;
    MarkPtr used;  // behind the last kernel that uses it; null: not marked yet
  };

  bool passed(const List& list) const {
    if (list.used == nullptr) return false;
    const Result<bool> passed = marks.passed(*list.used);
    return passed.ok() && passed.value();
  }
  /// Waits until the GPU uses no list any more. `unmarked`: nor one whose kernels are not marked
  /// yet.
  bool await_all(Deadline deadline, bool unmarked) const {
    const auto is_free = [&](const List& each) {
      return (each.used == nullptr && !unmarked) || passed(each);
    };
    while (!std::all_of(lists.begin(), lists.end(), is_free)) {
      if (deadline.passed()) return false;
      sched_yield();
    }
    return true;
  }
  /// The list of these tensors, for kernels that the caller enqueues next.
  Result<List*> list_of(const std::vector<kernels::UpdatedTensor>& tensors, Dtype dtype) {
    auto found = std::find_if(lists.begin(), lists.end(),
                              [&](const List& each) { return each.tensors == tensors; });
    if (found == lists.end()) {
      if (lists.size() >= 2 * kMostLists) {
        (void)await_all(Deadline::after_ms(kListsLimitMs), /*unmarked=*/false);
      }
      if (lists.size() >= kMostLists) {
        std::erase_if(lists, [&](const List& each) { return passed(each); });
      }
      DT_TRY_VALUE(auto list, kernels->prepare_update(tensors, dtype));
      lists.push_back({tensors, std::move(list), nullptr});
      found = std::prev(lists.end());
    }
    found->used = nullptr;
    return &*found;
  }

  const std::shared_ptr<comm::Communicator> comm;
  const std::shared_ptr<kernels::TensorKernels> kernels;
  const StreamMarks marks;
  std::vector<List> lists;
  void* memory = nullptr;
};

Optimizer::Optimizer(std::shared_ptr<Shard> shard, Options options)
    : shard_(std::move(shard)), options_(std::move(options)), states_(shard_->params().size()) {}

Optimizer::~Optimizer() {
  if (device_ == nullptr) return;
  // What the GPU still uses then stays with the communicator.
  if (!device_->await_all(Deadline::after_ms(kLastStepMs), /*unmarked=*/true)) {
    using Lists = std::vector<DeviceState::List>;
    device_->comm->backend().keep(std::make_shared<Lists>(std::move(device_->lists)));
    if (skipped_ != nullptr) skipped_->leave();
    return;
  }
  (void)device_->comm->backend().release(device_->memory);
}

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
    const int64_t count = shard_->reducer()->count(static_cast<int32_t>(i));
    const auto add = [&](char** array, bool wanted) {
      if (!wanted || count == 0) return;
      arrays.emplace_back(array, total);
      total += (count * dtype_bytes(wide(dtype)) + kLineBytes - 1) / kLineBytes * kLineBytes;
    };
    add(&state.first, sgd == nullptr || sgd->momentum != 0);
    add(&state.second, sgd == nullptr);
    add(&state.master, dtype != wide(dtype));
  }
  if (shard_->device() != nullptr && shard_->offload().empty()) {
    device_ = std::make_unique<DeviceState>(shard_->comm(), shard_->marks());
  } else if (shard_->device() != nullptr) {
    DT_TRY_VALUE(pipe_, DevicePipe::create(shard_->comm()));
  }
  if (options_.skip_non_finite) {
    DT_TRY_VALUE(skipped_, SkippedSteps::create(shard_->comm(), [this](int slot, bool skipped) {
                   learned(slot, skipped);
                 }));
  }
  if (total == 0) return {};
  DT_TRY_VALUE(char* const memory, allocate_state(total));
  for (const auto& [array, begin] : arrays) *array = memory + begin;
  return {};
}

Result<char*> Optimizer::allocate_state(int64_t bytes) {
  if (device_ != nullptr) {
    DT_TRY_VALUE(device_->memory, device_->comm->backend().allocate(bytes));
    return static_cast<char*>(device_->memory);
  }
  DT_TRY_VALUE(memory_, MappedMemory::create(bytes, shard_->offload()));
  return memory_->data();
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
  // Before anything is enqueued.
  DT_TRY(shard_->check_stream_of_all("dt_optimizer_step", stream));
  const Status updated = update_all(rate, stream);
  if (!updated.ok()) return shard_->fail(updated);  // the others go on to updated()
  return shard_->updated(stream);
}

Status Optimizer::update_all(double rate, cuda::Stream stream) {
  Reducer& reducer = *shard_->reducer();
  bool skips = false;
  DT_TRY_VALUE(const kernels::StepGuard guard, this->guard(stream, &skips));
  if (skips) return {};
  std::vector<Alike> alike;
  std::vector<int32_t> offloaded;
  for (int32_t i = 0; i < reducer.param_count(); ++i) {
    if (reducer.has_users() && !reducer.used(i).value()) continue;
    DT_TRY_VALUE(const Shard::Piece piece, shard_->piece(i, stream));
    if (piece.count == 0) continue;
    if (device_ != nullptr) {
      group(i, piece, guard, &alike);
    } else if (pipe_ != nullptr) {
      offloaded.push_back(i);
    } else {
      ++states_[static_cast<size_t>(i)].steps;
      update(i, take_follows(i), piece.param, piece.grad, 0, piece.count, rate);
    }
  }
  if (device_ != nullptr) return launch(alike, guard, rate, stream);
  if (pipe_ == nullptr) return {};
  DT_TRY(update_offloaded(offloaded, rate, stream));
  return shard_->check_whole();  // the GPU goes on behind what has failed
}

Result<kernels::StepGuard> Optimizer::guard(cuda::Stream stream, bool* skips) {
  if (skipped_ == nullptr) return kernels::StepGuard();
  Reducer& reducer = *shard_->reducer();
  DT_TRY(reducer.find_norm(stream));
  if (shard_->device() == nullptr) {
    *skips = !std::isfinite(reducer.norm());
    skipped_->add(*skips);
    return kernels::StepGuard();
  }
  DT_TRY_VALUE(const kernels::StepGuard guard, skipped_->add(reducer.norm_on_device(), stream));
  if (device_ != nullptr) return guard;
  DT_TRY_VALUE(const int64_t before, skipped_->count(1));
  DT_TRY_VALUE(const int64_t now, skipped_->count(0));
  *skips = now > before;
  return kernels::StepGuard();
}

void Optimizer::learned(int slot, bool skipped) {
  const uint32_t bit = uint32_t{1} << slot;
  for (State& state : states_) {
    if (skipped && (state.unknown & bit) != 0) --state.steps;
    state.unknown &= ~bit;
  }
}

kernels::UpdatedTensor Optimizer::arrays_of(int32_t index, const Shard::Piece& piece) const {
  const State& state = states_[static_cast<size_t>(index)];
  return {piece.param, piece.grad, state.first, state.second, state.master, piece.count};
}

void Optimizer::group(int32_t index, const Shard::Piece& piece, const kernels::StepGuard& guard,
                      std::vector<Alike>* alike) {
  const Dtype dtype = shard_->params()[static_cast<size_t>(index)].dtype;
  const double decay = options_.weight_decay[static_cast<size_t>(index)];
  State& state = states_[static_cast<size_t>(index)];
  const int64_t steps = ++state.steps;
  const uint32_t earlier = state.unknown;
  if (guard.norms != nullptr) state.unknown |= uint32_t{1} << guard.own;
  const Follows follows = take_follows(index);
  auto same = std::find_if(alike->begin(), alike->end(), [&](const Alike& each) {
    return each.dtype == dtype && each.decay == decay && each.steps == steps &&
           each.earlier == earlier && each.follows == follows;
  });
  if (same == alike->end()) same = alike->insert(same, {dtype, decay, steps, earlier, follows, {}});
  same->tensors.push_back(arrays_of(index, piece));
}

/// Lists are marked behind all kernels, also where one could not be enqueued.
Status Optimizer::launch(const std::vector<Alike>& alike, kernels::StepGuard guard, double rate,
                         cuda::Stream stream) {
  kernels::TensorKernels& kernels = *device_->kernels;
  std::vector<const kernels::UpdateList*> lists;
  for (const Alike& each : alike) {
    DT_TRY_VALUE(const auto* const list, device_->list_of(each.tensors, each.dtype));
    lists.push_back(list->list.get());
  }
  Status launched;
  for (size_t i = 0; launched.ok() && i < alike.size(); ++i) {
    const Alike& each = alike[i];
    if (each.follows != Follows::kNothing) {
      launched = kernels.follow(*lists[i], each.follows == Follows::kSet, stream);
    }
    if (!launched.ok()) break;
    guard.earlier = each.earlier;
    // By how many of the earlier steps were skipped.
    const auto steps = [&](auto step_after) {
      std::vector<decltype(step_after(int64_t{1}))> made;
      for (int k = 0; k <= std::popcount(each.earlier); ++k)
        made.push_back(step_after(each.steps - k));
      return made;
    };
    const auto adamw = [&](int64_t count) { return adamw_step(count, each.decay, rate); };
    const auto sgd = [&](int64_t count) { return sgd_step(count, each.decay, rate); };
    launched =
        std::holds_alternative<Sgd>(options_.kind)
            ? kernels.sgd(*lists[i], std::span<const kernels::SgdStep>(steps(sgd)), guard, stream)
            : kernels.adamw(*lists[i], std::span<const kernels::AdamWStep>(steps(adamw)), guard,
                            stream);
  }
  DT_TRY_VALUE(const MarkPtr behind, shard_->marks().set(stream));
  for (DeviceState::List& each : device_->lists) {
    const bool used = std::find(lists.begin(), lists.end(), each.list.get()) != lists.end();
    if (used) each.used = behind;
  }
  return launched;
}

Status Optimizer::update_offloaded(const std::vector<int32_t>& indices, double rate,
                                   cuda::Stream stream) {
  struct Place {
    int32_t index = 0;
    Follows follows = Follows::kNothing;
    int64_t begin = 0;  // elements of the piece
    int64_t count = 0;
    char* param = nullptr;  // of these elements
  };
  const bool in_pipe = !shard_->keeps_pieces_on_host();
  std::vector<DevicePipe::Part> parts;
  std::vector<Place> places;
  for (const int32_t index : indices) {
    DT_TRY_VALUE(const Shard::Piece piece, shard_->piece(index, stream));
    const Dtype dtype = shard_->params()[static_cast<size_t>(index)].dtype;
    const int64_t element = dtype_bytes(dtype);
    const int64_t most = DevicePipe::kPartBytes / element;
    const Follows follows = take_follows(index);
    ++states_[static_cast<size_t>(index)].steps;
    for (int64_t begin = 0; begin < piece.count; begin += most) {
      const int64_t count = std::min(most, piece.count - begin);
      DevicePipe::Part part;
      part.data = static_cast<char*>(piece.param) + begin * element;
      part.beside = static_cast<const char*>(piece.grad) + begin * element;
      part.bytes = count * element;
      part.down = in_pipe && (dtype == wide(dtype) || follows != Follows::kNothing);
      part.up = in_pipe;
      parts.push_back(part);
      places.push_back({index, follows, begin, count, static_cast<char*>(part.data)});
    }
  }
  return pipe_->run(parts, stream, [&](size_t part, char* param, char* gradient) {
    const Place& place = places[part];
    char* const updated = in_pipe ? param : place.param;
    update(place.index, place.follows, updated, gradient, place.begin, place.count, rate);
    return Status();
  });
}

void Optimizer::update(int32_t index, Follows follows, void* param, const void* gradient,
                       int64_t begin, int64_t count, double rate) {
  const Dtype dtype = shard_->params()[static_cast<size_t>(index)].dtype;
  State& state = states_[static_cast<size_t>(index)];
  if (dtype == wide(dtype)) {
    update_wide(index, state, dtype, param, gradient, begin, count, rate);
    return;
  }
  follow_on_host(index, follows, param, begin, count);
  auto* const master = reinterpret_cast<float*>(state.master) + begin;
  float widened[kWidened];
  for (int64_t i = 0; i < count; i += kWidened) {
    const int64_t here = std::min(kWidened, count - i);
    const int64_t skipped = i * dtype_bytes(dtype);
    kernels::cast(dtype, static_cast<const char*>(gradient) + skipped, Dtype::kF32, widened, here);
    update_wide(index, state, Dtype::kF32, master + i, widened, begin + i, here, rate);
    kernels::cast(Dtype::kF32, master + i, dtype, static_cast<char*>(param) + skipped, here);
  }
}

Optimizer::Follows Optimizer::take_follows(int32_t index) {
  State& state = states_[static_cast<size_t>(index)];
  if (state.master == nullptr) return Follows::kNothing;
  const bool written =
      std::exchange(state.written_count, shard_->written_count()) != shard_->written_count();
  const bool set =
      std::exchange(state.set_count, shard_->set_count(index)) != shard_->set_count(index);
  return set ? Follows::kSet : written ? Follows::kWritten : Follows::kNothing;
}

Status Optimizer::follow(int32_t index, const Shard::Piece& piece, cuda::Stream stream) {
  const Follows follows = take_follows(index);
  if (follows == Follows::kNothing) return {};
  Status followed = follow(index, piece, follows, stream);
  if (!followed.ok()) states_[static_cast<size_t>(index)].set_count = -1;  // next time, then
  return followed;
}

Status Optimizer::follow(int32_t index, const Shard::Piece& piece, Follows follows,
                         cuda::Stream stream) {
  const Dtype dtype = shard_->params()[static_cast<size_t>(index)].dtype;
  if (device_ != nullptr) {
    kernels::UpdatedTensor arrays = arrays_of(index, piece);
    arrays.gradient = arrays.param;  // there may be none now, and it is not read
    DT_TRY_VALUE(auto* const list, device_->list_of({arrays}, dtype));
    DT_TRY(device_->kernels->follow(*list->list, follows == Follows::kSet, stream));
    DT_TRY_VALUE(list->used, shard_->marks().set(stream));
    return {};
  }
  if (pipe_ == nullptr) {
    follow_on_host(index, follows, piece.param, 0, piece.count);
    return {};
  }
  const int64_t element = dtype_bytes(dtype);
  const bool in_pipe = !shard_->keeps_pieces_on_host();
  std::vector<DevicePipe::Part> parts;
  for (int64_t begin = 0; begin < piece.count * element; begin += DevicePipe::kPartBytes) {
    const int64_t bytes = std::min(piece.count * element - begin, DevicePipe::kPartBytes);
    parts.push_back({static_cast<char*>(piece.param) + begin, nullptr, bytes, in_pipe, false});
  }
  return pipe_->run(parts, stream, [&](size_t part, char* param, char*) {
    const int64_t begin = static_cast<int64_t>(part) * (DevicePipe::kPartBytes / element);
    const void* const from = in_pipe ? param : parts[part].data;
    follow_on_host(index, follows, from, begin, parts[part].bytes / element);
    return Status();
  });
}

void Optimizer::follow_on_host(int32_t index, Follows follows, const void* param, int64_t begin,
                               int64_t count) {
  const Dtype dtype = shard_->params()[static_cast<size_t>(index)].dtype;
  auto* const master = reinterpret_cast<float*>(states_[static_cast<size_t>(index)].master) + begin;
  if (follows == Follows::kSet) kernels::cast(dtype, param, Dtype::kF32, master, count);
  if (follows == Follows::kWritten) follow_written(dtype, param, master, count);
}

/// An element that is its f32 value, rounded, was not written, or to no effect.
void Optimizer::follow_written(Dtype dtype, const void* values, float* master, int64_t count) {
  uint16_t rounded[kWidened];
  float wide[kWidened];
  const auto* const param = static_cast<const uint16_t*>(values);
  for (int64_t i = 0; i < count; i += kWidened) {
    const int64_t here = std::min(kWidened, count - i);
    kernels::cast(Dtype::kF32, master + i, dtype, rounded, here);
    kernels::cast(dtype, param + i, Dtype::kF32, wide, here);
    for (int64_t j = 0; j < here; ++j) {
      if (rounded[j] != param[i + j]) master[i + j] = wide[j];
    }
  }
}

Result<Optimizer::Held> Optimizer::held(int32_t index, const Shard::Piece& piece,
                                        cuda::Stream stream) {
  if (piece.count > 0) DT_TRY(follow(index, piece, stream));
  const State& state = states_[static_cast<size_t>(index)];
  return Held{wide(shard_->params()[static_cast<size_t>(index)].dtype), state.first, state.second,
              state.master};
}

void Optimizer::restored(int32_t index, int64_t steps, bool master) {
  State& state = states_[static_cast<size_t>(index)];
  state.steps = steps;
  state.unknown = 0;
  state.set_count = master ? shard_->set_count(index) : -1;
  state.written_count = shard_->written_count();
}

/// Elements `begin` and on of the piece; `param` and `gradient` point at these.
void Optimizer::update_wide(int32_t index, State& state, Dtype dtype, void* param,
                            const void* gradient, int64_t begin, int64_t count, double rate) {
  const double decay = options_.weight_decay[static_cast<size_t>(index)];
  const int64_t skipped = begin * dtype_bytes(dtype);
  if (std::holds_alternative<AdamW>(options_.kind)) {
    kernels::adamw(dtype, adamw_step(state.steps, decay, rate),
                   {param, gradient, state.first + skipped, state.second + skipped, count});
    return;
  }
  void* const momentum = state.first == nullptr ? nullptr : state.first + skipped;
  kernels::sgd(dtype, sgd_step(state.steps, decay, rate), {param, gradient, momentum, count});
}

kernels::AdamWStep Optimizer::adamw_step(int64_t steps, double decay, double rate) const {
  const AdamW& adamw = std::get<AdamW>(options_.kind);
  const auto times = static_cast<double>(steps);
  kernels::AdamWStep step;
  step.first_share = 1 - adamw.beta1;
  step.second_kept = adamw.beta2;
  step.second_share = 1 - adamw.beta2;
  step.kept = 1 - rate * decay;
  step.rate = rate / (1 - std::pow(adamw.beta1, times));
  step.unbias = 1 / std::sqrt(1 - std::pow(adamw.beta2, times));
  step.epsilon = adamw.epsilon;
  return step;
}

kernels::SgdStep Optimizer::sgd_step(int64_t steps, double decay, double rate) const {
  const Sgd& sgd = std::get<Sgd>(options_.kind);
  kernels::SgdStep step;
  step.decay = decay;
  step.momentum_kept = sgd.momentum;
  step.share = steps == 1 ? 1 : 1 - sgd.dampening;  // PyTorch begins with the gradient
  step.rate = rate;
  step.nesterov = sgd.nesterov;
  return step;
}

}  // namespace dt::training
