// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/log.h"
#include "base/status.h"
#include "base/wait.h"
#include "net/loop.h"
#include "net/security.h"

namespace dt::store {

struct RelayOptions {
  std::string host;  ///< literal or name of the store's host
  uint16_t port = 0;
  std::string job_id;
  int32_t attempt = 0;
  std::string host_name;   ///< this process's, for texts
  net::Security security;  ///< as the server's; the ranks prove the same to the relay
  LoggerPtr logger;        ///< may be null
};

/// Brings the ranks of this host to the store over one connection; see store/uplink.h.
///
/// Listens on loopback. A rank that connects there passes the guard that it would pass at the
/// store, and speaks to the store from then on: the relay understands nothing of what is said. Its
/// end is the end of the ranks' connections, and so is the end of its connection to the store.
///
/// Everything happens on the loop's thread, which is the only one that touches the connections.
class Relay {
 public:
  /// Returns when the store has greeted it. Where the store is not there yet it is tried again
  /// until the deadline; a refusal is final. Any thread but the loop's.
  static Result<std::unique_ptr<Relay>> start(net::Loop* loop, RelayOptions options,
                                              const Wait& wait);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  /// At net::loopback_host().
  uint16_t port() const;
  /// The numeric address at which it found the store.
  const std::string& store_address() const;

 private:
  class Impl;
  Relay(net::Loop* loop, std::shared_ptr<Impl> impl) : loop_(loop), impl_(std::move(impl)) {}

  net::Loop* const loop_;
  const std::shared_ptr<Impl> impl_;
};

}  // namespace dt::store
