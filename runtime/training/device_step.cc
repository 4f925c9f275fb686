// SPDX-License-Identifier: Apache-2.0
#include "training/device_step.h"

#include <algorithm>

#include "training/stream_marks.h"

namespace dt::training {
namespace {

using collective::StreamSteps;

}  // namespace

/// What clip() and scale() work with.
struct DeviceStep::Scratch {
  double largest[3];
  int64_t sum[2];
  double squares[4];  // of each dtype
  float norm;
  float factor;
};

struct DeviceStep::Errand {
  std::shared_ptr<cuda::Runtime> runtime;
  std::shared_ptr<kernels::TensorKernels> kernels;
  std::shared_ptr<kernels::TensorList> list;  // null: integers, or nothing outside
  std::shared_ptr<kernels::TensorList> kept;  // null: no cast, or nothing
  BucketSteps steps;
  void* data = nullptr;  // what is reduced
  int64_t count = 0;
  Dtype dtype = Dtype::kF32;
  bool scale_in_list =
      false;  // by the kernels that gather and scatter, else by passes of their own

  Status gather(cuda::Stream stream) const {
    for (const auto& [part, bytes] : steps.zeros) DT_TRY(runtime->fill_zero(part, bytes, stream));
    if (list != nullptr) {
      const float scale = scale_in_list ? static_cast<float>(steps.before) : 1;
      DT_TRY(kernels->gather(*list, steps.dtype, data, dtype, scale, stream));
    }
    if (!scale_in_list) DT_TRY(multiply(data, dtype, count, steps.before, stream));
    return copy(stream, /*back=*/false);
  }
  Status scatter(cuda::Stream stream) const {
    if (steps.kept) return keep(*steps.kept, stream);
    if (!scale_in_list) DT_TRY(multiply(data, dtype, count, steps.behind, stream));
    if (list == nullptr) return copy(stream, /*back=*/true);
    const float scale = scale_in_list ? static_cast<float>(steps.behind) : 1;
    return kernels->scatter(*list, steps.dtype, data, dtype, scale, stream);
  }

 private:
  Status multiply(void* values, Dtype of, int64_t many, double factor, cuda::Stream stream) const {
    if (factor == 1 || !is_floating(of) || many == 0) return {};
    return kernels->multiply(values, of, many, factor, stream);
  }
  Status keep(const KeptResult& result, cuda::Stream stream) const {
    if (result.count == 0) return {};
    if (kept != nullptr) {
      return kernels->scatter(*kept, steps.dtype, result.from, dtype,
                              static_cast<float>(steps.behind), stream);
    }
    if (result.from != result.to) {
      DT_TRY(runtime->copy(result.to, result.from, result.count * dtype_bytes(dtype), stream));
    }
    return multiply(result.to, dtype, result.count, steps.behind, stream);
  }
  Status copy(cuda::Stream stream, bool back) const {
    if (list != nullptr) return {};
    for (const OutsideGradient& each : steps.outside) {
      void* const slot = static_cast<char*>(data) + each.offset * dtype_bytes(dtype);
      void* const to = back ? each.data : slot;
      const void* const from = back ? slot : each.data;
      DT_TRY(runtime->copy(to, from, each.count * dtype_bytes(dtype), stream));
    }
    return {};
  }
};

/// The same of the two operations in 8 bits. Not made without tensors.
struct DeviceStep::QuantizedErrand {
  std::shared_ptr<kernels::TensorKernels> kernels;
  std::shared_ptr<kernels::QuantizedList> list;
  QuantizedSteps steps;
  const void* received = nullptr;  // the blocks of all sums

