// SPDX-License-Identifier: Apache-2.0
// Casts and norms: the bits of a plain loop, in every instruction set.
#include "kernels/host/cast.h"

#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <vector>

#include "reduce_reference.h"

using dt::Dtype;
using dt::kernels::Isa;
using dt::reference::Bytes;

namespace {

constexpr Isa kIsas[] = {Isa::kPortable, Isa::kAvx2, Isa::kAvx512};
constexpr Dtype kSingles[] = {Dtype::kF16, Dtype::kBf16, Dtype::kF32};
constexpr int64_t kCastCounts[] = {0, 1, 3, 15, 16, 17, 31, 100, 1027};

float value_of(Dtype dtype, const Bytes& bytes, int64_t i) {
  if (dtype == Dtype::kF32) return dt::reference::element<float>(bytes, i);
  const auto bits = dt::reference::element<uint16_t>(bytes, i);
  return dt::reference::decode(
      bits, dtype == Dtype::kF16 ? dt::reference::kF16Format : dt::reference::kBf16Format);
}

void set_value(Dtype dtype, float value, Bytes* bytes, int64_t i) {
  const auto size = static_cast<size_t>(dtype_bytes(dtype));
  if (dtype == Dtype::kF32) {
    if (std::isnan(value)) value = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(bytes->data() + static_cast<size_t>(i) * size, &value, size);
    return;
  }
  const uint16_t half = dt::reference::encode(
      value, dtype == Dtype::kF16 ? dt::reference::kF16Format : dt::reference::kBf16Format);
  std::memcpy(bytes->data() + static_cast<size_t>(i) * size, &half, size);
}

/// All patterns of 16 bits are among them, or floats of every size.
Bytes patterns(Dtype dtype, int64_t count, unsigned seed) {
  Bytes bytes(static_cast<size_t>(count * dtype_bytes(dtype)));
  std::mt19937 random(seed);
  for (auto& byte : bytes) byte = static_cast<unsigned char>(random());
  if (dtype != Dtype::kF32) return bytes;
  for (int64_t i = 0; i < count; i += 2) {  // every second where f16 has numbers
    const float value = std::ldexp(static_cast<float>(random() % 8192) - 4096,
                                   static_cast<int>(random() % 40) - 36);
    std::memcpy(bytes.data() + i * 4, &value, sizeof value);
  }
  return bytes;
}

}  // namespace

TEST_CASE("cast: each of f16, bf16 and f32 to each, scaled, as a plain loop does it") {
  for (const Dtype from : kSingles) {
    for (const Dtype to : kSingles) {
      for (const double scale : {1.0, 1.0 / 3, 1e6}) {
        for (const int64_t count : kCastCounts) {
          const Bytes given = patterns(from, count + 1, static_cast<unsigned>(count));
          Bytes expected(static_cast<size_t>((count + 1) * dtype_bytes(to)), 0xa5);
          for (int64_t i = 0; i < count; ++i) {
            set_value(to, value_of(from, given, i) * static_cast<float>(scale), &expected, i);
          }
          for (const Isa isa : kIsas) {
            CAPTURE(isa_name(isa));
            CAPTURE(dtype_name(from));
            CAPTURE(dtype_name(to));
            CAPTURE(scale);
            CAPTURE(count);
            Bytes found(expected.size() + 1, 0xa5);
            dt::kernels::cast_with(isa, from, given.data(), to, found.data() + 1, count, scale);
            CHECK(std::equal(expected.begin(), expected.end(), found.begin() + 1));
          }
        }
      }
    }
  }
}

TEST_CASE("cast: f64 is scaled in f64, in place too, and other dtypes are left alone") {
  for (const Isa isa : kIsas) {
    std::vector<double> data = {1, -3, 1e300, 0.1, 5};
    const std::vector<double> before = data;
    dt::kernels::cast_with(isa, Dtype::kF64, data.data(), Dtype::kF64, data.data(), 4, 0.3);
    for (size_t i = 0; i < 4; ++i) CHECK(data[i] == before[i] * 0.3);
    CHECK(data[4] == 5);
    int32_t integer = 7;
    dt::kernels::cast_with(isa, Dtype::kI32, data.data(), Dtype::kI32, &integer, 1, 2);
    dt::kernels::cast_with(isa, Dtype::kF64, data.data(), Dtype::kF32, &integer, 1, 2);
    CHECK(integer == 7);
  }
}

TEST_CASE("squared norm: the bits of a plain sum in 16 lanes, in every instruction set") {
  for (const Dtype dtype : {Dtype::kF16, Dtype::kBf16, Dtype::kF32, Dtype::kF64}) {
    for (const int64_t count : kCastCounts) {
      CAPTURE(dtype_name(dtype));
      CAPTURE(count);
      Bytes bytes(static_cast<size_t>((count + 1) * dtype_bytes(dtype)));
      double lanes[16] = {};
      for (int64_t i = 0; i < count; ++i) {
        double value = 3 * std::sin(static_cast<double>(i * (i + 5) + count));
        if (dtype == Dtype::kF64) {
          std::memcpy(bytes.data() + i * 8, &value, sizeof value);
        } else {
          set_value(dtype, static_cast<float>(value), &bytes, i);
          value = static_cast<double>(value_of(dtype, bytes, i));
        }
        const volatile double square = value * value;  // rounded here: not fused with the sum
        lanes[i % 16] += square;
      }
      double sum = 0;
      for (const double lane : lanes) sum += lane;
      bytes.insert(bytes.begin(), 0);  // at any address
      for (const Isa isa : kIsas) {
        CHECK(dt::kernels::squared_norm_with(isa, dtype, bytes.data() + 1, count) == sum);
      }
    }
  }
  const float infinite[] = {1, INFINITY};
  const float none[] = {NAN, 1};
  CHECK(std::isinf(dt::kernels::squared_norm(Dtype::kF32, infinite, 2)));
  CHECK(std::isnan(dt::kernels::squared_norm(Dtype::kF32, none, 2)));
}
