// SPDX-License-Identifier: Apache-2.0
#include "training/power_sgd.h"

#include <algorithm>

#include "kernels/host/low_rank.h"

namespace dt::training {
namespace {

constexpr int64_t kGradientBytes = 256;  // they begin at multiples of it
constexpr int64_t kGradientCount = kGradientBytes / static_cast<int64_t>(sizeof(float));

int64_t round_up_to(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

/// The finalizer of SplitMix64: each bit of the input changes half of the bits.
uint64_t mixed_bits(uint64_t bits) {
  bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9U;
  bits = (bits ^ bits >> 27) * 0x94d049bb133111ebU;
  return bits ^ bits >> 31;
}

}  // namespace

PowerSgd::PowerSgd(std::shared_ptr<comm::Communicator> comm, std::vector<Matrix> matrices,
                   const Options& options)
    : comm_(std::move(comm)),
      kernels_(comm_->backend().device() != nullptr ? comm_->backend().kernels()
                                                    : kernels::host_low_rank_kernels()),
      matrices_(std::move(matrices)),
      options_(options),
      places_(matrices_.size()),
      drawn_(matrices_.size()) {}

Result<std::shared_ptr<PowerSgd>> PowerSgd::create(std::shared_ptr<comm::Communicator> comm,
                                                   std::vector<Matrix> matrices,
                                                   const Options& options) {
  std::shared_ptr<PowerSgd> made(new PowerSgd(std::move(comm), std::move(matrices), options));
  DT_TRY(made->allocate());
  return made;
}

/// The plan of buckets may change, so what travels has room for all of them in any plan.
Status PowerSgd::allocate() {
  int64_t first = 0;
  int64_t second = 0;
  int64_t whole = 0;  // what no step compresses
  int64_t all = 0;
  for (size_t i = 0; i < matrices_.size(); ++i) {
    const auto [n, m, dtype] = matrices_[i];
    if (dtype == Dtype::kF32) all += n * m + kGradientCount;
    if (!compresses(i)) {
      if (dtype == Dtype::kF32) whole += n * m + kGradientCount;
      continue;
    }
    Place& place = places_[i];
    place.error = state_count_;
    place.error_count = options_.error_feedback ? n * m : 0;
    place.q = place.error + round_up_to(place.error_count, kGradientCount);
    place.q_count = options_.rank * m;
    state_count_ = place.q + round_up_to(place.q_count, kGradientCount);
    first += options_.rank * n + kGradientCount;  // each may be the first of a bucket
    second += options_.rank * m + kGradientCount;
  }
  int64_t narrow = 0;
  if (options_.wire) {
    narrow = std::max(whole + first + second, options_.start_step > 0 ? all : 0);
  } else if (state_count_ > 0) {
    first += whole;
  }
  first = round_up_to(first, kGradientCount);
  second = round_up_to(second, kGradientCount);
  const int64_t total = state_count_ + first + second + (narrow + 1) / 2;
  DT_TRY_VALUE(memory_, PowerSgdMemory::create(comm_, total));
  if (total == 0) return {};
  first_ = memory_->data() + state_count_;
  second_ = first_ + first;
  narrow_ = reinterpret_cast<char*>(second_ + second);
  return {};
}

bool PowerSgd::compresses(size_t param) const {
  const auto [n, m, dtype] = matrices_[param];
  if (dtype != Dtype::kF32 || n < 2 || m < 2) return false;
  const double sent = static_cast<double>(n + m) * options_.rank;
  return options_.rank <= std::min(n, m) &&
         static_cast<double>(n) * static_cast<double>(m) >= options_.min_compression * sent;
}

/// Differs from step to step, so that columns drawn anew in place of lost ones are not lost again
/// for the same reason.
uint64_t PowerSgd::seed_of(size_t param) const {
  const auto step = static_cast<uint64_t>(step_);
  return mixed_bits(mixed_bits(mixed_bits(options_.seed) ^ param) ^ step);
}

Result<HookWork> PowerSgd::run(const HookBucket& bucket, int32_t stage) {
  if (stage == 0 && bucket.index == 0) {
    ++step_;
    first_used_ = second_used_ = narrow_used_bytes_ = 0;
  }
  const auto index = static_cast<size_t>(bucket.index);
  if (steps_.size() <= index) steps_.resize(index + 1);
  Step& step = steps_[index];
  if (stage == 0) {
    step.plain = step_ < options_.start_step ||
                 std::none_of(bucket.params.begin(), bucket.params.end(), [&](int32_t param) {
                   return compresses(static_cast<size_t>(param));
                 });
    step.as_is = step.plain && !(options_.wire && bucket.dtype == Dtype::kF32);
    if (step.as_is) {
      return average(bucket.data, bucket.count, bucket.dtype, "bucket", bucket.stream);
    }
    return send_left(bucket, &step);
  }
  if (step.as_is) return HookWork{};
  DT_TRY(widen(bucket.stream, &step));
  if (!step.plain && stage == 1) return send_right(bucket, &step);
  if (!step.plain) DT_TRY(kernels_->restore(step.matrices, options_.rank, bucket.stream));
  DT_TRY(memory_->end_use(bucket.stream));
  return HookWork{};
}

Result<HookWork> PowerSgd::average(void* data, int64_t count, Dtype dtype, const char* name,
                                   cuda::Stream stream) {
  backend::Collective collective;
  collective.kind = backend::Kind::kAllreduce;
  collective.dtype = dtype;
  collective.op = ReduceOp::kAvg;
  collective.send = data;
  collective.recv = data;
  collective.count = count;
  collective.name = name;
  collective.stream = stream;
  HookWork started{comm_, comm_->new_work()};
  DT_TRY(comm_->submit(collective, started.work));
  return started;
}

Result<HookWork> PowerSgd::average_narrow(const char* name, cuda::Stream stream, Step* step) {
  const Dtype dtype = *options_.wire;
  step->narrow = narrow_ + narrow_used_bytes_;
  char* to = step->narrow;
  for (const auto& [data, count] : step->sources) {
    DT_TRY(kernels_->cast(data, Dtype::kF32, to, dtype, count, stream));
    to += count * dtype_bytes(dtype);
  }
  const int64_t count = (to - step->narrow) / dtype_bytes(dtype);
  narrow_used_bytes_ += round_up_to(count, kGradientCount) * dtype_bytes(dtype);
  return average(step->narrow, count, dtype, name, stream);
}

Status PowerSgd::widen(cuda::Stream stream, Step* step) {
  const char* from = step->narrow;
  for (const auto& [data, count] : step->sources) {
    DT_TRY(kernels_->cast(from, *options_.wire, data, Dtype::kF32, count, stream));
    from += count * dtype_bytes(*options_.wire);
  }
  step->sources.clear();
  return {};
}

/// Where the bucket's gradients lie, and where their factors go.
void PowerSgd::begin(const HookBucket& bucket, Step* step) {
  step->whole.clear();
  step->compressed.clear();
  step->matrices.clear();
  step->sources.clear();  // a step that failed has left some
  if (step->plain) {      // in one piece, with the padding between gradients
    int64_t count = 0;    // the last parameter may have no elements, and start anywhere
    for (size_t i = 0; i < bucket.params.size(); ++i) {
      const Matrix& matrix = matrices_[static_cast<size_t>(bucket.params[i])];
      count = std::max(count, bucket.starts[i] + matrix.rows * matrix.columns);
    }
    step->sources.emplace_back(static_cast<float*>(bucket.data), count);
    return;
  }
  for (size_t i = 0; i < bucket.params.size(); ++i) {
    const auto param = static_cast<size_t>(bucket.params[i]);
    const auto& [n, m, dtype] = matrices_[param];
    auto* const data = static_cast<float*>(bucket.data) + bucket.starts[i];
    if (!compresses(param)) {
      (options_.wire ? step->sources : step->whole).emplace_back(data, n * m);
      continue;
    }
    const Place& place = places_[param];
    float* const error = place.error_count > 0 ? memory_->data() + place.error : nullptr;
    float* const q = memory_->data() + place.q;
    step->compressed.push_back(param);
    step->matrices.push_back({data, error, nullptr, q, n, m, seed_of(param), q});
  }
}

Result<HookWork> PowerSgd::send_left(const HookBucket& bucket, Step* step) {
  const cuda::Stream stream = bucket.stream;
  begin(bucket, step);
  memory_->begin_use();
  step->first = first_ + first_used_;
  float* to = step->first;
  for (const auto& [data, count] : step->whole) {
    DT_TRY(memory_->copy(to, data, count, stream));
    to += count;
  }
  undrawn_.clear();
  for (size_t i = 0; i < step->matrices.size(); ++i) {
    kernels::LowRankMatrix& matrix = step->matrices[i];
    matrix.p = to;
    to += options_.rank * matrix.rows;
    uint8_t& drawn = drawn_[step->compressed[i]];
    if (drawn == 0 || !options_.warm_start) undrawn_.push_back(matrix);
    drawn = 1;
  }
  DT_TRY(kernels_->draw_q(undrawn_, options_.rank, stream));
  DT_TRY(
      kernels_->orthonormalise(step->matrices, kernels::LowRankFactor::kQ, options_.rank, stream));
  DT_TRY(kernels_->find_p(step->matrices, options_.rank, stream));
  first_used_ = round_up_to(to - first_, kGradientCount);
  if (options_.wire) {
    // In front, where it is aligned for kernels whatever the gradients count.
    if (!step->plain) step->sources.insert(step->sources.begin(), {step->first, to - step->first});
    return average_narrow(step->plain ? "bucket" : "bucket, P", stream, step);
  }
  return average(step->first, to - step->first, Dtype::kF32, "bucket, P", stream);
}

Result<HookWork> PowerSgd::send_right(const HookBucket& bucket, Step* step) {
  const cuda::Stream stream = bucket.stream;
  const float* from = step->first;
  for (const auto& [data, count] : step->whole) {
    DT_TRY(memory_->copy(data, from, count, stream));
    from += count;
  }
  float* const second = second_ + second_used_;
  float* to = second;
  for (kernels::LowRankMatrix& matrix : step->matrices) {
    matrix.q = to;
    to += options_.rank * matrix.columns;
  }
  DT_TRY(
      kernels_->orthonormalise(step->matrices, kernels::LowRankFactor::kP, options_.rank, stream));
  DT_TRY(kernels_->find_q(step->matrices, options_.rank, stream));
  second_used_ = round_up_to(to - second_, kGradientCount);
  if (options_.wire) {
    step->sources.emplace_back(second, to - second);
    return average_narrow("bucket, Q", stream, step);
  }
  return average(second, to - second, Dtype::kF32, "bucket, Q", stream);
}

Result<PowerSgd::Kept> PowerSgd::kept() {
  Kept kept;
  if (memory_->is_on_host()) {
    kept.data = memory_->data();
  } else {
    kept = empty();
    DT_TRY(memory_->read(kept.data, state_count_));
  }
  kept.step = step_;
  kept.drawn = drawn_;
  return kept;
}

PowerSgd::Kept PowerSgd::empty() const {
  Kept kept;
  kept.drawn.resize(matrices_.size());
  kept.copy.resize(static_cast<size_t>(state_count_));
  kept.data = kept.copy.data();
  return kept;
}

Status PowerSgd::set_kept(Kept kept) {
  DT_TRY(memory_->write(kept.data, state_count_));
  step_ = kept.step;
  drawn_ = std::move(kept.drawn);
  return {};
}

}  // namespace dt::training
