// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "net/loop.h"

namespace dt::metrics {

/// Answers GET /metrics on the loopback interface, and nothing else. Whoever can run a process on
/// this host can ask; a request costs some KiB and a moment of the loop, and no connection stays.
class Port {
 public:
  struct Options {
    uint16_t port = 0;                  ///< 0: a free one
    std::function<std::string()> text;  ///< called on the loop's thread
    size_t connections = 16;            ///< beyond, the oldest goes
    int64_t connection_ms = 5000;       ///< from its beginning to its end
  };

  /// `loop` outlives it.
  static Result<std::unique_ptr<Port>> open(net::Loop* loop, Options options);
  ~Port();
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  /// "127.0.0.1:9400"
  const std::string& address() const { return address_; }

 private:
  class Impl;
  Port(net::Loop* loop, std::unique_ptr<Impl> impl, std::string address);

  net::Loop* const loop_;
  std::unique_ptr<Impl> impl_;  // the loop's
  const std::string address_;
};

}  // namespace dt::metrics
