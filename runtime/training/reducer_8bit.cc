// SPDX-License-Identifier: Apache-2.0
// Gradients of f32 that travel in 8 bits, with the errors of their rounding kept for the next step.
#include <algorithm>
#include <new>

#include "kernels/host/error_feedback.h"
#include "training/device_pipe.h"
#include "training/reducer.h"

namespace dt::training {
namespace {

/// The blocks of a gradient from element `at` on, which is the first of its block.
template <class T>
T* block_at(T* blocks, int64_t at) {
  return blocks + kernels::quantized_bytes(at / kernels::kQuantBlock, 8);
}

}  // namespace

/// Collective.
Status Reducer::make_errors() {
  Status mine;
  if (device_ != nullptr) return agree_on_memory(allocate_errors());
  try {
    errors_.resize(params_.size());
    for (size_t i = 0; i < params_.size(); ++i) {
      if (params_[i].dtype != Dtype::kF32) continue;
      errors_[i].resize(static_cast<size_t>(params_[i].count));
      count_memory(params_[i].count * static_cast<int64_t>(sizeof(float)));
    }
  } catch (const std::bad_alloc&) {
    mine = Status(Code::kOutOfMemory, "dt_reducer_create on comm \"" + comm_->name() +
                                          "\": no memory for the errors of 8 bits, 4 bytes for "
                                          "each element of f32");
  }
  return agree_on_memory(mine);
}

/// Zeros, as all memory of the communicator.
Status Reducer::allocate_errors() {
  std::vector<int64_t> begins(params_.size(), -1);
  int64_t total = 0;  // elements
  for (size_t i = 0; i < params_.size(); ++i) {
    if (params_[i].dtype != Dtype::kF32) continue;
    begins[i] = total;
    total += padded_count(params_[i].count, Dtype::kF32);
  }
  device_errors_.assign(params_.size(), nullptr);
  if (total == 0) return {};
  const int64_t bytes = total * static_cast<int64_t>(sizeof(float));
  const auto allocated = comm_->backend().allocate(bytes);
  DT_TRY(allocated.status().within(
      format("dt_reducer_create on comm \"%s\": the errors of 8 bits, 4 bytes for each element of "
             "f32",
             comm_->name().c_str())));
  errors_memory_ = allocated.value();
  count_memory(bytes);
  for (size_t i = 0; i < params_.size(); ++i) {
    if (begins[i] >= 0) device_errors_[i] = static_cast<float*>(errors_memory_) + begins[i];
  }
  return {};
}

Status Reducer::copy_errors(std::vector<std::vector<float>>* on_host, bool up) {
  try {
    on_host->resize(params_.size());
    for (size_t i = 0; i < params_.size(); ++i) {
      if (is_quantized(params_[i].dtype)) {
        (*on_host)[i].resize(static_cast<size_t>(params_[i].count));
      }
    }
  } catch (const std::bad_alloc&) {
    return Status(Code::kOutOfMemory, "no memory on the host for the errors of 8 bits");
  }
  std::vector<DevicePipe::Mirror> mirrors;
  for (size_t i = 0; i < params_.size(); ++i) {
    if (!is_quantized(params_[i].dtype)) continue;
    mirrors.push_back({device_errors_[i], (*on_host)[i].data(),
                       params_[i].count * static_cast<int64_t>(sizeof(float))});
  }
  if (mirrors.empty()) return {};
  DT_TRY_VALUE(const auto pipe, DevicePipe::create(comm_));
  if (last_work_ != nullptr) DT_TRY(last_backend().wait_stream(*last_work_, pipe->stream()));
  DT_TRY(pipe->transfer(mirrors, up));
  return comm_->broken();  // where it is, the GPU came here without the last step's results
}

/// What has arrived in the slot, from there to its place in what travels. A rank that has no
/// gradient sends zeros, so that errors are not spent on a result that no rank uses.
void Reducer::quantize(const Slot& slot, size_t index, const void* from, double factor) {
  const int64_t count = params_[index].count;
  if (slot.unused) {
    kernels::quantize(8, static_cast<const float*>(from), count, slot.wire);
    return;
  }
  kernels::quantize_with_errors(static_cast<const float*>(from), count, static_cast<float>(factor),
                                errors_[index].data(), slot.wire);
}

float Reducer::share_of_part() const {
  return averages(Dtype::kF32) ? 1.0F / static_cast<float>(comm_->size()) : 1.0F;
}

/// Once all ranks have sent this rank its part of the bucket.
void Reducer::sum_part(const Bucket& bucket) {
  const QuantizedParts parts = parts_of(bucket);
  const auto [from, count] = parts.part(comm_->rank());
  const float factor = share_of_part();
  for (size_t i = 0; i < bucket.params.size(); ++i) {
    const auto index = static_cast<size_t>(bucket.params[i]);
    const int64_t start = bucket.starts[i];
    const int64_t first = std::max(from, start);
    const int64_t last = std::min(from + count, start + params_[index].count);
    if (first >= last) continue;
    kernels::sum_with_errors(
        block_at(bucket.received, first - from), parts.part_bytes(), comm_->size(), last - first,
        factor, slots_[index].unused ? nullptr : errors_[index].data() + (first - start),
        block_at(bucket.wire, first - from));
  }
}

backend::Collective Reducer::collective_of_sums(const Bucket& bucket) const {
  backend::Collective sums = parts_of(bucket).send_result(bucket.wire, bucket.received);
  sums.name = format("bucket %zu, sums", next_bucket_);
  return sums;
}

/// Prepares what follows the operation that is being launched; as sum_replicas().
std::function<void(const Status&)> Reducer::gather_parts(Bucket* bucket) {
  auto [work, begin] =
      replicas_->sum(collective_of_sums(*bucket), [this, bucket] { sum_part(*bucket); });
  bucket->summed = last_work_ = std::move(work);
  return std::move(begin);
}

/// What another rank used, and this one not, goes where bring_unused() takes it from.
QuantizedSteps Reducer::quantized_steps(const Bucket& bucket) const {
  const QuantizedParts parts = parts_of(bucket);
  QuantizedSteps steps;
  steps.blocks = bucket.wire;
  steps.part = {bucket.received, parts.part_bytes(), comm_->size(),
                parts.part(comm_->rank()).first / kernels::kQuantBlock,
                parts.part_bytes() / kernels::quantized_bytes(1, 8)};
  steps.before = static_cast<float>(factor_before(Dtype::kF32));
  steps.share = share_of_part();
  if (!options_.divide_by_users) {
    steps.behind = static_cast<float>(factor_behind(static_cast<size_t>(bucket.params[0])));
  }
  for (const int32_t index : bucket.params) {
    const auto param = static_cast<size_t>(index);
    const Slot& slot = slots_[param];
    if (params_[param].count == 0) continue;
    void* const data = slot.unused ? slot.data : result_place(slot);
    steps.tensors.push_back({static_cast<float*>(data),
                             slot.unused ? nullptr : device_errors_[param], params_[param].count,
                             slot.start / kernels::kQuantBlock});
  }
  return steps;
}

/// On GPUs.
Status Reducer::reduce_quantized(Bucket* bucket, backend::Collective parts) {
  backend::Collective sums = collective_of_sums(*bucket);
  DT_TRY(device_->attach(next_bucket_, quantized_steps(*bucket), &parts, &sums));
  const auto submit = [&](backend::Collective& each, std::shared_ptr<backend::Work>* out) {
    const auto work = comm_->new_work();
    DT_TRY(comm_->submit(each, work));
    *out = last_work_ = work;
    return Status();
  };
  DT_TRY(submit(parts, &bucket->work));
  return submit(sums, &bucket->summed);
}

}  // namespace dt::training
