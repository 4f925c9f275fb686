// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/tensors.h"

#include "cuda/device_scope.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/records.h"

namespace dt::kernels {
namespace {

Status check_float(const char* call, Dtype dtype) {
  if (is_floating(dtype)) return {};
  return Status(Code::kInvalidArgument, std::string(call) + " of " + dtype_name(dtype) +
                                            ": tensors are f16, bf16, f32 or f64");
}

/// CUDA would only say it later, and then at every call.
Status check_address(const char* call, uintptr_t address, Dtype dtype) {
  if (address % static_cast<uintptr_t>(dtype_bytes(dtype)) == 0) return {};
  return Status(Code::kInvalidArgument,
                format("%s of %s at an address that is no multiple of %lld bytes", call,
                       dtype_name(dtype), static_cast<long long>(dtype_bytes(dtype))));
}

Status check_low_rank(const char* call, std::span<const LowRankMatrix> matrices, int32_t rank) {
  for (const LowRankMatrix& each : matrices) {
    if (rank >= 1 && each.rows >= 1 && each.columns >= 1 && each.data != nullptr &&
        each.p != nullptr && each.q != nullptr) {
      continue;
    }
    return Status(Code::kInvalidArgument,
                  format("%s of %lld rows and %lld columns with rank %d: each is at least 1, and "
                         "the matrix and both factors have memory",
                         call, static_cast<long long>(each.rows),
                         static_cast<long long>(each.columns), rank));
  }
  return {};
}

Status check_batch(const char* call, const BatchView& view) {
  DT_TRY(check_float(call, view.dtype));
  DT_TRY(check_address(call, reinterpret_cast<uintptr_t>(view.input), view.dtype));
  if (view.batch >= 0 && view.channels >= 1 && view.spatial >= 1) return {};
  return Status(
      Code::kInvalidArgument,
      format("%s of %lld samples of %lld channels of %lld elements: a sample has at "
             "least one of each",
             call, static_cast<long long>(view.batch), static_cast<long long>(view.channels),
             static_cast<long long>(view.spatial)));
}

class DeviceList : public TensorList {
 public:
  DeviceList(DeviceRecords device_records, int64_t size)
      : records_(std::move(device_records)), size_(size) {}

  int64_t size() const override { return size_; }

  DeviceChunks chunks;
  uintptr_t address_bits = 0;

 private:
  const DeviceRecords records_;
  const int64_t size_;
};

class DeviceUpdateList : public UpdateList {
 public:
  explicit DeviceUpdateList(DeviceRecords device_records) : records_(std::move(device_records)) {}

  DeviceUpdates chunks;
  Dtype dtype = Dtype::kF32;
  UpdateArrays arrays;

 private:
  const DeviceRecords records_;
};

class DeviceQuantizedList : public QuantizedList {
 public:
  explicit DeviceQuantizedList(DeviceRecords device_records)
      : records_(std::move(device_records)) {}

  DeviceQuantized chunks;

 private:
  const DeviceRecords records_;
};

class CudaTensorKernels : public TensorKernels {
 public:
  explicit CudaTensorKernels(std::shared_ptr<cuda::Runtime> runtime)
      : runtime_(std::move(runtime)) {}

  Result<std::shared_ptr<TensorList>> prepare(std::span<const Tensor> tensors) override {
    DT_TRY_VALUE(const ChunkPlan plan, plan_chunks(tensors));
    const size_t chunks = plan.tensor_of_chunk.size();
    DT_TRY_VALUE(DeviceRecords records,
                 DeviceRecords::upload(runtime_, std::as_bytes(std::span(plan.tensors)),
                                       plan.tensor_of_chunk, chunks * sizeof(double)));
    const DeviceChunks on_device{static_cast<const TensorRecord*>(records.records()),
                                 records.tensor_of_chunk(), static_cast<int64_t>(chunks),
                                 static_cast<double*>(records.scratch())};
    const auto list =
        std::make_shared<DeviceList>(std::move(records), static_cast<int64_t>(tensors.size()));
    list->chunks = on_device;
    list->address_bits = plan.address_bits;
    return std::shared_ptr<TensorList>(list);
  }

