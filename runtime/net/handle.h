// SPDX-License-Identifier: Apache-2.0
#pragma once

// For this folder only: the one way libuv handles live here.

#include <uv.h>

#include <memory>

#include "base/fork.h"

namespace dt::net {

/// A libuv handle outlives its owner until libuv's close callback ran, so the two are apart: the
/// owner (Timer, Connection, ...) and libuv each hold a reference. Loop's thread only, except that
/// an owner may let go anywhere once the loop has stopped, when every handle is closed already.
struct Handle : std::enable_shared_from_this<Handle> {
  virtual ~Handle() = default;
  virtual uv_handle_t* raw() = 0;

  /// After a successful uv_*_init.
  void adopt() {
    generation_ = fork_generation();
    raw()->data = this;
    self_ = shared_from_this();
  }
  /// Idempotent. The owner's callbacks stop now. In a forked child nothing happens: the loop that
  /// this belongs to is not there, and the descriptor's number may be the host's by now.
  void close() {
    if (closing_ || self_ == nullptr || generation_ != fork_generation()) return;
    closing_ = true;
    before_close();
    uv_close(raw(), [](uv_handle_t* handle) {
      const std::shared_ptr<Handle> last = std::move(static_cast<Handle*>(handle->data)->self_);
    });
  }
  bool closing() const { return closing_; }

 protected:
  virtual void before_close() {}

 private:
  std::shared_ptr<Handle> self_;  // libuv's reference
  uint32_t generation_ = 0;
  bool closing_ = false;
};

}  // namespace dt::net
