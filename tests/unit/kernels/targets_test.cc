// SPDX-License-Identifier: Apache-2.0
// Results into several destinations, and stores past the caches: the bits of a plain loop, in every
// instruction set.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/host/reduce.h"
#include "reduce_reference.h"

using dt::Dtype;
using dt::ReduceOp;
using dt::kernels::Isa;
using dt::kernels::Reduction;
using dt::kernels::Stores;
using dt::kernels::Targets;
using dt::reference::Bytes;

namespace {

constexpr unsigned char kFence = 0xa5;
constexpr int64_t kFenceBytes = 128;

std::vector<Isa> isas_here() {
  std::vector<Isa> isas;
  for (Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    if (dt::kernels::isa_available(isa)) isas.push_back(isa);
  }
  return isas;
}

/// Bytes that start `shift` behind a cache line, between fences.
class Fenced {
 public:
  Fenced(int64_t bytes, int64_t shift)
      : bytes_(bytes), storage_(static_cast<size_t>(bytes + 2 * kFenceBytes + 128), kFence) {
    const auto address = reinterpret_cast<uintptr_t>(storage_.data());
    start_ = kFenceBytes + static_cast<int64_t>(-address % 64) + shift;
  }
  unsigned char* begin() { return storage_.data() + start_; }
  void fill(const Bytes& from) { std::memcpy(begin(), from.data(), static_cast<size_t>(bytes_)); }
  bool holds(const Bytes& expected) {
    if (!std::equal(expected.begin(), expected.end(), begin())) return false;
    for (int64_t i = 0; i < static_cast<int64_t>(storage_.size()); ++i) {
      const bool inside = i >= start_ && i < start_ + bytes_;
      if (!inside && storage_[static_cast<size_t>(i)] != kFence) return false;
    }
    return true;
  }

 private:
  int64_t bytes_;
  Bytes storage_;
  int64_t start_ = 0;
};

/// Patterns of every kind: of halves and floats, NaN, infinities, subnormals and zeros are among
/// them.
Bytes patterns(int64_t bytes, uint64_t seed) {
  Bytes out(static_cast<size_t>(bytes));
  uint64_t state = seed * 0x9e3779b97f4a7c15U + 1;
  for (unsigned char& byte : out) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    const auto draw = static_cast<unsigned char>(state >> 40);
    byte = (state >> 60) == 0 ? 0xff : (state >> 60) == 1 ? 0 : draw;
  }
  return out;
}

std::string label(Isa isa, const Reduction& reduction, Stores stores, int64_t sources,
                  int64_t targets, int64_t count) {
  return std::string(dt::kernels::isa_name(isa)) + " " + dt::dtype_name(reduction.dtype) + " " +
         dt::reduce_op_name(reduction.op) +
         (stores == Stores::kStreaming ? ", streaming, " : ", temporal, ") +
         std::to_string(sources) + " sources to " + std::to_string(targets) + " of " +
         std::to_string(count);
}

struct Setup {
  int sources = 2;
  int targets = 2;
  int64_t count = 0;
  /// Of target k: `shift` bytes behind a line, and k * `more`.
  int64_t shift = 0;
  int64_t more = 0;
  int in_place = 0;  ///< the first so many targets are the sources
};

void check_all_isas(const Reduction& reduction, const Setup& setup) {
  const int64_t bytes = setup.count * dt::dtype_bytes(reduction.dtype);
  std::vector<Bytes> inputs;
  for (int k = 0; k < setup.sources; ++k) {
    inputs.push_back(patterns(bytes, static_cast<uint64_t>(k) + 1));
  }
  const Bytes expected = dt::reference::reduce(reduction, inputs, setup.count);
  for (Isa isa : isas_here()) {
    for (Stores stores : {Stores::kTemporal, Stores::kStreaming}) {
      std::vector<Fenced> outputs;
      std::vector<void*> destinations;
      std::vector<const void*> sources;
      for (const Bytes& input : inputs) sources.push_back(input.data());
      for (int k = 0; k < setup.targets; ++k) {
        outputs.emplace_back(bytes, setup.shift + k * setup.more);
      }
      for (int k = 0; k < setup.targets; ++k) {
        Fenced& output = outputs[static_cast<size_t>(k)];
        destinations.push_back(output.begin());
        if (k >= setup.in_place) continue;
        output.fill(inputs[static_cast<size_t>(k)]);
        sources[static_cast<size_t>(k)] = output.begin();
      }
      dt::kernels::reduce_with(isa, reduction, Targets{destinations.data(), setup.targets, stores},
                               sources.data(), setup.sources, setup.count);
      bool right = true;
      for (Fenced& output : outputs) right = right && output.holds(expected);
      INFO(label(isa, reduction, stores, setup.sources, setup.targets, setup.count), ", ",
           setup.in_place, " in place, shifted by ", setup.shift, " and ", setup.more);
      CHECK(right);
    }
  }
}