  Result<std::shared_ptr<UpdateList>> prepare_update(std::span<const UpdatedTensor> tensors,
                                                     Dtype dtype) override {
    DT_TRY_VALUE(const UpdatePlan plan, plan_updates(tensors, dtype));
    DT_TRY_VALUE(DeviceRecords records,
                 DeviceRecords::upload(runtime_, std::as_bytes(std::span(plan.tensors)),
                                       plan.tensor_of_chunk, 0));
    const DeviceUpdates on_device{static_cast<const UpdateRecord*>(records.records()),
                                  records.tensor_of_chunk(),
                                  static_cast<int64_t>(plan.tensor_of_chunk.size())};
    const auto list = std::make_shared<DeviceUpdateList>(std::move(records));
    list->chunks = on_device;
    list->dtype = dtype;
    list->arrays = plan.arrays;
    return std::shared_ptr<UpdateList>(list);
  }

  Status gather(const TensorList& tensors, Dtype from, void* flat, Dtype to, float scale,
                cuda::Stream stream) override {
    DT_TRY(check_flat("gather", tensors, from, flat, to));
    return launch("gather", tensors, stream,
                  [&](const Launch& on) { return launch_gather(on, from, flat, to, scale); });
  }

  Status scatter(const TensorList& tensors, Dtype to, const void* flat, Dtype from, float scale,
                 cuda::Stream stream) override {
    DT_TRY(check_flat("scatter", tensors, to, flat, from));
    return launch("scatter", tensors, stream,
                  [&](const Launch& on) { return launch_scatter(on, to, flat, from, scale); });
  }

  Status squared_norm(const TensorList& tensors, Dtype dtype, double* out, int32_t* found_inf,
                      cuda::Stream stream) override {
    DT_TRY(check_tensors("squared_norm", tensors, dtype));
    const cuda::DeviceScope scope(device());
    DT_TRY(scope.status());
    return checked("squared_norm", device(),
                   launch_squared_norm(launch_on(tensors, stream), dtype, out, found_inf));
  }

  Status scale(const TensorList& tensors, Dtype dtype, float scale, const float* device_scale,
               cuda::Stream stream) override {
    DT_TRY(check_tensors("scale", tensors, dtype));
    return launch("scale", tensors, stream,
                  [&](const Launch& on) { return launch_scale(on, dtype, scale, device_scale); });
  }

  Status clip_factor(const double* squares, int32_t count, float max_norm, float tiny, float* norm,
                     float* factor, cuda::Stream stream) override {
    const cuda::DeviceScope scope(device());
    DT_TRY(scope.status());
    const Launch on{{}, runtime_->device().multiprocessors, native(stream)};
    return checked("clip_factor", device(),
                   launch_clip_factor(on, squares, count, max_norm, tiny, norm, factor));
  }

  Status multiply(void* data, Dtype dtype, int64_t count, double factor,
                  cuda::Stream stream) override {
    DT_TRY(check_float("multiply", dtype));
    DT_TRY(check_address("multiply", reinterpret_cast<uintptr_t>(data), dtype));
    if (count <= 0) return {};
    const cuda::DeviceScope scope(device());
    DT_TRY(scope.status());
    const Launch on{{}, runtime_->device().multiprocessors, native(stream)};
    return checked("multiply", device(), launch_multiply(on, data, dtype, count, factor));
  }

  Status add(void* data, const void* from, Dtype dtype, int64_t count,
             cuda::Stream stream) override {
    if (!is_valid(dtype) || count < 0) {
      return Status(Code::kInvalidArgument,
                    format("add of %lld elements of dtype %s: the count is at least 0",
                           static_cast<long long>(count), dtype_name(dtype)));
    }
    DT_TRY(check_address("add", reinterpret_cast<uintptr_t>(data), dtype));
    DT_TRY(check_address("add", reinterpret_cast<uintptr_t>(from), dtype));
    if (count == 0) return {};
    const cuda::DeviceScope scope(device());
    DT_TRY(scope.status());
    const Launch on{{}, runtime_->device().multiprocessors, native(stream)};
    return checked("add", device(), launch_add(on, data, from, dtype, count));
  }

