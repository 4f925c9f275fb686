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

Sampler::Options completed(Sampler::Options options) {
  if (options.block == 0) return options;
  options.block = std::clamp(options.block, int64_t{1}, std::max(options.size, int64_t{1}));
  if (options.window == 0) options.window = options.block * Sampler::kWindowBlocks;
  return options;
}

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

Sampler::Sampler(Options options) : options_(completed(std::move(options))) { resume(0, 0); }

int64_t Sampler::order_digest() const {
  uint64_t digest = static_cast<uint64_t>(order_size());
  if (options_.shuffle) digest = derive(digest, options_.seed);
  digest = derive(digest, static_cast<uint64_t>(options_.block));
  digest = derive(digest, static_cast<uint64_t>(options_.window));
  digest = derive(digest, options_.weights ? options_.weights->digest() : 0);
  return static_cast<int64_t>(derive(digest, options_.shuffle ? 1 : 0) >> 1);
}

int64_t Sampler::consumed(int64_t taken) const {
  return std::min(begin_ + taken * options_.world_size, order_size());
}

void Sampler::set_epoch(int64_t epoch) {
  const bool all_taken = ended_ || (taken_ > 0 && taken_ == length());
  if (epoch != epoch_ || all_taken) resume(epoch, 0);
}

void Sampler::resume(int64_t epoch, int64_t consumed) {
  if (epoch != epoch_ || consumed != begin_) dealt_ = false;
  epoch_ = epoch;
  begin_ = consumed;
  taken_ = 0;
  ended_ = false;
  const int64_t rest = order_size() - begin_;
  const int64_t world = options_.world_size;
  length_ = options_.drop_last ? rest / world : divide_up(rest, world);
  key_ = epoch_key(options_.seed, epoch_);
  if (options_.block > 0 && options_.size > 0) {
    blocks_.emplace(options_.size, options_.block, options_.window, key_);
  }
}

void Sampler::deal() {
  if (dealt_) return;
  const std::vector<int64_t> order =
      random_permutation(options_.size, options_.seed + static_cast<uint64_t>(epoch_));
  indices_.resize(static_cast<size_t>(length()));
  for (size_t i = 0; i < indices_.size(); ++i) {
    const int64_t position = begin_ + options_.rank + static_cast<int64_t>(i) * options_.world_size;
    indices_[i] = order[static_cast<size_t>(position % options_.size)];
  }
  dealt_ = true;
}

void Sampler::copy_indices(int64_t first, int64_t count, int64_t* out) {
  if (count == 0) return;
  const int64_t size = order_size();
  const auto fill = [&](const auto& at) {
    for (int64_t i = 0; i < count; ++i) {
      // Past the end the order repeats from its front: PyTorch's padding.
      out[i] = at((begin_ + options_.rank + (first + i) * options_.world_size) % size);
    }
  };
  if (options_.weights) {
    fill([&](int64_t position) { return options_.weights->draw(key_, position); });
  } else if (blocks_) {
    fill([&](int64_t position) { return blocks_->at(position); });
  } else if (!options_.shuffle) {
    fill([](int64_t position) { return position; });
  } else {
    deal();
    std::copy_n(indices_.begin() + first, count, out);
  }
}

int64_t Sampler::next(int64_t count, int64_t* out) {
  const int64_t left = length() - taken_;
  const int64_t taking = left < count && options_.whole_batches ? 0 : std::min(count, left);
  copy_indices(taken_, taking, out);
  taken_ += taking;
  ended_ = taking == 0;
  return taking;
}

}  // namespace dt::training
