// SPDX-License-Identifier: Apache-2.0
#include "store/uplink.h"

#include <algorithm>

namespace dt::store {
namespace {

// Up to here bytes that many are sent are copied, so that those of a host go out as one piece.
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

void Channel::write(std::string bytes, std::shared_ptr<const std::string> shared) {
  if (shut_ || uplink_->ended) return;
  if (!paused_) return send({std::move(bytes), std::move(shared)});
  waiting_bytes_ += bytes.size() + (shared == nullptr ? 0 : shared->size());
  waiting_.emplace_back(std::move(bytes), std::move(shared));
  if (waiting_bytes_ <= net::Connection::kMaxQueuedBytes) return;
  shut_ = true;
  waiting_.clear();
  uplink_->overflowed.push_back(number_);
  uplink_->touch();
}

void Channel::send(Piece piece) {
  auto& [bytes, shared] = piece;
  const size_t total = bytes.size() + (shared == nullptr ? 0 : shared->size());
  uplink_->touch();
  if (shared != nullptr && (total <= kCopiedSharedBytes || total > kMaxDataBytes)) {
    bytes += *shared;
    shared = nullptr;
  }
  if (total <= kMaxDataBytes) {
    std::string head = encode_header(FrameType::kData, number_, total) + bytes;
    uplink_->connection->write(std::move(head), std::move(shared));
    return;
  }
  for (size_t at = 0; at < total; at += kMaxDataBytes) {
    const size_t length = std::min(kMaxDataBytes, total - at);
    uplink_->connection->write(
        encode_frame(FrameType::kData, number_, std::string_view(bytes).substr(at, length)));
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