  Status divide(void* data, Dtype dtype, int64_t count, int32_t divisor,
                cuda::Stream stream) override {
    if (!is_valid(dtype) || count < 0 || divisor < 1) {
      return Status(
          Code::kInvalidArgument,
          format("divide of %lld elements of dtype %s by %d: the count is at least 0, the "
                 "divisor at least 1",
                 static_cast<long long>(count), dtype_name(dtype), divisor));
    }
    DT_TRY(check_address("divide", reinterpret_cast<uintptr_t>(data), dtype));
    if (count == 0 || divisor == 1) return {};
    const cuda::DeviceScope scope(device());
    DT_TRY(scope.status());
    const Launch on{{}, runtime_->device().multiprocessors, native(stream)};
    return checked("divide", device(), launch_divide(on, data, dtype, count, divisor));
  }

  Status adamw(const UpdateList& list, std::span<const AdamWStep> steps, const StepGuard& guard,
               cuda::Stream stream) override {
    return update("adamw", list, UpdateArrays{true, true, true}, stream, [&](const auto& on) {
      return launch_adamw(on, update_list(list).dtype, steps, guard);
    });
  }

  Status sgd(const UpdateList& list, std::span<const SgdStep> steps, const StepGuard& guard,
             cuda::Stream stream) override {
    return update("sgd", list, UpdateArrays{true, false, false}, stream, [&](const auto& on) {
      const DeviceUpdateList& device_list = update_list(list);
      return launch_sgd(on, device_list.dtype, steps, guard, device_list.arrays.first);
    });
  }

  Status follow(const UpdateList& list, bool all, cuda::Stream stream) override {
    const Dtype dtype = update_list(list).dtype;
    if (dtype != Dtype::kF16 && dtype != Dtype::kBf16) return {};
    return update("follow", list, UpdateArrays(), stream,
                  [&](const auto& on) { return launch_follow(on, dtype, all); });
  }

  Result<std::shared_ptr<QuantizedList>> prepare_quantized(
      std::span<const QuantizedTensor> tensors) override {
    DT_TRY_VALUE(const QuantizedPlan plan, plan_quantized(tensors));
    DT_TRY_VALUE(DeviceRecords records,
                 DeviceRecords::upload(runtime_, std::as_bytes(std::span(plan.tensors)),
                                       plan.tensor_of_chunk, 0));
    const DeviceQuantized on_device{static_cast<const QuantizedRecord*>(records.records()),
                                    records.tensor_of_chunk(),
                                    static_cast<int64_t>(plan.tensor_of_chunk.size())};
    const auto list = std::make_shared<DeviceQuantizedList>(std::move(records));
    list->chunks = on_device;
    return std::shared_ptr<QuantizedList>(list);
  }

  Status quantize(const QuantizedList& list, float factor, void* blocks,
                  cuda::Stream stream) override {
    DT_TRY(check_blocks("quantize", blocks));
    return quantized("quantize", list, stream,
                     [&](const auto& on) { return launch_quantize(on, factor, blocks); });
  }

  Status sum_parts(const QuantizedList& list, const QuantizedPart& part, float factor, void* to,
                   cuda::Stream stream) override {
    DT_TRY(check_part("sum_parts", part));
    DT_TRY(check_blocks("sum_parts", to));
    return quantized("sum_parts", list, stream,
                     [&](const auto& on) { return launch_sum_parts(on, part, factor, to); });
  }

  Status dequantize(const QuantizedList& list, const void* blocks, float factor,
                    cuda::Stream stream) override {
    DT_TRY(check_blocks("dequantize", blocks));
    return quantized("dequantize", list, stream,
                     [&](const auto& on) { return launch_dequantize(on, blocks, factor); });
  }

  Status largest(const TensorList& tensors, Dtype dtype, double* out,
                 cuda::Stream stream) override {
    DT_TRY(check_tensors("largest", tensors, dtype));
    return launch("largest", tensors, stream,
                  [&](const Launch& on) { return launch_largest(on, dtype, out); });
  }

  Status powers(const TensorList& tensors, Dtype dtype, const double* largest, double type,
                int64_t* sum, cuda::Stream stream) override {
    DT_TRY(check_tensors("powers", tensors, dtype));
    return launch("powers", tensors, stream,
                  [&](const Launch& on) { return launch_powers(on, dtype, largest, type, sum); });
  }

