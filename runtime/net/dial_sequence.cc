// SPDX-License-Identifier: Apache-2.0
#include "net/dial_sequence.h"

#include <algorithm>
#include <utility>

namespace dt::net {

DialSequence::DialSequence(Loop* loop, std::string host, uint16_t port, int64_t limit_ms,
                           Deadline deadline, DialEvents events)
    : loop_(loop),
      host_(std::move(host)),
      port_(port),
      limit_ms_(limit_ms),
      deadline_(deadline),
      events_(std::move(events)),
      timer_(loop, [this] {
        if (!next()) events_.on_late();
      }) {}

void DialSequence::begin() {
  // A slow resolver's answer to the try before has begun this one, or an address serves.
  if (!addresses_.empty()) return;
  timer_.start(limit_ms_);
  const std::weak_ptr<char> alive = alive_;
  resolve(loop_, host_, port_, [this, alive](Result<std::vector<Address>> found) {
    if (alive.expired() || !addresses_.empty()) return;
    if (!found.ok()) return events_.on_unresolved(found.status());
    addresses_ = std::move(found).value();
    next();
  });
}

bool DialSequence::next() {
  if (next_ == addresses_.size()) return false;
  const auto left = static_cast<int64_t>(addresses_.size() - next_);
  // The last one needs no share: its caller ends it, with what was said before.
  timer_.start(deadline_.is_never() || left == 1
                   ? limit_ms_
                   : std::clamp<int64_t>(deadline_.remaining_ms() / left, 1, limit_ms_));
  events_.on_address(addresses_[next_++]);
  return true;
}

void DialSequence::end() {
  timer_.stop();
  addresses_.clear();
  next_ = 0;
}

void DialSequence::stop() {
  timer_.stop();
  alive_ = nullptr;
}

}  // namespace dt::net
