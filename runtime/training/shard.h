// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "comm/communicator.h"
#include "training/reducer.h"

namespace dt::training {

/// Parameters of which each rank updates its own pieces, and the reducer of their gradients, which
/// gives each rank the pieces of the gradients that belong to these (ZeRO stage 1). In host memory.
///
/// Parameters lie in buckets like those of the reducer. A step: the reducer's, then each rank
/// writes its pieces of the parameters and calls updated(), which begins to send them to all, from
/// the reducer's last bucket to its first; gather() makes a unit whole. Stage 0 is the same without
/// pieces: every rank owns everything. After a failure parameters may be torn, so every later call
/// that needs them whole fails.
///
/// Threads: one at a time, ordered by the caller with finish() of the reducer; param() from any.
class Shard {
 public:
  struct Options {
    int32_t stage = 1;  ///< 0 or 1
    Reducer::Options reducer;
  };
  /// A part of a parameter that this rank owns. Null pointers: none.
  struct Piece {
    int64_t offset = 0;  ///< elements from the parameter's start
    int64_t count = 0;   ///< elements
    void* param = nullptr;
    void* grad = nullptr;  ///< valid after the reducer's finish() until the next step
  };

  /// Collective: checks that the model and the options are the same on all ranks.
  static Result<std::unique_ptr<Shard>> create(std::shared_ptr<comm::Communicator> comm,
                                               std::vector<Param> params, Options options);
  ~Shard();
  Shard(const Shard&) = delete;
  Shard& operator=(const Shard&) = delete;

  const std::shared_ptr<Reducer>& reducer() const { return reducer_; }
  const std::shared_ptr<comm::Communicator>& comm() const { return comm_; }
  const std::vector<Param>& params() const { return reducer_->params(); }
  /// The whole parameter.
  void* param(int32_t index) const;
  /// Waits for what is still under way in its bucket, so that the piece may be written.
  Result<Piece> piece(int32_t index);
  /// Copies a whole parameter in; waits likewise.
  Status set(int32_t index, const void* values);
  /// How often set() changed it.
  int64_t set_count(int32_t index) const { return set_counts_[static_cast<size_t>(index)]; }
  /// Begins to send this rank's pieces to all and to receive those of others.
  Status updated();
  /// Waits until the unit's parameters are whole.
  Status gather(int32_t unit);

 private:
  struct Bucket {
    char* data = nullptr;
    std::shared_ptr<backend::Work> gathered;  // null: it is whole
  };

  Shard(std::shared_ptr<comm::Communicator> comm, Options options)
      : comm_(std::move(comm)), options_(std::move(options)) {}
  Status allocate();
  Status begin_gather(size_t bucket);
  Status end_gather(size_t bucket);

  const std::shared_ptr<comm::Communicator> comm_;
  const Options options_;
  std::shared_ptr<Reducer> reducer_;
  void* memory_ = nullptr;           // of all parameters, from the communicator
  std::vector<Bucket> buckets_;      // as the reducer's
  std::vector<int64_t> set_counts_;  // by parameter
  std::shared_ptr<backend::Work> last_;
  Status failed_;  // of the first gather that did
};

}  // namespace dt::training
