// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace dt::training {

// Orders of samples of which each position is computed by itself, so that a job begins in the
// middle of one at no cost. docs/sampler.md says them in formulas: they are the same on every
// machine and in every release.

/// The finalizer of splitmix64: Steele, Lea and Flood, OOPSLA 2014.
uint64_t mix(uint64_t value);
/// A key for one more use of `key`, or for one more of what it stands for.
uint64_t derive(uint64_t key, uint64_t value);
/// The key of an epoch.
uint64_t epoch_key(uint64_t seed, int64_t epoch);

/// 0..size-1 shuffled, without memory: a Feistel network over the next power of two, walked until
/// it falls inside (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002).
class Permutation {
 public:
  Permutation(int64_t size, uint64_t key);

  /// Both want an argument in [0, size).
  int64_t at(int64_t position) const;
  int64_t position_of(int64_t value) const;

 private:
  struct Halves {
    uint64_t high;
    uint64_t low;
  };
  uint64_t round(int number, uint64_t half) const;
  Halves split(uint64_t value) const;
  uint64_t join(Halves halves) const;

  const uint64_t size_;
  const uint64_t key_;
  const int low_bits_;
  const uint64_t low_mask_;
  const uint64_t high_mask_;
};

/// Blocks of consecutive samples in shuffled order, and the samples shuffled within windows of that
/// order: samples that are close in the order are close in the data set.
class BlockOrder {
 public:
  /// All >= 1; block <= size.
  BlockOrder(int64_t size, int64_t block, int64_t window, uint64_t key);

  int64_t at(int64_t position) const;

 private:
  int64_t count() const { return (size_ + block_ - 1) / block_; }

  const int64_t size_;
  const int64_t block_;
  const int64_t window_;
  const uint64_t windows_key_;
  const Permutation blocks_;
  // The data set's last block, which may be short: where it lies in the order.
  const int64_t last_slot_;
  const int64_t last_begin_;
  const int64_t last_end_;
};

/// Draws samples with replacement, each as often as its weight asks.
/// @cost 8 bytes per sample; a draw is a binary search.
class Weights {
 public:
  /// At least one, all finite and >= 0, one of them > 0.
  Weights(const double* weights, int64_t count);

  int64_t draw(uint64_t key, int64_t position) const;
  /// Tells sets of weights apart.
  uint64_t digest() const { return digest_; }

 private:
  // Whole shares of the largest weights' power of two: sums of integers are the same on every
  // machine, where a compiler may join a product and a sum of doubles.
  std::vector<uint64_t> ends_;  // sums up to and with each sample
  uint64_t digest_;
};

}  // namespace dt::training
