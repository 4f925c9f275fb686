// SPDX-License-Identifier: Apache-2.0
// Steps of optimizers on the GPU: the bits of the host's kernels.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "gpu.h"
#include "kernels/host/cast.h"
#include "kernels/host/optimize.h"
#include "values.h"

using dt::Code;
using dt::Dtype;
using dt::dtype_bytes;
using dt::kernels::AdamWStep;
using dt::kernels::SgdStep;
using dt::kernels::StepGuard;
using dt::kernels::UpdatedTensor;
using namespace dt::test;

namespace {

constexpr Dtype kParamDtypes[] = {Dtype::kF16, Dtype::kBf16, Dtype::kF32, Dtype::kF64};

Gpu& update_gpu() {
  static Gpu* const only = new Gpu;  // CUDA may be gone when destructors of statics run
  return *only;
}

enum ArrayIndex { kParam, kGradient, kFirst, kSecond, kMaster, kArrays };
constexpr const char* kArrayNames[kArrays] = {"param", "gradient", "first", "second", "master"};

bool is_half(Dtype dtype) { return dtype_bytes(dtype) == 2; }
Dtype wide_of(Dtype dtype) { return dtype == Dtype::kF64 ? Dtype::kF64 : Dtype::kF32; }
Dtype dtype_of(ArrayIndex array, Dtype dtype) {
  return array == kParam || array == kGradient ? dtype : wide_of(dtype);
}

/// Where the tensors lie in the buffer of each array: each at a multiple of `align` elements, plus
/// the array's own lead.
struct Placement {
  const char* name;
  int64_t align;
  std::array<int64_t, kArrays> leads;
};
constexpr Placement kPlacements[] = {
    {"aligned", 16, {0, 0, 0, 0, 0}},
    {"alike, but not aligned", 16, {3, 3, 3, 3, 3}},
    {"packed", 1, {0, 0, 0, 0, 0}},
    {"param elsewhere", 16, {1, 0, 0, 0, 0}},
    {"gradient elsewhere", 16, {0, 5, 0, 0, 0}},
    {"first elsewhere", 16, {2, 2, 3, 2, 2}},
    {"second elsewhere", 16, {0, 0, 0, 1, 0}},
    {"master elsewhere", 16, {4, 4, 4, 4, 0}},
};

std::vector<std::vector<int64_t>> update_counts() {
  std::vector<int64_t> many(3000);
  for (size_t i = 0; i < many.size(); ++i) many[i] = static_cast<int64_t>(i * 7 % 29);
  return {{0}, {1}, {1, 0, 2, 3, 0, 5, 7, 17, 31, 33}, {4095, 4096, 4097, 0, 12289}, many};
}

/// Numbers of all kinds, NaN and infinities among them; `positive`: of their magnitudes.
Bytes mixed_numbers(Dtype dtype, int64_t count, uint64_t seed, bool positive) {
  constexpr int64_t kPool = 4099;  // a prime: no tensor begins where another does
  const auto size = static_cast<size_t>(dtype_bytes(dtype));
  Random random(seed);
  Bytes pool(static_cast<size_t>(kPool) * size);
  for (size_t at = 0; at < pool.size(); at += size) {
    const double value = any_value(dtype, &random);
    encode(dtype, positive ? std::fabs(value) : value, &pool[at]);
  }
  Bytes bytes;
  const size_t wanted = static_cast<size_t>(count) * size;
  while (bytes.size() < wanted) bytes.insert(bytes.end(), pool.begin(), pool.end());
  bytes.resize(wanted);
  return bytes;
}

/// The arrays of a list of parameters, on the host and on the GPU.
struct Updated {
  Updated(const std::vector<int64_t>& sizes, const Placement& placement, Dtype dtype_of_params,
          bool with_first, bool with_second)
      : counts(sizes), dtype(dtype_of_params), leads(placement.leads) {
    int64_t end = 0;
    for (const int64_t count : counts) {
      begins.push_back((end + placement.align - 1) / placement.align * placement.align);
      end = begins.back() + count;
    }
    for (int a = 0; a < kArrays; ++a) {
      const auto array = static_cast<ArrayIndex>(a);
      if (array == kFirst && !with_first) continue;
      if (array == kSecond && !with_second) continue;
      if (array == kMaster && !is_half(dtype)) continue;
      const Dtype of = dtype_of(array, dtype);
      expected[array] = mixed_numbers(of, end + leads[array] + 1,
                                      static_cast<uint64_t>(a) + counts.size(), array == kSecond);
      memory[array] = std::make_unique<DeviceBytes>(&update_gpu(), expected[array]);
    }
    prepared = must(update_gpu().kernels->prepare_update(
        list([&](ArrayIndex array, int64_t offset) { return memory[array]->at(offset); }), dtype));
  }

