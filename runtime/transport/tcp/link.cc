// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/link.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
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

constexpr auto kHeaderBytes = static_cast<int64_t>(sizeof(Header));
constexpr char kClosed[] = "the other side closed it";

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

void Link::open(Socket socket, size_t connection) {
  if (closed_) return;
  Lane& lane = lanes_[connection];
  lane.socket = std::move(socket);
  auto watcher = net::FdWatcher::watch_socket(
      loop_, lane.socket.fd(), [this, connection](bool readable, bool writable) {
        lanes_[connection].unwanted = readable && !awaits_bytes(connection);
        pump(readable, writable);
      });
  if (!watcher.ok()) return lose(connection, watcher.status().message());
  if (connection == 0) lane.socket.read_ahead();
  lane.watcher = std::move(watcher).value();
  ++opened_;
  pump(true, true);
}

void Link::close() {
  closed_ = true;
  opened_ = 0;
  for (Lane& lane : lanes_) {
    lane.watcher = nullptr;  // before its descriptor
    lane.socket.close();
  }
  outgoing_.clear();
  incoming_.clear();
}

std::vector<Socket> Link::leave() {
  const bool whole = is_open() && std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) {
                       return lane.sent == 0 && !lane.socket.half_written();
                     });
  std::vector<Socket> sockets;
  for (Lane& lane : lanes_) {
    if (!whole) break;
    lane.watcher = nullptr;
    sockets.push_back(std::move(lane.socket));
  }
  close();
  return sockets;
}

void Link::send(const Header& header, const void* data, Done done) {
  if (closed_) return;
  outgoing_.push_back({header, static_cast<const char*>(data), std::move(done)});
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
  outgoing_.push_back({header, static_cast<const char*>(data), std::move(sent)});
  incoming_.push_back({std::move(on_header), std::move(received)});
  pump(incoming_.size() == 1, outgoing_.size() == 1);
}

/// The host of a stopped process acknowledges short messages, such as our own signs of life, for a
/// long time. Between two looks it has all of such a message; so it counts only if more is under
/// way. What it takes of long messages ends when its buffer is full.
uint64_t Link::signs() {
  for (Lane& lane : lanes_) {
    int bytes = 0;
    if (!lane.socket.valid() || ioctl(lane.socket.fd(), SIOCOUTQ, &bytes) != 0) continue;
    if (bytes > 0 && bytes < lane.unacknowledged) ++signs_;
    lane.unacknowledged = bytes;
  }
  return signs_;
}

/// Bytes that could not leave at all, for want of a route, are not unacknowledged: the kernel
/// probes for them, as for a peer that takes nothing; but such a peer answers each probe.
bool Link::cut_off() const {
  return std::any_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) {
    tcp_info info{};
    socklen_t length = sizeof info;
    if (!lane.socket.valid() ||
        getsockopt(lane.socket.fd(), IPPROTO_TCP, TCP_INFO, &info, &length) != 0) {
      return false;
    }
    return info.tcpi_unacked > 0 ? info.tcpi_retransmits > 0 : info.tcpi_probes > 1;
  });
}

/// What bytes % lanes leaves over goes to the first ones, one to each.
Link::Share Link::share(int64_t bytes, size_t lane) const {
  const auto lanes = static_cast<int64_t>(lanes_of(bytes));
  const auto index = static_cast<int64_t>(lane);
  if (index >= lanes) return {0, 0};
  if (lanes == 1) return {0, bytes};
  const auto edge = [&](int64_t i) { return bytes / lanes * i + std::min(bytes % lanes, i); };
  return {edge(index), edge(index + 1)};
}

int64_t Link::left_to_send(size_t lane) const {
  const Share mine = share(outgoing_.front().header.bytes, lane);
  return mine.end - mine.begin + (lane == 0 ? kHeaderBytes : 0) - lanes_[lane].sent;
}

int64_t Link::left_to_receive(size_t lane) const {
  const Share mine = share(header_.bytes, lane);
  return mine.end - mine.begin - lanes_[lane].received;
}

