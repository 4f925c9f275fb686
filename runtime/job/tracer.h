// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "base/guarded.h"
#include "base/log.h"
#include "base/status.h"
#include "base/wait.h"
#include "config/config.h"
#include "launch/error_file.h"
#include "record/recorder.h"
#include "record/trace.h"

namespace dt::job {

/// The counters and the flight recorder of a job's rank, and how its contents come into files: at
/// the first failure where trace.dir is set, when dt_trace_dump() or `dt trace dump` asks. At the
/// first failure also what torchrun reads of it.
///
/// Files are written by the thread that asks for one, or, where that must not wait for a file
/// system, by a thread that lives as long as there is something to write. It holds this object and
/// nothing of the job, so that a file system that hangs keeps nobody from ending. Any thread.
class Tracer : public std::enable_shared_from_this<Tracer> {
 public:
  static constexpr int64_t kSettleMs = 2000;

  static std::shared_ptr<Tracer> create(const Config& config, record::Identity identity,
                                        launch::ErrorFile errors, LoggerPtr logger);

  /// Null: record.entries is 0.
  const std::shared_ptr<record::Recorder>& recorder() const { return recorder_; }
  const std::shared_ptr<record::Meter>& meter() const { return meter_; }
  /// Sets what the join returned, and this process's rank.
  void joined(int32_t rank, int32_t attempt, uint64_t session);

  /// Writes the file now; the path. `directory` empty: trace.dir.
  Result<std::string> dump(const std::string& directory, record::Reason reason);
  /// The same on a thread of its own; `done` runs there, or here where it cannot begin.
  void dump_soon(const std::string& directory,
                 std::function<void(const Result<std::string>&)> done);
  /// The first failure that this rank sees, before anybody else is told: what it is doing now is
  /// written, on a thread of its own.
  void failed(const std::string& communicator, const Status& status);
  /// Returns when nothing is being written, or after so long. Costs a load when nothing is.
  void settle(int64_t limit_ms);

 private:
  struct Task {
    std::string directory;
    record::Trace trace;
    std::function<void(const Result<std::string>&)> done;  // may be null
    Status failure;                                        // for torchrun; ok: none
  };
  struct State {
    record::Identity identity;
    ErrorInfo failure{Code::kOk, {}, -1, {}, 0, {}, -1};
    std::string failure_scope;
    int64_t failure_realtime_ns = 0;
    std::deque<Task> tasks;
  };

  Tracer(const Config& config, record::Identity identity, launch::ErrorFile errors,
         LoggerPtr logger);
  Status check_directory(const std::string& directory) const;
  record::Trace take(record::Reason reason) const;
  Status enqueue(Task task);
  void write_tasks();

  const std::shared_ptr<record::Meter> meter_;
  const std::shared_ptr<record::Recorder> recorder_;
  const std::string directory_;
  const launch::ErrorFile errors_;
  const LoggerPtr logger_;
  Guarded<State> state_;
  std::atomic<bool> writing_{false};  // a thread is at work; true while there are tasks
  Doorbell idle_;
};

}  // namespace dt::job
