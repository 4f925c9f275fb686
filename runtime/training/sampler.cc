// SPDX-License-Identifier: Apache-2.0
#include "training/sampler.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

namespace dt::training {
namespace {

// From here on torch (2.6 and newer) draws 64 bits and shuffles inside out: (2^32 - 1) / 20.
constexpr int64_t kLargePermutation = 214748364;

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

std::vector<int64_t> random_permutation(int64_t count, uint64_t seed) {
  std::mt19937 generator(static_cast<uint32_t>(seed));  // torch keeps the low 32 bits
  std::vector<int64_t> order(static_cast<size_t>(count));
  if (count < kLargePermutation) {
    std::iota(order.begin(), order.end(), int64_t{0});
    for (int64_t i = 0; i + 1 < count; ++i) {
      const int64_t z = static_cast<int64_t>(generator()) % (count - i);
      std::swap(order[static_cast<size_t>(i)], order[static_cast<size_t>(i + z)]);
    }
    return order;
  }
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t high = generator();
    const uint64_t draw = high << 32 | generator();
    const auto z = static_cast<size_t>(draw % static_cast<uint64_t>(i + 1));
    order[static_cast<size_t>(i)] = order[z];
    order[z] = i;
  }
  return order;
}

Sampler::Sampler(const Options& options) : options_(options) {
  const int64_t size = options.size;
  const int64_t world = options.world_size;
  if (!options.drop_last || size % world == 0) {
    length_ = divide_up(size, world);
  } else {
    length_ = size < world ? 0 : divide_up(size - world, world);
  }
}

void Sampler::set_epoch(int64_t epoch) {
  if (epoch == epoch_) return;
  epoch_ = epoch;
  dealt_ = false;
}

void Sampler::deal() {
  if (dealt_) return;
  std::vector<int64_t> order;
  if (options_.shuffle) {
    order = random_permutation(options_.size, options_.seed + static_cast<uint64_t>(epoch_));
  }
  indices_.resize(static_cast<size_t>(length_));
  for (int64_t i = 0; i < length_; ++i) {
    // Past the end the order repeats from its front: PyTorch's padding.
    const int64_t position = (options_.rank + i * options_.world_size) % options_.size;
    indices_[static_cast<size_t>(i)] =
        options_.shuffle ? order[static_cast<size_t>(position)] : position;
  }
  dealt_ = true;
}

void Sampler::copy_indices(int64_t first, int64_t count, int64_t* out) {
  if (count == 0) return;
  deal();
  std::copy_n(indices_.begin() + first, count, out);
}

}  // namespace dt::training