  Status clip_factor_of_powers(const double* largest, const int64_t* sum, double type,
                               double max_norm, double tiny, float* norm, float* factor,
                               cuda::Stream stream) override {
    const cuda::DeviceScope scope(device());
    DT_TRY(scope.status());
    const Launch on{{}, runtime_->device().multiprocessors, native(stream)};
    return checked(
        "clip_factor_of_powers", device(),
        launch_clip_factor_of_powers(on, largest, sum, type, max_norm, tiny, norm, factor));
  }

  Status draw_q(std::span<const LowRankMatrix> matrices, int32_t rank,
                cuda::Stream stream) override {
    return low_rank("draw_q", matrices, rank, stream,
                    [&](const Launch& on) { return launch_draw_q(on, matrices, rank); });
  }

  Status orthonormalise(std::span<const LowRankMatrix> matrices, LowRankFactor factor, int32_t rank,
                        cuda::Stream stream) override {
    return low_rank("orthonormalise", matrices, rank, stream, [&](const Launch& on) {
      return launch_orthonormalise(on, matrices, factor, rank);
    });
  }

  Status batch_moments(const BatchView& view, double* scratch, double* row,
                       cuda::Stream stream) override {
    DT_TRY(check_batch("batch_moments", view));
    return launch_one("batch_moments", stream, [&](cudaStream_t on) {
      return launch_batch_moments(on, view, scratch, row);
    });
  }

  Status batch_gradient_sums(const BatchView& view, const BatchScale& scale, double* scratch,
                             double* row, cuda::Stream stream) override {
    DT_TRY(check_batch("batch_gradient_sums", view));
    DT_TRY(check_address("batch_gradient_sums", reinterpret_cast<uintptr_t>(view.gradient),
                         view.dtype));
    return launch_one("batch_gradient_sums", stream, [&](cudaStream_t on) {
      return launch_batch_gradient_sums(on, view, scale, scratch, row);
    });
  }

  Status merge_moments(const double* rows, int32_t ranks, int64_t channels, double* mean,
                       double* variance, int64_t* count, cuda::Stream stream) override {
    return launch_one("merge_moments", stream, [&](cudaStream_t on) {
      return launch_merge_moments(on, rows, ranks, channels, mean, variance, count);
    });
  }

  Status merge_gradient_sums(const double* rows, int32_t ranks, int64_t channels, double* sum,
                             double* product, cuda::Stream stream) override {
    return launch_one("merge_gradient_sums", stream, [&](cudaStream_t on) {
      return launch_merge_gradient_sums(on, rows, ranks, channels, sum, product);
    });
  }

  Status find_p(std::span<const LowRankMatrix> matrices, int32_t rank,
                cuda::Stream stream) override {
    return low_rank("find_p", matrices, rank, stream,
                    [&](const Launch& on) { return launch_find_p(on, matrices, rank); });
  }

  Status find_q(std::span<const LowRankMatrix> matrices, int32_t rank,
                cuda::Stream stream) override {
    return low_rank("find_q", matrices, rank, stream,
                    [&](const Launch& on) { return launch_find_q(on, matrices, rank); });
  }

  Status restore(std::span<const LowRankMatrix> matrices, int32_t rank,
                 cuda::Stream stream) override {
    return low_rank("restore", matrices, rank, stream,
                    [&](const Launch& on) { return launch_restore(on, matrices, rank); });
  }

  Status cast(const void* from, Dtype from_dtype, void* to, Dtype to_dtype, int64_t count,
              cuda::Stream stream) override {
    if (from_dtype == to_dtype || (from_dtype != Dtype::kF32 && to_dtype != Dtype::kF32)) {
      return Status(Code::kInvalidArgument, format("cast of %s to %s: one of the two is f32",
                                                   dtype_name(from_dtype), dtype_name(to_dtype)));
    }
    DT_TRY(check_float("cast", from_dtype));
    DT_TRY(check_float("cast", to_dtype));
    DT_TRY(check_address("cast", reinterpret_cast<uintptr_t>(from), from_dtype));
    DT_TRY(check_address("cast", reinterpret_cast<uintptr_t>(to), to_dtype));
    if (count <= 0) return {};
    const cuda::DeviceScope scope(device());
    DT_TRY(scope.status());
    const Launch on{{}, runtime_->device().multiprocessors, native(stream)};
    return checked("cast", device(), launch_cast(on, from, from_dtype, to, to_dtype, count));
  }