/// Who only sends, and must wait for that, also looks for the word that the peer has left. That
/// comes on the first connection, as each header does.
bool Link::awaits_bytes(size_t lane) const {
  if (!incoming_.empty()) {
    return header_is_here() ? left_to_receive(lane) > 0 : lane == 0;
  }
  return lane == 0 && !outgoing_.empty() && !foreseen_;
}

bool Link::sends_bytes(size_t lane) const { return !outgoing_.empty() && left_to_send(lane) > 0; }

void Link::pump(bool reads, bool writes) {
  if (closed_ || !is_open()) return;
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
  const bool unseen = due_read_ && std::any_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) {
                        return lane.socket.has_pending();
                      });
  // What is left, the loop tells again; an error may have ended the watching.
  if (due_read_ || due_write_) {
    for (Lane& lane : lanes_) lane.wants_read = lane.wants_write = false;
  }
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
  if (ended_by_peer()) return Progress::kBlocked;
  const uint64_t before = moves_;
  const size_t lanes = lanes_of(outgoing_.front().header.bytes);
  bool whole = true;
  for (size_t lane = 0; lane < lanes; ++lane) {
    if (left_to_send(lane) > 0 && !write_lane(lane)) return Progress::kBlocked;
    whole &= left_to_send(lane) == 0;
  }
  if (!whole) return moves_ != before ? Progress::kMore : Progress::kBlocked;
  for (size_t lane = 0; lane < lanes; ++lane) lanes_[lane].sent = 0;
  const Done done = std::move(outgoing_.front().done);
  outgoing_.pop_front();
  done();
  return Progress::kMore;
}

bool Link::write_lane(size_t lane) {
  Outgoing& head = outgoing_.front();
  int64_t& sent = lanes_[lane].sent;
  const Share mine = share(head.header.bytes, lane);
  const int64_t in_front = lane == 0 ? kHeaderBytes : 0;
  iovec parts[2];
  size_t used = 0;
  if (sent < in_front) {
    parts[used++] = {reinterpret_cast<char*>(&head.header) + sent,
                     static_cast<size_t>(in_front - sent)};
  }
  const int64_t from = mine.begin + std::max<int64_t>(sent - in_front, 0);
  if (from < mine.end) {
    parts[used++] = {const_cast<char*>(head.data) + from,
                     static_cast<size_t>(std::min(mine.end - from, kBytesPerCall))};
  }
  const ssize_t taken = lanes_[lane].socket.write(parts, used);
  if (taken >= 0) {
    sent += taken;
    ++moves_;
    if (std::exchange(lanes_[lane].full, false)) ++signs_;
    return true;
  }
  if (would_block(errno)) {
    lanes_[lane].full = true;
    return true;
  }
  const std::string reason = errno_text(errno);
  if (find_left()) {
    lose_to_leaver(header_);
  } else {
    lose(lane, reason);
  }
  return false;
}

Link::Progress Link::read_some() {
  if (incoming_.empty()) {
    if (!outgoing_.empty()) (void)ended_by_peer();
    return Progress::kBlocked;
  }
  const uint64_t before = moves_;
  bool whole = true;
  if (!header_is_here()) {
    if (!read_header()) return Progress::kBlocked;
    whole = header_is_here() && header_.bytes == 0;
  } else {
    for (size_t lane = 0; lane < lanes_of(header_.bytes); ++lane) {
      if (left_to_receive(lane) > 0 && !read_lane(lane)) return Progress::kBlocked;
      whole &= left_to_receive(lane) == 0;
    }
  }
  if (!whole) return moves_ != before ? Progress::kMore : Progress::kBlocked;
  header_bytes_ = 0;
  foreseen_ = false;
  const Done done = std::move(incoming_.front().done);
  incoming_.pop_front();
  done();
  return Progress::kMore;
}

