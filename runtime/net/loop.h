// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/status.h"

struct uv_loop_s;

namespace dt::net {

struct LoopState;

/// One I/O thread with an event loop. Every signal is blocked in it, so that a write to a reset
/// socket leaves SIGPIPE pending on this thread alone instead of killing the host; therefore all
/// socket writes of dt happen here.
///
/// Everything else in this folder is bound to one Loop: it is created, used and destroyed on the
/// loop's thread only, and the Loop outlives it.
class Loop {
 public:
  using Task = std::function<void()>;
  using Poster = std::function<bool(Task)>;

  static Result<std::unique_ptr<Loop>> start(const std::string& thread_name = "dt-io");
  /// Runs what was posted before, closes every handle, joins the thread. Never on the loop's own
  /// thread. In a forked child it only lets go: the thread is not there.
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  /// Runs `task` on the loop's thread, in order of posting. Any thread. False, and `task` is
  /// dropped, when the loop has stopped or this process is a forked child.
  bool post(Task task);
  /// post() for threads that may outlive the Loop.
  Poster poster() const;
  /// Runs `task` on the loop's thread and returns when it has run; at once on the loop's own
  /// thread. False when it will never run.
  bool run(const Task& task);
  bool on_thread() const;

  // A thread that waits for what the loop does may do the loop's work itself meanwhile, which saves
  // two changes of threads for each event. While it visits, it is the loop's thread: on_thread()
  // holds, and what is bound to that thread may be used. Its signals stay as they are, so nothing
  // of the loop may write to a socket in a way that raises SIGPIPE. Any thread but the loop's own;
  // a forked child never.

  /// Before a visit: asks the loop's thread to come out of its sleep and let visitors in.
  void knock();
  /// Takes knock() back, or ends it after enter().
  void unknock();
  /// False: the loop's thread, or another visitor, is at work.
  bool enter();
  /// Of a visitor: runs what was posted, without a look at sockets and timers.
  void run_posted();
  /// Of a visitor: runs what is due, and first waits for something for so long at most.
  void turn(int64_t wait_ms);
  /// Ends a visit. `busy`: something is under way, so the loop's thread goes on with it at once;
  /// else it lets the next visitor in for a moment.
  void leave(bool busy);
  /// Ok in the process that started the loop; INVALID_STATE in a forked child of it.
  Status check_not_forked() const;

  uv_loop_s* uv() const;  ///< for this folder only
  char* scratch() const;  ///< read buffer shared by all sockets of the loop
  static constexpr size_t kScratchBytes = 64 << 10;

 private:
  explicit Loop(std::shared_ptr<LoopState> state) : state_(std::move(state)) {}

  std::shared_ptr<LoopState> state_;
  std::thread thread_;
};

struct TimerHandle;
struct PollHandle;

/// One-shot timer. Loop's thread only.
class Timer {
 public:
  Timer(Loop* loop, std::function<void()> on_fire);
  ~Timer();
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  /// Replaces an earlier start.
  void start(int64_t after_ms);
  void stop();

 private:
  std::shared_ptr<TimerHandle> handle_;
};

/// Calls back whenever a descriptor is readable. Borrows `fd`, which must stay open while watched.
/// Loop's thread only.
class FdWatcher {
 public:
  static Result<std::unique_ptr<FdWatcher>> watch(Loop* loop, int fd,
                                                  std::function<void()> on_readable);
  /// For sockets: calls back for what set_interest() asks for, at first nothing. A broken socket
  /// counts as both.
  static Result<std::unique_ptr<FdWatcher>> watch_socket(
      Loop* loop, int fd, std::function<void(bool readable, bool writable)> on_event);
  /// Of a watched socket.
  Status set_interest(bool reads, bool writes);
  ~FdWatcher();
  FdWatcher(const FdWatcher&) = delete;
  FdWatcher& operator=(const FdWatcher&) = delete;

 private:
  explicit FdWatcher(std::shared_ptr<PollHandle> handle) : handle_(std::move(handle)) {}

  std::shared_ptr<PollHandle> handle_;
};

}  // namespace dt::net
