// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "net/address.h"

namespace dt::net {

/// How connections of dt are guarded; the numbers go over the wire.
enum class SecurityMode : uint8_t {
  kNone = 0,     ///< not at all
  kAuth = 1,     ///< both sides prove that they know the token; data are plain
  kEncrypt = 2,  ///< TLS 1.3 with the token as its pre-shared key
};
/// "none", "auth", "encrypt", as in security.mode.
const char* mode_name(SecurityMode mode);

/// What a connection is for: each has keys of its own, so that none can stand in for another.
enum class Purpose : uint8_t { kStore = 1, kMesh = 2 };
enum class Side : uint8_t { kClient = 1, kServer = 2 };

/// 256 bits made of a token. Wiped when it ends.
struct Key {
  std::array<unsigned char, 32> bytes{};

  Key() = default;
  Key(const Key&) = default;
  Key& operator=(const Key&) = default;
  ~Key();
};

struct Secret;  // secret.h, for this folder only

/// The secret that all processes of a job share. A value: copies share the bytes, which are wiped
/// with the last copy. Any thread.
class Token {
 public:
  static constexpr size_t kMinBytes = 32;
  static constexpr size_t kMaxBytes = 512;

  /// From hexadecimal digits, blanks and line ends around them. CONFIG: fewer than 64 digits,
  /// or no such text; the message never holds any of it.
  static Result<Token> from_text(std::string_view text);
  static Result<Token> random();

  /// The digits: for the environment of ranks, a launcher's service, and the file that keeps it.
  /// Nothing else may get it, least of all a message.
  std::string text() const;
  /// The key for `use`, by HKDF (RFC 5869) with SHA-256.
  Key derive(std::string_view use) const;
  /// HMAC-SHA256 of `message` under derive(use).
  Key mac(std::string_view use, std::string_view message) const;
  /// Takes equally long wherever the two differ.
  bool operator==(const Token& other) const;

  const std::shared_ptr<const Secret>& secret() const { return secret_; }  ///< for this folder only

 private:
  explicit Token(std::shared_ptr<const Secret> secret) : secret_(std::move(secret)) {}

  std::shared_ptr<const Secret> secret_;
};

/// What guards the connections of a process: given to whoever opens one.
struct Security {
  SecurityMode mode = SecurityMode::kNone;
  std::optional<Token> token;  ///< there unless mode is kNone
  /// security.mode = "none" was written: then others may reach what is not guarded.
  bool open_to_all = false;
};

/// CONFIG where strangers could reach `address` and nothing guards it. `what` listens there: "the
/// store".
Status check_exposure(const Security& security, const Address& address, const std::string& what);

/// How many descriptors this process may have open: its soft limit.
size_t open_files_limit();
/// How many connections a process keeps that have not said yet who they are: `most`, or a quarter
/// of its descriptors if that is less, because the rest is for its own work. Beyond, the oldest go.
size_t stranger_limit(size_t most);

/// Whether both are the same, in a time that depends on the sizes only.
bool equal_in_constant_time(std::string_view a, std::string_view b);
/// From the kernel. SYSTEM: there is none.
Status random_bytes(void* out, size_t bytes);
/// Overwrites what must not stay in memory.
void wipe(void* bytes, size_t count);

}  // namespace dt::net
