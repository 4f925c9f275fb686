// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "training/hook.h"

namespace dt::training {

/// Gradients as products of two thin matrices (PowerSGD, Vogels et al. 2019), as a hook over host
/// memory.
///
/// A gradient M of n rows and m columns travels as P = M Q of n x r and, once P is averaged and
/// made orthonormal, as Q = M^T P of m x r; every rank then has P Q^T, which is the same
/// everywhere. What that leaves out of a rank's M is added to its next one (error feedback), and Q
/// goes on from step to step (warm start). Gradients that are no matrices of f32, or too small to
/// gain, travel as they are, in the same operation as the P of their bucket.
///
/// Threads: one call at a time, as hooks are called.
class PowerSgd {
 public:
  struct Options {
    int32_t rank = 1;            ///< r
    int64_t start_step = 0;      ///< steps before it are averaged as they are
    double min_compression = 2;  ///< a matrix is compressed where n * m >= this * (n + m) * r
    bool warm_start = true;
    bool error_feedback = true;
    uint64_t seed = 0;
  };
  struct Matrix {
    int64_t rows = 0;
    int64_t columns = 0;
  };

  /// `matrices`: of each parameter; with less than 2 rows or columns it is none.
  PowerSgd(std::shared_ptr<comm::Communicator> comm, std::vector<Matrix> matrices,
           const Options& options);

  Result<HookWork> run(const HookBucket& bucket, int32_t stage);

  /// What a compressed parameter keeps for the next step; empty until a step compresses.
  struct Matrices {
    std::vector<float> error;  // n x m
    std::vector<float> q;      // r x m: the columns one behind the other
  };
  /// What a step leaves for the next one.
  struct Kept {
    int64_t step = -1;
    std::vector<Matrices> matrices;  // by parameter
  };
  /// Between steps.
  Kept* kept() { return &kept_; }
  bool compresses(size_t param, Dtype dtype) const;
  /// Elements of a compressed parameter's error, which may be 0, and q.
  std::pair<int64_t, int64_t> counts_kept(size_t param) const {
    return {options_.error_feedback ? counts_[param] : 0, options_.rank * matrices_[param].columns};
  }

 private:
  /// Of one bucket in a step.
  struct Step {
    bool plain = false;
    std::vector<float> first;   // gradients as they are, then every P, n x r
    std::vector<float> second;  // every Q, r x m
  };

  Result<HookWork> average(void* data, int64_t count, Dtype dtype, const char* name);
  Result<HookWork> send_left(const HookBucket& bucket, Step* step);
  Result<HookWork> send_right(const HookBucket& bucket, Step* step);
  void restore(const HookBucket& bucket, Step* step);
  /// function(index of the parameter, its place in the bucket) in the order of memory.
  template <class Function>
  void for_each_param(const HookBucket& bucket, Function function) const;

  const std::shared_ptr<comm::Communicator> comm_;
  const std::vector<Matrix> matrices_;
  const std::vector<int64_t> counts_;
  const Options options_;
  Kept kept_;
  std::vector<Step> steps_;  // by bucket
};

}  // namespace dt::training
