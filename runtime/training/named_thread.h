// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/guarded.h"
#include "base/thread.h"
#include "training/message_stream.h"
#include "training/named.h"
#include "training/named_table.h"

namespace dt::training {

/// The part of a Named that its thread owns together with it.
///
/// Callers write into `state_` and ring `bell_`. Works of transfers ring it, too. The thread takes
/// a ticket of the bell, looks at everything, and sleeps with that ticket, so it misses nothing.
/// Everything outside of `state_` is the thread's alone. Works are completed without the lock.
///
/// A rank listens to rank 0 only while something of its own is unanswered, and after a failure,
/// because a receive that waits makes the host's progress thread look at each operation of the job.
/// Rank 0 always listens.
class NamedThread : public std::enable_shared_from_this<NamedThread> {
 public:
  struct Parts {
    std::shared_ptr<comm::Communicator> comm;
    std::shared_ptr<comm::Communicator> control;  // messages with rank 0
    std::shared_ptr<comm::Communicator> data;     // the operations
    Named::Options options;
    NamedTable::Options table;
  };
  explicit NamedThread(Parts parts);

  Result<std::shared_ptr<EndingThread>> start();
  Status submit(std::vector<Named::Submission> submissions, bool group);
  Result<int32_t> join(const Wait& wait);
  Result<std::string> report(const Wait& wait);
  Named::Statistics statistics() const;
  void close();

 private:
  struct Pending {
    backend::Collective collective;
    NamedCall call;
    std::shared_ptr<backend::Work> work;
    Deadline deadline = Deadline::never();  // of the other ranks' submissions
    bool told = false;
    bool extended = false;  // its deadline, because this rank was busy
    bool running = false;
    bool overdue = false;
  };
  enum class Join {
    kNot,
    kWanted,
    kTold,  // to rank 0
    kOver,  // all have, which the next join() gives
  };
  struct State {
    std::unordered_map<std::string, Pending> pending;  // until their works are done
    std::vector<std::string> untold;                   // names of these, as they came
    std::vector<std::string> overdue;                  // names, of which rank 0 is to hear
    Deadline earliest = Deadline::never();             // none of the pending ones is overdue before
    Deadline give_up = Deadline::never();  // something is overdue, and rank 0 does not answer
    Join join = Join::kNot;
    int32_t last_joined = -1;
    bool asked = false;  // rank 0 for a report
    std::string report;
    uint32_t reports = 0;  // that have come
    uint32_t wanted = 0;   // of these
    bool closing = false;
    bool leave_told = false;
    bool ended = false;
    Status failed;  // for good
    Named::Statistics statistics;
  };
  /// One tensor of an operation that is being carried out.
  struct Part {
    std::string name;
    NamedCall call;
    backend::Collective collective;
    std::shared_ptr<backend::Work> work;  // null: this rank has not submitted it
  };

  int32_t rank() const { return comm_->rank(); }
  bool coordinates() const { return rank() == 0; }
  void run();
  /// Everything that can be done now. True: look again.
  Result<bool> step();
  Result<bool> talk_to_coordinator();
  Result<bool> coordinate();
  Status listen_to_all();
  Status answer();
  NamedNews take_news();
  bool awaits_answer();
  void look_for_overdue();
  void extend_deadlines();
  Deadline next_deadline();
  Status heed(NamedAnswer answer);
  Status resolve(NamedAnswer& answer);
  void run_batch(const std::vector<NamedAnswer::Operation>& operations, const NamedBatch& batch);
  std::vector<Part> take_parts(const std::vector<NamedAnswer::Operation>& operations,
                               const NamedBatch& batch, std::string* withheld);
  Status run_parts(std::vector<Part>& parts, const std::string& withheld);
  Status run_together(std::vector<Part>& parts, backend::Collective& collective);
  Result<char*> memory(int64_t bytes);
  void complete(const std::string& name, const Status& status);
  void finish(backend::Work& work, const Status& status);
  using NamedWorks = std::vector<std::pair<std::string, std::shared_ptr<backend::Work>>>;
  static NamedWorks take_waiting(State& state, const Status& status);
  void fail_works(const NamedWorks& works, const Status& status);
  void fail(const Status& status);
  void end(const Status& status);
  template <class F>
  bool wait_until(const Wait& wait, F&& holds);

  const std::shared_ptr<comm::Communicator> comm_;
  const std::shared_ptr<comm::Communicator> control_;
  const std::shared_ptr<comm::Communicator> data_;
  const Named::Options options_;
  const std::string where_;  // "named submission on comm \"world\""
  const std::string coordinator_;
  Doorbell bell_;      // of the thread
  Doorbell answered_;  // of calls that wait for it
  Guarded<State> state_;

  // The thread's.
  std::vector<std::unique_ptr<MessageSender>> senders_;      // rank 0: by rank; others: to rank 0
  std::vector<std::unique_ptr<MessageReceiver>> receivers_;  // likewise
  std::unique_ptr<NamedTable> table_;                        // of rank 0
  std::unordered_map<uint32_t, NamedNews::Fresh> known_;     // by id
  std::unordered_map<std::string, uint32_t> ids_;
  uint32_t heard_ = 0;
  bool may_end_ = false;
  int64_t away_until_ns_ = 0;  // of the communicator, as of the last look for overdue names
  char* memory_ = nullptr;     // in which tensors are put together
  int64_t memory_bytes_ = 0;
};

}  // namespace dt::training