  Status quantize(cuda::Stream stream) const {
    return kernels->quantize(*list, steps.before, steps.blocks, stream);
  }
  Status sum(cuda::Stream stream) const {
    return kernels->sum_parts(*list, steps.part, steps.share, steps.blocks, stream);
  }
  Status dequantize(cuda::Stream stream) const {
    return kernels->dequantize(*list, received, steps.behind, stream);
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
  if (scratch_ != nullptr) (void)runtime_->release(scratch_);
  if (hooks_ended_ != nullptr) (void)runtime_->destroy_event(hooks_ended_);
  if (scaled_ != nullptr) (void)runtime_->destroy_event(scaled_);
  if (finished_ != nullptr) (void)runtime_->destroy_event(finished_);
  if (hook_stream_ != nullptr) (void)runtime_->destroy_stream(hook_stream_);
}

Status DeviceStep::reserve(size_t buckets) {
  if (finished_ == nullptr) {
    DT_TRY_VALUE(finished_, runtime_->create_event(/*timed=*/false));
  }
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
    bucket->list = bucket->kept = nullptr;
    bucket->quantized.clear();
    bucket->quantized_list = nullptr;
  }
  old_lists_.clear();
  results_.clear();
  result_lists_.clear();
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
      if (!cuda::is_same_stream(other, stream)) DT_TRY(runtime_->wait(stream, event));
    }
    return {};
  });
}

