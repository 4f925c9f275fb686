// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/wait.h"
#include "net/address.h"
#include "net/loop.h"

namespace dt::net {

/// What a DialSequence tells its owner, on the loop's thread. The owner may call it inside, not
/// destroy it.
struct DialEvents {
  /// To be dialled, in place of the address before.
  std::function<void(const Address&)> on_address;
  /// Instead: the name has no addresses.
  std::function<void(const Status& why)> on_unresolved;
  /// Instead, or behind the last address: no answer in time.
  std::function<void()> on_late;
};

/// Resolves a name and gives its addresses one after the other, each with a time limit of its own:
/// a firewall that drops packets to one of them must not use up the time of the others. No address
/// but the last gets more than its share of the time until the deadline.
/// Loop's thread only.
class DialSequence {
 public:
  /// Enough for one address; a firewall that drops packets would hold it for two minutes.
  static constexpr int64_t kMaxMs = 10'000;

  /// `deadline`: of the caller, for all tries.
  DialSequence(Loop* loop, std::string host, uint16_t port, int64_t limit_ms, Deadline deadline,
               DialEvents events);

  /// Another try. Resolves anew each time: the name of a pod appears, and changes, while we wait.
  void begin();
  /// To be called when an address has failed. Whether there is another one, which on_address was
  /// given.
  bool next();
  /// The last one given.
  const Address& address() const { return addresses_[next_ - 1]; }
  /// This try has failed.
  void end();
  /// An address serves, or none is wanted any more: no event follows.
  void stop();

 private:
  Loop* const loop_;
  const std::string host_;
  const uint16_t port_;
  const int64_t limit_ms_;
  const Deadline deadline_;
  const DialEvents events_;
  Timer timer_;
  std::vector<Address> addresses_;  // empty: no address is being tried
  size_t next_ = 0;
  std::shared_ptr<char> alive_ = std::make_shared<char>();  // for the resolver's answer
};

}  // namespace dt::net
