// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "training/sample_order.h"

namespace dt::training {

/// 0..count-1 shuffled exactly as torch.randperm does on a CPU generator seeded with `seed`.
/// @cost 8 bytes per element, one or two 32-bit draws each.
std::vector<int64_t> random_permutation(int64_t count, uint64_t seed);

/// Deals samples out to `world_size` ranks. An epoch has an order, equal on all ranks: of all
/// samples, or of weighted draws. Rank r takes its positions r, r + world_size, r + 2 world_size
/// and so on, and behind the end the order begins again: index for index PyTorch's
/// DistributedSampler.
///
/// What all ranks have *consumed* are the first so many positions of the order, whatever the number
/// of ranks was, so that any number of ranks goes on from there.
/// One thread at a time, but for length().
class Sampler {
 public:
  struct Options {
    int64_t size = 0;
    int32_t world_size = 1;
    int32_t rank = 0;
    bool shuffle = true;
    uint64_t seed = 0;
    bool drop_last = false;
    bool whole_batches = false;  ///< next() gives all or none
    int64_t block = 0;           ///< > 0: a BlockOrder in place of torch's
    int64_t window = 0;          ///< of it; 0: kWindowBlocks blocks
    std::shared_ptr<const Weights> weights;
    int64_t draws = 0;  ///< positions of the order, with weights
  };
  static constexpr int64_t kWindowBlocks = 16;

  explicit Sampler(Options options);

  const Options& options() const { return options_; }
  int64_t epoch() const { return epoch_; }
  /// Positions of the epoch's order.
  int64_t order_size() const { return options_.weights ? options_.draws : options_.size; }
  /// Tells apart what another seed or other options put in another order. >= 0.
  int64_t order_digest() const;
  /// Samples of one rank in the epoch, or in what was left of it; equal on all ranks.
  int64_t length() const { return length_.load(std::memory_order_relaxed); }
  /// What all ranks together have consumed when each has taken `taken` of its length().
  int64_t consumed(int64_t taken) const;
  int64_t taken() const { return taken_; }
  /// next() has said that the epoch ended.
  bool ended() const { return ended_; }

  /// The same epoch goes on where it is, unless all of it was taken.
  void set_epoch(int64_t epoch);
  /// Goes on where all ranks together had consumed so much.
  void resume(int64_t epoch, int64_t consumed);
  /// Copies positions [first, first + count) of this rank's order. The range was checked.
  void copy_indices(int64_t first, int64_t count, int64_t* out);
  /// Copies the next ones, fewer than `count` only at the end, or none there with whole_batches. 0:
  /// the epoch has ended.
  int64_t next(int64_t count, int64_t* out);

 private:
  void deal();

  const Options options_;
  std::atomic<int64_t> length_{0};
  int64_t epoch_ = 0;
  int64_t begin_ = 0;  // positions that were consumed before
  int64_t taken_ = 0;  // by next()
  bool ended_ = false;
  uint64_t key_ = 0;  // of the epoch
  std::optional<BlockOrder> blocks_;
  bool dealt_ = false;
  std::vector<int64_t> indices_;  // torch's shuffle: this rank's, from begin_; filled at first use
};

}  // namespace dt::training
