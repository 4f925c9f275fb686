// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "messages.h"

namespace dt::torch {

void Message::send(const Header& header, const void* memory, int peer,
                   std::chrono::steady_clock::time_point end, std::string what) {
  header_ = header;
  peer_ = peer;
  end_ = end;
  what_ = std::move(what);
  if (header.bytes > 0 && header.bytes <= Header::kInlineBytes) {
    std::memcpy(header_.data, memory, static_cast<size_t>(header.bytes));
  }
  messages_->send(*this, header_, memory, peer);
}

void Message::receive(std::shared_ptr<Receive> receive,
                      std::shared_ptr<const std::vector<int>> ranks) {
  receive_ = std::move(receive);
  ranks_ = std::move(ranks);
  messages_->post(receive_);
}

bool Message::sent(std::vector<dt_work*>& left, std::exception_ptr& error) const {
  left.clear();
  for (dt_work* const each : works_) {
    if (!is_done(each, error)) left.push_back(each);
    if (error) return true;
  }
  return left.empty();
}

int Message::receiver() const {
  std::vector<dt_work*> left;
  std::exception_ptr error;
  return receive_ || sent(left, error) ? -1 : peer_;
}
bool Message::in_use() const { return receiver() >= 0; }

bool Message::poll(int64_t timeout_ms, std::exception_ptr& error) {
  const auto end = end_after(std::chrono::milliseconds(timeout_ms));
  std::vector<dt_work*> left;
  for (;;) {
    if (messages_->advance(receive_.get())) {
      error = receive_->error;
      return true;
    }
    if (!receive_ && sent(left, error)) return true;
    if (!receive_ && peer_ >= 0 && std::chrono::steady_clock::now() >= end_) {
      error = error_of(DT_ERR_TIMEOUT,
                       what_ + ": not received in time; it may still be received later");
      return true;
    }
    int64_t rest = Messages::kLookMs;
    if (timeout_ms >= 0) {
      rest = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now())
                 .count();
      if (timeout_ms == 0 || rest <= 0) return false;
    }
    messages_->wait(left, rest);
  }
}

int Message::sourceRank() const {
  if (!receive_ || receive_->source < 0) return c10d::Work::sourceRank();
  const auto found = std::find(ranks_->begin(), ranks_->end(), receive_->source);
  return static_cast<int>(found - ranks_->begin());
}

void Message::complete_later() {
  messages_->watch(c10::intrusive_ptr<Message>::reclaim_copy(this));
}

}  // namespace dt::torch
