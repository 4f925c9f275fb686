// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/low_rank.h"
#include "training/hook.h"
#include "training/power_sgd_memory.h"

namespace dt::training {

/// Gradients as products of two thin matrices (PowerSGD, Vogels et al. 2019), as a hook.
///
/// A gradient M of n rows and m columns travels as P = M Q of n x r and, once P is averaged and
/// made orthonormal, as Q = M^T P of m x r; every rank then has P Q^T, which is the same
/// everywhere. What that leaves out of a rank's M is added to its next one (error feedback), and Q
/// goes on from step to step (warm start). A column of Q that is not finite leaves the last one in
/// its place, one that is zero is drawn anew in the next step, from a seed that all ranks have, and
/// an error that is not finite is not kept: a gradient of zero, NaN or infinity does not reach into
/// the steps after it. Gradients that are no matrices of
/// f32, or too small to gain, travel as they are, in the same operation as the P of their bucket.
///
/// With a `wire` all of f32 is rounded to 16 bits before it is sent. Error feedback includes the
/// rounding of a matrix; that of other gradients is lost.
///
/// All memory is allocated beforehand. On a GPU a step enqueues everything on the hook's stream and
/// waits for nothing.
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
    std::optional<Dtype> wire;  ///< f16 or bf16; none: f32 travels as it is
  };
  struct Matrix {
    int64_t rows = 0;
    int64_t columns = 0;
    Dtype dtype = Dtype::kF32;
  };

  /// `matrices`: of each parameter; with less than 2 rows or columns it is none.
  static Result<std::shared_ptr<PowerSgd>> create(std::shared_ptr<comm::Communicator> comm,
                                                  std::vector<Matrix> matrices,
                                                  const Options& options);

  Result<HookWork> run(const HookBucket& bucket, int32_t stage);

  bool compresses(size_t param) const;
  /// Where a parameter's error and q are in Kept::data, in elements; only if it is compressed.
  struct Place {
    int64_t error = 0;
    int64_t error_count = 0;  ///< 0: without error feedback
    int64_t q = 0;
    int64_t q_count = 0;
  };
  const Place& place(size_t param) const { return places_[param]; }
  /// What a step leaves for the next one, on the host.
  struct Kept {
    int64_t step = -1;
    std::vector<uint8_t> drawn;  ///< by parameter: 1 if it has a q, and an error
    float* data = nullptr;
    std::vector<float> copy;  ///< that `data` is, unless the host works on it
  };
  // Between steps. Those that return a status wait for a GPU.
  Result<Kept> kept();
  /// Room for what set_kept() is given: zeros.
  Kept empty() const;
  Status set_kept(Kept kept);

 private:
  using Matrices = std::vector<kernels::LowRankMatrix>;
  /// Of one bucket in a step.
  struct Step {
    bool plain = false;                             // nothing is compressed
    bool as_is = false;                             // neither compressed nor rounded
    std::vector<std::pair<float*, int64_t>> whole;  // gradients that are not compressed
    std::vector<size_t> compressed;                 // parameters
    Matrices matrices;       // of these; q is the state's at first, then what travels
    float* first = nullptr;  // what travels first: every P, without a wire behind `whole`
    std::vector<std::pair<float*, int64_t>> sources;  // what travels in 16 bits now
    char* narrow = nullptr;                           // there, one behind the other
  };

  PowerSgd(std::shared_ptr<comm::Communicator> comm, std::vector<Matrix> matrices,
           const Options& options);
  Status allocate();
  void begin(const HookBucket& bucket, Step* step);
  Result<HookWork> average(void* data, int64_t count, Dtype dtype, const char* name,
                           cuda::Stream stream);
  /// Averages `sources` in 16 bits; widen() writes the averages back to them.
  Result<HookWork> average_narrow(const char* name, cuda::Stream stream, Step* step);
  Status widen(cuda::Stream stream, Step* step);
  Result<HookWork> send_left(const HookBucket& bucket, Step* step);
  Result<HookWork> send_right(const HookBucket& bucket, Step* step);
  uint64_t seed_of(size_t param) const;

  const std::shared_ptr<comm::Communicator> comm_;
  const std::shared_ptr<kernels::LowRankKernels> kernels_;
  const std::vector<Matrix> matrices_;
  const Options options_;
  // The state of all parameters, then what travels of all buckets in both operations.
  std::unique_ptr<PowerSgdMemory> memory_;
  std::vector<Place> places_;   // by parameter
  std::vector<uint8_t> drawn_;  // likewise: it has a q
  int64_t state_count_ = 0;
  float* first_ = nullptr;   // of all buckets
  float* second_ = nullptr;  // likewise
  char* narrow_ = nullptr;   // what travels in 16 bits, likewise
  int64_t first_used_ = 0;   // in this step
  int64_t second_used_ = 0;
  int64_t narrow_used_bytes_ = 0;
  int64_t step_ = -1;
  std::vector<Step> steps_;  // by bucket
  Matrices undrawn_;         // of send_left()
};

}  // namespace dt::training
