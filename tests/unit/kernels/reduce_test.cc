// SPDX-License-Identifier: Apache-2.0
// Counts beyond 2^31 are not run here, for want of memory; all offsets in the kernels are int64_t.
#include "kernels/host/reduce.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <string>
#include <thread>

#include "reduce_reference.h"

using dt::Dtype;
using dt::ReduceOp;
using dt::kernels::Isa;
using dt::kernels::Reduction;
using dt::reference::Bytes;

namespace {

constexpr unsigned char kGuard = 0xa5;
constexpr int64_t kGuardBytes = 80;  // more than one vector

std::vector<Isa> available_isas() {
  std::vector<Isa> isas;
  for (Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    if (dt::kernels::isa_available(isa)) isas.push_back(isa);
  }
  return isas;
}

/// splitmix64
uint64_t next_random(uint64_t& state) {
  uint64_t z = (state += 0x9e3779b97f4a7c15ULL);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

/// Zeros, infinities, NaN (quiet, signalling, negative), subnormals and ends of the range:
/// `exponent` is the mask of the exponent bits, right below the sign.
uint64_t special_bits(uint64_t which, uint64_t exponent, uint64_t sign) {
  const uint64_t fraction = sign - 1 - exponent;
  switch (which % 12) {
    case 0: return 0;
    case 1: return sign;
    case 2: return exponent;
    case 3: return exponent | sign;
    case 4: return exponent | (fraction + 1) / 2;
    case 5: return exponent | 1;
    case 6: return exponent | sign | fraction;
    case 7: return 1;
    case 8: return sign | fraction;
    case 9: return exponent - 1;
    case 10: return (exponent - 1) | sign;
    default: return fraction + 1;
  }
}

/// Half plain numbers of like size (so that sums round), half random bits and special values.
Bytes random_elements(Dtype dtype, int64_t count, uint64_t seed) {
  const int64_t size = dt::dtype_bytes(dtype);
  Bytes bytes(static_cast<size_t>(count * size));
  uint64_t state = seed;
  for (int64_t i = 0; i < count; ++i) {
    uint64_t bits = next_random(state);
    const uint64_t kind = next_random(state) % 8;
    const double number = std::ldexp(static_cast<double>(static_cast<int64_t>(bits)), -60);
    const auto value = static_cast<float>(number);
    const auto choose = [&](uint64_t plain, uint64_t exponent, uint64_t sign) {
      if (kind < 4) bits = plain;
      if (kind == 4) bits = special_bits(bits >> 32, exponent, sign);
    };
    uint64_t wide = 0;
    std::memcpy(&wide, &number, 8);
    uint32_t narrow = 0;
    std::memcpy(&narrow, &value, 4);
    switch (dtype) {
      case Dtype::kF16:
        choose(dt::reference::encode(value, dt::reference::kF16Format), 0x7c00, 0x8000);
        break;
      case Dtype::kBf16:
        choose(dt::reference::encode(value, dt::reference::kBf16Format), 0x7f80, 0x8000);
        break;
      case Dtype::kF32: choose(narrow, 0x7f800000, 0x80000000); break;
      case Dtype::kF64: choose(wide, 0x7ff0000000000000, 0x8000000000000000); break;
      default: break;
    }
    std::memcpy(bytes.data() + i * size, &bits, static_cast<size_t>(size));
  }
  return bytes;
}

std::vector<Bytes> random_sources(Dtype dtype, int source_count, int64_t count) {
  std::vector<Bytes> sources;
  for (int k = 0; k < source_count; ++k) {
    sources.push_back(random_elements(dtype, count, static_cast<uint64_t>(1000 * k + 7)));
  }
  return sources;
}

std::string describe(Isa isa, const Reduction& reduction, int64_t source_count, int64_t count) {
  return std::string(dt::kernels::isa_name(isa)) + " " + dt::dtype_name(reduction.dtype) + " " +
         dt::reduce_op_name(reduction.op) + ", " + std::to_string(source_count) + " sources of " +
         std::to_string(count);
}

/// Index of the first byte that differs, or -1.
int64_t first_difference(const unsigned char* got, const Bytes& expected, int64_t bytes) {
  for (int64_t i = 0; i < bytes; ++i) {
    if (got[i] != expected[static_cast<size_t>(i)]) return i;
  }
  return -1;
}

/// Source k starts k % 3 bytes and the destination one byte off a boundary, if `misaligned`.
/// `expected` may be longer than count elements. Returns true if all is right.
bool reduces_rightly(Isa isa, const Reduction& reduction, const std::vector<Bytes>& sources,
                     int64_t count, const Bytes& expected, bool misaligned) {
  const int64_t bytes = count * dt::dtype_bytes(reduction.dtype);
  std::vector<Bytes> moved;
  std::vector<const void*> pointers;
  for (size_t k = 0; k < sources.size(); ++k) {
    if (!misaligned) {
      pointers.push_back(sources[k].data());
      continue;
    }
    const size_t offset = k % 3;
    // Exactly as long as needed: a sanitizer sees a read beyond.
    Bytes& copy = moved.emplace_back(static_cast<size_t>(bytes) + offset);
    if (bytes > 0) std::memcpy(copy.data() + offset, sources[k].data(), static_cast<size_t>(bytes));
    pointers.push_back(copy.data() + offset);
  }
  Bytes guarded(static_cast<size_t>(bytes + 2 * kGuardBytes), kGuard);
  const int64_t start = misaligned ? kGuardBytes - 15 : kGuardBytes;
  dt::kernels::reduce_with(isa, reduction, guarded.data() + start, pointers.data(),
                           static_cast<int32_t>(sources.size()), count);
  bool right = first_difference(guarded.data() + start, expected, bytes) == -1;
  for (int64_t i = 0; i < static_cast<int64_t>(guarded.size()); ++i) {
    const bool outside = i < start || i >= start + bytes;
    if (outside && guarded[static_cast<size_t>(i)] != kGuard) right = false;
  }
  return right;
}

std::vector<Reduction> all_reductions(int32_t divisor) {
  std::vector<Reduction> all;
  for (int dtype = 0; dtype < dt::kDtypeCount; ++dtype) {
    for (int op = 0; op < dt::kReduceOpCount; ++op) {
      const auto of = static_cast<Dtype>(dtype);
      const auto by = static_cast<ReduceOp>(op);
      if (dt::can_reduce(of, by)) all.push_back({of, by, divisor});
    }
  }
  return all;
}

template <class T>
T reduce_scalars(Isa isa, const Reduction& reduction, const std::vector<T>& values) {
  std::vector<const void*> pointers;
  for (const T& value : values) pointers.push_back(&value);
  T result{};
  dt::kernels::reduce_with(isa, reduction, &result, pointers.data(),
                           static_cast<int32_t>(values.size()), 1);
  return result;
}

template <class To, class From>
To bits_of(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

}  // namespace

TEST_CASE("isa: portable is always there, and the chosen one is available on every thread") {
  CHECK(dt::kernels::isa_available(Isa::kPortable));
  CHECK(dt::kernels::isa_available(dt::kernels::chosen_isa()));
  CHECK_FALSE(dt::kernels::isa_available(static_cast<Isa>(99)));
  CHECK(std::string(dt::kernels::isa_name(Isa::kAvx512)) == "avx512");
  CHECK(std::string(dt::kernels::isa_name(static_cast<Isa>(99))) == "?");
  Isa seen[2] = {static_cast<Isa>(99), static_cast<Isa>(99)};
  std::thread first([&] { seen[0] = dt::kernels::chosen_isa(); });
  std::thread second([&] { seen[1] = dt::kernels::chosen_isa(); });
  first.join();
  second.join();
  CHECK(seen[0] == seen[1]);
}

TEST_CASE("reduce: every instruction set equals a plain loop, bit for bit") {
  constexpr int64_t kMostElements = 4097;
  for (int source_count : {1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 64}) {
    for (const Reduction& reduction : all_reductions(source_count)) {
      const auto sources = random_sources(reduction.dtype, source_count, kMostElements);
      const Bytes expected = dt::reference::reduce(reduction, sources, kMostElements);
      for (Isa isa : available_isas()) {
        for (int64_t count : {0, 1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 33, 1000, 4097}) {
          const bool both = count < 100 || source_count < 5;
          const bool right =
              reduces_rightly(isa, reduction, sources, count, expected, true) &&
              (!both || reduces_rightly(isa, reduction, sources, count, expected, false));
          INFO(describe(isa, reduction, source_count, count));
          CHECK(right);
        }
      }
    }
  }
}

TEST_CASE("reduce: the destination may be any of the sources") {
  for (int source_count : {1, 2, 3, 4, 8, 9, 17, -2, -9}) {
    // More than one chunk of the many-source loop and of the integer mean; and few bytes.
    const int64_t count = source_count == 17 ? 9001 : source_count < 0 ? 7 : 301;
    source_count = std::abs(source_count);
    for (const Reduction& reduction : all_reductions(3)) {
      const auto sources = random_sources(reduction.dtype, source_count, count);
      const Bytes expected = dt::reference::reduce(reduction, sources, count);
      for (int in_place = 0; in_place < source_count; ++in_place) {
        if (source_count == 17 && in_place % 8 != 0 && in_place != 7) continue;
        for (Isa isa : available_isas()) {
          Bytes both = sources[static_cast<size_t>(in_place)];
          std::vector<const void*> pointers;
          for (const Bytes& source : sources) pointers.push_back(source.data());
          pointers[static_cast<size_t>(in_place)] = both.data();
          dt::kernels::reduce_with(isa, reduction, both.data(), pointers.data(), source_count,
                                   count);
          INFO(describe(isa, reduction, source_count, count), " in place of ", in_place);
          CHECK(both == expected);
        }
      }
    }
  }
}

TEST_CASE("reduce: all f16 and bf16 patterns survive widening and rounding") {
  for (Dtype dtype : {Dtype::kF16, Dtype::kBf16}) {
    const auto& format =
        dtype == Dtype::kF16 ? dt::reference::kF16Format : dt::reference::kBf16Format;
    std::vector<uint16_t> all(65536);
    for (int i = 0; i < 65536; ++i) all[static_cast<size_t>(i)] = static_cast<uint16_t>(i);
    for (Isa isa : available_isas()) {
      const void* source = all.data();
      std::vector<uint16_t> copied(65536);
      dt::kernels::reduce_with(isa, {dtype, ReduceOp::kSum, 1}, copied.data(), &source, 1, 65536);
      CHECK(copied == all);
      // avg over one source goes through f32 and back.
      dt::kernels::reduce_with(isa, {dtype, ReduceOp::kAvg, 1}, copied.data(), &source, 1, 65536);
      int64_t wrong = 0;
      for (size_t i = 0; i < 65536; ++i) {
        const bool is_nan = (i & 0x7fff) > format.infinity();
        if (copied[i] != (is_nan ? format.quiet_nan() : i)) ++wrong;
      }
      INFO(dt::kernels::isa_name(isa), " ", dt::dtype_name(dtype));
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("reduce: halves round to nearest even over the whole range, into infinity and zero") {
  // The exact product of two halves has twice the digits and twice the exponents: ties, subnormals
  // and overflows all occur.
  for (Dtype dtype : {Dtype::kF16, Dtype::kBf16}) {
    std::vector<Bytes> sources = random_sources(dtype, 2, 65536);
    for (int64_t i = 0; i < 65536; ++i) {
      dt::reference::set_element(sources[0], i, static_cast<uint16_t>(i));
    }
    for (uint64_t round = 0; round < 8; ++round) {
      sources[1] = random_elements(dtype, 65536, round);
      for (ReduceOp op : {ReduceOp::kProd, ReduceOp::kSum}) {
        const Reduction reduction{dtype, op, 1};
        const Bytes expected = dt::reference::reduce(reduction, sources, 65536);
        for (Isa isa : available_isas()) {
          INFO(describe(isa, reduction, 2, 65536));
          CHECK(reduces_rightly(isa, reduction, sources, 65536, expected, false));
        }
      }
    }
  }
  for (Isa isa : available_isas()) {
    using Halves = std::vector<uint16_t>;
    const Reduction sum{Dtype::kF16, ReduceOp::kSum, 1};
    CHECK(reduce_scalars(isa, sum, Halves{0x7bff, 0x4b80}) == 0x7bff);  // 65504 + 15
    CHECK(reduce_scalars(isa, sum, Halves{0x7bff, 0x4c00}) == 0x7c00);  // 65504 + 16: infinity
    CHECK(reduce_scalars(isa, sum, Halves{0x6800, 0x3c00}) == 0x6800);  // 2048 + 1: tie, even
    CHECK(reduce_scalars(isa, sum, Halves{0x6801, 0x3c00}) == 0x6802);  // 2050 + 1: tie, even
    CHECK(reduce_scalars(isa, sum, Halves{0x0001, 0x0001}) == 0x0002);  // subnormals
    // In f16 each of the ones would be lost; in f32 they count: 2048 + 1 + 1.
    CHECK(reduce_scalars(isa, sum, Halves{0x6800, 0x3c00, 0x3c00}) == 0x6801);
  }
}

TEST_CASE(
    "reduce: a caller's function gets whole elements, also where the result replaces a source") {
  struct Element {
    int64_t sum;
    int32_t greatest;
  };
  constexpr int64_t kCount = 3000;
  dt::Combine custom;
  custom.element_bytes = sizeof(Element);
  custom.function = [](void*, const void* in, void* inout, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const Element& from = static_cast<const Element*>(in)[i];
      Element& to = static_cast<Element*>(inout)[i];
      to = {to.sum + from.sum, std::max(to.greatest, from.greatest)};
    }
  };
  const Reduction reduction{Dtype::kU8, ReduceOp::kCustom, 1, custom};
  for (const size_t in_place : {0, 1, 2, 3}) {  // 3: none
    std::vector<std::vector<Element>> sources(4, std::vector<Element>(kCount));
    std::vector<const void*> pointers;
    for (size_t k = 0; k < 3; ++k) {
      for (int64_t i = 0; i < kCount; ++i) {
        sources[k][static_cast<size_t>(i)] = {
            i + static_cast<int64_t>(k),
            static_cast<int32_t>((i * 7 + 5 * static_cast<int64_t>(k)) % 11)};
      }
      pointers.push_back(sources[k].data());
    }
    dt::kernels::reduce(reduction, sources[in_place].data(), pointers.data(), 3, kCount);
    int64_t wrong = 0;
    for (int64_t i = 0; i < kCount; ++i) {
      const Element& found = sources[in_place][static_cast<size_t>(i)];
      const int64_t greatest = std::max(std::max(i * 7 % 11, (i * 7 + 5) % 11), (i * 7 + 10) % 11);
      wrong += found.sum == 3 * i + 3 && found.greatest == greatest ? 0 : 1;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("reduce: what cannot be reduced leaves the destination as it is") {
  for (Isa isa : available_isas()) {
    CHECK(reduce_scalars(isa, {Dtype::kF8E4M3, ReduceOp::kSum, 1}, Bytes{1, 2}) == 0);
    CHECK(reduce_scalars(isa, {Dtype::kBool, ReduceOp::kAvg, 2}, Bytes{1, 1}) == 0);
    CHECK(reduce_scalars(isa, {Dtype::kF32, ReduceOp::kBor, 1}, std::vector<float>{1, 2}) == 0);
  }
}

TEST_CASE("reduce: NaN comes through everything as the positive quiet NaN") {
  const float signalling = bits_of<float>(0xff800001U);
  const float inf = std::numeric_limits<float>::infinity();
  for (Isa isa : available_isas()) {
    for (ReduceOp op :
         {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProd, ReduceOp::kMin, ReduceOp::kMax}) {
      const Reduction reduction{Dtype::kF32, op, 2};
      for (size_t at = 0; at < 3; ++at) {
        std::vector<float> values{1, inf, -inf};
        values[at] = signalling;
        CHECK(bits_of<uint32_t>(reduce_scalars(isa, reduction, values)) == 0x7fc00000U);
      }
    }
    const Reduction sum{Dtype::kF32, ReduceOp::kSum, 1};
    CHECK(bits_of<uint32_t>(reduce_scalars(isa, sum, std::vector<float>{inf, -inf})) ==
          0x7fc00000U);
    const Reduction prod{Dtype::kF64, ReduceOp::kProd, 1};
    CHECK(bits_of<uint64_t>(reduce_scalars(isa, prod, std::vector<double>{inf, -0.0})) ==
          0x7ff8000000000000U);
    // One source is copied as it is.
    CHECK(bits_of<uint32_t>(reduce_scalars(isa, sum, std::vector<float>{signalling})) ==
          0xff800001U);
  }
}

TEST_CASE("reduce: of equal zeros min and max keep the earlier rank's") {
  for (Isa isa : available_isas()) {
    for (ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
      const Reduction reduction{Dtype::kF32, op, 1};
      CHECK(bits_of<uint32_t>(reduce_scalars(isa, reduction, std::vector<float>{-0.0F, 0.0F})) ==
            0x80000000U);
      CHECK(bits_of<uint32_t>(reduce_scalars(isa, reduction, std::vector<float>{0.0F, -0.0F})) ==
            0U);
    }
  }
}

TEST_CASE("reduce: avg rounds the scale and the product before it adds") {
  for (Isa isa : available_isas()) {
    const Reduction avg{Dtype::kF32, ReduceOp::kAvg, 3};
    // 1/3 rounds up in f32 to 11184811 * 2^-25; 3 times it rounds to 1; a fused product would
    // leave 1 + 2^-25 - 1.
    CHECK(reduce_scalars(isa, avg, std::vector<float>{-3, 3}) == 0.0F);
    CHECK(reduce_scalars(isa, avg, std::vector<float>{3}) == 1.0F);
  }
}

TEST_CASE("reduce: integers wrap, and their mean truncates") {
  for (Isa isa : available_isas()) {
    const auto of = [](Dtype dtype, ReduceOp op, int32_t divisor) {
      return Reduction{dtype, op, divisor};
    };
    CHECK(reduce_scalars(isa, of(Dtype::kI32, ReduceOp::kSum, 1),
                         std::vector<int32_t>{INT32_MAX, 1}) == INT32_MIN);
    CHECK(reduce_scalars(isa, of(Dtype::kI64, ReduceOp::kProd, 1),
                         std::vector<int64_t>{INT64_MIN, -1}) == INT64_MIN);
    CHECK(reduce_scalars(isa, of(Dtype::kI8, ReduceOp::kAvg, 2), std::vector<int8_t>{100, 100}) ==
          -28);
    CHECK(reduce_scalars(isa, of(Dtype::kI8, ReduceOp::kAvg, 2), std::vector<int8_t>{-3, -4}) ==
          -3);
    CHECK(reduce_scalars(isa, of(Dtype::kI8, ReduceOp::kAvg, 300),
                         std::vector<int8_t>{-100, -28}) == 0);
    CHECK(reduce_scalars(isa, of(Dtype::kI64, ReduceOp::kAvg, 1),
                         std::vector<int64_t>{INT64_MAX, 1}) == INT64_MIN);
    CHECK(reduce_scalars(isa, of(Dtype::kU32, ReduceOp::kAvg, INT32_MAX),
                         std::vector<uint32_t>{UINT32_MAX, 0}) == 2);
    CHECK(reduce_scalars(isa, of(Dtype::kU64, ReduceOp::kAvg, 2),
                         std::vector<uint64_t>{UINT64_MAX, 0}) == UINT64_MAX / 2);
  }
}

TEST_CASE("reduce: a reduction that means nothing writes nothing") {
  const float one = 1;
  const void* sources[2] = {&one, &one};
  float result = 5;
  const auto unchanged = [&](const Reduction& reduction, int32_t source_count, int64_t count) {
    dt::kernels::reduce(reduction, &result, sources, source_count, count);
    return result == 5;
  };
  CHECK(unchanged({static_cast<Dtype>(10), ReduceOp::kSum, 1}, 2, 1));
  CHECK(unchanged({Dtype::kF32, static_cast<ReduceOp>(5), 1}, 2, 1));
  CHECK(unchanged({Dtype::kF32, ReduceOp::kAvg, 0}, 2, 1));
  CHECK(unchanged({Dtype::kI32, ReduceOp::kAvg, -1}, 2, 1));
  CHECK(unchanged({Dtype::kF32, ReduceOp::kSum, 1}, 0, 1));
  CHECK(unchanged({Dtype::kF32, ReduceOp::kSum, 1}, 2, -1));
  CHECK_FALSE(unchanged({Dtype::kF32, ReduceOp::kSum, 0}, 2, 1));  // the divisor is avg's alone
  CHECK(result == 2);
}

TEST_CASE("copy: copies bytes, and nothing when there are none") {
  const unsigned char from[3] = {1, 2, 3};
  unsigned char to[3] = {9, 9, 9};
  dt::kernels::copy(to, from, 0);
  dt::kernels::copy(nullptr, nullptr, 0);
  CHECK(to[0] == 9);
  dt::kernels::copy(to, from, 2);
  CHECK(to[1] == 2);
  CHECK(to[2] == 9);
}
