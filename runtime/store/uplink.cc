// SPDX-License-Identifier: Apache-2.0
#include "store/uplink.h"

#include <algorithm>

namespace dt::store {
namespace {

// Up to here bytes that many are sent are copied, so that small answers go out as one piece.
constexpr size_t kCopiedSharedBytes = 4 << 10;

}  // namespace

std::string encode(const UplinkHello& hello) {
  Writer writer;
  writer.u32(hello.protocol).text(hello.job_id).i32(hello.attempt).text(hello.host);
  return writer.take();
}

bool decode(std::string_view bytes, UplinkHello* out) {
  Reader reader(bytes);
  out->protocol = reader.u32();
  out->job_id = reader.text(kMaxHelloBytes);
  out->attempt = reader.i32();
  out->host = reader.text(kMaxHelloBytes);
  return reader.done();
}

void Uplink::touch() {
  if (touched || ended) return;
  touched = true;
  connection->hold();
  on_touched();
}

Channel::~Channel() {
  if (!uplink_->ended) send_close();
  uplink_->channels.erase(number_);
}

void Wire::write(std::string bytes, net::SharedBytes shared) {
  if (shared.size() <= kCopiedSharedBytes) {
    bytes += shared.view();
    shared = {};
  }
  if (own_ != nullptr) return own_->write(std::move(bytes), std::move(shared));
  channel_->write(std::move(bytes), std::move(shared));
}

void Channel::write(std::string bytes, net::SharedBytes shared) {
  Piece piece{std::move(bytes), std::move(shared)};
  if (shut_ || uplink_->ended || piece.size() == 0) return;
  waiting_.push_back(std::move(piece));
  waiting_bytes_ += waiting_.back().kept_bytes();
  send_waiting();
  if (waiting_bytes_ <= net::Connection::kMaxQueuedBytes) return;
  shut_ = true;
  waiting_.clear();
  waiting_bytes_ = 0;
  uplink_->overflowed.push_back(number_);
  uplink_->touch();
}

bool Channel::send_slice() {
  if (paused_ || waiting_.empty() || uplink_->connection->congested()) return false;
  uplink_->touch();
  const Piece& piece = waiting_.front();
  const size_t own = piece.bytes.size();
  const size_t length = std::min(kMaxDataBytes, piece.size() - sent_);
  const size_t from_own = sent_ < own ? std::min(length, own - sent_) : 0;
  std::string head = encode_header(FrameType::kData, number_, length);
  head.append(piece.bytes, std::min(sent_, own), from_own);
  uplink_->connection->write(std::move(head),
                             piece.shared.part(std::max(sent_, own) - own, length - from_own));
  sent_ += length;
  if (sent_ < piece.size()) return true;
  waiting_bytes_ -= piece.kept_bytes();
  waiting_.pop_front();
  sent_ = 0;
  if (waiting_.empty() && shut_) send_close();
  return true;
}

void Channel::send_waiting() {
  while (send_slice()) continue;
}

void Channel::shutdown() {
  if (shut_ || uplink_->ended) return;
  shut_ = true;
  if (!paused_ && waiting_.empty()) send_close();
}

void Channel::resume() {
  paused_ = false;
  send_waiting();
  if (shut_ && waiting_.empty()) send_close();
}

void Channel::send_close() {
  if (std::exchange(close_sent_, true)) return;
  uplink_->touch();
  uplink_->connection->write(encode_frame(FrameType::kClose, number_, std::string(1, '\0')));
}

}  // namespace dt::store
