// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/farewell.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace dt::tcp {
namespace {

// Whose host is gone, or takes nothing, is not waited for.
constexpr int64_t kPatienceMs = 3000;
constexpr int64_t kDelayMaxMs = 100;

}  // namespace

Farewell::Farewell(net::Loop* loop, Socket socket, const Header& last, std::function<void()> done)
    : socket_(std::move(socket)),
      last_(last),
      deadline_(Deadline::after_ms(kPatienceMs)),
      done_(std::move(done)),
      timer_(loop, [this] { go_on(); }) {}

std::shared_ptr<Farewell> Farewell::say(net::Loop* loop, Socket socket, const Header& last,
                                        std::function<void()> done) {
  std::shared_ptr<Farewell> self(new Farewell(loop, std::move(socket), last, std::move(done)));
  if (self->step()) return nullptr;
  self->timer_.start(self->delay_ms_);
  return self;
}

void Farewell::close() {
  timer_.stop();
  socket_.close();
}

/// No event tells that the other host has acknowledged everything.
void Farewell::go_on() {
  if (!step() && !deadline_.passed()) {
    delay_ms_ = std::min(2 * delay_ms_, kDelayMaxMs);
    return timer_.start(delay_ms_);
  }
  const auto keep = shared_from_this();
  close();
  done_();
}

bool Farewell::step() {
  if (sent_ < sizeof last_) {
    const iovec part{const_cast<char*>(reinterpret_cast<const char*>(&last_)) + sent_,
                     sizeof last_ - sent_};
    const ssize_t sent = socket_.write(&part, 1);
    if (sent < 0) return errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR;
    sent_ += static_cast<size_t>(sent);
    if (sent_ < sizeof last_) return false;
  }
  int unacknowledged = 0;
  return ioctl(socket_.fd(), SIOCOUTQ, &unacknowledged) != 0 || unacknowledged == 0;
}

}  // namespace dt::tcp