 private:
  static cudaStream_t native(cuda::Stream stream) { return reinterpret_cast<cudaStream_t>(stream); }
  static const DeviceList& device_list(const TensorList& tensors) {
    return static_cast<const DeviceList&>(tensors);
  }
  static const DeviceUpdateList& update_list(const UpdateList& list) {
    return static_cast<const DeviceUpdateList&>(list);
  }
  int32_t device() const { return runtime_->device().index; }

  static Status check_tensors(const char* call, const TensorList& tensors, Dtype dtype) {
    DT_TRY(check_float(call, dtype));
    return check_address(call, device_list(tensors).address_bits, dtype);
  }

  static Status check_flat(const char* call, const TensorList& tensors, Dtype dtype,
                           const void* flat, Dtype flat_dtype) {
    DT_TRY(check_tensors(call, tensors, dtype));
    DT_TRY(check_float(call, flat_dtype));
    return check_address(call, reinterpret_cast<uintptr_t>(flat), flat_dtype);
  }

  Launch launch_on(const TensorList& tensors, cuda::Stream stream) const {
    return {device_list(tensors).chunks, runtime_->device().multiprocessors, native(stream)};
  }

  template <class Start>
  Status launch(const char* call, const TensorList& tensors, cuda::Stream stream,
                Start start) const {
    if (device_list(tensors).chunks.chunks == 0) return {};
    const cuda::DeviceScope scope(device());
    DT_TRY(scope.status());
    return checked(call, device(), start(launch_on(tensors, stream)));
  }

  template <class Start>
  Status low_rank(const char* call, std::span<const LowRankMatrix> matrices, int32_t rank,
                  cuda::Stream stream, Start start) const {
    DT_TRY(check_low_rank(call, matrices, rank));
    if (matrices.empty()) return {};
    const cuda::DeviceScope scope(device());
    DT_TRY(scope.status());
    const Launch on{{}, runtime_->device().multiprocessors, native(stream)};
    return checked(call, device(), start(on));
  }

  /// A launch without a list of tensors.
  template <class Start>
  Status launch_one(const char* call, cuda::Stream stream, Start start) const {
    const cuda::DeviceScope scope(device());
    DT_TRY(scope.status());
    return checked(call, device(), start(native(stream)));
  }

  template <class Start>
  Status update(const char* call, const UpdateList& list, UpdateArrays needed, cuda::Stream stream,
                Start start) const {
    const DeviceUpdateList& tensors = update_list(list);
    if (tensors.chunks.chunks == 0) return {};
    DT_TRY(check_arrays(call, tensors.arrays, needed));
    const cuda::DeviceScope scope(device());
    DT_TRY(scope.status());
    const UpdateLaunch on{tensors.chunks, runtime_->device().multiprocessors, native(stream)};
    return checked(call, device(), start(on));
  }

  template <class Start>
  Status quantized(const char* call, const QuantizedList& list, cuda::Stream stream,
                   Start start) const {
    const DeviceQuantized& chunks = static_cast<const DeviceQuantizedList&>(list).chunks;
    if (chunks.chunks == 0) return {};
    const cuda::DeviceScope scope(device());
    DT_TRY(scope.status());
    const QuantizedLaunch on{chunks, runtime_->device().multiprocessors, native(stream)};
    return checked(call, device(), start(on));
  }

  const std::shared_ptr<cuda::Runtime> runtime_;
};

}  // namespace

Result<std::shared_ptr<TensorKernels>> cuda_tensor_kernels(std::shared_ptr<cuda::Runtime> runtime) {
  const int32_t device = runtime->device().index;
  const cuda::DeviceScope scope(device);
  DT_TRY(scope.status());
  for (const auto load : {load_add, load_batch, load_copy, load_divide, load_low_rank, load_norm,
                          load_powers, load_quantize, load_scale, load_update}) {
    DT_TRY(checked("loading kernels (cudaFuncGetAttributes)", device, load()));
  }
  return std::shared_ptr<TensorKernels>(std::make_shared<CudaTensorKernels>(std::move(runtime)));
}

}  // namespace dt::kernels
