// SPDX-License-Identifier: Apache-2.0
#include "cli/run/stop_interrupt.h"

#include <signal.h>
#include <unistd.h>

#include "cli/run/processes.h"

namespace dt::cli {

Result<std::unique_ptr<StopInterrupt>> StopInterrupt::start(net::Loop* loop, Signals* signals,
                                                            Interrupt* interrupt) {
  std::unique_ptr<StopInterrupt> stop(new StopInterrupt(loop, signals, interrupt));
  Status status(Code::kInvalidState, "the I/O thread has stopped");
  loop->run([&] {
    auto watched =
        net::FdWatcher::watch(loop, signals->fd(), [raw = stop.get()] { raw->on_readable(); });
    status = watched.status();
    if (watched.ok()) stop->watcher_ = std::move(watched).value();
  });
  DT_TRY(status);
  return stop;
}

StopInterrupt::~StopInterrupt() {
  loop_->run([this] { watcher_.reset(); });
}

void StopInterrupt::on_readable() {
  for (int signal = signals_->next(); signal != 0; signal = signals_->next()) {
    if (signal == SIGTSTP) kill(getpid(), SIGSTOP);
    if (signal != SIGINT && signal != SIGTERM && signal != SIGHUP && signal != SIGQUIT) continue;
    int none = 0;
    signal_.compare_exchange_strong(none, signal);
    interrupt_->fire(Status(Code::kAborted, "stopped by " + signal_name(signal) +
                                                " while waiting for the other nodes"));
  }
}

}  // namespace dt::cli