Status DeviceStep::record(size_t bucket, cuda::Stream stream) {
  return buckets_[bucket]->streams.with([&](Streams& streams) -> Status {
    for (const auto& [known, event] : streams.used) {
      if (cuda::is_same_stream(known, stream)) return runtime_->record(event, stream);
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
Result<std::shared_ptr<DeviceStep::Errand>> DeviceStep::errand_of(size_t bucket_index,
                                                                  BucketSteps steps, Flat flat,
                                                                  Dtype dtype) {
  Bucket& bucket = *buckets_[bucket_index];
  DT_TRY(list_of(&bucket, steps.outside, dtype));
  if (steps.kept && steps.kept->count > 0 && dtype != steps.dtype && bucket.kept == nullptr) {
    const kernels::Tensor whole[] = {{steps.kept->to, steps.kept->count, 0}};
    DT_TRY_VALUE(bucket.kept, kernels_->prepare(whole));
  }
  const auto errand = std::make_shared<Errand>();
  errand->runtime = runtime_;
  errand->kernels = kernels_;
  errand->list = bucket.list;
  errand->kept = bucket.kept;
  errand->data = flat.data;
  errand->count = flat.count;
  errand->dtype = dtype;
  errand->scale_in_list = steps.all_outside && bucket.list != nullptr && dtype != Dtype::kF64;
  errand->steps = std::move(steps);
  return errand;
}

Status DeviceStep::attach(size_t bucket, BucketSteps given, Flat flat,
                          backend::Collective* collective) {
  if (is_floating(collective->dtype)) collective->op = ReduceOp::kSum;
  const bool scaled = is_floating(collective->dtype) && flat.count > 0;
  const bool before =
      !given.outside.empty() || !given.zeros.empty() || (scaled && given.before != 1);
  const bool moved = given.kept ? given.kept->from != given.kept->to : !given.outside.empty();
  const bool behind = moved || (scaled && given.behind != 1);
  DT_TRY_VALUE(const std::shared_ptr<Errand> errand,
               errand_of(bucket, std::move(given), flat, collective->dtype));

  const auto steps = begin_steps(bucket);
  steps->ended = times_.ended(bucket);
  if (before) steps->before = [errand](cuda::Stream stream) { return errand->gather(stream); };
  if (behind) steps->behind = [errand](cuda::Stream stream) { return errand->scatter(stream); };
  collective->steps = steps;
  return {};
}

std::shared_ptr<DeviceStep::Steps> DeviceStep::begin_steps(size_t bucket) {
  auto steps = std::make_shared<Steps>();
  steps->events = shared_from_this();
  buckets_[bucket]->streams.with([&](const Streams& streams) {
    for (const auto& [stream, event] : streams.used) steps->after.push_back(event);
  });
  steps->began = times_.began(bucket);
  return steps;
}

Status DeviceStep::attach(size_t bucket, QuantizedSteps given, backend::Collective* parts,
                          backend::Collective* result) {
  DT_TRY(list_quantized(buckets_[bucket].get(), given.tensors));
  const auto first = begin_steps(bucket);
  const auto last = std::make_shared<Steps>();
  last->events = shared_from_this();
  last->ended = times_.ended(bucket);
  if (buckets_[bucket]->quantized_list != nullptr) {
    const auto errand = std::make_shared<QuantizedErrand>(QuantizedErrand{
        kernels_, buckets_[bucket]->quantized_list, std::move(given), result->recv});
    first->before = [errand](cuda::Stream stream) { return errand->quantize(stream); };
    last->before = [errand](cuda::Stream stream) { return errand->sum(stream); };
    last->behind = [errand](cuda::Stream stream) { return errand->dequantize(stream); };
  }
  parts->steps = first;
  result->steps = last;
  return {};
}

Result<cuda::Stream> DeviceStep::begin_hook(size_t bucket, BucketSteps steps, Flat flat) {
  if (hook_stream_ == nullptr) {
    DT_TRY_VALUE(hook_stream_, runtime_->create_stream(cuda::StreamPriority::kHigh));
    DT_TRY_VALUE(hooks_ended_, runtime_->create_event(/*timed=*/false));
  }
  const Dtype dtype = steps.dtype;
  DT_TRY_VALUE(const std::shared_ptr<Errand> errand,
               errand_of(bucket, std::move(steps), flat, dtype));
  DT_TRY(wait_for_parts(bucket, hook_stream_));
  DT_TRY(errand->gather(hook_stream_));
  buckets_[bucket]->hooked = errand;
  return hook_stream_;
}

Status DeviceStep::end_hooks(size_t buckets, cuda::Stream stream) {
  if (hook_stream_ == nullptr) return {};  // there was no bucket
  for (size_t b = 0; b < buckets; ++b) {
    if (buckets_[b]->hooked != nullptr) DT_TRY(buckets_[b]->hooked->scatter(hook_stream_));
  }
  release_old_lists();
  DT_TRY(runtime_->record(hooks_ended_, hook_stream_));
  return runtime_->wait(stream, hooks_ended_);
}

Status DeviceStep::await_streams(comm::Communicator& comm, Deadline deadline,
                                 bool broken_too) const {
  for (const cuda::Event event : {hooks_ended_, scaled_, finished_}) {
    if (event != nullptr) DT_TRY(await_event(comm, event, deadline, broken_too));
  }
  return {};
}

Status DeviceStep::list_of(Bucket* bucket, const std::vector<OutsideGradient>& outside,
                           Dtype dtype) {
  if (is_integer(dtype) || outside == bucket->outside) return {};
  std::shared_ptr<kernels::TensorList> list;
  if (!outside.empty()) {
    std::vector<kernels::Tensor> tensors;
    for (const OutsideGradient& each : outside) {
      tensors.push_back({each.data, each.count, each.offset});
    }
    DT_TRY_VALUE(list, kernels_->prepare(tensors));
  }
  if (bucket->list != nullptr) old_lists_.push_back(std::move(bucket->list));
  bucket->list = std::move(list);
  bucket->outside = outside;
  return {};
}

Status DeviceStep::list_quantized(Bucket* bucket,
                                  const std::vector<kernels::QuantizedTensor>& tensors) {
  if (tensors == bucket->quantized) return {};
  std::shared_ptr<kernels::QuantizedList> list;
  if (!tensors.empty()) {
    DT_TRY_VALUE(list, kernels_->prepare_quantized(tensors));
  }
  if (bucket->quantized_list != nullptr) old_lists_.push_back(std::move(bucket->quantized_list));
  bucket->quantized_list = std::move(list);
  bucket->quantized = tensors;
  return {};
}

/// Lists of earlier steps. Operations that are done have let go of theirs; with a hook a scatter
/// may still be enqueued, until the GPU has passed the end of the last step that had one.
void DeviceStep::release_old_lists() {
  if (hooks_ended_ != nullptr) {
    const Result<bool> passed = runtime_->passed(hooks_ended_);
    if (!passed.ok() || !passed.value()) return;
  }
  std::erase_if(old_lists_, [](const auto& list) { return list.use_count() == 1; });
}

void DeviceStep::end_step() {
  bool hooked = false;
  for (const auto& bucket : buckets_) {
    bucket->streams.with([](Streams& streams) {
      for (const auto& [stream, event] : streams.used) streams.spare.push_back(event);
      streams.used.clear();
    });
    hooked = hooked || bucket->hooked != nullptr;
    bucket->hooked = nullptr;
  }
  if (!hooked) release_old_lists();  // else end_hooks() has, before its event became this step's
}

Status DeviceStep::list_results(std::vector<Results> results) {
  if (scratch_ == nullptr) {
    DT_TRY_VALUE(void* const memory, runtime_->allocate(sizeof(Scratch)));
    scratch_ = static_cast<Scratch*>(memory);
  }
  if (scaled_ == nullptr) {
    DT_TRY_VALUE(scaled_, runtime_->create_event(/*timed=*/false));
  }
  if (results == results_) return {};
  std::vector<std::shared_ptr<kernels::TensorList>> lists;
  for (const Results& each : results) {
    DT_TRY_VALUE(auto list, kernels_->prepare(each.tensors));
    lists.push_back(std::move(list));
  }
  // The GPU may still be in the last ones.
  if (const auto passed = runtime_->passed(scaled_); passed.ok() && passed.value()) {
    old_results_.clear();
  }
  for (auto& list : result_lists_) old_results_.push_back(std::move(list));
  result_lists_ = std::move(lists);
  results_ = std::move(results);
  return {};
}

Status DeviceStep::clip(std::vector<Results> results, float max_norm, float tiny, float* norm,
                        cuda::Stream stream) {
  DT_TRY(list_results(std::move(results)));
  for (size_t i = 0; i < results_.size(); ++i) {
    DT_TRY(kernels_->squared_norm(*result_lists_[i], results_[i].dtype, scratch_->squares + i,
                                  nullptr, stream));
  }
  DT_TRY(kernels_->clip_factor(scratch_->squares, static_cast<int32_t>(results_.size()), max_norm,
                               tiny, &scratch_->norm, &scratch_->factor, stream));
  return scale_results(norm, stream);
}

Result<double*> DeviceStep::largest(std::vector<Results> results, cuda::Stream stream) {
  DT_TRY(list_results(std::move(results)));
  DT_TRY(runtime_->fill_zero(scratch_, sizeof(Scratch), stream));
  for (size_t i = 0; i < results_.size(); ++i) {
    DT_TRY(kernels_->largest(*result_lists_[i], results_[i].dtype, scratch_->largest, stream));
  }
  return scratch_->largest;
}

Result<int64_t*> DeviceStep::powers(double type, cuda::Stream stream) {
  for (size_t i = 0; i < results_.size(); ++i) {
    DT_TRY(kernels_->powers(*result_lists_[i], results_[i].dtype, scratch_->largest, type,
                            scratch_->sum, stream));
  }
  return scratch_->sum;
}

Status DeviceStep::scale(double type, double max_norm, double tiny, float* norm,
                         cuda::Stream stream) {
  DT_TRY(kernels_->clip_factor_of_powers(scratch_->largest, scratch_->sum, type, max_norm, tiny,
                                         &scratch_->norm, &scratch_->factor, stream));
  return scale_results(norm, stream);
}

const float* DeviceStep::norm() const { return &scratch_->norm; }

Status DeviceStep::scale_results(float* norm, cuda::Stream stream) {
  if (norm != nullptr) DT_TRY(runtime_->copy(norm, &scratch_->norm, sizeof *norm, stream));
  for (size_t i = 0; i < results_.size(); ++i) {
    DT_TRY(kernels_->scale(*result_lists_[i], results_[i].dtype, 1, &scratch_->factor, stream));
  }
  return runtime_->record(scaled_, stream);
}

}  // namespace dt::training
