// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "net/security.h"

namespace dt::net {

struct TlsState;

/// One end of TLS 1.3 with a token as the external pre-shared key (psk_dhe_ke: keys of the past
/// stay secret when the token leaks): no certificates, no tickets, no resumption. At first bytes go
/// in and out by strings; attach() puts it onto a socket. One thread at a time.
class Tls {
 public:
  /// Null where OpenSSL refuses to work.
  static std::unique_ptr<Tls> create(const Token& token, Purpose purpose, Side side);
  ~Tls();
  Tls(const Tls&) = delete;
  Tls& operator=(const Tls&) = delete;

  /// Goes on with the greeting: takes `bytes` of the peer, appends what to send. Not ok: the other
  /// side has no such token (CONFIG) or speaks no TLS of ours (SYSTEM).
  Status greet(const char* data, size_t bytes, std::string* output);
  bool greeted() const { return greeted_; }

  // After the greeting, without a socket.
  Status seal(std::string_view plain, std::string* wire);
  /// Whole records become plain bytes; the rest waits for the next call.
  Status open(const char* wire, size_t bytes, std::string* plain);
  /// The memory of both directions, which stays until the end of the connection.
  size_t kept_bytes() const;

  // After the greeting, on a non-blocking socket, whose unread bytes begin with a record.
  void attach(int fd);
  /// As recv() and send(): -1 with errno, EAGAIN where it would block; a call of write() that ended
  /// so is repeated with the same bytes. The thread blocks SIGPIPE.
  ssize_t read(void* out, size_t bytes);
  ssize_t peek(void* out, size_t bytes);
  ssize_t write(const void* data, size_t bytes);
  /// A record is on its way of which the socket took a part, though no byte counts as written.
  bool half_written() const { return half_written_; }
  /// Bytes are here that poll() does not see.
  bool has_pending() const;

 private:
  explicit Tls(std::unique_ptr<TlsState> state);
  void renew_key();
  Status read_records(std::string* plain);
  ssize_t failed(int result);

  const std::unique_ptr<TlsState> state_;
  uint64_t records_ = 0;  ///< sealed with this key
  bool greeted_ = false;
  bool half_written_ = false;
};

}  // namespace dt::net
