// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <typeindex>
#include <vector>

#include "backend/backend.h"
#include "base/guarded.h"
#include "base/pool.h"
#include "base/status.h"
#include "comm/failure_board.h"
#include "record/recorder.h"

namespace dt::comm {

/// What reports of stalls, and dt_finalize, make of operations that do not end.
enum class Use : int32_t {
  kForeground,  ///< they are late
  kBackground,  ///< they wait for what may never come; nothing of it is recorded
  kUnfinished,  ///< of a background: there is something to end, even if no operation is queued
};

/// An ordered set of ranks that runs collectives. Arguments are checked by the caller.
/// Any thread; calls are serialised by the backend.
class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  struct Options {
    std::string name;                  ///< unique in the job, equal on all ranks
    int32_t rank = 0;                  ///< of this process, in the communicator
    std::vector<int32_t> world_ranks;  ///< world rank of each rank
    std::shared_ptr<backend::Backend> backend;
    std::shared_ptr<FailureBoard> board;
    std::shared_ptr<record::Recorder> recorder;  ///< null: nothing is recorded
    int64_t timeout_ms = 0;                      ///< default of each operation; 0: none
    int64_t first_timeout_ms = 0;  ///< no operation times out in so long after the creation
    Use use = Use::kForeground;
  };

  /// Enlists on the board.
  static std::shared_ptr<Communicator> create(Options options);
  ~Communicator();

  const std::string& name() const { return options_.name; }
  int32_t rank() const { return options_.rank; }
  int32_t size() const { return static_cast<int32_t>(options_.world_ranks.size()); }
  int32_t world_rank(int32_t rank) const { return options_.world_ranks[static_cast<size_t>(rank)]; }
  const std::vector<int32_t>& world_ranks() const { return options_.world_ranks; }
  bool contains(int32_t world_rank) const;
  backend::Backend& backend() { return *options_.backend; }
  /// Null: nothing is counted. Lives as long as the communicator.
  record::Meter* meter() const {
    return options_.recorder == nullptr ? nullptr : options_.recorder->meter();
  }

  /// Blocking. Sets the operation's deadline, see deadline_of().
  Status run(backend::Collective& collective);
  /// Blocking, with buffers in host memory also where the communicator is one over GPUs: for what
  /// layers above agree on. In the same order on all ranks, beside the operations on the device.
  Status run_on_host(backend::Collective& collective);
  /// For submit(): allocates nothing in steady state.
  std::shared_ptr<backend::Work> new_work() const { return works_.make(); }
  /// Enqueues; `work` completes once. A failed status: nothing was enqueued.
  Status submit(backend::Collective& collective, std::shared_ptr<backend::Work> work);
  /// run(), or inside a group submit(): the group's end waits for it.
  Status run_or_group(backend::Collective& collective);
  /// submit(). Inside a group the work of the group stands for it, too.
  Status submit_or_group(backend::Collective& collective,
                         const std::shared_ptr<backend::Work>& work);
  /// INVALID_STATE inside a group; the error that broke the communicator.
  Status begin_group();
  /// A group is open. Any thread.
  bool grouping() const { return grouping_.load(); }
  /// Waits for what run_or_group() submitted, on a device by its stream; the first error of it.
  /// With `whole` it does not wait, unless it fails: `whole` then stands for the operations of the
  /// group.
  Status end_group(const std::shared_ptr<backend::Work>& whole = nullptr);
  /// INVALID_STATE inside a group: `what` needs answers of the other ranks.
  Status check_ungrouped(const char* what) const;
  /// The same ranks over host memory, with an order and a record of its own; this one if it is so.
  std::shared_ptr<Communicator> on_host();
  /// Null where color is negative.
  Result<std::shared_ptr<Communicator>> split(int32_t color, int32_t key,
                                              Use use = Use::kForeground);
  Use use() const { return use_.load(); }
  void set_use(Use use) { use_.store(use); }

  /// Memory of the backend for the caller. Layers above that need some for themselves ask the
  /// backend, so that no caller frees theirs.
  Result<void*> allocate(int64_t bytes);
  /// What allocate() gave, or null; INVALID_ARGUMENT for anything else.
  Status release(void* pointer);

