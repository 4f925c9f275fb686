// SPDX-License-Identifier: Apache-2.0
#include "job/tracer.h"

#include <pthread.h>
#include <signal.h>

#include <chrono>
#include <utility>

#include "base/thread.h"
#include "record/trace_file.h"

namespace dt::job {
namespace {

constexpr size_t kTasksMax = 4;  // requests for one file: more of them tell nothing new

int64_t realtime_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

std::shared_ptr<Tracer> Tracer::create(const Config& config, record::Identity identity,
                                       launch::ErrorFile errors, LoggerPtr logger) {
  return std::shared_ptr<Tracer>(
      new Tracer(config, std::move(identity), std::move(errors), std::move(logger)));
}

Tracer::Tracer(const Config& config, record::Identity identity, launch::ErrorFile errors,
               LoggerPtr logger)
    : meter_(std::make_shared<record::Meter>(identity.world_size)),
      recorder_(record::Recorder::create(config.integer("record.entries"), meter_)),
      directory_(config.text("trace.dir")),
      errors_(std::move(errors)),
      logger_(std::move(logger)) {
  state_.with([&](State& state) { state.identity = std::move(identity); });
}

void Tracer::joined(int32_t rank, int32_t attempt, uint64_t session) {
  state_.with([&](State& state) {
    state.identity.rank = rank;
    state.identity.attempt = attempt;
    state.identity.session = session;
  });
}

Status Tracer::check_directory(const std::string& directory) const {
  const int32_t rank = state_.with([](const State& state) { return state.identity.rank; });
  if (recorder_ == nullptr) {
    return Status(Code::kInvalidState,
                  format("rank %d records nothing: record.entries is 0", rank));
  }
  if (!directory.empty()) return {};
  return Status(Code::kInvalidArgument,
                format("rank %d knows no directory for its trace; name one, or set trace.dir "
                       "(DT_TRACE_DIR)",
                       rank));
}

record::Trace Tracer::take(record::Reason reason) const {
  record::Trace trace;
  trace.reason = reason;
  trace.recorded = recorder_->read();
  state_.with([&](const State& state) {
    trace.identity = state.identity;
    trace.failure = state.failure;
    trace.failure_scope = state.failure_scope;
    trace.failure_realtime_ns = state.failure_realtime_ns;
  });
  return trace;
}

Result<std::string> Tracer::dump(const std::string& directory, record::Reason reason) {
  const std::string& where = directory.empty() ? directory_ : directory;
  DT_TRY(check_directory(where));
  return record::write_trace(where, take(reason));
}

void Tracer::dump_soon(const std::string& directory,
                       std::function<void(const Result<std::string>&)> done) {
  const std::string& where = directory.empty() ? directory_ : directory;
  Status status = check_directory(where);
  if (status.ok()) status = enqueue({where, take(record::Reason::kAsked), done, {}});
  if (!status.ok()) done(status);
}

void Tracer::failed(const std::string& communicator, const Status& status) {
  if (status.ok()) return;
  const bool first = state_.with([&](State& state) {
    if (state.failure.code != Code::kOk) return false;
    state.failure = status.info();
    state.failure_scope = communicator;
    state.failure_realtime_ns = realtime_ns();
    return true;
  });
  const bool traces = recorder_ != nullptr && !directory_.empty();
  if (!first || (!traces && !errors_.named())) return;
  Task task;
  if (traces) task = {directory_, take(record::Reason::kFailed), nullptr, {}};
  task.failure = status;
  const Status begun = enqueue(std::move(task));
  if (!begun.ok()) logger_->log(LogLevel::kWarning, "no trace: %s", begun.message().c_str());
}

Status Tracer::enqueue(Task task) {
  // Who makes the list non-empty starts the thread, and the thread ends when it finds it empty, all
  // under one lock; so there is one thread at most, and no task without one.
  return state_.with([&](State& state) -> Status {
    if (state.tasks.size() >= kTasksMax) {
      return Status(Code::kInvalidState,
                    format("rank %d is still writing %zu traces; ask again later",
                           state.identity.rank, state.tasks.size()));
    }
    state.tasks.push_back(std::move(task));
    if (writing_.load(std::memory_order_relaxed)) return {};
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    auto thread =
        start_thread("writes the trace", [self = shared_from_this()] { self->write_tasks(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (!thread.ok()) {
      state.tasks.pop_back();
      return thread.status();
    }
    pthread_setname_np(thread.value().native_handle(), "dt-trace");
    thread.value().detach();
    writing_.store(true, std::memory_order_seq_cst);
    return {};
  });
}

void Tracer::write_tasks() {
  for (;;) {
    Task task;
    const bool found = state_.with([&](State& state) {
      if (!state.tasks.empty()) {
        task = std::move(state.tasks.front());
        state.tasks.pop_front();
        return true;
      }
      writing_.store(false, std::memory_order_seq_cst);
      return false;
    });
    if (!found) break;
    errors_.write(task.failure, realtime_ns() / 1'000'000'000);
    if (task.directory.empty()) continue;
    const Result<std::string> written = record::write_trace(task.directory, task.trace);
    if (!written.ok()) {
      logger_->log(LogLevel::kWarning, "%s", written.status().message().c_str());
    } else if (task.trace.reason == record::Reason::kFailed) {
      logger_->log(LogLevel::kInfo, "the last operations of rank %d are in %s",
                   task.trace.identity.rank, written.value().c_str());
    }
    if (task.done) task.done(written);
  }
  idle_.ring();
}

void Tracer::settle(int64_t limit_ms) {
  if (!writing_.load(std::memory_order_seq_cst)) return;
  const Deadline deadline = Deadline::after_ms(limit_ms);
  while (writing_.load(std::memory_order_seq_cst) && !deadline.passed()) {
    const uint32_t ticket = idle_.prepare();
    if (writing_.load(std::memory_order_seq_cst)) {
      idle_.sleep(ticket, deadline);
    } else {
      idle_.cancel();
    }
  }
}

}  // namespace dt::job
