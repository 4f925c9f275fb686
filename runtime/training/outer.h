// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "comm/communicator.h"
#include "training/outer_mean.h"

namespace dt::training {

/// A parameter, or a rank's piece of one, in the caller's memory.
struct OuterParam {
  void* data = nullptr;
  int64_t count = 0;  ///< elements
  Dtype dtype = Dtype::kF32;
  std::string name;  ///< may be empty
};

/// Lets ranks, or groups of them, train by themselves and brings their parameters together now and
/// then: local SGD, DiLoCo (arXiv 2311.08105) and its streaming form (arXiv 2501.18512). In host
/// memory.
///
/// All parameters, one behind the other, are cut into fragments. Every sync_every / fragments steps
/// it is the next one's turn: the mean over ranks of (global - local) is the gradient of SGD with
/// momentum on the global parameters, which this keeps in f32. `delay` steps later, when the mean
/// is there, local parameters become alpha * local + (1 - alpha) * global.
///
/// A rank with 16-bit parameters counts what they differ from the global ones, rounded: training
/// alone, and not the rounding.
///
/// The global parameters have equal bits on all ranks. They and the caller's parameters change only
/// where a mean is there, so that a failed one leaves them as they were. Ranks that lost others may
/// differ by one mean; move() ends that.
///
/// Threads: one at a time; parameters belong to this during step() and sync() alone.
class Outer {
 public:
  struct Options {
    int64_t sync_every =
        1;  ///< steps in which every fragment has its turn; of fragments a multiple
    int32_t fragments = 1;
    int64_t delay = 0;  ///< steps, < sync_every / fragments
    double alpha = 0;   ///< in [0, 1]
    double rate = 0.7;
    double momentum = 0.9;
    bool nesterov = true;
    MeanFormat format = MeanFormat::kF32;
  };

  /// Collective: checks that parameters and options are the same on all ranks, and values, too.
  static Result<std::unique_ptr<Outer>> create(std::shared_ptr<comm::Communicator> comm,
                                               std::vector<OuterParam> params, Options options);

  /// Behind each step of the inner optimizer. True: it changed parameters. Collective where it is a
  /// fragment's turn or a mean is due.
  Result<bool> step();
  /// Collective: a turn for every fragment, now, behind which all local parameters are global. A
  /// fragment whose mean is zero keeps its global parameters and its momentum.
  Status sync();
  /// Collective over `comm`: goes on among its ranks. Those with fewer means than others get what
  /// these have. What was under way is dropped.
  Status move(std::shared_ptr<comm::Communicator> comm);
  /// Writes the global parameters and the momentum, by itself; not while a mean is under way.
  Status save(const std::string& path) const;
  /// Collective: takes what save() wrote, also into the caller's parameters.
  Status load(const std::string& path);
  int64_t steps() const { return steps_; }
  const std::shared_ptr<comm::Communicator>& comm() const { return comm_; }
  const std::vector<OuterParam>& params() const { return params_; }

 private:
  Outer(std::shared_ptr<comm::Communicator> comm, std::vector<OuterParam> params, Options options);
  int64_t digest_of_model() const;
  Status check();
  Result<std::unique_ptr<OuterMean>> make_mean(comm::Communicator& comm,
                                               const char* operation) const;
  int64_t interval() const { return options_.sync_every / options_.fragments; }
  /// Elements from the first parameter's start: from, to.
  std::pair<int64_t, int64_t> range(int32_t fragment) const;
  /// function(param, offset in it, count, offset of all) for what of [from, to) lies in each.
  template <class F>
  void for_each_part(int64_t from, int64_t to, F&& function) const;
  Status begin(int32_t fragment);
  /// `only_if_trained`: a mean that is zero everywhere changes no global parameter.
  Status end(double alpha, bool only_if_trained = false);
  void copy_from_global(int64_t from, int64_t to, double alpha);
  std::string label() const;

  std::shared_ptr<comm::Communicator> comm_;
  const std::vector<OuterParam> params_;
  const Options options_;
  int64_t total_ = 0;  // elements
  struct State {
    std::vector<float> global;    // [total_]
    std::vector<float> momentum;  // [total_]; empty: none
  };
  /// Room for one. OUT_OF_MEMORY.
  Status allocate(State* state) const;

  State state_;
  std::unique_ptr<OuterMean> mean_;
  int64_t steps_ = 0;
  int64_t means_ = 0;       // that changed the global parameters
  int32_t pending_ = -1;    // fragment whose mean is under way; -1: none
  int64_t pending_to_ = 0;  // step at which it is due
};

}  // namespace dt::training
