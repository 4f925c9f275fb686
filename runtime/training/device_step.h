// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "base/guarded.h"
#include "base/status.h"
#include "comm/communicator.h"
#include "training/step_times.h"

namespace dt::training {

/// A gradient that lies outside its bucket.
struct OutsideGradient {
  void* data = nullptr;  ///< the caller's
  int64_t offset = 0;    ///< elements, of its place in what is reduced
  int64_t count = 0;     ///< elements

  bool operator==(const OutsideGradient&) const = default;
};

/// The only result that is wanted, and where to have it.
struct KeptResult {
  void* from = nullptr;  ///< where the operation leaves it, as its dtype
  void* to = nullptr;    ///< as that of the gradients; may be `from`
  int64_t count = 0;     ///< elements
};

/// What surrounds the reduction of a full bucket.
struct BucketSteps {
  Dtype dtype = Dtype::kF32;  ///< of the gradients; the operation's may be another
  std::vector<OutsideGradient> outside;
  bool all_outside = true;                       ///< nothing else is in what is reduced
  std::vector<std::pair<void*, int64_t>> zeros;  ///< without a gradient, and their bytes
  double before = 1;                             ///< floating-point gradients are multiplied by it
  double behind = 1;                             ///< and the results by this
  std::optional<KeptResult> kept;  ///< none: results go where gradients outside came from
};

/// What surrounds the two operations that reduce a full bucket in 8 bits (QuantizedParts).
struct QuantizedSteps {
  std::vector<kernels::QuantizedTensor> tensors;
  void* blocks = nullptr;       ///< what is sent: of the gradients, then of this rank's sums
  kernels::QuantizedPart part;  ///< this rank's, of all ranks
  float before = 1;             ///< gradients are multiplied by it
  float share = 1;              ///< and what ranks have sent by this, as it is summed
  float behind = 1;             ///< and results by this
};

/// What a reducer on GPUs does in a step beside its collectives: events of the caller's streams,
/// the way of outside gradients into their bucket and back, and the times.
///
/// No stream waits for an event that was not recorded. Each bucket has one event per stream that
/// gave it gradients in this step. record() records it, again for each gradient, under the bucket's
/// lock, so that the last record in the stream's order is the one that counts; only then does the
/// gradient leave the bucket's count of missing ones. Whoever takes the last one launches the
/// bucket and reads the list of events: the decrements are acquire-release, so it sees every
/// record. It hands the events to the device thread through the communicator's queue. They are
/// recorded anew in the next step only, after finish() has seen the last bucket enqueued: by then
/// the communicator's stream, in order, has been told to wait for all of them, and CUDA keeps what
/// an event held at that moment. Where finish() failed the communicator is broken, and nothing that
/// is enqueued any more has a result.
///
/// What an operation uses stays while the operation does: its steps hold this object and the list.
class DeviceStep : public std::enable_shared_from_this<DeviceStep> {
 public:
  DeviceStep(std::shared_ptr<cuda::Runtime> runtime,
             std::shared_ptr<kernels::TensorKernels> kernels)
      : runtime_(std::move(runtime)), kernels_(std::move(kernels)), times_(runtime_) {}
  ~DeviceStep();

  /// Makes what steps of that many buckets need. Between steps.
  Status reserve(size_t buckets);
  /// The buckets lie elsewhere, and nothing uses the old ones. Between steps.
  void forget();

