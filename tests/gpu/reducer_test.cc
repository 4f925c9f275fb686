// SPDX-License-Identifier: Apache-2.0
// The reducer of one rank on a real GPU: streams, events, gather and scatter.
#include "training/reducer.h"

#include <doctest/doctest.h>

#include <cstring>

#include "backend/device/device_backend.h"
#include "backend/nccl/nccl_carrier.h"
#include "backend/self/self.h"
#include "comm/communicator.h"
#include "gpu.h"
#include "values.h"

using dt::Code;
using dt::Deadline;
using dt::Dtype;
using dt::dtype_bytes;
using dt::Wait;
using namespace dt::test;
using dt::training::Reducer;

namespace {

Gpu& gpu() {
  static Gpu* const only = new Gpu;  // CUDA may be gone when destructors of statics run
  return *only;
}

/// A world of one rank; NCCL is not asked.
class World {
 public:
  World() {
    engine_ = must(dt::backend::DeviceEngine::start(
        {gpu().runtime, dt::cuda::StreamPriority::kHigh, nullptr}));
    dt::backend::DeviceOptions options;
    options.name = "world";
    options.self = "rank 0 (here)";
    options.engine = engine_;
    options.on_host = dt::backend::create_self("world");
    options.kernels = gpu().kernels;
    options.make_carrier = [device = engine_->device_thread(),
                            kernels = gpu().kernels](const dt::backend::DeviceOptions::Seat& seat) {
      return dt::backend::make_nccl_carrier(
          device, {seat.name, seat.rank, seat.size, seat.on_host, nullptr, {}, kernels});
    };
    dt::comm::Communicator::Options seat;
    seat.name = "world";
    seat.world_ranks = {0};
    seat.backend = must(
        dt::backend::create_device_backend(std::move(options), Wait{Deadline::after_ms(60'000)}));
    seat.board = std::make_shared<dt::comm::FailureBoard>();
    seat.timeout_ms = 60'000;
    comm = dt::comm::Communicator::create(std::move(seat));
  }

  std::shared_ptr<dt::comm::Communicator> comm;

 private:
  std::shared_ptr<dt::backend::DeviceEngine> engine_;
};

Bytes pattern(Dtype dtype, int64_t count, int step) {
  Bytes bytes(static_cast<size_t>(count * dtype_bytes(dtype)));
  for (int64_t i = 0; i < count; ++i) {
    void* const at = &bytes[static_cast<size_t>(i * dtype_bytes(dtype))];
    const int64_t value = (i + 7 * step) % 97;
    if (dtype == Dtype::kI32) {
      const auto integer = static_cast<int32_t>(value);
      std::memcpy(at, &integer, sizeof integer);
    } else {
      encode(dtype, static_cast<double>(value), at);
    }
  }
  return bytes;
}

const std::vector<std::pair<Dtype, int64_t>> kParams = {
    {Dtype::kF32, 100'003}, {Dtype::kBf16, 4097}, {Dtype::kI32, 1000}, {Dtype::kF32, 1},
    {Dtype::kF16, 65'537},  {Dtype::kF64, 333},   {Dtype::kF32, 0},    {Dtype::kF32, 2049},
};

std::vector<dt::training::Param> params() {
  std::vector<dt::training::Param> all;
  for (const auto& [dtype, count] : kParams) {
    all.push_back({count, dtype, "layer" + std::to_string(all.size())});
  }
  return all;
}

Reducer::Options small_buckets() {
  Reducer::Options options;
  options.first_bucket_bytes = 1 << 14;
  options.bucket_cap_bytes = 1 << 18;
  return options;
}

}  // namespace

TEST_CASE("a reducer of one rank gives back what it was given, by pointer and in place") {
  World world;
  for (const bool in_place : {false, true}) {
    CAPTURE(in_place);
    const auto reducer = must(Reducer::create(world.comm, params(), small_buckets()));
    std::vector<std::unique_ptr<DeviceBytes>> own;
    for (const auto& [dtype, count] : kParams) {
      own.push_back(std::make_unique<DeviceBytes>(
          &gpu(), static_cast<size_t>(count * dtype_bytes(dtype)) + 16));
    }
    for (int step = 0; step < 4; ++step) {
      std::vector<Bytes> given;
      for (size_t p = kParams.size(); p-- > 0;) {
        const auto index = static_cast<int32_t>(p);
        given.insert(given.begin(), pattern(kParams[p].first, kParams[p].second, step));
        void* const to = in_place ? reducer->grad(index, gpu().stream).value() : own[p]->at();
        if (!given[0].empty()) {
          must(gpu().runtime->copy(to, given[0].data(), static_cast<int64_t>(given[0].size()),
                                   gpu().stream));
        }
        must(reducer->ready(index, in_place ? nullptr : to, gpu().stream));
      }
      must(reducer->finish(gpu().stream));
      for (size_t p = 0; p < kParams.size(); ++p) {
        CAPTURE(p);
        Bytes found(given[p].size());
        const void* const from =
            in_place ? reducer->grad(static_cast<int32_t>(p), gpu().stream).value() : own[p]->at();
        if (!found.empty()) {
          must(gpu().runtime->copy(found.data(), from, static_cast<int64_t>(found.size()),
                                   gpu().stream));
        }
        gpu().finish();
        CHECK(found == given[p]);
      }
    }
    const auto statistics = reducer->statistics();
    CHECK(statistics.steps == 4);
    CHECK(statistics.total_communication_ns > 0);
    CHECK(statistics.total_exposed_ns <= statistics.total_communication_ns);
  }
}

TEST_CASE("finish() returns long before the GPU comes to it") {
  World world;
  constexpr int64_t kBytes = int64_t{1} << 30;
  constexpr int kFills = 200;  // a tenth of a second on the fastest
  const DeviceBytes busy(&gpu(), static_cast<size_t>(kBytes));
  Reducer::Options options = small_buckets();
  options.rebuild = false;
  const auto reducer = must(Reducer::create(world.comm, params(), options));
  const auto step = [&] {
    for (int32_t index = 0; index < reducer->param_count(); ++index) {
      must(reducer->ready(index, nullptr, gpu().stream));
    }
    must(reducer->finish(gpu().stream));
  };
  step();
  gpu().finish();
  const dt::cuda::Event end = must(gpu().runtime->create_event(false));
  for (int i = 0; i < kFills; ++i) {
    must(gpu().runtime->fill_zero(busy.at(), kBytes, gpu().stream));
  }
  step();
  must(gpu().runtime->record(end, gpu().stream));
  CHECK_FALSE(must(gpu().runtime->passed(end)));
  gpu().finish();
  must(gpu().runtime->destroy_event(end));
}
