// SPDX-License-Identifier: Apache-2.0
#include "cuda/failure.h"

#include "cuda/runtime.h"

namespace dt::cuda {
namespace {

std::string what_failed(const Failure& failure) {
  return format("%s on GPU %d fails with %s (%d): %s", failure.call.c_str(), failure.device,
                failure.name.c_str(), failure.error, failure.text.c_str());
}

/// "1.5 GiB"
std::string size_text(int64_t bytes) {
  constexpr double kGiB = 1 << 30;
  constexpr double kMiB = 1 << 20;
  const auto size = static_cast<double>(bytes);
  if (size >= kGiB) return format("%.1f GiB", size / kGiB);
  if (size >= kMiB) return format("%.1f MiB", size / kMiB);
  return format("%lld bytes", static_cast<long long>(bytes));
}

}  // namespace

std::string advice_for(int32_t error) {
  switch (error) {
    case kErrorMemoryAllocation:
      return "use smaller batches or buckets, or look for other processes in nvidia-smi";
    case kErrorInitialization:
      return "CUDA does not survive a fork: start the process by exec, or fork before CUDA is used";
    case kErrorDevicesUnavailable:
      return "another process holds the GPU alone: see nvidia-smi, and its compute mode";
    case kErrorNoKernelImage:
      return "this dt has kernels for " + build_text() +
             " only: use such a GPU, or build dt with this GPU's compute capability in "
             "-Dgpu_archs";
    case kErrorEccUncorrectable:
      return "the GPU's memory is faulty: reset or replace it (nvidia-smi -q -d ECC)";
    case kErrorIllegalAddress:
    case kErrorLaunchTimeout:
    case kErrorAssert:
    case kErrorHardwareStack:
    case kErrorIllegalInstruction:
    case kErrorMisalignedAddress:
    case kErrorInvalidAddressSpace:
    case kErrorInvalidPc:
    case kErrorLaunchFailure:
      return "a kernel of this process failed earlier, and each later call reports it: find it "
             "with "
             "compute-sanitizer or CUDA_LAUNCH_BLOCKING=1; the process must be started again";
    case kErrorSystemNotReady:
      return "NVSwitch's fabric manager does not run: systemctl start nvidia-fabricmanager";
    case kErrorDriverMismatch:
      return "the driver's kernel module and libcuda.so.1 differ: reboot after the update, or give "
             "the container the host's libraries";
    case kErrorCompatNotSupported:
      return "CUDA's forward compatibility libraries do not work with this GPU: take them out of "
             "LD_LIBRARY_PATH, and update the driver";
    default: return "";
  }
}

Status failed(const Failure& failure) {
  const std::string advice = advice_for(failure.error);
  const Code code = failure.error == kErrorMemoryAllocation ? Code::kOutOfMemory : Code::kCuda;
  return Status(code, what_failed(failure) + (advice.empty() ? "" : "; " + advice));
}

Status out_of_memory(const Failure& failure, int64_t bytes, int64_t free_bytes,
                     int64_t total_bytes) {
  const std::string state = free_bytes < 0 ? "how much is free CUDA does not say"
                                           : size_text(free_bytes) + " of " +
                                                 size_text(total_bytes) + " are free on this GPU";
  return Status(Code::kOutOfMemory,
                what_failed(failure) + format(": %lld bytes", static_cast<long long>(bytes)) +
                    " were asked for, " + state +
                    "; use smaller batches or buckets, or look for other processes in nvidia-smi");
}

Status out_of_pinned_memory(const Failure& failure, int64_t bytes) {
  return Status(Code::kOutOfMemory,
                what_failed(failure) + format(": %lld bytes", static_cast<long long>(bytes)) +
                    " of pinned host memory were asked for; free some of the host's memory, or "
                    "raise the limit of the control group");
}

}  // namespace dt::cuda
