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
  if (shut_ || uplink_->ended) return;
  if (!paused_) return send({std::move(bytes), std::move(shared)});
  waiting_bytes_ += sizeof(Piece) + bytes.capacity();
  waiting_.emplace_back(std::move(bytes), std::move(shared));
  if (waiting_bytes_ <= net::Connection::kMaxQueuedBytes) return;
  shut_ = true;
  waiting_.clear();
  waiting_bytes_ = 0;
  uplink_->overflowed.push_back(number_);
  uplink_->touch();
}

void Channel::send(Piece piece) {
  auto& [bytes, shared] = piece;
  uplink_->touch();
  const size_t own = bytes.size();
  const size_t total = own + shared.size();
  for (size_t at = 0; at < total; at += kMaxDataBytes) {
    const size_t length = std::min(kMaxDataBytes, total - at);
    std::string head = encode_header(FrameType::kData, number_, length);
    const size_t from_own = at < own ? std::min(length, own - at) : 0;
    head.append(bytes, std::min(at, own), from_own);
    uplink_->connection->write(std::move(head),
                               shared.part(std::max(at, own) - own, length - from_own));
  }
}

void Channel::shutdown() {
  if (shut_ || uplink_->ended) return;
  shut_ = true;
  if (!paused_) send_close();
}

void Channel::resume() {
  paused_ = false;
  waiting_bytes_ = 0;
  for (Piece& piece : std::exchange(waiting_, {})) send(std::move(piece));
  if (shut_) send_close();
}

void Channel::send_close() {
  if (std::exchange(close_sent_, true)) return;
  uplink_->touch();
  uplink_->connection->write(encode_frame(FrameType::kClose, number_, std::string(1, '\0')));
}

}  // namespace dt::store
