// SPDX-License-Identifier: Apache-2.0
// Memory traffic of the host sum, per instruction set, beside memcpy in the same run. GB/s (1e9)
// counts every byte read and written: (sources + 1) * bytes for a sum, 2 * bytes for memcpy.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <vector>

#include "kernels/host/reduce.h"

using dt::Dtype;
using dt::ReduceOp;
using dt::kernels::Isa;

namespace {

constexpr int kSamples = 21;
constexpr int64_t kBytesPerSample = int64_t{1} << 25;
constexpr int kMostSources = 4;

struct Bytes {
  explicit Bytes(int64_t size) : storage(static_cast<size_t>(size + 64)) {
    const auto address = reinterpret_cast<uintptr_t>(storage.data());
    begin = storage.data() + (64 - address % 64) % 64;
  }
  std::vector<unsigned char> storage;
  unsigned char* begin;  // aligned to a cache line
};

/// The bits of a small positive whole number, which every dtype here holds exactly.
uint32_t bits_of(Dtype dtype, int number) {
  const auto value = static_cast<float>(number);
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  if (dtype == Dtype::kBf16) return bits >> 16;
  if (dtype == Dtype::kF16) return (bits >> 13) - (112 << 10);
  return bits;
}

void fill(Dtype dtype, unsigned char* to, int64_t bytes, int first, int step) {
  const int64_t size = dt::dtype_bytes(dtype);
  for (int64_t i = 0; i < bytes / size; ++i) {
    const uint32_t bits = bits_of(dtype, first + step * static_cast<int>(i % 13));
    std::memcpy(to + i * size, &bits, static_cast<size_t>(size));
  }
}

/// Sorted GB/s of single samples.
template <class Run>
std::vector<double> measure(int64_t traffic_bytes, Run run) {
  const int64_t repeats = std::max<int64_t>(1, kBytesPerSample / traffic_bytes);
  std::vector<double> rates;
  run();
  for (int sample = 0; sample < kSamples; ++sample) {
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < repeats; ++i) run();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    rates.push_back(static_cast<double>(traffic_bytes * repeats) / took.count() / 1e9);
  }
  std::sort(rates.begin(), rates.end());
  return rates;
}

void print(const char* isa, const char* what, int sources, int64_t bytes,
           const std::vector<double>& rates, double memcpy_rate) {
  const double median = rates[rates.size() / 2];
  std::printf("%-9s %-7s %7d %9lld  %7.1f %7.1f %7.1f  %5.2f\n", isa, what, sources,
              static_cast<long long>(bytes), rates.front(), median, rates.back(),
              median / memcpy_rate);
}

/// False if a sum is wrong.
bool bench(int64_t bytes) {
  std::vector<Bytes> sources;
  for (int k = 0; k < kMostSources; ++k) sources.emplace_back(bytes);
  Bytes destination(bytes);
  Bytes expected(bytes);
  const auto memcpy_rates =
      measure(2 * bytes, [&] { dt::kernels::copy(destination.begin, sources[0].begin, bytes); });
  const double memcpy_rate = memcpy_rates[memcpy_rates.size() / 2];
  print("-", "memcpy", 1, bytes, memcpy_rates, memcpy_rate);
  for (Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16}) {
    const void* pointers[kMostSources];
    for (int k = 0; k < kMostSources; ++k) {
      fill(dtype, sources[static_cast<size_t>(k)].begin, bytes, k + 1, 1);
      pointers[k] = sources[static_cast<size_t>(k)].begin;
    }
    for (int n : {2, 4}) {
      fill(dtype, expected.begin, bytes, n * (n + 1) / 2, n);
      for (Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
        if (!dt::kernels::isa_available(isa)) continue;
        const auto rates = measure((n + 1) * bytes, [&] {
          dt::kernels::reduce_with(isa, {dtype, ReduceOp::kSum, 1}, destination.begin, pointers, n,
                                   bytes / dt::dtype_bytes(dtype));
        });
        if (std::memcmp(destination.begin, expected.begin, static_cast<size_t>(bytes)) != 0) {
          std::fprintf(stderr, "%s %s: the sum of %d sources is wrong\n",
                       dt::kernels::isa_name(isa), dt::dtype_name(dtype), n);
          return false;
        }
        print(dt::kernels::isa_name(isa), dt::dtype_name(dtype), n, bytes, rates, memcpy_rate);
      }
    }
  }
  return true;
}

}  // namespace

int main() {
  std::printf("%d samples; GB/s read and written\n", kSamples);
  std::printf("%-9s %-7s %7s %9s  %7s %7s %7s  %5s\n", "isa", "what", "sources", "bytes", "min",
              "p50", "max", "ratio");
  const bool right = bench(64 << 10) && bench(16 << 20);
  return right ? 0 : 1;
}
