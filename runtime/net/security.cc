// SPDX-License-Identifier: Apache-2.0
#include "net/security.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <sys/random.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "net/interfaces.h"
#include "net/secret.h"

namespace dt::net {
namespace {

constexpr size_t kUsualOpenFiles = 1024;  // of Linux, where the limit cannot be read
constexpr size_t kMinStrangers = 16;
constexpr std::string_view kDigits = "0123456789abcdef";
constexpr std::string_view kBlanks = " \t\r\n";
// Of HKDF: other uses of the same bytes give other keys.
constexpr std::string_view kSalt = "dt token 1";

int digit_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

Status bad_token(const std::string& why) {
  return Status(Code::kConfig, "the token " + why +
                                   ": a token is 64 hexadecimal digits (256 bits); make one with "
                                   "dt token");
}

/// Fails only for want of memory. A key of chance fits no other, so the connection is then refused.
struct Mac {
  Key key;
  bool made = false;
};

Mac hmac_with(const void* key, size_t key_bytes, std::string_view message) {
  Mac result;
  size_t bytes = 0;
  const unsigned char* made =
      EVP_Q_mac(nullptr, "HMAC", nullptr, "SHA256", nullptr, key, key_bytes,
                reinterpret_cast<const unsigned char*>(message.data()), message.size(),
                result.key.bytes.data(), result.key.bytes.size(), &bytes);
  result.made = made != nullptr && bytes == result.key.bytes.size();
  if (!result.made) (void)random_bytes(result.key.bytes.data(), result.key.bytes.size());
  return result;
}

}  // namespace

const char* mode_name(SecurityMode mode) {
  switch (mode) {
    case SecurityMode::kNone: return "none";
    case SecurityMode::kAuth: return "auth";
    case SecurityMode::kEncrypt: return "encrypt";
  }
  return "unknown";
}

void wipe(void* bytes, size_t count) { OPENSSL_cleanse(bytes, count); }

Key::~Key() { wipe(bytes.data(), bytes.size()); }

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

Status random_bytes(void* out, size_t bytes) {
  char* to = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t got = getrandom(to, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      return Status(Code::kSystem, "the kernel gives no random numbers: " + errno_text(errno));
    }
    to += got;
    bytes -= static_cast<size_t>(got);
  }
  return {};
}

// ---- Secret ----

Secret::Secret(std::string given) : bytes(std::move(given)) {
  // dt's threads may still run when a host ends that does not wait for them. A copy of OpenSSL
  // inside libdt reads no configuration: it may name modules of the system's version.
#if defined(DT_OWN_OPENSSL)
  constexpr uint64_t kOptions = OPENSSL_INIT_NO_ATEXIT | OPENSSL_INIT_NO_LOAD_CONFIG;
#else
  constexpr uint64_t kOptions = OPENSSL_INIT_NO_ATEXIT;
#endif
  OPENSSL_init_crypto(kOptions, nullptr);
}

Key Secret::key_for(std::string_view use) const {
  return keys_.with([&](std::map<std::string, Key, std::less<>>& keys) {
    const auto known = keys.find(use);
    if (known != keys.end()) return known->second;
    const Mac extracted = hmac_with(kSalt.data(), kSalt.size(), bytes);
    const Mac expanded =
        hmac_with(extracted.key.bytes.data(), extracted.key.bytes.size(), std::string(use) + '\1');
    if (extracted.made && expanded.made) keys.emplace(use, expanded.key);
    return expanded.key;
  });
}

Result<Token> Token::from_text(std::string_view text) {
  while (!text.empty() && kBlanks.find(text.back()) != std::string_view::npos) {
    text.remove_suffix(1);
  }
  while (!text.empty() && kBlanks.find(text.front()) != std::string_view::npos) {
    text.remove_prefix(1);
  }
  if (text.empty()) return bad_token("is empty");
  for (const char c : text) {
    if (digit_value(c) < 0) return bad_token("holds something that is no hexadecimal digit");
  }
  if (text.size() / 2 < kMinBytes) {
    return bad_token(format("has %zu digits, too few to keep anybody out", text.size()));
  }
  if (text.size() % 2 != 0 || text.size() / 2 > kMaxBytes) {
    return bad_token(format("has %zu digits, an odd number or too many", text.size()));
  }
  std::string bytes(text.size() / 2, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<char>(16 * digit_value(text[2 * i]) + digit_value(text[2 * i + 1]));
  }
  auto secret = std::make_shared<const Secret>(bytes);
  wipe(bytes.data(), bytes.size());
  return Token(std::move(secret));
}

Result<Token> Token::random() {
  std::string bytes(kMinBytes, '\0');
  DT_TRY(random_bytes(bytes.data(), bytes.size()));
  auto secret = std::make_shared<const Secret>(bytes);
  wipe(bytes.data(), bytes.size());
  return Token(std::move(secret));
}

std::string Token::text() const {
  std::string text;
  text.reserve(2 * secret_->bytes.size());
  for (const char c : secret_->bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

Key Token::derive(std::string_view use) const { return secret_->key_for(use); }

Key Token::mac(std::string_view use, std::string_view message) const {
  const Key key = derive(use);
  return hmac_with(key.bytes.data(), key.bytes.size(), message).key;
}

bool Token::operator==(const Token& other) const {
  return equal_in_constant_time(secret_->bytes, other.secret_->bytes);
}

Status check_exposure(const Security& security, const Address& address, const std::string& what) {
  if (security.mode != SecurityMode::kNone || security.open_to_all || is_loopback(address)) {
    return {};
  }
  return Status(
      Code::kConfig,
      format("%s would listen on %s, where anybody who can reach this host could join the job: "
             "there is no token. Give all processes of the job one: a file that DT_TOKEN_FILE (or "
             "security.token_file) names, or ~/.config/dt/token on every host, which dt token "
             "makes. Or start the ranks of one host with dt run, which makes one. Or, in a network "
             "that you trust, set security.mode = \"none\" (DT_SECURITY_MODE=none)",
             what.c_str(), address.host().c_str()));
}

size_t open_files_limit() {
  rlimit limit{};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : kUsualOpenFiles;
}

size_t stranger_limit(size_t most) {
  return std::clamp(open_files_limit() / 4, kMinStrangers, most);
}

}  // namespace dt::net
