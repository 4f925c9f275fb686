// SPDX-License-Identifier: Apache-2.0
// What a machine's answers mean, without CUDA: the same in every build.
#include <cstdlib>

#include "cuda/failure.h"
#include "cuda/library.h"
#include "cuda/runtime.h"

namespace dt::cuda {
namespace {

/// The first driver branch that serves a major version of CUDA, 0 unknown. Within one major version
/// an older driver does (NVIDIA, "CUDA Compatibility", minor version compatibility).
int oldest_driver(int32_t major) {
  switch (major) {
    case 12: return 525;
    case 13: return 580;
    default: return 0;
  }
}

std::string too_old(const Answers& answers) {
  const int32_t have = answers.driver_version;
  const int32_t major = answers.runtime_version / 1000;
  const bool by_major = have < major * 1000;
  const int32_t need = by_major ? major * 1000 : answers.runtime_version;
  const int driver = by_major ? oldest_driver(major) : 0;
  return "the NVIDIA driver is too old: it speaks CUDA " + version_text(have) + ", this dt needs " +
         version_text(need) + (driver == 0 ? "" : format(" (driver %d or newer)", driver)) +
         "; update the driver, or build dt with a toolkit of CUDA " + version_text(have);
}

std::string no_device(const Answers& answers) {
  if (answers.visible_is_set) {
    return "the NVIDIA driver shows no GPU to this process: CUDA_VISIBLE_DEVICES is \"" +
           answers.visible + "\"; unset it, or name GPUs that are there (nvidia-smi -L)";
  }
  return "the NVIDIA driver shows no GPU to this process; ask the scheduler for GPUs, and in a "
         "container pass them to it (--gpus all)";
}

std::string broken(const Answers& answers) {
  const std::string advice = advice_for(answers.count_error);
  return format("CUDA does not work here: cudaGetDeviceCount fails with %d (%s), driver API %s; ",
                answers.count_error, answers.count_error_text.c_str(),
                version_text(answers.driver_version).c_str()) +
         (advice.empty() ? "see nvidia-smi and the kernel's log (dmesg)" : advice);
}

}  // namespace

Answers ask() {
  Answers answers;
  const char* visible = getenv("CUDA_VISIBLE_DEVICES");
  answers.visible_is_set = visible != nullptr;
  if (visible != nullptr) answers.visible = visible;
  ask_library(&answers);
  return answers;
}

State judge(const Answers& answers) {
  if (!answers.built) return State::kNotBuilt;
  switch (answers.count_error) {
    case 0: return answers.device_count > 0 ? State::kReady : State::kNoDevice;
    case kErrorNoDevice: return State::kNoDevice;
    case kErrorStubLibrary: return State::kStubDriver;
    // Said of a missing driver as well.
    case kErrorInsufficientDriver:
      return answers.driver_version > 0 ? State::kDriverTooOld : State::kNoDriver;
    default: return State::kBroken;
  }
}

Status explain(const Answers& answers) {
  switch (judge(answers)) {
    case State::kReady: return {};
    case State::kNotBuilt:
      return Status(Code::kUnsupported,
                    "this dt is built without CUDA; build it with -Dcuda=enabled, or use the host "
                    "backend");
    case State::kNoDriver:
      return Status(Code::kCuda,
                    "there is no NVIDIA driver here (libcuda.so.1 is missing); install it, in a "
                    "container use the NVIDIA runtime, or use the host backend");
    case State::kDriverTooOld: return Status(Code::kCuda, too_old(answers));
    case State::kStubDriver:
      return Status(
          Code::kCuda,
          "the libcuda.so.1 found here is the CUDA toolkit's stub for linking, not the "
          "driver's; take the folder \"stubs\" out of LD_LIBRARY_PATH, and in a container "
          "use the NVIDIA runtime");
    case State::kNoDevice: return Status(Code::kCuda, no_device(answers));
    case State::kBroken: return Status(Code::kCuda, broken(answers));
  }
  return Status(Code::kInternal, "cuda::explain: an unknown state; please report it");
}

std::string version_text(int32_t version) {
  return format("%d.%d", version / 1000, version % 1000 / 10);
}

}  // namespace dt::cuda
