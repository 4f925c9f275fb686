// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/status.h"
#include "base/wait.h"

namespace dt {

/// A thread that runs `body`; it has the caller's signal mask. SYSTEM when there can be none;
/// `what` names it in the text.
inline Result<std::thread> start_thread(const char* what, std::function<void()> body) {
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    return Status(Code::kSystem, std::string("cannot start the thread that ") + what + ": " +
                                     error.what() + "; raise the limit of processes (ulimit -u)");
  }
}

/// A thread that ends by itself, and that others may wait for. It outlives this object.
class EndingThread {
 public:
  /// As start_thread(). `body` and what it holds is let go of on the thread, before ended().
  static Result<std::shared_ptr<EndingThread>> start(const char* what, std::function<void()> body) {
    std::shared_ptr<EndingThread> made(new EndingThread);
    DT_TRY_VALUE(made->thread_,
                 start_thread(what, [body = std::move(body), over = made->over_]() mutable {
                   body();
                   body = nullptr;
                   over->set();
                 }));
    return made;
  }
  ~EndingThread() {
    if (thread_.joinable()) thread_.detach();
  }
  EndingThread(const EndingThread&) = delete;
  EndingThread& operator=(const EndingThread&) = delete;

  std::thread::native_handle_type native_handle() { return thread_.native_handle(); }
  bool ended() const { return over_->is_set(); }
  /// False at the deadline, and on the thread itself. Afterwards it runs no code any more. One
  /// thread at a time.
  bool join(const Wait& wait) {
    if (!thread_.joinable()) return true;
    if (thread_.get_id() == std::this_thread::get_id() || !over_->wait(wait)) return false;
    thread_.join();
    return true;
  }

 private:
  EndingThread() = default;

  std::thread thread_;
  const std::shared_ptr<Event> over_ = std::make_shared<Event>();
};

}  // namespace dt
