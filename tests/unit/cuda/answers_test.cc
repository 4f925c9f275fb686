// SPDX-License-Identifier: Apache-2.0
// What machines answered about their GPUs, and what the user is told.
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda/failure.h"
#include "cuda/runtime.h"
#include "kernels/cuda/tensors.h"

using dt::Code;
using dt::Status;
using namespace dt::cuda;

namespace {

// As CUDA 13.0 answers on a machine with a driver of its own release and two GPUs.
Answers ready() {
  Answers answers;
  answers.built = true;
  answers.runtime_version = 13000;
  answers.driver_version = 13000;
  answers.device_count = 2;
  return answers;
}

Answers refused(int32_t driver_version, int32_t error, const char* text) {
  Answers answers = ready();
  answers.driver_version = driver_version;
  answers.count_error = error;
  answers.count_error_text = text;
  answers.device_count = 0;
  return answers;
}

void check_explained(const Answers& answers, State state, Code code, const std::string& message) {
  CHECK(judge(answers) == state);
  CHECK(explain(answers).code() == code);
  CHECK(explain(answers).message() == message);
}

constexpr char kInsufficient[] = "CUDA driver version is insufficient for CUDA runtime version";

}  // namespace

TEST_CASE("a machine with GPUs is ready") {
  check_explained(ready(), State::kReady, Code::kOk, "");
  // A driver of the same major version serves, and forward compatibility an older one.
  Answers answers = ready();
  answers.runtime_version = 13020;
  check_explained(answers, State::kReady, Code::kOk, "");
}

TEST_CASE("a build without CUDA says how to get one with it") {
  check_explained(Answers(), State::kNotBuilt, Code::kUnsupported,
                  "this dt is built without CUDA; build it with -Dcuda=enabled, or use the host "
                  "backend");
}

TEST_CASE("without a driver") {
  check_explained(refused(0, 35, kInsufficient), State::kNoDriver, Code::kCuda,
                  "there is no NVIDIA driver here (libcuda.so.1 is missing); install it, in a "
                  "container use the NVIDIA runtime, or use the host backend");
}

TEST_CASE("a driver that is too old: what there is, and what is needed") {
  check_explained(refused(12040, 35, kInsufficient), State::kDriverTooOld, Code::kCuda,
                  "the NVIDIA driver is too old: it speaks CUDA 12.4, this dt needs 13.0 (driver "
                  "580 or newer); update the driver, or build dt with a toolkit of CUDA 12.4");
  Answers answers = refused(11080, 35, kInsufficient);
  answers.runtime_version = 12080;
  check_explained(answers, State::kDriverTooOld, Code::kCuda,
                  "the NVIDIA driver is too old: it speaks CUDA 11.8, this dt needs 12.0 (driver "
                  "525 or newer); update the driver, or build dt with a toolkit of CUDA 11.8");
  // Of the same major version: the driver's branch is not known to us.
  answers = refused(13000, 35, kInsufficient);
  answers.runtime_version = 13010;
  check_explained(answers, State::kDriverTooOld, Code::kCuda,
                  "the NVIDIA driver is too old: it speaks CUDA 13.0, this dt needs 13.1; update "
                  "the driver, or build dt with a toolkit of CUDA 13.0");
}

TEST_CASE("the toolkit's stub instead of a driver") {
  const char* text = "CUDA driver is a stub library";
  Answers answers = refused(0, 34, text);
  answers.driver_error = 34;
  check_explained(answers, State::kStubDriver, Code::kCuda,
                  "the libcuda.so.1 found here is the CUDA toolkit's stub for linking, not the "
                  "driver's; take the folder \"stubs\" out of LD_LIBRARY_PATH, and in a container "
                  "use the NVIDIA runtime");
}

TEST_CASE("no device: the variable that hides them is quoted") {
  Answers answers = refused(13000, 100, "no CUDA-capable device is detected");
  check_explained(answers, State::kNoDevice, Code::kCuda,
                  "the NVIDIA driver shows no GPU to this process; ask the scheduler for GPUs, and "
                  "in a container pass them to it (--gpus all)");
  answers.visible_is_set = true;
  answers.visible = "-1";
  const std::string hidden =
      "the NVIDIA driver shows no GPU to this process: CUDA_VISIBLE_DEVICES is \"-1\"; unset it, "
      "or name GPUs that are there (nvidia-smi -L)";
  check_explained(answers, State::kNoDevice, Code::kCuda, hidden);
  answers.count_error = 0;  // and none counted
  check_explained(answers, State::kNoDevice, Code::kCuda, hidden);
}

TEST_CASE("whatever else CUDA says is passed on, with advice where there is some") {
  check_explained(refused(13000, 999, "unknown error"), State::kBroken, Code::kCuda,
                  "CUDA does not work here: cudaGetDeviceCount fails with 999 (unknown error), "
                  "driver API 13.0; see nvidia-smi and the kernel's log (dmesg)");
  check_explained(refused(13000, 802, "system not yet initialized"), State::kBroken, Code::kCuda,
                  "CUDA does not work here: cudaGetDeviceCount fails with 802 (system not yet "
                  "initialized), driver API 13.0; NVSwitch's fabric manager does not run: "
                  "systemctl start nvidia-fabricmanager");
  check_explained(refused(13000, 3, "initialization error"), State::kBroken, Code::kCuda,
                  "CUDA does not work here: cudaGetDeviceCount fails with 3 (initialization "
                  "error), driver API 13.0; CUDA does not survive a fork: start the process by "
                  "exec, or fork before CUDA is used");
}

