// SPDX-License-Identifier: Apache-2.0
#include "training/sample_order.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

namespace dt::training {
namespace {

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;  // 2^64 / the golden ratio, as in splitmix64
constexpr int kRounds = 8;
constexpr int kShareBits = 62;  // of all weights together, with room for what is rounded up

enum Use : uint64_t { kBlocks = 1, kWindows = 2 };

int bits_for(uint64_t size) { return size < 2 ? 0 : std::bit_width(size - 1); }

uint64_t mask_of(int bits) { return (uint64_t{1} << bits) - 1; }

/// The upper half of a product.
uint64_t multiply_high(uint64_t a, uint64_t b) {
  constexpr uint64_t kLow = 0xffffffff;
  const uint64_t middle = (a >> 32) * (b & kLow) + ((a & kLow) * (b & kLow) >> 32);
  const uint64_t other = (a & kLow) * (b >> 32) + (middle & kLow);
  return (a >> 32) * (b >> 32) + (middle >> 32) + (other >> 32);
}

}  // namespace

uint64_t mix(uint64_t value) {
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9;
  value = (value ^ value >> 27) * 0x94d049bb133111eb;
  return value ^ value >> 31;
}

uint64_t derive(uint64_t key, uint64_t value) { return mix(key ^ mix(value + kGolden)); }

uint64_t epoch_key(uint64_t seed, int64_t epoch) {
  return derive(mix(seed + kGolden), static_cast<uint64_t>(epoch));
}

Permutation::Permutation(int64_t size, uint64_t key)
    : size_(static_cast<uint64_t>(size)),
      key_(key),
      low_bits_((bits_for(size_) + 1) / 2),
      low_mask_(mask_of(low_bits_)),
      high_mask_(mask_of(bits_for(size_) - low_bits_)) {}

uint64_t Permutation::round(int number, uint64_t half) const {
  return mix(key_ + kGolden * static_cast<uint64_t>(number + 1) + half);
}

Permutation::Halves Permutation::split(uint64_t value) const {
  return {value >> low_bits_, value & low_mask_};
}

uint64_t Permutation::join(Halves halves) const { return halves.high << low_bits_ | halves.low; }

int64_t Permutation::at(int64_t position) const {
  auto value = static_cast<uint64_t>(position);
  do {
    Halves halves = split(value);
    for (int i = 0; i < kRounds; i += 2) {
      halves.high ^= round(i, halves.low) & high_mask_;
      halves.low ^= round(i + 1, halves.high) & low_mask_;
    }
    value = join(halves);
  } while (value >= size_);
  return static_cast<int64_t>(value);
}

int64_t Permutation::position_of(int64_t value) const {
  auto position = static_cast<uint64_t>(value);
  do {
    Halves halves = split(position);
    for (int i = kRounds - 2; i >= 0; i -= 2) {
      halves.low ^= round(i + 1, halves.high) & low_mask_;
      halves.high ^= round(i, halves.low) & high_mask_;
    }
    position = join(halves);
  } while (position >= size_);
  return static_cast<int64_t>(position);
}

BlockOrder::BlockOrder(int64_t size, int64_t block, int64_t window, uint64_t key)
    : size_(size),
      block_(block),
      window_(window),
      windows_key_(derive(key, kWindows)),
      blocks_(count(), derive(key, kBlocks)),
      last_slot_(blocks_.position_of(count() - 1)),
      last_begin_(last_slot_ * block),
      last_end_(last_begin_ + size - (count() - 1) * block) {}

int64_t BlockOrder::at(int64_t position) const {
  const int64_t window = position / window_;
  const int64_t begin = window * window_;
  const Permutation within(std::min(window_, size_ - begin),
                           derive(windows_key_, static_cast<uint64_t>(window)));
  const int64_t moved = begin + within.at(position - begin);
  if (moved < last_begin_) return blocks_.at(moved / block_) * block_ + moved % block_;
  if (moved < last_end_) return (count() - 1) * block_ + (moved - last_begin_);
  const int64_t behind = moved - last_end_;
  return blocks_.at(last_slot_ + 1 + behind / block_) * block_ + behind % block_;
}

Weights::Weights(const double* weights, int64_t count)
    : ends_(static_cast<size_t>(count)), digest_(static_cast<uint64_t>(count)) {
  int largest = 0;
  std::frexp(*std::max_element(weights, weights + count), &largest);
  double sum = 0;  // in units of the power of two above the largest, which cannot overflow
  for (int64_t i = 0; i < count; ++i) sum += std::ldexp(weights[i], -largest);
  int all = 0;
  std::frexp(sum, &all);
  uint64_t end = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (weights[i] > 0) {
      const double share = std::ldexp(weights[i], kShareBits - all - largest);
      end += std::max(static_cast<uint64_t>(share), uint64_t{1});  // small is not never
    }
    ends_[static_cast<size_t>(i)] = end;
    digest_ = derive(digest_, end);
  }
}

int64_t Weights::draw(uint64_t key, int64_t position) const {
  const uint64_t random = mix(key + kGolden * (static_cast<uint64_t>(position) + 1));
  const uint64_t share = multiply_high(random, ends_.back());
  return std::upper_bound(ends_.begin(), ends_.end(), share) - ends_.begin();
}

}  // namespace dt::training
