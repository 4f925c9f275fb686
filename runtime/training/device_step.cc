// SPDX-License-Identifier: Apache-2.0
#include "training/device_step.h"

#include <algorithm>

namespace dt::training {
namespace {

using collective::StreamSteps;

}  // namespace

struct DeviceStep::Errand {
  std::shared_ptr<cuda::Runtime> runtime;
  std::shared_ptr<kernels::TensorKernels> kernels;
  std::shared_ptr<kernels::TensorList> list;  // null: integers, or nothing outside
  std::vector<OutsideGradient> outside;
  std::vector<std::pair<void*, int64_t>> zeros;
  void* data = nullptr;  // of the bucket
  int64_t count = 0;
  Dtype dtype = Dtype::kF32;
  float scale = 1;      // with the gather
  int32_t divisor = 1;  // behind it, of the whole bucket

  Status gather(cuda::Stream stream) const {
    for (const auto& [part, bytes] : zeros) DT_TRY(runtime->fill_zero(part, bytes, stream));
    if (list != nullptr) DT_TRY(kernels->gather(*list, dtype, data, dtype, scale, stream));
    if (divisor > 1) DT_TRY(kernels->divide(data, dtype, count, divisor, stream));
    return copy(stream, /*back=*/false);
  }
  Status scatter(cuda::Stream stream) const {
    if (list != nullptr) return kernels->scatter(*list, dtype, data, dtype, 1, stream);
    return copy(stream, /*back=*/true);
  }

 private:
  Status copy(cuda::Stream stream, bool back) const {
    if (list != nullptr) return {};
    for (const OutsideGradient& each : outside) {
      void* const to = back ? each.data : each.slot;
      const void* const from = back ? each.slot : each.data;
      DT_TRY(runtime->copy(to, from, each.count * dtype_bytes(dtype), stream));
    }
    return {};
  }
};

struct DeviceStep::Steps : StreamSteps {
  std::shared_ptr<DeviceStep> events;  // stay
};

DeviceStep::~DeviceStep() {
  for (const auto& bucket : buckets_) {
    bucket->streams.with([&](Streams& streams) {
      for (const auto& [stream, event] : streams.used) (void)runtime_->destroy_event(event);
      for (const cuda::Event event : streams.spare) (void)runtime_->destroy_event(event);
    });
  }
}

Status DeviceStep::reserve(size_t buckets) {
  while (buckets_.size() < buckets) {
    auto bucket = std::make_unique<Bucket>();
    DT_TRY_VALUE(const cuda::Event event, runtime_->create_event(/*timed=*/false));
    bucket->streams.with([&](Streams& streams) { streams.spare.push_back(event); });
    buckets_.push_back(std::move(bucket));
  }
  return times_.reserve(buckets);
}

void DeviceStep::forget() {
  for (const auto& bucket : buckets_) {
    bucket->outside.clear();
    bucket->list = nullptr;
  }
  old_lists_.clear();
}

Status DeviceStep::capture_refused(const std::string& what) {
  return Status(Code::kInvalidArgument,
                format("%s: the stream records a CUDA graph, and dt cannot be part of one; end the "
                       "capture before, or give another stream",
                       what.c_str()));
}

Status DeviceStep::wait_for_parts(size_t bucket, cuda::Stream stream) {
  return buckets_[bucket]->streams.with([&](Streams& streams) -> Status {
    for (const auto& [other, event] : streams.used) {
      if (other != stream) DT_TRY(runtime_->wait(stream, event));
    }
    return {};
  });
}

Status DeviceStep::record(size_t bucket, cuda::Stream stream) {
  return buckets_[bucket]->streams.with([&](Streams& streams) -> Status {
    for (const auto& [known, event] : streams.used) {
      if (known == stream) return runtime_->record(event, stream);
    }
    if (streams.spare.empty()) {
      DT_TRY_VALUE(const cuda::Event event, runtime_->create_event(/*timed=*/false));
      streams.spare.push_back(event);
    }
    const cuda::Event event = streams.spare.back();
    DT_TRY(runtime_->record(event, stream));
    streams.spare.pop_back();
    streams.used.emplace_back(stream, event);
    return {};
  });
}

/// All ranks of a bucket must issue the same reduction, though one may give its gradients by
/// pointers and another in place. So the average of floating-point numbers is always a sum of
/// scaled parts; scaled with the gather where there is one of everything, else by a pass over the
/// bucket. The gather's factor is an f32, too coarse for f64.
Status DeviceStep::attach(size_t bucket_index, std::vector<OutsideGradient> outside,
                          bool all_outside, std::vector<std::pair<void*, int64_t>> zeros,
                          backend::Collective* collective) {
  Bucket& bucket = *buckets_[bucket_index];
  DT_TRY(list_of(&bucket, outside, *collective));
  const auto errand = std::make_shared<Errand>();
  errand->runtime = runtime_;
  errand->kernels = kernels_;
  errand->list = bucket.list;
  errand->outside = std::move(outside);
  errand->zeros = std::move(zeros);
  errand->data = collective->recv;
  errand->count = collective->count;
  errand->dtype = collective->dtype;
  if (is_integer(collective->dtype)) {
    collective->op = divisor_ > 1 ? ReduceOp::kAvg : ReduceOp::kSum;
  } else {
    collective->op = ReduceOp::kSum;
    const bool with_gather =
        all_outside && bucket.list != nullptr && collective->dtype != Dtype::kF64;
    if (with_gather) {
      errand->scale = 1.0f / static_cast<float>(divisor_);
    } else if (collective->count > 0) {
      errand->divisor = divisor_;
    }
  }

  const auto steps = std::make_shared<Steps>();
  steps->events = shared_from_this();
  bucket.streams.with([&](const Streams& streams) {
    for (const auto& [stream, event] : streams.used) steps->after.push_back(event);
  });
  steps->began = times_.began(bucket_index);
  steps->ended = times_.ended(bucket_index);
  if (!errand->outside.empty() || !errand->zeros.empty() || errand->divisor > 1) {
    steps->before = [errand](cuda::Stream stream) { return errand->gather(stream); };
  }
  if (!errand->outside.empty()) {
    steps->behind = [errand](cuda::Stream stream) { return errand->scatter(stream); };
  }
  collective->steps = steps;
  return {};
}

Status DeviceStep::list_of(Bucket* bucket, const std::vector<OutsideGradient>& outside,
                           const backend::Collective& collective) {
  if (is_integer(collective.dtype) || outside == bucket->outside) return {};
  std::shared_ptr<kernels::TensorList> list;
  if (!outside.empty()) {
    std::vector<kernels::Tensor> tensors;
    for (const OutsideGradient& each : outside) {
      const int64_t bytes =
          static_cast<const char*>(each.slot) - static_cast<const char*>(collective.recv);
      tensors.push_back({each.data, each.count, bytes / dtype_bytes(collective.dtype)});
    }
    DT_TRY_VALUE(list, kernels_->prepare(tensors));
  }
  if (bucket->list != nullptr) old_lists_.push_back(std::move(bucket->list));
  bucket->list = std::move(list);
  bucket->outside = outside;
  return {};
}

void DeviceStep::end_step() {
  for (const auto& bucket : buckets_) {
    bucket->streams.with([](Streams& streams) {
      for (const auto& [stream, event] : streams.used) streams.spare.push_back(event);
      streams.used.clear();
    });
  }
  // Operations that are done have let go of theirs.
  std::erase_if(old_lists_, [](const auto& list) { return list.use_count() == 1; });
}

}  // namespace dt::training