  /// With the pointers address(array, bytes from its start).
  template <class Address>
  std::vector<UpdatedTensor> list(Address address) {
    std::vector<UpdatedTensor> tensors;
    for (size_t t = 0; t < counts.size(); ++t) {
      const auto at = [&](ArrayIndex array) -> void* {
        if (memory[array] == nullptr) return nullptr;
        return address(array, (begins[t] + leads[array]) * dtype_bytes(dtype_of(array, dtype)));
      };
      tensors.push_back(
          {at(kParam), at(kGradient), at(kFirst), at(kSecond), at(kMaster), counts[t]});
    }
    return tensors;
  }
  std::vector<UpdatedTensor> on_host() {
    return list([&](ArrayIndex array, int64_t offset) -> void* {
      return &expected[array][static_cast<size_t>(offset)];
    });
  }

  /// step(dtype, param, gradient, tensor) for each tensor on the host, with arrays of f32 or f64.
  template <class Step>
  void step_on_host(Step step) {
    for (const UpdatedTensor& tensor : on_host()) {
      if (!is_half(dtype)) {
        step(dtype, tensor.param, tensor.gradient, tensor);
        continue;
      }
      std::vector<float> gradient(static_cast<size_t>(tensor.count));
      dt::kernels::cast(dtype, tensor.gradient, Dtype::kF32, gradient.data(), tensor.count);
      step(Dtype::kF32, tensor.master, static_cast<const void*>(gradient.data()), tensor);
      dt::kernels::cast(Dtype::kF32, tensor.master, dtype, tensor.param, tensor.count);
    }
  }

  /// All bytes of all arrays, those between the tensors too.
  void check() {
    for (int a = 0; a < kArrays; ++a) {
      const auto array = static_cast<ArrayIndex>(a);
      if (memory[array] == nullptr) continue;
      CAPTURE(kArrayNames[array]);
      const Dtype of = dtype_of(array, dtype);
      const auto size = static_cast<size_t>(dtype_bytes(of));
      const Bytes found = memory[array]->read();
      int64_t wrong = 0;
      for (size_t at = 0; at < found.size(); at += size) {
        if (std::memcmp(&found[at], &expected[array][at], size) == 0) continue;
        const double now = decode(of, &found[at]);
        const double wanted = decode(of, &expected[array][at]);
        // A NaN of arithmetic has other bits on the host. One that was rounded has not.
        if (!is_half(of) && std::isnan(now) && std::isnan(wanted)) continue;
        if (wrong++ == 0) MESSAGE("element " << at / size << " is " << now << ", not " << wanted);
      }
      CHECK(wrong == 0);
    }
  }

  const std::vector<int64_t> counts;
  const Dtype dtype;
  const std::array<int64_t, kArrays> leads;
  std::vector<int64_t> begins;
  Bytes expected[kArrays];
  std::unique_ptr<DeviceBytes> memory[kArrays];
  std::shared_ptr<dt::kernels::UpdateList> prepared;
};

/// Calls check(updated) for all sizes, alignments and dtypes.
template <class Check>
void for_all_updates(bool with_first, bool with_second, Check check) {
  for (const auto& counts : update_counts()) {
    for (const Placement& placement : kPlacements) {
      for (const Dtype dtype : kParamDtypes) {
        CAPTURE(counts.size());
        CAPTURE(placement.name);
        CAPTURE(dtype_name(dtype));
        Updated updated(counts, placement, dtype, with_first, with_second);
        check(&updated);
        updated.check();
      }
    }
  }
}

void check_sgd_steps(bool with_momentum, bool nesterov) {
  for_all_updates(with_momentum, false, [&](Updated* updated) {
    for (const double share : {1.0, 0.3}) {
      const SgdStep step = {0.01, 0.9, share, 0.1, nesterov};
      must(update_gpu().kernels->sgd(*updated->prepared, step, update_gpu().stream));
      updated->step_on_host(
          [&](Dtype dtype, void* param, const void* gradient, const UpdatedTensor& tensor) {
            dt::kernels::sgd(dtype, step, {param, gradient, tensor.first, tensor.count});
          });
    }
  });
}

}  // namespace

TEST_CASE("adamw: the host's bits after several steps, in all dtypes, sizes and alignments") {
  for_all_updates(true, true, [](Updated* updated) {
    for (const double unbias : {1.7, 1.3, 1.0}) {
      const AdamWStep step = {0.1, 0.999, 0.001, 0.9999, 0.003, unbias, 1e-8};
      must(update_gpu().kernels->adamw(*updated->prepared, step, update_gpu().stream));
      updated->step_on_host(
          [&](Dtype dtype, void* param, const void* gradient, const UpdatedTensor& tensor) {
            dt::kernels::adamw(dtype, step,
                               {param, gradient, tensor.first, tensor.second, tensor.count});
          });
    }
  });
}

