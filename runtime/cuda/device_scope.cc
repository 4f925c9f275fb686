// SPDX-License-Identifier: Apache-2.0
#include "cuda/device_scope.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <array>
#include <atomic>

#include "base/fork.h"
#include "cuda/failure.h"

namespace dt::cuda {
namespace {

constexpr int32_t kMostDevices = 64;  // more than CUDA shows to one process

/// Of the driver, by the CUDA runtime: dt is not linked to libcuda.
struct Driver {
  CUresult (*get_device)(CUdevice*, int) = nullptr;
  CUresult (*retain_primary)(CUcontext*, CUdevice) = nullptr;
  CUresult (*get_current)(CUcontext*) = nullptr;
  CUresult (*push)(CUcontext) = nullptr;
  CUresult (*pop)(CUcontext*) = nullptr;
  cudaError_t error = cudaSuccess;
  const char* missing = nullptr;  ///< the function that could not be had
};

template <class Function>
void find(const char* name, Function* function, Driver* driver) {
  constexpr unsigned kVersion = 12000;  // of the functions' signatures
  void* symbol = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &symbol, kVersion, cudaEnableDefault, &result);
  *function = reinterpret_cast<Function>(symbol);
  if (error == cudaSuccess && symbol != nullptr) return;
  driver->error = error == cudaSuccess ? cudaErrorSymbolNotFound : error;
  driver->missing = name;
}

const Driver& driver() {
  static const Driver found = [] {
    Driver functions;
    find("cuDeviceGet", &functions.get_device, &functions);
    find("cuDevicePrimaryCtxRetain", &functions.retain_primary, &functions);
    find("cuCtxGetCurrent", &functions.get_current, &functions);
    find("cuCtxPushCurrent", &functions.push, &functions);
    find("cuCtxPopCurrent", &functions.pop, &functions);
    return functions;
  }();
  return found;
}

Status refused(const char* call, int32_t device, cudaError_t error) {
  cudaGetLastError();  // the host program must not find it
  return failed({call, device, static_cast<int32_t>(error), cudaGetErrorName(error),
                 cudaGetErrorString(error)});
}

/// Errors of the driver have the numbers of those of the runtime, wherever both have them.
Status refused(const char* call, int32_t device, CUresult result) {
  return refused(call, device, static_cast<cudaError_t>(result));
}

/// The context that the CUDA runtime, and so everybody in the process, uses for the device. Kept
/// until the process ends.
Result<CUcontext> primary_context(int32_t device) {
  static std::array<std::atomic<CUcontext>, kMostDevices> contexts;
  static const uint32_t generation = fork_generation();
  if (fork_generation() != generation) {
    return Status(Code::kInvalidState,
                  "CUDA was used before this process was forked, and does not work in the child; "
                  "start the process by exec, or fork before CUDA is used");
  }
  if (device < 0 || device >= kMostDevices) {
    return Status(Code::kInvalidArgument, format("there is no GPU %d", device));
  }
  std::atomic<CUcontext>& known = contexts[static_cast<size_t>(device)];
  CUcontext context = known.load(std::memory_order_acquire);
  if (context != nullptr) return context;
  if (driver().missing != nullptr) return refused(driver().missing, device, driver().error);
  CUdevice handle = 0;
  CUresult result = driver().get_device(&handle, device);
  if (result != CUDA_SUCCESS) return refused("cuDeviceGet", device, result);
  result = driver().retain_primary(&context, handle);
  if (result != CUDA_SUCCESS) return refused("cuDevicePrimaryCtxRetain", device, result);
  known.store(context, std::memory_order_release);
  return context;
}

}  // namespace

DeviceScope::DeviceScope(int32_t device) {
  const Result<CUcontext> context = primary_context(device);
  if (!context.ok()) {
    status_ = context.status();
    return;
  }
  CUcontext current = nullptr;
  driver().get_current(&current);
  if (current != context.value()) {
    const CUresult result = driver().push(context.value());
    if (result != CUDA_SUCCESS) {
      status_ = refused("cuCtxPushCurrent", device, result);
      return;
    }
    pushed_ = true;
  }
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
  capture_mode_ = static_cast<int>(mode);
}

DeviceScope::~DeviceScope() {
  if (!status_.ok()) return;
  auto mode = static_cast<cudaStreamCaptureMode>(capture_mode_);
  cudaThreadExchangeStreamCaptureMode(&mode);
  CUcontext ours = nullptr;
  if (pushed_) driver().pop(&ours);
}

}  // namespace dt::cuda