/// False: broken, or refused by the owner.
bool Link::read_header() {
  const ssize_t got = lanes_[0].socket.read(reinterpret_cast<char*>(&header_) + header_bytes_,
                                            sizeof header_ - header_bytes_);
  if (got < 0 && would_block(errno)) return true;
  if (got <= 0) {
    lose(0, got == 0 ? kClosed : errno_text(errno));
    return false;
  }
  ++moves_;
  ++signs_;
  header_bytes_ += static_cast<size_t>(got);
  if (!header_is_here()) return true;
  for (Lane& lane : lanes_) lane.received = 0;
  if (header_.magic != Header::kMagic || header_.bytes < 0) {
    lose("bytes came that are no message of ours");
    return false;
  }
  if (header_.is_last()) {
    lose_to_leaver(header_);
    return false;
  }
  const OnHeader on_header = std::move(incoming_.front().on_header);
  target_ = static_cast<char*>(on_header(header_));
  return !closed_ && (target_ != nullptr || header_.bytes == 0);
}

bool Link::read_lane(size_t lane) {
  int64_t& received = lanes_[lane].received;
  const ssize_t got =
      lanes_[lane].socket.read(target_ + share(header_.bytes, lane).begin + received,
                               static_cast<size_t>(std::min(left_to_receive(lane), kBytesPerCall)));
  if (got > 0) {
    received += got;
    ++moves_;
    ++signs_;
    return true;
  }
  if (got < 0 && would_block(errno)) return true;
  lose(lane, got == 0 ? kClosed : errno_text(errno));
  return false;
}

/// Costs a system call each time it changes. So the loop goes on to look for bytes between two
/// messages, until some come that nobody awaits.
void Link::update_interest() {
  for (size_t i = 0; i < lanes_.size(); ++i) {
    Lane& lane = lanes_[i];
    const bool writes = sends_bytes(i);
    const bool reads = awaits_bytes(i) || (lane.wants_read && !lane.unwanted);
    if (reads == lane.wants_read && writes == lane.wants_write) continue;
    lane.wants_read = reads;
    lane.wants_write = writes;
    const Status status = lane.watcher->set_interest(reads, writes);
    if (!status.ok()) return lose(i, status.message());
  }
}

bool Link::ended_by_peer() {
  if (!incoming_.empty() || foreseen_) return false;
  Header next;
  const ssize_t got = lanes_[0].socket.peek(&next, sizeof next);
  if (got < 0 && would_block(errno)) return false;
  if (got <= 0) {
    lose(0, got == 0 ? kClosed : errno_text(errno));
    return true;
  }
  // A part of a header, too, is left to whoever receives: looking again would find the same.
  foreseen_ = got < static_cast<ssize_t>(sizeof next) || !next.is_last();
  if (!foreseen_) lose_to_leaver(next);
  return !foreseen_;
}

bool Link::find_left() {
  bool in_header = !header_is_here();
  int64_t skip = in_header ? 0 : left_to_receive(0);
  for (;;) {
    char* into = in_header ? reinterpret_cast<char*>(&header_) + header_bytes_ : loop_->scratch();
    const size_t wanted = in_header ? sizeof header_ - header_bytes_
                                    : static_cast<size_t>(std::min<int64_t>(
                                          skip, static_cast<int64_t>(net::Loop::kScratchBytes)));
    if (wanted > 0) {
      const ssize_t got = lanes_[0].socket.read(into, wanted);
      if (got <= 0) return false;
      if (in_header) {
        header_bytes_ += static_cast<size_t>(got);
      } else {
        skip -= got;
      }
    }
    if (in_header && header_bytes_ == sizeof header_) {
      if (header_.magic != Header::kMagic || header_.bytes < 0) return false;
      if (header_.is_last()) return true;
      lanes_[0].received = 0;
      skip = left_to_receive(0);
      in_header = false;
    } else if (!in_header && skip == 0) {
      header_bytes_ = 0;
      in_header = true;
    }
  }
}

void Link::lose_to_leaver(const Header& last) {
  if (closed_) return;
  const auto keep = shared_from_this();
  const bool finalized = last.what == Header::kFinalized;
  close();
  on_left_(finalized);
}

void Link::lose(size_t lane, const std::string& reason) {
  const size_t all = lanes_.size();
  lose(all == 1 ? reason : format("connection %zu of %zu: %s", lane + 1, all, reason.c_str()));
}

void Link::lose(const std::string& reason) {
  if (closed_) return;
  const auto keep = shared_from_this();
  close();
  on_lost_(reason);
}

}  // namespace dt::tcp
