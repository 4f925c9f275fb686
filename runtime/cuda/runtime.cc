// SPDX-License-Identifier: Apache-2.0
// The CUDA runtime, linked statically: it opens the driver at the first call.
#include "cuda/runtime.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cctype>

#include "cuda/device_scope.h"
#include "cuda/failure.h"
#include "cuda/library.h"
#include "cuda/machines.h"

namespace dt::cuda {
namespace {

static_assert(kErrorMemoryAllocation == cudaErrorMemoryAllocation);
static_assert(kErrorInitialization == cudaErrorInitializationError);
static_assert(kErrorStubLibrary == cudaErrorStubLibrary);
static_assert(kErrorInsufficientDriver == cudaErrorInsufficientDriver);
static_assert(kErrorDevicesUnavailable == cudaErrorDevicesUnavailable);
static_assert(kErrorNoDevice == cudaErrorNoDevice);
static_assert(kErrorNoKernelImage == cudaErrorNoKernelImageForDevice);
static_assert(kErrorEccUncorrectable == cudaErrorECCUncorrectable);
static_assert(kErrorIllegalAddress == cudaErrorIllegalAddress);
static_assert(kErrorLaunchTimeout == cudaErrorLaunchTimeout);
static_assert(kErrorAssert == cudaErrorAssert);
static_assert(kErrorHardwareStack == cudaErrorHardwareStackError);
static_assert(kErrorIllegalInstruction == cudaErrorIllegalInstruction);
static_assert(kErrorMisalignedAddress == cudaErrorMisalignedAddress);
static_assert(kErrorInvalidAddressSpace == cudaErrorInvalidAddressSpace);
static_assert(kErrorInvalidPc == cudaErrorInvalidPc);
static_assert(kErrorLaunchFailure == cudaErrorLaunchFailure);
static_assert(kErrorSystemNotReady == cudaErrorSystemNotReady);
static_assert(kErrorDriverMismatch == cudaErrorSystemDriverMismatch);
static_assert(kErrorCompatNotSupported == cudaErrorCompatNotSupportedOnDevice);
static_assert(kErrorStreamCaptureImplicit == cudaErrorStreamCaptureImplicit);

cudaStream_t native(Stream stream) { return reinterpret_cast<cudaStream_t>(stream); }
cudaEvent_t native(Event event) { return reinterpret_cast<cudaEvent_t>(event); }

/// Also takes the error out of where the host program would find it later.
Failure describe(const char* call, int32_t device, cudaError_t error) {
  cudaGetLastError();
  return {call, device, static_cast<int32_t>(error), cudaGetErrorName(error),
          cudaGetErrorString(error)};
}

std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU";
  for (size_t i = 0; i < sizeof uuid.bytes; ++i) {
    const bool dash = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
    text += format(dash ? "-%02x" : "%02x", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

Result<DeviceInfo> device_info(int32_t index) {
  cudaDeviceProp properties{};
  cudaError_t error = cudaGetDeviceProperties(&properties, index);
  if (error != cudaSuccess) return failed(describe("cudaGetDeviceProperties", index, error));
  char bus_id[32] = {};
  error = cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, index);
  if (error != cudaSuccess) return failed(describe("cudaDeviceGetPCIBusId", index, error));
  DeviceInfo info;
  info.index = index;
  info.name = properties.name;
  info.uuid = uuid_text(properties.uuid);
  info.bus_id = bus_id;
  std::transform(info.bus_id.begin(), info.bus_id.end(), info.bus_id.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  info.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  info.compute_major = properties.major;
  info.compute_minor = properties.minor;
  info.multiprocessors = properties.multiProcessorCount;
  return info;
}

class CudaRuntime : public Runtime {
 public:
  explicit CudaRuntime(DeviceInfo info) : info_(std::move(info)) {}

  const DeviceInfo& device() const override { return info_; }

  Status select_for_thread() override {
    return checked("cudaSetDevice", cudaSetDevice(info_.index));
  }

  Result<Stream> create_stream(StreamPriority priority) override {
    const DeviceScope scope(info_.index);
    DT_TRY(scope.status());
    int lowest = 0;
    int highest = 0;
    DT_TRY(checked("cudaDeviceGetStreamPriorityRange",
                   cudaDeviceGetStreamPriorityRange(&lowest, &highest)));
    cudaStream_t stream = nullptr;
    DT_TRY(checked(
        "cudaStreamCreateWithPriority",
        cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                     priority == StreamPriority::kHigh ? highest : lowest)));
    return reinterpret_cast<Stream>(stream);
  }

  Status destroy_stream(Stream stream) override {
    const DeviceScope scope(info_.index);
    DT_TRY(scope.status());
    return checked("cudaStreamDestroy", cudaStreamDestroy(native(stream)));
  }

  Result<bool> is_capturing(Stream stream) override {
    const DeviceScope scope(info_.index);
    DT_TRY(scope.status());
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    const cudaError_t error = cudaStreamIsCapturing(native(stream), &capture);
    // The default stream, while a stream that blocks it records.
    if (error == cudaErrorStreamCaptureImplicit) {
      cudaGetLastError();
      return true;
    }
    DT_TRY(checked("cudaStreamIsCapturing", error));
    return capture != cudaStreamCaptureStatusNone;
  }

  Result<Event> create_event(bool timed) override {
    const DeviceScope scope(info_.index);
    DT_TRY(scope.status());
    cudaEvent_t event = nullptr;
    DT_TRY(checked(
        "cudaEventCreateWithFlags",
        cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming)));
    return reinterpret_cast<Event>(event);
  }

  Status destroy_event(Event event) override {
    const DeviceScope scope(info_.index);
    DT_TRY(scope.status());
    return checked("cudaEventDestroy", cudaEventDestroy(native(event)));
  }

  Status record(Event event, Stream stream) override {
    const DeviceScope scope(info_.index);
    DT_TRY(scope.status());
    return checked("cudaEventRecord", cudaEventRecord(native(event), native(stream)));
  }

  Result<bool> passed(Event event) override {
    const DeviceScope scope(info_.index);
    DT_TRY(scope.status());
    const cudaError_t error = cudaEventQuery(native(event));
    if (error == cudaErrorNotReady) {
      cudaGetLastError();  // it is kept like an error
      return false;
    }
    DT_TRY(checked("cudaEventQuery", error));
    return true;
  }

  Status wait(Stream stream, Event event) override {
    const DeviceScope scope(info_.index);
    DT_TRY(scope.status());
    return checked("cudaStreamWaitEvent", cudaStreamWaitEvent(native(stream), native(event), 0));
  }

  Result<float> elapsed_ms(Event begin, Event end) override {
    const DeviceScope scope(info_.index);
    DT_TRY(scope.status());
    float elapsed = 0;
    DT_TRY(checked("cudaEventElapsedTime",
                   cudaEventElapsedTime(&elapsed, native(begin), native(end))));
    return elapsed;
  }

  Result<void*> allocate(int64_t bytes) override {
    const DeviceScope scope(info_.index);
    DT_TRY(scope.status());
    if (bytes == 0) return nullptr;
    void* pointer = nullptr;
    const cudaError_t error = cudaMalloc(&pointer, static_cast<size_t>(bytes));
    if (error == cudaErrorMemoryAllocation) {
      const Failure failure = describe("cudaMalloc", info_.index, error);
      size_t free_bytes = 0;
      size_t total_bytes = 0;
      const bool known = cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess;
      return out_of_memory(failure, bytes, known ? static_cast<int64_t>(free_bytes) : -1,
                           static_cast<int64_t>(total_bytes));
    }
    DT_TRY(checked("cudaMalloc", error));
    return pointer;
  }

  Status release(void* pointer) override {
    const DeviceScope scope(info_.index);
    DT_TRY(scope.status());
    return checked("cudaFree", cudaFree(pointer));
  }

  Result<void*> allocate_pinned(int64_t bytes) override {
    const DeviceScope scope(info_.index);
    DT_TRY(scope.status());
    if (bytes == 0) return nullptr;
    void* pointer = nullptr;
    const cudaError_t error =
        cudaHostAlloc(&pointer, static_cast<size_t>(bytes), cudaHostAllocPortable);
    if (error == cudaErrorMemoryAllocation) {
      return out_of_pinned_memory(describe("cudaHostAlloc", info_.index, error), bytes);
    }
    DT_TRY(checked("cudaHostAlloc", error));
    return pointer;
  }

  Status release_pinned(void* pointer) override {
    const DeviceScope scope(info_.index);
    DT_TRY(scope.status());
    return checked("cudaFreeHost", cudaFreeHost(pointer));
  }

  Status copy(void* to, const void* from, int64_t bytes, Stream stream) override {
    const DeviceScope scope(info_.index);
    DT_TRY(scope.status());
    if (bytes == 0) return {};
    return checked("cudaMemcpyAsync", cudaMemcpyAsync(to, from, static_cast<size_t>(bytes),
                                                      cudaMemcpyDefault, native(stream)));
  }

  Status fill_zero(void* to, int64_t bytes, Stream stream) override {
    const DeviceScope scope(info_.index);
    DT_TRY(scope.status());
    if (bytes == 0) return {};
    return checked("cudaMemsetAsync",
                   cudaMemsetAsync(to, 0, static_cast<size_t>(bytes), native(stream)));
  }

  Status synchronize() override {
    const DeviceScope scope(info_.index);
    DT_TRY(scope.status());
    return checked("cudaDeviceSynchronize", cudaDeviceSynchronize());
  }

  Result<PointerInfo> pointer_info(const void* pointer) override {
    const DeviceScope scope(info_.index);
    DT_TRY(scope.status());
    cudaPointerAttributes attributes{};
    DT_TRY(checked("cudaPointerGetAttributes", cudaPointerGetAttributes(&attributes, pointer)));
    switch (attributes.type) {
      case cudaMemoryTypeHost: return PointerInfo{Memory::kPinned, -1};
      case cudaMemoryTypeDevice: return PointerInfo{Memory::kDevice, attributes.device};
      case cudaMemoryTypeManaged: return PointerInfo{Memory::kManaged, attributes.device};
      default: return PointerInfo{};
    }
  }

 private:
  Status checked(const char* call, cudaError_t error) const {
    return error == cudaSuccess ? Status() : failed(describe(call, info_.index, error));
  }

  const DeviceInfo info_;
};

}  // namespace

void ask_library(Answers* answers) {
  answers->built = true;
  answers->runtime_version = CUDART_VERSION;
  int version = 0;
  answers->driver_error = static_cast<int32_t>(cudaDriverGetVersion(&version));
  if (answers->driver_error == 0) answers->driver_version = version;
  int count = 0;  // left alone by a call that fails
  const cudaError_t error = cudaGetDeviceCount(&count);
  answers->count_error = static_cast<int32_t>(error);
  if (error == cudaSuccess) {
    answers->device_count = count;
  } else {
    answers->count_error_text = cudaGetErrorString(error);
    cudaGetLastError();  // the host program must not find it
  }
}

std::string build_text() { return version_text(CUDART_VERSION) + " (" DT_CUDA_MACHINES ")"; }

Result<std::vector<DeviceInfo>> list_devices() {
  const Answers answers = ask();
  DT_TRY(explain(answers));
  std::vector<DeviceInfo> devices;
  for (int32_t index = 0; index < answers.device_count; ++index) {
    DT_TRY_VALUE(DeviceInfo info, device_info(index));
    devices.push_back(std::move(info));
  }
  return devices;
}

Result<std::shared_ptr<Runtime>> open_device(int32_t index) {
  const Answers answers = ask();
  DT_TRY(explain(answers));
  if (index < 0 || index >= answers.device_count) {
    return Status(
        Code::kCuda,
        format("there is no GPU %d: this process sees %d", index, answers.device_count) +
            (answers.visible_is_set ? " (CUDA_VISIBLE_DEVICES is \"" + answers.visible + "\")"
                                    : std::string()) +
            "; start at most one rank for each GPU, or choose the device by its index");
  }
  DT_TRY_VALUE(DeviceInfo info, device_info(index));
  const DeviceScope scope(index);  // makes the context now, where a failure is easily understood
  DT_TRY(scope.status());
  return std::shared_ptr<Runtime>(std::make_shared<CudaRuntime>(std::move(info)));
}

}  // namespace dt::cuda
