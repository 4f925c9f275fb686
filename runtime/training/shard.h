// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "collective/blocks.h"
#include "comm/communicator.h"
#include "training/mapped_memory.h"
#include "training/reducer.h"
#include "training/slabs.h"
#include "training/stream_marks.h"

namespace dt::training {

/// Parameters of which each rank updates its own pieces, and the reducer of their gradients, which
/// gives each rank the pieces of the gradients that belong to these (ZeRO).
///
/// Parameters lie in buckets like those of the reducer. A step: the reducer's, then each rank
/// writes its pieces of the parameters and calls updated(). In stages 1 and 2 that begins to send
/// them to all, from the reducer's last bucket to its first, and gather() waits until a unit is
/// whole. Stage 0 is the same without pieces: every rank owns everything. After a failure
/// parameters may be torn, so every later call that needs them whole fails.
///
/// In stage 3 a rank has its pieces alone. gather() gives the buckets of a unit memory and collects
/// them there, release() and updated() take it back. Units are gathered in the same order on all
/// ranks: over a communicator of their own, since the reducer's order has other causes. The order
/// of the last step tells which come next, and these are gathered ahead.
///
/// Each replica, if there are several, gathers by itself: the reducer gave all of them the same
/// gradients, so their optimizers end with the same parameters.
///
/// On GPUs with `offload` the pieces of stage 3 are with the host, and a gather begins with their
/// copy to where they lie among the others.
///
/// On GPUs nothing here waits for the GPU. Gathers are behind marks in the caller's streams: where
/// pieces were written last, and, for memory that other units had, where these were used no longer.
/// All gathers and reductions share one stream, which orders what they do with one memory.
///
/// Threads: one at a time, ordered by the caller with finish() of the reducer; param() from any,
/// but in stage 3. The streams: of a communicator over GPUs.
class Shard {
 public:
  struct Options {
    int32_t stage = 1;        ///< 0 to 3
    int32_t prefetch = 1;     ///< in stage 3: units that are gathered ahead of their use
    int32_t shard_ranks = 0;  ///< as in Reducer::Options
    /// Directory of the files that have an optimizer's state and, over host memory, the pieces in
    /// stage 3; on GPUs these are then in pinned memory of the host. May differ between ranks.
    /// Empty: none.
    std::string offload;
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
  /// Null: host memory.
  std::shared_ptr<cuda::Runtime> device() const { return comm_->backend().device(); }
  const std::shared_ptr<comm::Communicator>& comm() const { return comm_; }
  const std::vector<Param>& params() const { return reducer_->params(); }
  /// The whole parameter; in stage 3 INVALID_STATE where its unit is not gathered.
  Result<void*> param(int32_t index) const;
  /// Waits for what is still under way in its bucket, so that the piece may be written.
  Result<Piece> piece(int32_t index, cuda::Stream stream);
  /// What each rank of a replica owns of a parameter.
  std::vector<collective::Extent> plan(int32_t index) const;
  /// Collective: copies a whole gradient of the last step to `out`.
  Status full_grad(int32_t index, void* out, cuda::Stream stream);
  /// Copies a whole parameter in; waits likewise.
  Status set(int32_t index, const void* values, cuda::Stream stream);
  int32_t stage() const { return options_.stage; }
  /// Empty: none.
  const std::string& offload() const { return options_.offload; }
  /// Although the gathered parameters are on a GPU.
  bool keeps_pieces_on_host() const { return pinned_ != nullptr; }
  /// The pieces of all parameters were written, and not by an optimizer.
  void changed() {
    for (int64_t& count : set_counts_) ++count;
  }
  /// Pieces may have been written by somebody else than an optimizer.
  void written() { ++written_count_; }
  int64_t written_count() const { return written_count_; }
  /// How often set() or changed() changed it.
  int64_t set_count(int32_t index) const { return set_counts_[static_cast<size_t>(index)]; }
  /// Says that this rank has written its pieces.
  Status updated(cuda::Stream stream);
  /// On GPUs: `stream` waits for what was written last of pieces and of what belongs to them.
  Status wait_for_written(cuda::Stream stream) const;
  /// On GPUs: where a stream is.
  StreamMarks& marks() const { return *marks_; }
  /// On GPUs: INVALID_ARGUMENT if the stream records a CUDA graph.
  Status check_stream(const char* function, cuda::Stream stream) const;
  /// The same in a collective call: where CUDA itself fails, all ranks do.
  Status check_stream_of_all(const char* function, cuda::Stream stream);
  /// Fails every later call here, and on GPUs all ranks.
  Status fail(const Status& status);
  /// Whether no operation for it has failed, as far as is known.
  Status check_whole() const;
  /// Waits until the unit's parameters are whole. In stage 3 collective.
  Status gather(int32_t unit, cuda::Stream stream);
  /// In stage 3: the unit's parameters are not used until the next gather().
  Status release(int32_t unit, cuda::Stream stream);

