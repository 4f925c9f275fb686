// SPDX-License-Identifier: Apache-2.0
// The CUDA runtime as dt uses it, on a real GPU.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>

#include "gpu.h"

using dt::Code;
using namespace dt::cuda;
using namespace dt::test;

namespace {

Gpu& gpu() {
  static Gpu* const only = new Gpu;  // CUDA may be gone when destructors of statics run
  return *only;
}

}  // namespace

TEST_CASE("a device says what it is") {
  const DeviceInfo& info = gpu().runtime->device();
  CHECK(info.index == 0);
  CHECK_FALSE(info.name.empty());
  CHECK(info.uuid.size() == std::string("GPU-01234567-0123-0123-0123-0123456789ab").size());
  CHECK(info.memory_bytes > 0);
  CHECK(info.multiprocessors > 0);
  CHECK(info.compute_major >= 8);
  CHECK(info.bus_id.size() >= std::string("0000:3b:00.0").size());
  const std::string buses = "/sys/bus/pci/devices";
  if (std::filesystem::exists(buses)) WARN(std::filesystem::exists(buses + "/" + info.bus_id));
}

TEST_CASE("bytes go to the GPU and back, pinned or not") {
  Runtime& runtime = *gpu().runtime;
  constexpr int64_t kBytes = 1 << 20;
  auto* pinned = static_cast<unsigned char*>(must(runtime.allocate_pinned(kBytes)));
  for (int64_t i = 0; i < kBytes; ++i) pinned[i] = static_cast<unsigned char>(i * 7 % 251);
  const DeviceBytes there(&gpu(), static_cast<size_t>(kBytes));
  must(runtime.copy(there.at(), pinned, kBytes, gpu().stream));
  CHECK(there.read() == Bytes(pinned, pinned + kBytes));
  must(runtime.fill_zero(there.at(), kBytes, gpu().stream));
  CHECK(there.read() == Bytes(static_cast<size_t>(kBytes), 0));
  must(runtime.release_pinned(pinned));
}

TEST_CASE("whose memory a pointer is") {
  Runtime& runtime = *gpu().runtime;
  const DeviceBytes device(&gpu(), size_t{64});
  void* pinned = must(runtime.allocate_pinned(64));
  const int on_stack = 0;
  CHECK(must(runtime.pointer_info(device.at())).memory == Memory::kDevice);
  CHECK(must(runtime.pointer_info(device.at())).device == 0);
  CHECK(must(runtime.pointer_info(pinned)).memory == Memory::kPinned);
  CHECK(must(runtime.pointer_info(&on_stack)).memory == Memory::kHost);
  must(runtime.release_pinned(pinned));
}

TEST_CASE("events pass in the order of their streams, across streams as asked") {
  Runtime& runtime = *gpu().runtime;
  const Stream other = must(runtime.create_stream(StreamPriority::kHigh));
  const Event begin = must(runtime.create_event(true));
  const Event end = must(runtime.create_event(true));
  const DeviceBytes memory(&gpu(), size_t{1} << 28);
  must(runtime.record(begin, gpu().stream));
  must(runtime.fill_zero(memory.at(), 1 << 28, gpu().stream));
  must(runtime.record(end, gpu().stream));
  must(runtime.wait(other, end));
  const Event after = must(runtime.create_event(false));
  must(runtime.record(after, other));
  while (!must(runtime.passed(after))) std::this_thread::yield();
  CHECK(must(runtime.passed(begin)));
  CHECK(must(runtime.passed(end)));
  CHECK(must(runtime.elapsed_ms(begin, end)) > 0);
  CHECK_FALSE(must(runtime.is_capturing(other)));
  for (const Event event : {begin, end, after}) must(runtime.destroy_event(event));
  must(runtime.destroy_stream(other));
}

TEST_CASE("too much memory: how much was asked for, and how much there is") {
  const auto result = gpu().runtime->allocate(int64_t{1} << 50);
  CHECK(result.status().code() == Code::kOutOfMemory);
  const std::string message = result.status().message();
  CHECK(message.find("1125899906842624 bytes were asked for, ") != std::string::npos);
  CHECK(message.find("are free on this GPU") != std::string::npos);
  must(gpu().runtime->release(must(gpu().runtime->allocate(64))));  // it does not stay
  CHECK(must(gpu().runtime->allocate(0)) == nullptr);
}

TEST_CASE("any thread may call") {
  std::atomic<int> right{0};
  std::vector<std::thread> threads;
  gpu();
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&right] {
      const Event event = must(gpu().runtime->create_event(false));
      must(gpu().runtime->record(event, gpu().stream));
      while (!must(gpu().runtime->passed(event))) std::this_thread::yield();
      must(gpu().runtime->destroy_event(event));
      ++right;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(right == 8);
}

TEST_CASE("a forked child is told, and does not crash") {
  gpu();
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const bool told = gpu().runtime->create_event(false).status().code() == Code::kInvalidState;
    _exit(told && !open_device(0).ok() ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}
