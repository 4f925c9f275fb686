// SPDX-License-Identifier: Apache-2.0
#include "training/message_stream.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace dt::training {
namespace {

// A message lists names; one that says it is longer than this is damaged.
constexpr uint64_t kLongestMessage = uint64_t{1} << 30;

backend::Collective transfer(backend::Kind kind, int32_t peer, void* buffer, size_t bytes) {
  backend::Collective collective;
  collective.kind = kind;
  collective.root = peer;
  collective.count = static_cast<int64_t>(bytes);
  if (kind == backend::Kind::kSend) collective.send = buffer;
  if (kind == backend::Kind::kRecv) collective.recv = buffer;
  collective.timeout_ms = -1;
  collective.name = "named submission";
  return collective;
}

}  // namespace

// What is still under way uses the buffers: the communicator, which this one alone uses, is over
// then, and is to be broken before.
MessageSender::~MessageSender() {
  for (const auto& each : sending_) {
    (void)comm_.backend().wait(*each->work, Wait());
    each->work->unwatch(bell_);
  }
}

Status MessageSender::send(std::string bytes) {
  auto sending = std::make_unique<Sending>();
  sending->bytes = std::move(bytes);
  const size_t begin = std::min(sending->bytes.size(), MessageHead::kBytes);
  sending->head.size = sending->bytes.size();
  std::memcpy(sending->head.begin, sending->bytes.data(), begin);
  const size_t rest = sending->bytes.size() - begin;
  auto head = transfer(backend::Kind::kSend, peer_, &sending->head, sizeof sending->head);
  auto tail = transfer(backend::Kind::kSend, peer_, sending->bytes.data() + begin, rest);
  sending->work = comm_.new_work();
  // The works of one pair complete in their order, so the last one tells of both.
  const auto first = rest > 0 ? comm_.new_work() : sending->work;
  sending->work->watch(bell_);
  Status status = comm_.submit(head, first);
  if (!status.ok()) {
    sending->work->unwatch(bell_);
    return status;
  }
  if (rest > 0 && !(status = comm_.submit(tail, sending->work)).ok()) {
    sending->work->unwatch(bell_);
    sending->work = first;
    first->watch(bell_);
  }
  sending_.push_back(std::move(sending));
  return status;
}

Result<bool> MessageSender::idle() {
  while (!sending_.empty() && sending_.front()->work->done()) {
    DT_TRY(sending_.front()->work->status());
    sending_.front()->work->unwatch(bell_);
    sending_.pop_front();
  }
  return sending_.empty();
}

MessageReceiver::~MessageReceiver() {
  if (work_ == nullptr) return;
  (void)comm_.backend().wait(*work_, Wait());
  work_->unwatch(bell_);
}

Status MessageReceiver::begin(void* buffer, size_t bytes) {
  auto collective = transfer(backend::Kind::kRecv, peer_, buffer, bytes);
  auto work = comm_.new_work();
  work->watch(bell_);
  Status status = comm_.submit(collective, work);
  if (status.ok()) {
    work_ = std::move(work);
  } else {
    work->unwatch(bell_);
  }
  return status;
}

Result<bool> MessageReceiver::receive(std::string* out) {
  for (;;) {
    if (work_ == nullptr) DT_TRY(begin(&head_, sizeof head_));
    if (!work_->done()) return false;
    work_->unwatch(bell_);
    const Status status = std::exchange(work_, nullptr)->status();
    DT_TRY(status);
    if (!has_head_) {
      if (head_.size > kLongestMessage) {
        return Status(Code::kInternal,
                      format("named submission: rank %d announced a message of %llu bytes", peer_,
                             static_cast<unsigned long long>(head_.size)));
      }
      bytes_.resize(head_.size);
      const size_t begin_bytes = std::min(bytes_.size(), MessageHead::kBytes);
      std::memcpy(bytes_.data(), head_.begin, begin_bytes);
      if (begin_bytes < bytes_.size()) {
        has_head_ = true;
        DT_TRY(begin(bytes_.data() + begin_bytes, bytes_.size() - begin_bytes));
        continue;
      }
    }
    has_head_ = false;
    *out = std::move(bytes_);
    return true;
  }
}

}  // namespace dt::training