  /// Of its operations; 0: none.
  int64_t timeout_ms() const { return timeout_ms_.load(std::memory_order_relaxed); }
  /// 0: none; < 0: the default again.
  void set_timeout_ms(int64_t timeout_ms) {
    constexpr int64_t kLongestMs = int64_t{1} << 42;  // 139 years; as nanoseconds no overflow
    timeout_ms_.store(timeout_ms < 0 ? options_.timeout_ms : std::min(timeout_ms, kLongestMs),
                      std::memory_order_relaxed);
    if (timeout_ms >= 0) grace_until_ns_.store(0, std::memory_order_relaxed);
  }
  /// Ranks of it are away on purpose until then at the latest: operations have their whole time-out
  /// after that. Replaces an earlier one.
  void excuse(int64_t until_ns) {
    away_until_ns_.store(until_ns, std::memory_order_relaxed);
    options_.backend->excuse(until_ns);
  }
  /// What excuse() was given last; 0: nothing. For deadlines that a layer above keeps.
  int64_t away_until_ns() const { return away_until_ns_.load(std::memory_order_relaxed); }
  void interrupt(const Status& status) {
    over_.store(true, std::memory_order_relaxed);
    options_.backend->interrupt(status);
  }
  /// The T that a layer above keeps for as long as the communicator lives, made by the first call.
  /// It may refer to the communicator, and does not hold it.
  template <class T>
  std::shared_ptr<T> attached() {
    return attached_.with([&](auto& kept) {
      std::shared_ptr<void>& mine = kept[std::type_index(typeid(T))];
      if (mine == nullptr) mine = std::make_shared<T>(*this);
      return std::static_pointer_cast<T>(mine);
    });
  }
  /// Also where one is that this one answers for, which then breaks this one on all ranks.
  Status broken() const;
  /// Over GPUs: `part`, split from this one, carries out operations that the caller of this one
  /// waits for.
  void answer_for(const std::shared_ptr<Communicator>& part);
  /// From now on its operations have the time-out of `other`, as it is when they begin, and
  /// `more_ms` besides. Before other threads use it.
  void follow(std::shared_ptr<const Communicator> other, int64_t more_ms = 0) {
    followed_ = std::move(other);
    more_ms_ = more_ms;
  }
  /// Of an operation that begins now.
  Deadline deadline() const;
  /// The same of this one, which may have a time-out of its own.
  Deadline deadline_of(const backend::Collective& collective) const;

 private:
  struct Member {
    std::shared_ptr<backend::Work> work;
    cuda::Stream stream = nullptr;
  };
  struct Group {
    bool open = false;
    std::vector<std::shared_ptr<backend::Work>> works;  // all, in the order of the calls
    std::vector<Member> waited;                         // those that the end waits for
  };

  explicit Communicator(Options options);
  /// In the flight recorder; null: not there.
  record::Slot* begin_record(record::Track* track, const backend::Collective& collective,
                             bool queued);
  /// Runs it and records when it began and ended.
  Status run_recorded(backend::Backend& backend, record::Track* track,
                      backend::Collective& collective);

  const Options options_;
  const Pool<backend::Work> works_;
  std::atomic<int64_t> timeout_ms_;
  std::atomic<int64_t> grace_until_ns_;           // monotonic; see Options::first_timeout_ms
  std::atomic<int64_t> away_until_ns_{0};         // monotonic; see excuse()
  std::shared_ptr<const Communicator> followed_;  // whose time-outs it has; null: its own
  int64_t more_ms_ = 0;
  mutable Guarded<std::vector<std::weak_ptr<Communicator>>> parts_;  // that it answers for
  std::atomic<bool> grouping_{false};  // as group_.open, without the lock
  // Operations over the communicator, and of a device those on the host beside them: each kind has
  // an order of its own. Null: nothing is recorded.
  std::shared_ptr<record::Track> track_;
  std::shared_ptr<record::Track> host_track_;
  std::atomic<Use> use_;
  std::atomic<bool> over_{false};  ///< it is broken: what is called now happens nowhere
  Guarded<Group> group_;
  Guarded<std::set<void*>> allocated_;
  Guarded<std::map<std::type_index, std::shared_ptr<void>>> attached_;
  // split() calls so far: equal on all ranks, names the children. One count for all that on_host()
  // gives, since those have one name.
  std::shared_ptr<std::atomic<int32_t>> splits_ = std::make_shared<std::atomic<int32_t>>(0);
  const std::shared_ptr<std::atomic<int32_t>> host_splits_ =
      std::make_shared<std::atomic<int32_t>>(0);
};

}  // namespace dt::comm
