// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"

namespace dt::training {

/// 0..count-1 shuffled exactly as torch.randperm does on a CPU generator seeded with `seed`.
/// @cost 8 bytes per element, one or two 32-bit draws each.
std::vector<int64_t> random_permutation(int64_t count, uint64_t seed);

/// Deals `size` samples out to `world_size` ranks, index for index as PyTorch's DistributedSampler.
/// One thread at a time.
class Sampler {
 public:
  struct Options {
    int64_t size = 0;
    int32_t world_size = 1;
    int32_t rank = 0;
    bool shuffle = true;
    uint64_t seed = 0;
    bool drop_last = false;
  };

  explicit Sampler(const Options& options);

  /// Samples of one rank per epoch; equal on all ranks.
  int64_t length() const { return length_; }
  const Options& options() const { return options_; }
  int64_t epoch() const { return epoch_; }
  void set_epoch(int64_t epoch);
  /// Copies positions [first, first + count) of this rank's order. The range was checked.
  void copy_indices(int64_t first, int64_t count, int64_t* out);

 private:
  void deal();

  const Options options_;
  int64_t length_ = 0;
  int64_t epoch_ = 0;
  bool dealt_ = false;
  std::vector<int64_t> indices_;  // this rank's, of epoch_; filled at first use
};

}  // namespace dt::training
