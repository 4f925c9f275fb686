// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/handshake.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace dt::tcp {
namespace {

constexpr uint32_t kProtocol = 1;
constexpr uint32_t kMaxTextBytes = 1024;  // of a refusal

struct HelloFrame {
  static constexpr uint64_t kMagic = 0x316f'6c6c'6548'5444;  // "DTHello1"
  uint64_t magic = kMagic;
  uint64_t session = 0;
  uint32_t protocol = kProtocol;
  int32_t from = -1;
  int32_t to = -1;
  uint16_t name_bytes = 0;
  uint16_t connection = 0;
};

struct AnswerFrame {
  static constexpr uint32_t kMagic = 0x576f'5444;
  uint32_t magic = kMagic;
  /// 0: welcome; kLeft: the communicator was destroyed here; kLeftJob: this rank has left the job.
  uint32_t refusal_bytes = 0;
  static constexpr uint32_t kLeft = 0xffff'ffff;
  static constexpr uint32_t kLeftJob = 0xffff'fffe;
};

template <class Frame>
std::string to_bytes(const Frame& frame) {
  return std::string(reinterpret_cast<const char*>(&frame), sizeof frame);
}

template <class Frame>
Frame from_bytes(const std::string& bytes) {
  Frame frame;
  memcpy(&frame, bytes.data(), sizeof frame);
  return frame;
}

}  // namespace

std::shared_ptr<Handshake> Handshake::dial(net::Loop* loop, Socket connecting,
                                           const net::Security& security, const Hello& hello,
                                           Dialled done) {
  std::shared_ptr<Handshake> self(new Handshake(loop));
  self->socket_ = std::move(connecting);
  self->guard_ = std::make_unique<net::Guard>(security, net::Purpose::kMesh, net::Side::kClient);
  self->hello_ = hello;
  self->dials_ = true;
  self->dialled_ = std::move(done);
  if (const Status status = self->watch(); !status.ok()) {
    loop->post([self, status] { self->end_dial(status); });
  }
  return self;
}

std::shared_ptr<Handshake> Handshake::accept(net::Loop* loop, Socket socket,
                                             const net::Security& security, Judge judge,
                                             Accepted accepted, std::function<void()> dropped,
                                             int64_t silence_ms) {
  std::shared_ptr<Handshake> self(new Handshake(loop));
  self->socket_ = std::move(socket);
  self->guard_ = std::make_unique<net::Guard>(security, net::Purpose::kMesh, net::Side::kServer);
  self->connected_ = true;
  self->judge_ = std::move(judge);
  self->accepted_ = std::move(accepted);
  self->dropped_ = std::move(dropped);
  self->timer_ = std::make_unique<net::Timer>(loop, [raw = self.get()] { raw->on_silence(); });
  self->timer_->start(silence_ms);
  if (!self->watch().ok()) loop->post([self] { self->drop(); });
  return self;
}

Status Handshake::watch() {
  DT_TRY_VALUE(watcher_, net::FdWatcher::watch_socket(
                             loop_, socket_.fd(),
                             [this](bool readable, bool writable) { step(readable, writable); }));
  return watcher_->set_interest(connected_, !connected_);
}

void Handshake::close() {
  closed_ = true;
  watcher_ = nullptr;
  timer_ = nullptr;
  socket_.close();
}

void Handshake::step(bool readable, bool writable) {
  const auto keep = shared_from_this();
  if (closed_) return;
  if (!connected_) {
    if (writable || readable) on_connected();
  } else if (guard_ != nullptr) {
    on_greeting();
  } else if (dials_) {
    on_answer();
  } else {
    on_hello();
  }
}

void Handshake::on_connected() {
  if (const int error = connect_error(socket_); error != 0) {
    return end_dial(Status(Code::kSystem, connect_error_text(error)));
  }
  connected_ = true;
  if (const Status status = watcher_->set_interest(true, false); !status.ok()) {
    return end_dial(status);
  }
  on_greeting();
}

/// Reads no byte of what comes behind the greeting.
void Handshake::on_greeting() {
  for (;;) {
    if (const std::string output = guard_->take_output(); !output.empty() && !put(output)) return;
    if (guard_->established()) return greeted();
    if (!guard_->failure().ok()) return refused();
    char chunk[512];
    const ssize_t got = recv(socket_.fd(), chunk, std::min(guard_->wanted(), sizeof chunk), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0)
      return broke(got == 0 ? "the other side closed the connection" : errno_text(errno));
    guard_->feed(chunk, static_cast<size_t>(got));
  }
}

void Handshake::greeted() {
  buffer_ = guard_->take_held();
  if (auto tls = guard_->take_tls(); tls != nullptr) socket_.encrypt(std::move(tls));
  guard_ = nullptr;
  if (!dials_) return on_hello();
  HelloFrame frame;
  frame.session = hello_.session;
  frame.from = hello_.from;
  frame.to = hello_.to;
  frame.name_bytes = static_cast<uint16_t>(hello_.communicator.size());
  frame.connection = static_cast<uint16_t>(hello_.connection);
  put(to_bytes(frame) + hello_.communicator);
}

