// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/tensors.h"

#include "cuda/device_scope.h"
#include "cuda/failure.h"
#include "kernels/cuda/launch.h"

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

Status checked(const char* call, int32_t device, cudaError_t error) {
  if (error == cudaSuccess) return {};
  cudaGetLastError();  // the host program must not find it
  return cuda::failed({call, device, static_cast<int32_t>(error), cudaGetErrorName(error),
                       cudaGetErrorString(error)});
}

class DeviceList : public TensorList {
 public:
  DeviceList(std::shared_ptr<cuda::Runtime> runtime, void* memory, int64_t size)
      : runtime_(std::move(runtime)), memory_(memory), size_(size) {}
  ~DeviceList() override { static_cast<void>(runtime_->release(memory_)); }
  DeviceList(const DeviceList&) = delete;
  DeviceList& operator=(const DeviceList&) = delete;

  int64_t size() const override { return size_; }

  DeviceChunks chunks;
  uintptr_t address_bits = 0;

 private:
  const std::shared_ptr<cuda::Runtime> runtime_;
  void* const memory_;
  const int64_t size_;
};

/// The list in one piece of memory: records, partial sums, tensors of the chunks.
struct Layout {
  explicit Layout(const ChunkPlan& plan)
      : tensor_bytes(plan.tensors.size() * sizeof(TensorRecord)),
        index_bytes(plan.tensor_of_chunk.size() * sizeof(int32_t)),
        sum_bytes(plan.tensor_of_chunk.size() * sizeof(float)) {}
  size_t total() const { return tensor_bytes + index_bytes + sum_bytes; }

  size_t tensor_bytes;
  size_t index_bytes;
  size_t sum_bytes;
};

/// Waits until it is there: streams of others do not wait for each other.
cudaError_t upload(const ChunkPlan& plan, const Layout& layout, char* memory, cudaStream_t stream) {
  cudaError_t error = cudaMemcpyAsync(memory, plan.tensors.data(), layout.tensor_bytes,
                                      cudaMemcpyHostToDevice, stream);
  if (error != cudaSuccess) return error;
  error = cudaMemcpyAsync(memory + layout.tensor_bytes, plan.tensor_of_chunk.data(),
                          layout.index_bytes, cudaMemcpyHostToDevice, stream);
  const cudaError_t end = cudaStreamSynchronize(stream);
  return error != cudaSuccess ? error : end;
}

class CudaTensorKernels : public TensorKernels {
 public:
  explicit CudaTensorKernels(std::shared_ptr<cuda::Runtime> runtime)
      : runtime_(std::move(runtime)) {}

  Result<std::shared_ptr<TensorList>> prepare(std::span<const Tensor> tensors) override {
    DT_TRY_VALUE(const ChunkPlan plan, plan_chunks(tensors));
    const Layout layout(plan);
    DT_TRY_VALUE(void* memory, runtime_->allocate(static_cast<int64_t>(layout.total())));
    const auto list =
        std::make_shared<DeviceList>(runtime_, memory, static_cast<int64_t>(tensors.size()));
    list->address_bits = plan.address_bits;
    if (memory == nullptr) return std::shared_ptr<TensorList>(list);
    auto* bytes = static_cast<char*>(memory);
    list->chunks.tensors = reinterpret_cast<const TensorRecord*>(bytes);
    list->chunks.tensor_of_chunk = reinterpret_cast<const int32_t*>(bytes + layout.tensor_bytes);
    list->chunks.chunks = static_cast<int64_t>(plan.tensor_of_chunk.size());
    list->chunks.partial_sums =
        reinterpret_cast<float*>(bytes + layout.tensor_bytes + layout.index_bytes);
    DT_TRY_VALUE(const cuda::Stream stream, runtime_->create_stream(cuda::StreamPriority::kNormal));
    {
      const cuda::DeviceScope scope(device());
      const Status uploaded =
          scope.status().ok()
              ? checked("cudaMemcpyAsync", device(), upload(plan, layout, bytes, native(stream)))
              : scope.status();
      const Status destroyed = runtime_->destroy_stream(stream);
      DT_TRY(uploaded);
      DT_TRY(destroyed);
    }
    return std::shared_ptr<TensorList>(list);
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

  Status squared_norm(const TensorList& tensors, Dtype dtype, float* out, int32_t* found_inf,
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

  Status clip_factor(const float* squares, int32_t count, float max_norm, float tiny, float* norm,
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

 private:
  static cudaStream_t native(cuda::Stream stream) { return reinterpret_cast<cudaStream_t>(stream); }
  static const DeviceList& device_list(const TensorList& tensors) {
    return static_cast<const DeviceList&>(tensors);
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

  const std::shared_ptr<cuda::Runtime> runtime_;
};

}  // namespace

Result<std::shared_ptr<TensorKernels>> cuda_tensor_kernels(std::shared_ptr<cuda::Runtime> runtime) {
  const int32_t device = runtime->device().index;
  const cuda::DeviceScope scope(device);
  DT_TRY(scope.status());
  for (const auto load : {load_add, load_copy, load_divide, load_norm, load_scale}) {
    DT_TRY(checked("loading kernels (cudaFuncGetAttributes)", device, load()));
  }
  return std::shared_ptr<TensorKernels>(std::make_shared<CudaTensorKernels>(std::move(runtime)));
}

}  // namespace dt::kernels