template <class Check>
void for_all_reductions(Check check) {
  for (int dtype = 0; dtype < dt::kDtypeCount; ++dtype) {
    for (int op = 0; op < dt::kReduceOpCount; ++op) {
      const auto of = static_cast<Dtype>(dtype);
      const auto by = static_cast<ReduceOp>(op);
      if (dt::can_reduce(of, by)) check(Reduction{of, by, 3});
    }
  }
}

}  // namespace

TEST_CASE("targets: every reduction into 1 to 9 destinations equals a plain loop") {
  for_all_reductions([](const Reduction& reduction) {
    for (int targets : {1, 2, 3, 8, 9}) {
      for (int sources : {1, 2, 3, 8}) check_all_isas(reduction, {sources, targets, 333});
    }
    check_all_isas(reduction, {17, 2, 4500});  // carried, in more than one chunk
  });
}

TEST_CASE("targets: destinations may be sources, all of them or some") {
  for_all_reductions([](const Reduction& reduction) {
    check_all_isas(reduction, {2, 2, 1025, 0, 0, 2});
    check_all_isas(reduction, {2, 2, 1025, 0, 0, 1});
    check_all_isas(reduction, {4, 4, 257, 0, 0, 4});
    check_all_isas(reduction, {9, 9, 4500, 0, 0, 9});
  });
}

TEST_CASE("targets: any count and any place in a line") {
  for (Dtype dtype : {Dtype::kU8, Dtype::kF16, Dtype::kBf16, Dtype::kF32, Dtype::kF64}) {
    const Reduction sum{dtype, ReduceOp::kSum, 1};
    for (int64_t count : {1, 7, 31, 32, 33, 127, 128, 129, 1000}) {
      for (int64_t shift : {0, 1, 2, 4, 8, 60}) {
        check_all_isas(sum, {2, 2, count, shift});
        check_all_isas(sum, {3, 2, count, shift});
        check_all_isas(sum, {2, 2, count, shift, 4});  // never at a line together
      }
    }
  }
}

TEST_CASE("targets: no destination, no element or no meaning writes nothing") {
  const float one = 1;
  const void* sources[2] = {&one, &one};
  float result = 5;
  void* destination = &result;
  const auto unchanged = [&](const Reduction& reduction, int32_t targets, int64_t count) {
    dt::kernels::reduce_to_all(reduction, Targets{&destination, targets, Stores::kTemporal},
                               sources, 2, count);
    return result == 5;
  };
  CHECK(unchanged({Dtype::kF32, ReduceOp::kSum, 1}, 0, 1));
  CHECK(unchanged({Dtype::kF32, ReduceOp::kSum, 1}, 1, 0));
  CHECK(unchanged({Dtype::kF32, ReduceOp::kAvg, 0}, 1, 1));
  CHECK_FALSE(unchanged({Dtype::kF32, ReduceOp::kSum, 1}, 1, 1));
}

TEST_CASE("copy: streaming stores copy every count to every place, and nothing beside it") {
  for (Isa isa : isas_here()) {
    for (int64_t bytes : {0, 1, 63, 64, 65, 255, 256, 257, 1000, 5000}) {
      const Bytes from = patterns(bytes + 7, 3);
      for (int64_t shift : {0, 1, 16, 63}) {
        for (size_t from_shift : {size_t{0}, size_t{7}}) {
          Fenced to(bytes, shift);
          dt::kernels::copy_streaming_with(isa, to.begin(), from.data() + from_shift, bytes);
          const Bytes expected(from.begin() + static_cast<std::ptrdiff_t>(from_shift),
                               from.begin() + static_cast<std::ptrdiff_t>(from_shift) + bytes);
          INFO(dt::kernels::isa_name(isa), " ", bytes, " bytes, shifted by ", shift, " and ",
               from_shift);
          CHECK(to.holds(expected));
        }
      }
    }
  }
  Bytes to(300);
  const Bytes from = patterns(300, 4);
  dt::kernels::copy(to.data(), from.data(), 300, Stores::kStreaming);
  CHECK(to == from);
}
