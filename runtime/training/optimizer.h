// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"
#include "kernels/cuda/tensors.h"
#include "training/device_pipe.h"
#include "training/mapped_memory.h"
#include "training/shard.h"
#include "training/skipped_steps.h"

namespace dt::training {

struct AdamW {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
};

struct Sgd {
  double momentum = 0;
  double dampening = 0;
  bool nesterov = false;
};

/// AdamW or SGD with momentum on the pieces of a shard; it keeps state for these alone. Of f16 and
/// bf16 parameters the state includes their values in f32, which are what is updated. Both compute
/// as PyTorch's do, elements by themselves, so that results do not depend on how parameters are
/// cut.
///
/// On GPUs the state is there, and one kernel updates all parameters that a step treats alike.
/// Lists of these are made once, and again where other parameters have a gradient. Where the shard
/// offloads, the state is with the host, which updates what passes through it, or in stage 3 the
/// pieces where they lie; then step() waits for the GPU.
///
/// Threads: those of the shard.
class Optimizer {
 public:
  struct Options {
    std::variant<AdamW, Sgd> kind;
    /// One for each parameter; AdamW's is decoupled. Empty: no decay.
    std::vector<double> weight_decay;
    /// A step whose gradients have a norm that is not finite in f32 changes nothing.
    bool skip_non_finite = false;
  };

  /// UNSUPPORTED for parameters that are no floating-point numbers.
  static Result<std::unique_ptr<Optimizer>> create(std::shared_ptr<Shard> shard, Options options);
  ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Behind the reducer's finish(): updates this rank's pieces, then Shard::updated(). What no rank
  /// had a gradient for stays as it is.
  Status step(double rate, cuda::Stream stream);

  const std::shared_ptr<Shard>& shard() const { return shard_; }
  const Options& options() const { return options_; }
  /// The state of this rank's piece of a parameter. Null pointers: it has none of that kind.
  struct Held {
    Dtype dtype = Dtype::kF32;  ///< of its elements
    char* first = nullptr;
    char* second = nullptr;
    char* master = nullptr;
  };
  /// Its f32 values are those of `piece`, which is that of the parameter, or were updated since; on
  /// a GPU in the order of `stream`.
  Result<Held> held(int32_t index, const Shard::Piece& piece, cuda::Stream stream);
  /// Although the shard is on a GPU.
  bool keeps_on_host() const { return pipe_ != nullptr; }
  /// Waits until the host knows which steps were skipped.
  Status settle() { return skipped_ == nullptr ? Status() : skipped_->learn(0); }
  /// Number of skipped steps, not counting the last `behind`, less than StepGuard::kSlots.
  Result<int64_t> skipped(int64_t behind) {
    return skipped_ == nullptr ? Result<int64_t>(0) : skipped_->count(behind);
  }
  /// That a parameter took part in, as this rank counted them: 0 where it has no piece. Behind
  /// settle().
  int64_t steps(int32_t index) const { return states_[static_cast<size_t>(index)].steps; }
  /// What held() points at was filled in. Behind settle().
  /// @param master whether the f32 values were: otherwise they follow the parameter
  void restored(int32_t index, int64_t steps, bool master);

 private:
  /// What is kept for a piece. Each array that is not null has an element for each of the piece, of
  /// f64 for f64 parameters, else of f32.
  struct State {
    char* first = nullptr;      ///< moment, or the momentum
    char* second = nullptr;     ///< moment
    char* master = nullptr;     ///< of f16 and bf16
    int64_t steps = 0;          ///< that this parameter took part in, those of `unknown` too
    uint32_t unknown = 0;       ///< slots of steps among them that the GPU may have skipped
    int64_t set_count = -1;     ///< Shard::set_count() that `master` follows
    int64_t written_count = 0;  ///< likewise Shard::written_count()
  };

  Optimizer(std::shared_ptr<Shard> shard, Options options);
  /// What the f32 values of a parameter must follow.
  enum class Follows { kNothing, kWritten, kSet };
  /// Parameters that a step treats alike: first their f32 values follow, then they are updated.
  struct Alike {
    Dtype dtype = Dtype::kF32;
    double decay = 0;
    int64_t steps = 0;
    uint32_t earlier = 0;  ///< State::unknown before this step
    Follows follows = Follows::kNothing;
    std::vector<kernels::UpdatedTensor> tensors;
  };
  struct DeviceState;

  Status allocate();
  /// A step that was found to be skipped did not count.
  void learned(int slot, bool skipped);
  /// What decides on the GPU whether this step happens, or on the host that it does not.
  Result<kernels::StepGuard> guard(cuda::Stream stream, bool* skips);
  Status update_all(double rate, cuda::Stream stream);
  Result<char*> allocate_state(int64_t bytes);
  kernels::AdamWStep adamw_step(int64_t steps, double decay, double rate) const;
  kernels::SgdStep sgd_step(int64_t steps, double decay, double rate) const;
  kernels::UpdatedTensor arrays_of(int32_t index, const Shard::Piece& piece) const;
  void group(int32_t index, const Shard::Piece& piece, const kernels::StepGuard& guard,
             std::vector<Alike>* alike);
  Status launch(const std::vector<Alike>& alike, kernels::StepGuard guard, double rate,
                cuda::Stream stream);
  /// A part of a piece: `begin` is its first element, `param` and `gradient` are where the host has
  /// it.
  void update(int32_t index, Follows follows, void* param, const void* gradient, int64_t begin,
              int64_t count, double rate);
  /// Passes the pieces of these parameters through the host, which updates them.
  Status update_offloaded(const std::vector<int32_t>& indices, double rate, cuda::Stream stream);
  /// It is done when the caller has.
  Follows take_follows(int32_t index);
  /// The f32 values follow a parameter that was set, and elements of a piece that were written.
  Status follow(int32_t index, const Shard::Piece& piece, cuda::Stream stream);
  Status follow(int32_t index, const Shard::Piece& piece, Follows follows, cuda::Stream stream);
  static void follow_written(Dtype dtype, const void* param, float* master, int64_t count);
  /// The f32 values `begin` and on.
  void follow_on_host(int32_t index, Follows follows, const void* param, int64_t begin,
                      int64_t count);
  void update_wide(int32_t index, State& state, Dtype dtype, void* param, const void* gradient,
                   int64_t begin, int64_t count, double rate);

  const std::shared_ptr<Shard> shard_;
  const Options options_;
  std::vector<State> states_;              ///< by parameter
  std::unique_ptr<MappedMemory> memory_;   ///< of their arrays; null: there are none, or on a GPU
  std::unique_ptr<DeviceState> device_;    ///< null: the state is with the host
  std::unique_ptr<DevicePipe> pipe_;       ///< null: all is in one memory
  std::unique_ptr<SkippedSteps> skipped_;  ///< null: no step is
};

}  // namespace dt::training