 private:
  struct Bucket {
    int32_t unit = 0;
    char* own = nullptr;        // this rank's part
    char* data = nullptr;       // all of it; null: `own` is all there is
    bool in_use = false;        // in stage 3: between gather() and release()
    std::vector<MarkPtr> used;  // on GPUs: where it was used no longer, since gather()
    std::shared_ptr<backend::Work> gathered;  // null: it is whole. Stays on GPUs
  };

  Shard(std::shared_ptr<comm::Communicator> comm, Options options)
      : comm_(std::move(comm)), options_(std::move(options)), slabs_(comm_) {}
  Status allocate();
  Status obtain(int64_t bytes);
  bool whole_units() const { return options_.stage < 3; }
  comm::Communicator& within() const { return *reducer_->within(); }
  Status copy(void* to, const void* from, int64_t bytes, cuda::Stream stream) const;
  int64_t bytes_of(size_t bucket) const;
  int64_t own_bytes(size_t bucket) const;
  char* own_piece(int32_t index) const;
  bool await_written(Deadline deadline) const;
  /// On GPUs: something was written, in the order of `stream`.
  Status mark_written(cuda::Stream stream);
  Status begin_gather(size_t bucket, const Status& mine = {});
  Status end_gather(size_t bucket, cuda::Stream stream);
  Status in_words_of_shards(const Status& status) const;
  Status begin_unit(int32_t unit);
  Status begin_ahead();
  /// The units after those of this step so far, as in the last one.
  std::span<const int32_t> ahead() const;
  /// `used`: where its memory is used no longer; null over host memory.
  Status give_back(size_t bucket, const MarkPtr& used);

  const std::shared_ptr<comm::Communicator> comm_;
  const Options options_;
  std::shared_ptr<Reducer> reducer_;
  std::shared_ptr<comm::Communicator> gathering_;  // what gathers go over
  void* memory_ = nullptr;              // of all parameters, or of this rank's parts of them
  std::unique_ptr<MappedMemory> file_;  // what `memory_` is in; both null: the communicator's
  std::shared_ptr<void> pinned_;        // likewise, of the host, while the shard is on a GPU
  Slabs slabs_;                         // in stage 3: of units that are gathered
  std::vector<Bucket> buckets_;         // as the reducer's
  std::vector<int32_t> last_order_;  // units as they were gathered between updated() and updated()
  std::vector<int32_t> order_;       // likewise, since the last updated(); not all, if many
  bool as_before_ = true;            // `order_` is how `last_order_` begins
  std::unique_ptr<StreamMarks> marks_;  // null: host memory
  std::vector<MarkPtr> written_;        // where pieces were, since the last updated(), or there
  std::map<const char*, std::vector<MarkPtr>> unused_;  // memory of slabs_: of its last unit
  std::vector<int64_t> set_counts_;                     // by parameter
  int64_t written_count_ = 0;
  std::shared_ptr<backend::Work> last_;
  Status failed_;  // of the first gather that did
};

}  // namespace dt::training