TEST_CASE("versions as people write them") {
  CHECK(version_text(12040) == "12.4");
  CHECK(version_text(13000) == "13.0");
  CHECK(version_text(0) == "0.0");
}

TEST_CASE("a call that fails: call, device, CUDA's words, what to do") {
  const Failure failure{"cudaEventRecord", 3, 400, "cudaErrorInvalidResourceHandle",
                        "invalid resource handle"};
  CHECK(failed(failure).code() == Code::kCuda);
  CHECK(failed(failure).message() ==
        "cudaEventRecord on GPU 3 fails with cudaErrorInvalidResourceHandle (400): invalid "
        "resource handle");
  const Failure sticky{"cudaEventQuery", 0, 700, "cudaErrorIllegalAddress",
                       "an illegal memory access was encountered"};
  CHECK(failed(sticky).message() ==
        "cudaEventQuery on GPU 0 fails with cudaErrorIllegalAddress (700): an illegal memory "
        "access was encountered; a kernel of this process failed earlier, and each later call "
        "reports it: find it with compute-sanitizer or CUDA_LAUNCH_BLOCKING=1; the process must be "
        "started again");
  const Failure memory{"cudaEventCreateWithFlags", 0, 2, "cudaErrorMemoryAllocation",
                       "out of memory"};
  CHECK(failed(memory).code() == Code::kOutOfMemory);
}

TEST_CASE("no kernel for a GPU: the advice names the kernels that were built") {
  const std::string advice = advice_for(kErrorNoKernelImage);
  CAPTURE(advice);
  CHECK(advice.find("kernels for " + build_text() + " only") != std::string::npos);
  CHECK(advice.find("-Dgpu_archs") != std::string::npos);
}

TEST_CASE("out of memory: how much was asked for, and how much there is") {
  const Failure failure{"cudaMalloc", 0, 2, "cudaErrorMemoryAllocation", "out of memory"};
  const Status status = out_of_memory(failure, int64_t{3} << 30, 300 << 20, int64_t{80} << 30);
  CHECK(status.code() == Code::kOutOfMemory);
  CHECK(status.message() ==
        "cudaMalloc on GPU 0 fails with cudaErrorMemoryAllocation (2): out of memory: 3221225472 "
        "bytes were asked for, 300.0 MiB of 80.0 GiB are free on this GPU; use smaller batches or "
        "buckets, or look for other processes in nvidia-smi");
  CHECK(out_of_memory(failure, 1, -1, 0).message() ==
        "cudaMalloc on GPU 0 fails with cudaErrorMemoryAllocation (2): out of memory: 1 bytes were "
        "asked for, how much is free CUDA does not say; use smaller batches or buckets, or look "
        "for other processes in nvidia-smi");
  CHECK(out_of_pinned_memory({"cudaHostAlloc", 1, 2, "cudaErrorMemoryAllocation", "out of memory"},
                             4096)
            .message() ==
        "cudaHostAlloc on GPU 1 fails with cudaErrorMemoryAllocation (2): out of memory: 4096 "
        "bytes of pinned host memory were asked for; free some of the host's memory, or raise the "
        "limit of the control group");
}

TEST_CASE("this machine is judged, and what is opened agrees with it") {
  const Answers answers = ask();
  CHECK(answers.built == !build_text().empty());
  if (!answers.built) {
    CHECK(judge(answers) == State::kNotBuilt);
  } else if (dlopen("libcuda.so.1", RTLD_LAZY) == nullptr) {
    CHECK(judge(answers) == State::kNoDriver);
    CHECK(answers.driver_version == 0);
    CHECK(answers.driver_error == 0);
    CHECK(answers.device_count == 0);
  }
  const Status reason = explain(answers);
  const auto devices = list_devices();
  const auto first = open_device(0);
  if (judge(answers) == State::kReady) {
    REQUIRE(devices.ok());
    CHECK(devices.value().size() == static_cast<size_t>(answers.device_count));
    REQUIRE(first.ok());
    CHECK(first.value()->device().uuid == devices.value()[0].uuid);
    CHECK(open_device(answers.device_count).status().code() == Code::kCuda);
    return;
  }
  CHECK_FALSE(reason.ok());
  CHECK(devices.status().message() == reason.message());
  CHECK(first.status().code() == reason.code());
  CHECK(first.status().message() == reason.message());
}

TEST_CASE("without CUDA code there are no kernels either") {
  if (!build_text().empty()) return;
  const auto kernels = dt::kernels::cuda_tensor_kernels(nullptr);
  CHECK(kernels.status().code() == Code::kUnsupported);
  CHECK(kernels.status().message() == explain(Answers()).message());
}

TEST_CASE("a forked child that asks again gets an answer") {
  const bool was_ready = judge(ask()) == State::kReady;
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const bool opened = open_device(0).ok();
    _exit(judge(ask()) != State::kReady && !opened ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  // With a GPU it depends on whether CUDA was initialised before; without one nothing changes.
  if (!was_ready) CHECK(WEXITSTATUS(status) == 0);
}
