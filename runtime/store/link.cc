// SPDX-License-Identifier: Apache-2.0
#include "store/link.h"

#include <algorithm>
#include <cerrno>

#include "base/wait.h"
#include "net/interfaces.h"
#include "store/text.h"

namespace dt::store {
namespace {

constexpr int64_t kFirstDelayMs = 20;
constexpr int64_t kMaxDelayMs = 2'000;
constexpr uint64_t kHelloId = 1;

}  // namespace

Link::Link(net::Loop* loop, std::string host, uint16_t port, Hello hello, net::Security security,
           LoggerPtr logger, LinkEvents events, int64_t greeting_ms, Deadline deadline)
    : loop_(loop),
      hello_(std::move(hello)),
      security_(std::move(security)),
      logger_(std::move(logger)),
      events_(std::move(events)),
      greeting_ms_(greeting_ms),
      retry_timer_(loop, [this] { attempt(); }),
      addresses_(loop, std::move(host), port,
                 greeting_ms > 0 ? std::min(greeting_ms, net::DialSequence::kMaxMs)
                                 : net::DialSequence::kMaxMs,
                 deadline,
                 {[this](const net::Address& to) { dial(to); },
                  [this](const Status& why) { fail_try(why.message()); },
                  [this] { fail_greeting(connection_problem(ETIMEDOUT)); }}),
      delay_ms_(kFirstDelayMs),
      random_(static_cast<uint32_t>(hello_.nonce | 1)) {}

void Link::stop() {
  stopped_ = true;
  connection_.reset();
  retry_timer_.stop();
  addresses_.stop();
}

void Link::send(FrameType type, uint64_t id, std::string_view payload) {
  if (connection_ != nullptr) connection_->write(encode_frame(type, id, payload));
}

std::string Link::progress() const {
  return format("%d %s, the last: %s", tries_, tries_ == 1 ? "try" : "tries", last_reason_.c_str());
}

// ---- until the hello is answered ----

void Link::attempt() {
  if (stopped_) return;
  ++tries_;
  addresses_.begin();
}

void Link::dial(const net::Address& to) {
  if (connection_ != nullptr) {
    only_local_ = false;
    kept_silent_ = kept_silent_ || !connection_->peer_host().empty();
  }
  connection_.reset();
  parser_ = FrameParser(kMaxPayloadBytes);
  net::SecureEvents events;
  events.on_open = [this] { opened(); };
  events.on_bytes = [this](const char* data, size_t bytes) { received(data, bytes); };
  events.on_refused = [this](const Status& why, bool) { refused(why); };
  events.on_close = [this](int error) { closed(error); };
  auto dialled =
      net::SecureConnection::dial(loop_, to, security_, net::Purpose::kStore, std::move(events));
  if (dialled.ok()) {
    connection_ = std::move(dialled).value();
  } else if (!addresses_.next()) {
    end_try(dialled.status().message());
  }
}

/// No address is left. What only this host keeps from connecting, as its limit of open files, will
/// do so the next time, too. What was silent before the last address still counts.
void Link::end_try(std::string reason) {
  if (kept_silent_ && greeting_ms_ > 0) {
    fail_greeting(connection_problem(ETIMEDOUT));
  } else if (only_local_) {
    finish(Status(Code::kSystem, "the store at " + hello_.dialled + ": " + reason));
  } else {
    fail_try(std::move(reason));
  }
}

void Link::opened() {
  only_local_ = false;
  Request request;
  request.type = FrameType::kHello;
  request.hello = hello_;
  send(FrameType::kHello, kHelloId, encode_request(request));
}

void Link::fail_try(std::string reason) {
  connection_.reset();
  addresses_.end();
  only_local_ = true;
  kept_silent_ = false;
  last_reason_ = std::move(reason);
  if (logger_) {
    logger_->log(LogLevel::kDebug, "store: try %d of %s failed: %s", tries_, hello_.dialled.c_str(),
                 last_reason_.c_str());
  }
  // Jitter keeps the ranks of a large job from knocking in step.
  std::uniform_int_distribution<int64_t> jitter(delay_ms_ / 2, delay_ms_);
  retry_timer_.start(jitter(random_));
  delay_ms_ = std::min(2 * delay_ms_, kMaxDelayMs);
}

/// What was reached, or keeps silent, may be no store of dt.
void Link::fail_greeting(std::string reason) {
  if (greeting_ms_ == 0) return fail_try(std::move(reason));
  finish(Status(Code::kUnsupported, format("what listens at %s does not greet as a store of dt: %s",
                                           hello_.dialled.c_str(), reason.c_str())));
}

void Link::handle_greeting(const Frame& frame) {
  if (frame.type == FrameType::kReply && frame.id == kHelloId && decode(frame.payload, &welcome_)) {
    finish({});
    return;
  }
  ErrorInfo info;
  if (frame.type != FrameType::kError || !decode(frame.payload, &info)) {
    fail_greeting(
        "the answer to the hello makes no sense: what listens there is no store of this "
        "version");
  } else if (is_final_refusal(info.code)) {
    finish(Status(std::move(info)));
  } else {
    fail_try(std::move(info.message));
  }
}

void Link::finish(Status status) {
  addresses_.stop();
  ready_ = status.ok();
  if (!ready_) stop();
  events_.on_ready(std::move(status));
}

// ---- both phases ----

void Link::received(const char* data, size_t bytes) {
  heard_ns_ = monotonic_ns();
  parser_.feed(data, bytes);
  Frame frame;
  // Any event may stop the link or begin another try, so everything is looked at anew.
  while (!stopped_ && connection_ != nullptr && parser_.next(&frame)) {
    if (ready_) {
      events_.on_frame(std::move(frame));
    } else {
      handle_greeting(frame);
    }
  }
  if (stopped_ || connection_ == nullptr || parser_.status().ok()) return;
  const Status broken = parser_.status();
  if (ready_) {
    connection_.reset();
    events_.on_lost("sent what makes no sense (" + broken.message() + ")");
  } else if (broken.code() == Code::kVersion) {
    finish(broken.within("store at " + hello_.dialled));
  } else {
    fail_greeting(broken.message());
  }
}

/// What does not fit will not fit later; but what is no guard of ours may make way for one.
void Link::refused(const Status& why) {
  if (is_final_refusal(why.code())) {
    finish(why.within("the store at " + hello_.dialled));
  } else {
    fail_greeting(why.message());
  }
}

void Link::closed(int error) {
  connection_.reset();
  if (ready_) {
    events_.on_lost(error == 0 ? "closed the connection"
                               : "lost the connection (" + errno_text(error) + ")");
    return;
  }
  const bool is_down = net::is_loopback_down(error, addresses_.address());
  only_local_ = only_local_ && is_down;
  if (addresses_.next()) return;
  if (error == 0 || error == ECONNRESET || error == EPIPE) {
    fail_greeting(connection_problem(error));
  } else {
    end_try(is_down ? net::kLoopbackDown : connection_problem(error));
  }
}

}  // namespace dt::store