void Handshake::refused() {
  const Status why = guard_->failure();
  if (dials_) return end_dial(why);
  if (guard_->met_plain()) {
    // Perhaps a rank without a token: it understands an answer.
    const std::string text = why.message().substr(0, kMaxTextBytes);
    AnswerFrame answer;
    answer.refusal_bytes = static_cast<uint32_t>(text.size());
    if (!put(to_bytes(answer) + text)) return;
    // Else what it sent, and nobody read, would take the answer away with it.
    char ignored[sizeof(HelloFrame) + kMaxNameBytes];
    (void)recv(socket_.fd(), ignored, sizeof ignored, 0);
  }
  drop();
}

void Handshake::on_answer() {
  if (!fill(sizeof(AnswerFrame))) return;
  const auto answer = from_bytes<AnswerFrame>(buffer_);
  if (answer.magic == AnswerFrame::kMagic && answer.refusal_bytes == AnswerFrame::kLeft) {
    return end_dial(Status(Code::kAborted, "it has destroyed the communicator"));
  }
  if (answer.magic == AnswerFrame::kMagic && answer.refusal_bytes == AnswerFrame::kLeftJob) {
    return end_dial(Status(Code::kAborted, kPeerFinalized));
  }
  if (answer.magic != AnswerFrame::kMagic || answer.refusal_bytes > kMaxTextBytes) {
    return end_dial(Status(Code::kSystem, "something that is no rank of a job answers there"));
  }
  if (!fill(sizeof answer + answer.refusal_bytes)) return;
  if (answer.refusal_bytes > 0) {
    return end_dial(Status(Code::kSystem, kRefuses + buffer_.substr(sizeof answer)));
  }
  watcher_ = nullptr;
  end_dial(std::move(socket_));
}

void Handshake::on_hello() {
  if (!fill(sizeof(HelloFrame))) return;
  const auto frame = from_bytes<HelloFrame>(buffer_);
  if (frame.magic != HelloFrame::kMagic || frame.name_bytes > kMaxNameBytes) return drop();
  if (!fill(sizeof frame + frame.name_bytes)) return;
  Hello hello{frame.session, frame.from, frame.to, buffer_.substr(sizeof frame), frame.connection};
  const Status verdict =
      frame.protocol == kProtocol
          ? judge_(hello)
          : Status(Code::kVersion, format("it speaks protocol %u between hosts, not %u; run one "
                                          "version of dt everywhere",
                                          kProtocol, frame.protocol));
  const bool left = verdict.code() == Code::kAborted;
  const std::string refusal = left ? "" : verdict.message().substr(0, kMaxTextBytes);
  AnswerFrame answer;
  answer.refusal_bytes = static_cast<uint32_t>(refusal.size());
  if (left) {
    answer.refusal_bytes =
        verdict.message() == kPeerFinalized ? AnswerFrame::kLeftJob : AnswerFrame::kLeft;
  }
  if (!put(to_bytes(answer) + refusal)) return;
  if (!verdict.ok()) return drop();
  const Accepted accepted = std::move(accepted_);
  Socket socket = std::move(socket_);
  close();
  accepted(hello, std::move(socket));
}

bool Handshake::fill(size_t bytes) {
  while (buffer_.size() < bytes) {
    char chunk[sizeof(HelloFrame) + kMaxNameBytes];
    const size_t wanted = std::min(bytes - buffer_.size(), sizeof chunk);
    const ssize_t got = socket_.read(chunk, wanted);
    if (got > 0) {
      buffer_.append(chunk, static_cast<size_t>(got));
    } else if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
      return false;
    } else {
      broke(got == 0 ? "the other side closed the connection" : errno_text(errno));
      return false;
    }
  }
  return true;
}

/// A fresh socket takes so few bytes at once.
bool Handshake::put(const std::string& bytes) {
  const iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  const ssize_t sent = socket_.write(&part, 1);
  if (sent == static_cast<ssize_t>(bytes.size())) return true;
  broke(sent < 0 ? errno_text(errno) : "the greeting did not fit into the socket");
  return false;
}

void Handshake::broke(const std::string& reason) {
  if (dials_) {
    end_dial(Status(Code::kSystem, reason));
  } else {
    drop();
  }
}

void Handshake::end_dial(Result<Socket> result) {
  if (closed_) return;
  const auto keep = shared_from_this();
  const Dialled done = std::move(dialled_);
  close();
  done(std::move(result));
}

/// The hello may have come while this thread was busy, and not have been looked at yet.
void Handshake::on_silence() {
  const auto keep = shared_from_this();
  if (!closed_) step(true, false);
  drop();
}

void Handshake::drop() {
  if (closed_) return;
  const auto keep = shared_from_this();
  const auto dropped = std::move(dropped_);
  close();
  dropped();
}

}  // namespace dt::tcp
