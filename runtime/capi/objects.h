// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "base/pool.h"
#include "capi/handles.h"
#include "capi/turns.h"
#include "comm/communicator.h"
#include "config/config.h"
#include "job/job.h"
#include "training/named.h"
#include "training/optimizer.h"
#include "training/outer.h"
#include "training/reducer.h"
#include "training/sampler.h"
#include "training/shard.h"

namespace dt::capi {

// What each handle holds. A child holds its job, so any order of destruction is safe: the job goes
// when its last handle does.

struct ConfigObject {
  static constexpr HandleKind kKind = HandleKind::kConfig;
  struct State {
    Config config;
    Logger::Sink sink;
  };
  explicit ConfigObject(State initial) : state(std::move(initial)) {}
  Guarded<State> state;
};

struct JobObject {
  static constexpr HandleKind kKind = HandleKind::kJob;
  std::shared_ptr<job::Job> job;
};

using JobPtr = std::shared_ptr<JobObject>;

struct WorkObject {
  static constexpr HandleKind kKind = HandleKind::kWork;
  std::shared_ptr<job::Job> job;  ///< null: of a parameter server's worker
  /// Null: a thread of dt completes the work, whoever waits; of named submission, and of that.
  std::shared_ptr<comm::Communicator> comm;
  std::shared_ptr<backend::Work> work;
  std::shared_ptr<void> bell;  ///< what rings at its end and must not go before; may be null

  /// Its status, which is about to be shown.
  Status seen() const { return job != nullptr ? job->seen(work->status()) : work->status(); }
};

struct CommObject {
  static constexpr HandleKind kKind = HandleKind::kComm;
  std::shared_ptr<job::Job> job;
  std::shared_ptr<comm::Communicator> comm;
  Pool<WorkObject> works;
};

using CommPtr = std::shared_ptr<CommObject>;

struct ReducerObject {
  static constexpr HandleKind kKind = HandleKind::kReducer;
  std::shared_ptr<job::Job> job;
  std::shared_ptr<training::Reducer> reducer;
  Turns turns;  ///< finish and rebuild have it alone
};

using ReducerPtr = std::shared_ptr<ReducerObject>;

struct ShardObject {
  static constexpr HandleKind kKind = HandleKind::kShard;
  std::shared_ptr<job::Job> job;
  std::shared_ptr<training::Shard> shard;
  ReducerPtr reducer;  ///< its turns are the shard's, too
};

using ShardPtr = std::shared_ptr<ShardObject>;

struct OptimizerObject {
  static constexpr HandleKind kKind = HandleKind::kOptimizer;
  std::shared_ptr<job::Job> job;
  std::unique_ptr<training::Optimizer> optimizer;
  ReducerPtr reducer;  ///< of its shard: its turns are the optimizer's, too
};

struct OuterObject {
  static constexpr HandleKind kKind = HandleKind::kOuter;
  std::shared_ptr<job::Job> job;  ///< for who has the turn: of the communicator, also a later one
  std::unique_ptr<training::Outer> outer;
  Turns turns;
};

struct SamplerObject {
  static constexpr HandleKind kKind = HandleKind::kSampler;
  explicit SamplerObject(training::Sampler::Options options) : sampler(std::move(options)) {}
  training::Sampler sampler;
  Turns turns;
};

struct NamedObject {
  static constexpr HandleKind kKind = HandleKind::kNamed;
  std::shared_ptr<job::Job> job;
  CommPtr on;  ///< for the checks of arguments
  std::shared_ptr<training::Named> named;
};

}  // namespace dt::capi