  /// Whether the stream records a CUDA graph, and what is said of it then.
  Result<bool> is_capturing(cuda::Stream stream) const { return runtime_->is_capturing(stream); }
  static Status capture_refused(const std::string& what);
  Result<bool> is_device_memory(const void* pointer) const {
    DT_TRY_VALUE(const cuda::PointerInfo info, runtime_->pointer_info(pointer));
    return info.memory == cuda::Memory::kDevice;
  }
  /// `stream` waits for what was recorded of the bucket in this step.
  Status wait_for_parts(size_t bucket, cuda::Stream stream);
  /// to[i] += from[i]
  Status add(void* to, const void* from, Dtype dtype, int64_t count, cuda::Stream stream) {
    return kernels_->add(to, from, dtype, count, stream);
  }
  /// A gradient of the bucket, or a part of one, is complete in the order of `stream`. Any thread.
  Status record(size_t bucket, cuda::Stream stream);
  /// What is reduced.
  struct Flat {
    void* data = nullptr;
    int64_t count = 0;
  };
  /// Completes the reduction of a full bucket, which is `collective` so far. May synchronise where
  /// `outside` is not what it was in the last step. One thread at a time.
  Status attach(size_t bucket, BucketSteps steps, Flat flat, backend::Collective* collective);
  /// The same in 8 bits, of both operations. May synchronise where `steps.tensors` are not what
  /// they were in the last step.
  Status attach(size_t bucket, QuantizedSteps steps, backend::Collective* parts,
                backend::Collective* result);
  /// Brings the gradients of a full bucket together for a hook, in the order of the stream that it
  /// gives, one for the whole step. May synchronise as attach(). One thread at a time.
  Result<cuda::Stream> begin_hook(size_t bucket, BucketSteps steps, Flat flat);
  /// Brings the results where they are wanted, and makes `stream` wait for that.
  Status end_hooks(size_t buckets, cuda::Stream stream);
  /// finish() has enqueued on `stream` what else uses the buckets.
  Status record_finished(cuda::Stream stream) { return runtime_->record(finished_, stream); }
  /// Until the GPU has passed what end_hooks(), clip(), scale() and finish() enqueued last on the
  /// streams that they were given. As await_event().
  Status await_streams(comm::Communicator& comm, Deadline deadline, bool broken_too) const;
  /// data[i] *= factor of floating-point numbers.
  Status multiply(void* data, Dtype dtype, int64_t count, double factor, cuda::Stream stream) {
    return kernels_->multiply(data, dtype, count, factor, stream);
  }
  Status divide(void* data, Dtype dtype, int64_t count, int32_t divisor, cuda::Stream stream) {
    return kernels_->divide(data, dtype, count, divisor, stream);
  }
  /// The results of one dtype.
  struct Results {
    Dtype dtype = Dtype::kF32;
    std::vector<kernels::Tensor> tensors;
    bool operator==(const Results&) const = default;
  };
  /// Multiplies the results by max_norm / (their norm + tiny) where that is less than 1, and writes
  /// the norm to norm(), and to `norm` if not null. May synchronise where they are not what they
  /// were in the last call. Between steps.
  Status clip(std::vector<Results> results, float max_norm, float tiny, float* norm,
              cuda::Stream stream);
  /// The same of results that are divided among ranks, with the same bits whoever has which. All in
  /// the order of `stream`: of largest(), which gives 3 elements of f64, the caller takes the
  /// maximum over all ranks; of powers(), 2 of i64, the sum over those that have different
  /// results; then scale().
  Result<double*> largest(std::vector<Results> results, cuda::Stream stream);
  Result<int64_t*> powers(double type, cuda::Stream stream);
  Status scale(double type, double max_norm, double tiny, float* norm, cuda::Stream stream);
  /// On the device: that of the last clip() or scale().
  const float* norm() const;
  Status copy(void* to, const void* from, int64_t bytes, cuda::Stream stream) {
    return runtime_->copy(to, from, bytes, stream);
  }
  /// All operations of the step are enqueued, or it failed.
  void end_step();

  StepTimes& times() { return times_; }

 private:
  /// What `before` and `behind` of one operation work on.
  struct Errand;
  struct Streams {
    std::vector<std::pair<cuda::Stream, cuda::Event>> used;  // in this step
    std::vector<cuda::Event> spare;
  };
  struct Bucket {
    Guarded<Streams> streams;
    std::vector<OutsideGradient> outside;  // that the list is of
    std::shared_ptr<kernels::TensorList> list;
    std::shared_ptr<kernels::TensorList> kept;        // of BucketSteps::kept, where dtypes differ
    std::shared_ptr<const Errand> hooked;             // of this step
    std::vector<kernels::QuantizedTensor> quantized;  // that the next list is of
    std::shared_ptr<kernels::QuantizedList> quantized_list;
  };
  struct QuantizedErrand;
  struct Steps;
  /// The first of the bucket's reduction.
  std::shared_ptr<Steps> begin_steps(size_t bucket);

  void release_old_lists();
  Status list_of(Bucket* bucket, const std::vector<OutsideGradient>& outside, Dtype dtype);
  Result<std::shared_ptr<Errand>> errand_of(size_t bucket, BucketSteps steps, Flat flat,
                                            Dtype dtype);
  Status list_quantized(Bucket* bucket, const std::vector<kernels::QuantizedTensor>& tensors);
  Status list_results(std::vector<Results> results);
  Status scale_results(float* norm, cuda::Stream stream);

  const std::shared_ptr<cuda::Runtime> runtime_;
  const std::shared_ptr<kernels::TensorKernels> kernels_;
  std::vector<std::unique_ptr<Bucket>> buckets_;
  // Lists of earlier steps, which the GPU may still be in. Released here and not with the
  // operation, since that may synchronise, which the device thread must not.
  std::vector<std::shared_ptr<void>> old_lists_;
  cuda::Stream hook_stream_ = nullptr;
  cuda::Event hooks_ended_ = nullptr;
  // Of clip().
  std::vector<Results> results_;
  std::vector<std::shared_ptr<kernels::TensorList>> result_lists_;
  std::vector<std::shared_ptr<kernels::TensorList>> old_results_;
  struct Scratch;
  Scratch* scratch_ = nullptr;      // on the device
  cuda::Event scaled_ = nullptr;    // behind the last call of clip() or scale()
  cuda::Event finished_ = nullptr;  // of record_finished()
  StepTimes times_;
};

}  // namespace dt::training
