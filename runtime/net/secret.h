// SPDX-License-Identifier: Apache-2.0
#pragma once

// For this folder only: what stands behind a Token.

#include <openssl/types.h>

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "base/guarded.h"
#include "net/security.h"

namespace dt::net {

/// The bytes of a token and what OpenSSL needs to work with it. In OpenSSL's default library
/// context: one of our own could not be freed while threads live that have used it.
struct Secret {
  explicit Secret(std::string given);
  ~Secret();
  Secret(const Secret&) = delete;
  Secret& operator=(const Secret&) = delete;

  /// Made when first asked for; null where OpenSSL cannot. Any thread.
  SSL_CTX* tls() const;

  /// For each use made once: a server asks for the same few with every connection. Any thread.
  Key key_for(std::string_view use) const;

  std::string bytes;

 private:
  /// By use. Uses are written in dt's code, so they are few.
  mutable Guarded<std::map<std::string, Key, std::less<>>> keys_;
  mutable std::once_flag once_;
  mutable SSL_CTX* context_ = nullptr;
};

}  // namespace dt::net
