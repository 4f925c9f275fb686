// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace dt::cuda {

/// Values of cudaError_t that dt tells apart (asserted in runtime.cc).
inline constexpr int32_t kErrorMemoryAllocation = 2;
inline constexpr int32_t kErrorInitialization = 3;
inline constexpr int32_t kErrorStubLibrary = 34;
inline constexpr int32_t kErrorInsufficientDriver = 35;
inline constexpr int32_t kErrorDevicesUnavailable = 46;
inline constexpr int32_t kErrorNoDevice = 100;
inline constexpr int32_t kErrorNoKernelImage = 209;
inline constexpr int32_t kErrorEccUncorrectable = 214;
inline constexpr int32_t kErrorIllegalAddress = 700;
inline constexpr int32_t kErrorLaunchTimeout = 702;
inline constexpr int32_t kErrorAssert = 710;
inline constexpr int32_t kErrorHardwareStack = 714;
inline constexpr int32_t kErrorIllegalInstruction = 715;
inline constexpr int32_t kErrorMisalignedAddress = 716;
inline constexpr int32_t kErrorInvalidAddressSpace = 717;
inline constexpr int32_t kErrorInvalidPc = 718;
inline constexpr int32_t kErrorLaunchFailure = 719;
inline constexpr int32_t kErrorSystemNotReady = 802;
inline constexpr int32_t kErrorDriverMismatch = 803;
inline constexpr int32_t kErrorCompatNotSupported = 804;
inline constexpr int32_t kErrorStreamCaptureImplicit = 906;

/// What to do about an error; empty where CUDA's text must suffice.
std::string advice_for(int32_t error);

/// A call that CUDA refused.
struct Failure {
  std::string call;  ///< "cudaEventRecord"
  int32_t device = -1;
  int32_t error = 0;
  std::string name;  ///< "cudaErrorIllegalAddress"
  std::string text;  ///< "an illegal memory access was encountered"
};
Status failed(const Failure& failure);

/// OUT_OF_MEMORY of a device; `free_bytes` -1: unknown.
Status out_of_memory(const Failure& failure, int64_t bytes, int64_t free_bytes,
                     int64_t total_bytes);
/// OUT_OF_MEMORY of pinned memory of the host.
Status out_of_pinned_memory(const Failure& failure, int64_t bytes);

}  // namespace dt::cuda
