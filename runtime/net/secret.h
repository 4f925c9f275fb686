// SPDX-License-Identifier: Apache-2.0
#pragma once

// For this folder only: what stands behind a Token.

#include <openssl/types.h>

#include <mutex>
#include <string>

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

  std::string bytes;

 private:
  mutable std::once_flag once_;
  mutable SSL_CTX* context_ = nullptr;
};

}  // namespace dt::net
