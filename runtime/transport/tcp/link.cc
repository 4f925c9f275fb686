// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/link.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace dt::tcp {
namespace {

// One look at a socket moves at most this much: other links and communicators wait meanwhile.
constexpr int kTurnsAtOnce = 16;
constexpr int64_t kBytesPerCall = 1 << 20;

constexpr char kClosed[] = "the other side closed it";

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

void Link::open(Socket socket) {
  if (closed_) return;
  socket_ = std::move(socket);
  auto watcher =
      net::FdWatcher::watch_socket(loop_, socket_.fd(), [this](bool readable, bool writable) {
        unwanted_ = readable && !awaits_bytes();
        pump(readable, writable);
      });
  if (!watcher.ok()) return lose(watcher.status().message());
  socket_.read_ahead();
  watcher_ = std::move(watcher).value();
  pump(true, true);
}

void Link::close() {
  closed_ = true;
  watcher_ = nullptr;  // before its descriptor
  socket_.close();
  outgoing_.clear();
  incoming_.clear();
}

Socket Link::leave() {
  const bool whole =
      is_open() && !socket_.half_written() && (outgoing_.empty() || outgoing_.front().sent == 0);
  Socket socket = whole ? std::move(socket_) : Socket();
  close();
  return socket;
}

void Link::send(const Header& header, const void* data, Done done) {
  if (closed_) return;
  outgoing_.push_back({header, static_cast<const char*>(data), 0, std::move(done)});
  if (outgoing_.size() == 1) pump(false, true);
}

void Link::receive(OnHeader on_header, Done done) {
  if (closed_) return;
  incoming_.push_back({std::move(on_header), std::move(done)});
  if (incoming_.size() == 1) pump(true, false);
}

void Link::trade(const Header& header, const void* data, Done sent, OnHeader on_header,
                 Done received) {
  if (closed_) return;
  outgoing_.push_back({header, static_cast<const char*>(data), 0, std::move(sent)});
  incoming_.push_back({std::move(on_header), std::move(received)});
  pump(incoming_.size() == 1, outgoing_.size() == 1);
}

/// Bytes that could not leave at all, for want of a route, are not unacknowledged: the kernel
/// probes for them, as for a peer that takes nothing; but such a peer answers each probe.
bool Link::cut_off() const {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (!socket_.valid() || getsockopt(socket_.fd(), IPPROTO_TCP, TCP_INFO, &info, &length) != 0) {
    return false;
  }
  return info.tcpi_unacked > 0 ? info.tcpi_retransmits > 0 : info.tcpi_probes > 1;
}

void Link::pump(bool reads, bool writes) {
  if (closed_ || watcher_ == nullptr) return;
  due_read_ |= reads;
  due_write_ |= writes;
  if (pumping_) return;
  const auto keep = shared_from_this();
  pumping_ = true;
  // Callbacks may queue more in either direction, so both are tried until both are blocked.
  for (int turn = 0; turn < kTurnsAtOnce && (due_read_ || due_write_) && !closed_; ++turn) {
    if (due_write_ && write_some() == Progress::kBlocked) due_write_ = false;
    if (due_read_ && !closed_ && read_some() == Progress::kBlocked) due_read_ = false;
  }
  const bool unseen = due_read_ && socket_.has_pending();
  // What is left, the loop tells again; an error may have ended the watching.
  if (due_read_ || due_write_) wants_read_ = wants_write_ = false;
  due_read_ = due_write_ = false;
  pumping_ = false;
  if (!closed_) update_interest();
  if (!unseen || closed_) return;
  // But it does not see what was decrypted already.
  loop_->post([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->pump(true, false);
  });
}

bool Link::poll() {
  const uint64_t before = moves_;
  pump(!incoming_.empty(), !outgoing_.empty());
  return moves_ != before;
}

Link::Progress Link::write_some() {
  if (outgoing_.empty()) return Progress::kBlocked;
  Outgoing& head = outgoing_.front();
  constexpr auto kHeaderBytes = static_cast<int64_t>(sizeof(Header));
  if (ended_by_peer()) return Progress::kBlocked;
  const int64_t total = kHeaderBytes + head.header.bytes;
  iovec parts[2];
  size_t used = 0;
  if (head.sent < kHeaderBytes) {
    parts[used++] = {reinterpret_cast<char*>(&head.header) + head.sent,
                     static_cast<size_t>(kHeaderBytes - head.sent)};
  }
  const int64_t from = std::max<int64_t>(head.sent - kHeaderBytes, 0);
  if (from < head.header.bytes) {
    parts[used++] = {const_cast<char*>(head.data) + from,
                     static_cast<size_t>(std::min(head.header.bytes - from, kBytesPerCall))};
  }
  const ssize_t sent = socket_.write(parts, used);
  if (sent < 0) {
    if (would_block(errno)) return Progress::kBlocked;
    const std::string reason = errno_text(errno);
    if (find_left()) {
      lose_to_leaver();
    } else {
      lose(reason);
    }
    return Progress::kBlocked;
  }
  head.sent += sent;
  ++moves_;
  if (head.sent < total) return Progress::kMore;
  const Done done = std::move(head.done);
  outgoing_.pop_front();
  done();
  return Progress::kMore;
}

Link::Progress Link::read_some() {
  if (incoming_.empty()) {
    if (!outgoing_.empty()) (void)ended_by_peer();
    return Progress::kBlocked;
  }
  char* into = reinterpret_cast<char*>(&header_) + header_bytes_;
  int64_t wanted = static_cast<int64_t>(sizeof header_ - header_bytes_);
  const bool in_header = wanted > 0;
  if (!in_header) {
    into = target_ + received_;
    wanted = std::min(header_.bytes - received_, kBytesPerCall);
  }
  if (wanted > 0) {
    const ssize_t got = socket_.read(into, static_cast<size_t>(wanted));
    if (got == 0) {
      lose(kClosed);
      return Progress::kBlocked;
    }
    if (got < 0) {
      if (!would_block(errno)) lose(errno_text(errno));
      return Progress::kBlocked;
    }
    ++moves_;
    if (!in_header) {
      received_ += got;
    } else {
      header_bytes_ += static_cast<size_t>(got);
      if (header_bytes_ < sizeof header_) return Progress::kMore;
      received_ = 0;
      if (header_.magic != Header::kMagic || header_.bytes < 0) {
        lose("bytes came that are no message of ours");
        return Progress::kBlocked;
      }
      if (header_.what == Header::kLeft) {
        lose_to_leaver();
        return Progress::kBlocked;
      }
      const OnHeader on_header = std::move(incoming_.front().on_header);
      target_ = static_cast<char*>(on_header(header_));
      if (closed_ || (target_ == nullptr && header_.bytes > 0)) return Progress::kBlocked;
    }
  }
  if (received_ < header_.bytes) return Progress::kMore;
  header_bytes_ = 0;
  foreseen_ = false;
  const Done done = std::move(incoming_.front().done);
  incoming_.pop_front();
  done();
  return Progress::kMore;
}

/// Costs a system call each time it changes. So the loop goes on to look for bytes between two
/// messages, until some come that nobody awaits.
void Link::update_interest() {
  const bool writes = !outgoing_.empty();
  const bool reads = awaits_bytes() || (wants_read_ && !unwanted_);
  if (reads == wants_read_ && writes == wants_write_) return;
  wants_read_ = reads;
  wants_write_ = writes;
  if (const Status status = watcher_->set_interest(reads, writes); !status.ok()) {
    lose(status.message());
  }
}

bool Link::ended_by_peer() {
  if (!incoming_.empty() || foreseen_) return false;
  Header next;
  const ssize_t got = socket_.peek(&next, sizeof next);
  if (got < 0 && would_block(errno)) return false;
  if (got <= 0) {
    lose(got == 0 ? kClosed : errno_text(errno));
    return true;
  }
  // A part of a header, too, is left to whoever receives: looking again would find the same.
  foreseen_ = got < static_cast<ssize_t>(sizeof next) || next.what != Header::kLeft;
  if (!foreseen_) lose_to_leaver();
  return !foreseen_;
}

bool Link::find_left() {
  bool in_header = header_bytes_ < sizeof header_;
  int64_t skip = in_header ? 0 : header_.bytes - received_;
  for (;;) {
    char* into = in_header ? reinterpret_cast<char*>(&header_) + header_bytes_ : loop_->scratch();
    const size_t wanted = in_header ? sizeof header_ - header_bytes_
                                    : static_cast<size_t>(std::min<int64_t>(
                                          skip, static_cast<int64_t>(net::Loop::kScratchBytes)));
    if (wanted > 0) {
      const ssize_t got = socket_.read(into, wanted);
      if (got <= 0) return false;
      if (in_header) {
        header_bytes_ += static_cast<size_t>(got);
      } else {
        skip -= got;
      }
    }
    if (in_header && header_bytes_ == sizeof header_) {
      if (header_.magic != Header::kMagic || header_.bytes < 0) return false;
      if (header_.what == Header::kLeft) return true;
      skip = header_.bytes;
      in_header = false;
    } else if (!in_header && skip == 0) {
      header_bytes_ = 0;
      in_header = true;
    }
  }
}

void Link::lose_to_leaver() {
  if (closed_) return;
  const auto keep = shared_from_this();
  close();
  on_left_();
}

void Link::lose(const std::string& reason) {
  if (closed_) return;
  const auto keep = shared_from_this();
  close();
  on_lost_(reason);
}

}  // namespace dt::tcp