TEST_CASE("norms on the GPU decide whether a step happens, and which") {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float norms[StepGuard::kSlots] = {1, NAN, kInfinity, 2, -kInfinity, 0, 3, NAN};
  Bytes bytes(sizeof norms);
  std::memcpy(bytes.data(), norms, sizeof norms);
  const DeviceBytes ring(&update_gpu(), bytes);
  const auto* const on_device = static_cast<const float*>(ring.at());
  std::vector<AdamWStep> adamw_steps;
  std::vector<SgdStep> sgd_steps;
  for (const double rate : {0.1, 0.2, 0.3, 0.4, 0.5}) {
    adamw_steps.push_back({0.1, 0.999, 0.001, 0.9999, rate, 1.3, 1e-8});
    sgd_steps.push_back({0.01, 0.9, 0.3, rate, true});
  }
  struct Guarded {
    StepGuard guard;
    int taken;
  };
  const Guarded all[] = {{{on_device, 1, 0}, -1},   {{on_device, 2, 0x9}, -1},
                         {{on_device, 0, 0}, 0},    {{on_device, 5, 0x49}, 0},
                         {{on_device, 3, 0x02}, 1}, {{on_device, 6, 0x17}, 3},
                         {{on_device, 6, 0x96}, 4}, {{nullptr, 1, 0xff}, 0}};
  for (const auto& [guard, taken] : all) {
    for_all_updates(true, true, [&, guard = guard, taken = taken](Updated* updated) {
      must(
          update_gpu().kernels->adamw(*updated->prepared, adamw_steps, guard, update_gpu().stream));
      must(update_gpu().kernels->sgd(*updated->prepared, sgd_steps, guard, update_gpu().stream));
      if (taken < 0) return;
      const auto index = static_cast<size_t>(taken);
      updated->step_on_host(
          [&](Dtype dtype, void* param, const void* gradient, const UpdatedTensor& tensor) {
            dt::kernels::adamw(dtype, adamw_steps[index],
                               {param, gradient, tensor.first, tensor.second, tensor.count});
          });
      updated->step_on_host([&](Dtype dtype, void* param, const void* gradient,
                                const UpdatedTensor& tensor) {
        dt::kernels::sgd(dtype, sgd_steps[index], {param, gradient, tensor.first, tensor.count});
      });
    });
  }
}

TEST_CASE("sgd without a momentum: the host's bits") { check_sgd_steps(false, false); }

TEST_CASE("sgd with a momentum: the host's bits") { check_sgd_steps(true, false); }

TEST_CASE("sgd with Nesterov's momentum: the host's bits") { check_sgd_steps(true, true); }

TEST_CASE("follow: masters of parameters that were written, or all of them") {
  for (const bool all : {false, true}) {
    for_all_updates(false, false, [&](Updated* updated) {
      const Dtype dtype = updated->dtype;
      if (is_half(dtype)) {
        // Half of the masters round to their parameters, without being equal to them.
        for (const UpdatedTensor& tensor : updated->on_host()) {
          auto* const master = static_cast<float*>(tensor.master);
          auto* const param = static_cast<uint16_t*>(tensor.param);
          for (int64_t i = 0; i < tensor.count; ++i) {
            if (i % 2 == 0) dt::kernels::cast(Dtype::kF32, master + i, dtype, param + i, 1);
          }
        }
        updated->memory[kParam]->write(updated->expected[kParam]);
        for (const UpdatedTensor& tensor : updated->on_host()) {
          auto* const master = static_cast<float*>(tensor.master);
          const auto* const param = static_cast<const uint16_t*>(tensor.param);
          for (int64_t i = 0; i < tensor.count; ++i) {
            uint16_t rounded = 0;
            dt::kernels::cast(Dtype::kF32, master + i, dtype, &rounded, 1);
            if (!all && rounded == param[i]) continue;
            dt::kernels::cast(dtype, param + i, Dtype::kF32, master + i, 1);
          }
        }
      }
      must(update_gpu().kernels->follow(*updated->prepared, all, update_gpu().stream));
    });
  }
}

TEST_CASE("a step without its arrays is refused; an empty list has nothing to do") {
  auto& kernels = *update_gpu().kernels;
  const auto stream = update_gpu().stream;
  const AdamWStep step = {0.1, 0.999, 0.001, 0.9999, 0.003, 1, 1e-8};
  Updated plain({10}, kPlacements[0], Dtype::kF32, false, false);
  CHECK(kernels.adamw(*plain.prepared, step, stream).message() ==
        "adamw of tensors without first moments: give them to prepare_update");
  const UpdatedTensor lacking[] = {
      {plain.memory[kParam]->at(), nullptr, nullptr, nullptr, nullptr, 10}};
  const auto no_gradients = must(kernels.prepare_update(lacking, Dtype::kF32));
  CHECK(kernels.sgd(*no_gradients, {0, 0, 1, 1, false}, stream).message() ==
        "sgd of tensors without gradients: give them to prepare_update");
  const UpdatedTensor odd[] = {
      {plain.memory[kParam]->at(2), plain.memory[kGradient]->at(), nullptr, nullptr, nullptr, 5}};
  CHECK(kernels.prepare_update(odd, Dtype::kF32).status().message() ==
        "updated tensor 0 has a param at an address that is no multiple of 4 bytes");
  plain.check();

  const auto empty = must(kernels.prepare_update({}, Dtype::kBf16));
  must(kernels.adamw(*empty, step, stream));
  must(kernels.sgd(*empty, {0, 0, 1, 1, false}, stream));
  must(kernels.follow(*empty, true, stream));
  update_gpu().finish();
}
