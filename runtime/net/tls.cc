// SPDX-License-Identifier: Apache-2.0
#include "net/tls.h"

#include <openssl/bio.h>
#include <openssl/buffer.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "net/secret.h"

namespace dt::net {

struct TlsState {
  SSL* ssl = nullptr;
  Key key;
  std::string identity;

  ~TlsState() { SSL_free(ssl); }  // with its BIOs
};

namespace {

constexpr char kCipher[] = "TLS_AES_128_GCM_SHA256";
constexpr unsigned char kCipherId[] = {0x13, 0x01};
constexpr char kGroups[] = "X25519:P-256";
// AES-GCM may seal 2^24.5 records with one key (RFC 8446, 5.5).
constexpr uint64_t kRecordsPerKey = 1 << 22;
constexpr size_t kRecordBytes = 16 << 10;  // RFC 8446, 5.1

TlsState* state_of(SSL* ssl) { return static_cast<TlsState*>(SSL_get_app_data(ssl)); }

/// A session of the token's key, as an external pre-shared key is one to OpenSSL. The caller's.
SSL_SESSION* make_session(SSL* ssl) {
  const TlsState* state = state_of(ssl);
  const SSL_CIPHER* cipher = SSL_CIPHER_find(ssl, kCipherId);
  SSL_SESSION* session = SSL_SESSION_new();
  if (session != nullptr && cipher != nullptr &&
      SSL_SESSION_set1_master_key(session, state->key.bytes.data(), state->key.bytes.size()) == 1 &&
      SSL_SESSION_set_cipher(session, cipher) == 1 &&
      SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1) {
    return session;
  }
  SSL_SESSION_free(session);
  return nullptr;
}

int use_session(SSL* ssl, const EVP_MD*, const unsigned char** identity, size_t* identity_bytes,
                SSL_SESSION** session) {
  const TlsState* state = state_of(ssl);
  *identity = reinterpret_cast<const unsigned char*>(state->identity.data());
  *identity_bytes = state->identity.size();
  *session = make_session(ssl);
  return *session != nullptr ? 1 : 0;
}

int find_session(SSL* ssl, const unsigned char* identity, size_t identity_bytes,
                 SSL_SESSION** session) {
  const std::string_view asked(reinterpret_cast<const char*>(identity), identity_bytes);
  *session = asked == state_of(ssl)->identity ? make_session(ssl) : nullptr;
  return 1;  // without a session the greeting fails for want of a certificate
}

SSL_CTX* make_context() {
  SSL_CTX* context = SSL_CTX_new(TLS_method());
  if (context == nullptr) return nullptr;
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_clear_options(context, SSL_OP_ENABLE_MIDDLEBOX_COMPAT | SSL_OP_ALLOW_NO_DHE_KEX);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_psk_use_session_callback(context, use_session);
  SSL_CTX_set_psk_find_session_callback(context, find_session);
  const bool good = SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 &&
                    SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) == 1 &&
                    SSL_CTX_set_ciphersuites(context, kCipher) == 1 &&
                    SSL_CTX_set1_groups_list(context, kGroups) == 1 &&
                    SSL_CTX_set_num_tickets(context, 0) == 1;
  if (good) return context;
  SSL_CTX_free(context);
  return nullptr;
}

/// Of OpenSSL's last error on this thread.
std::string tls_reason() {
  const char* text = ERR_reason_error_string(ERR_peek_error());
  return text == nullptr ? "it ended the greeting" : text;
}

/// BIO_reset() would clear all that the BIO has ever grown to.
void drain(BIO* from, std::string* to) {
  const size_t bytes = BIO_ctrl_pending(from);
  const size_t before = to->size();
  to->resize(before + bytes);
  (void)BIO_read(from, to->data() + before, static_cast<int>(bytes));
}

size_t capacity_of(BIO* memory) {
  BUF_MEM* buffer = nullptr;
  return BIO_get_mem_ptr(memory, &buffer) == 1 ? buffer->max : 0;
}

Status broken_tls(const std::string& why) {
  return Status(Code::kSystem, "the encrypted connection broke: " + why);
}

}  // namespace

Secret::~Secret() {
  SSL_CTX_free(context_);
  OPENSSL_cleanse(bytes.data(), bytes.size());
}

SSL_CTX* Secret::tls() const {
  std::call_once(once_, [this] { context_ = make_context(); });
  return context_;
}

Tls::Tls(std::unique_ptr<TlsState> state) : state_(std::move(state)) {}

Tls::~Tls() = default;

std::unique_ptr<Tls> Tls::create(const Token& token, Purpose purpose, Side side) {
  SSL_CTX* context = token.secret()->tls();
  auto state = std::make_unique<TlsState>();
  if (context == nullptr || (state->ssl = SSL_new(context)) == nullptr) return nullptr;
  state->identity = purpose == Purpose::kStore ? "dt store 1" : "dt mesh 1";
  state->key = token.derive("tls " + state->identity);
  SSL_set_app_data(state->ssl, state.get());
  BIO* from = BIO_new(BIO_s_mem());
  BIO* to = BIO_new(BIO_s_mem());
  if (from == nullptr || to == nullptr) {
    BIO_free(from);
    BIO_free(to);
    return nullptr;
  }
  BIO_set_mem_eof_return(from, -1);  // empty means: come again
  SSL_set_bio(state->ssl, from, to);
  if (side == Side::kClient) {
    // A server that has no key but a certificate is nobody: there is none that we trust.
    SSL_set_verify(state->ssl, SSL_VERIFY_PEER, nullptr);
    SSL_set_connect_state(state->ssl);
  } else {
    SSL_set_accept_state(state->ssl);
  }
  return std::unique_ptr<Tls>(new Tls(std::move(state)));
}

Status Tls::greet(const char* data, size_t bytes, std::string* output) {
  SSL* ssl = state_->ssl;
  ERR_clear_error();
  if (bytes > 0 && BIO_write(SSL_get_rbio(ssl), data, static_cast<int>(bytes)) < 0) {
    return Status(Code::kOutOfMemory, "no memory for an encrypted connection");
  }
  const int result = SSL_do_handshake(ssl);
  if (result == 1) {
    drain(SSL_get_wbio(ssl), output);
    // Without the key there is nothing to go by; a peer with a certificate only is refused.
    if (SSL_session_reused(ssl) != 1) {
      return Status(Code::kConfig, "the other side did not use the token");
    }
    greeted_ = true;
    return {};
  }
  const int error = SSL_get_error(ssl, result);
  if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) {
    drain(SSL_get_wbio(ssl), output);
    return {};
  }
  const int reason = ERR_GET_REASON(ERR_peek_error());
  // A server finds another token when it checks the binder of the client's first message.
  const bool token_differs = reason == SSL_R_BINDER_DOES_NOT_VERIFY;
  Status status(token_differs ? Code::kConfig : Code::kSystem, tls_reason());
  ERR_clear_error();
  return status;
}

/// Not while a record is on its way.
void Tls::renew_key() {
  if (records_ < kRecordsPerKey || half_written_) return;
  if (SSL_key_update(state_->ssl, SSL_KEY_UPDATE_NOT_REQUESTED) == 1) records_ = 0;
}

/// A record at a time, here and in open(): the BIOs keep the memory of the most they have held.
Status Tls::seal(std::string_view plain, std::string* wire) {
  SSL* ssl = state_->ssl;
  while (!plain.empty()) {
    renew_key();
    ERR_clear_error();
    size_t taken = 0;
    if (SSL_write_ex(ssl, plain.data(), std::min(plain.size(), kRecordBytes), &taken) != 1) {
      return broken_tls(tls_reason());
    }
    ++records_;
    plain.remove_prefix(taken);
    drain(SSL_get_wbio(ssl), wire);
  }
  return {};
}

Status Tls::open(const char* wire, size_t bytes, std::string* plain) {
  do {
    const size_t taken = std::min(bytes, kRecordBytes);
    ERR_clear_error();
    if (taken > 0 && BIO_write(SSL_get_rbio(state_->ssl), wire, static_cast<int>(taken)) < 0) {
      return Status(Code::kOutOfMemory, "no memory for an encrypted connection");
    }
    DT_TRY(read_records(plain));
    wire += taken;
    bytes -= taken;
  } while (bytes > 0);
  return {};
}

Status Tls::read_records(std::string* plain) {
  char piece[kRecordBytes];
  for (;;) {
    size_t got = 0;
    const int result = SSL_read_ex(state_->ssl, piece, sizeof piece, &got);
    if (result == 1) {
      plain->append(piece, got);
      continue;
    }
    const int error = SSL_get_error(state_->ssl, result);
    if (error == SSL_ERROR_WANT_READ) return {};
    const std::string why =
        error == SSL_ERROR_ZERO_RETURN ? std::string("the other side ended it") : tls_reason();
    ERR_clear_error();
    return broken_tls(why);
  }
}

size_t Tls::kept_bytes() const {
  return capacity_of(SSL_get_rbio(state_->ssl)) + capacity_of(SSL_get_wbio(state_->ssl));
}

// ---- on a socket ----

void Tls::attach(int fd) {
  BIO* socket = BIO_new_socket(fd, BIO_NOCLOSE);
  SSL_set_bio(state_->ssl, socket, socket);  // the old ones end here; null fails every call
}

ssize_t Tls::failed(int result) {
  const int system_error = errno;
  const int error = SSL_get_error(state_->ssl, result);
  const int reason = ERR_GET_REASON(ERR_peek_error());
  ERR_clear_error();
  if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) {
    errno = EAGAIN;
    return -1;
  }
  const bool at_end = error == SSL_ERROR_ZERO_RETURN ||
                      (error == SSL_ERROR_SSL && reason == SSL_R_UNEXPECTED_EOF_WHILE_READING);
  if (at_end) return 0;
  errno = error == SSL_ERROR_SYSCALL && system_error != 0 ? system_error : EPROTO;
  return -1;
}

ssize_t Tls::read(void* out, size_t bytes) {
  char* to = static_cast<char*>(out);
  size_t total = 0;
  while (total < bytes) {  // a record at a time
    ERR_clear_error();
    errno = 0;
    size_t got = 0;
    const int result = SSL_read_ex(state_->ssl, to + total, bytes - total, &got);
    if (result == 1) {
      total += got;
      continue;
    }
    // What there is counts first; the next call finds the end or the error again.
    const ssize_t end = failed(result);
    return total > 0 ? static_cast<ssize_t>(total) : end;
  }
  return static_cast<ssize_t>(total);
}

ssize_t Tls::peek(void* out, size_t bytes) {
  ERR_clear_error();
  errno = 0;
  size_t got = 0;
  const int result = SSL_peek_ex(state_->ssl, out, bytes, &got);
  return result == 1 ? static_cast<ssize_t>(got) : failed(result);
}

ssize_t Tls::write(const void* data, size_t bytes) {
  const char* from = static_cast<const char*>(data);
  size_t total = 0;
  while (total < bytes) {
    renew_key();
    ERR_clear_error();
    errno = 0;
    size_t taken = 0;
    const int result = SSL_write_ex(state_->ssl, from + total, bytes - total, &taken);
    if (result == 1) {
      half_written_ = false;
      ++records_;
      total += taken;
      continue;
    }
    if (failed(result) == 0) errno = EPIPE;
    half_written_ = errno == EAGAIN;
    return total > 0 && half_written_ ? static_cast<ssize_t>(total) : -1;
  }
  return static_cast<ssize_t>(total);
}

bool Tls::has_pending() const { return SSL_has_pending(state_->ssl) == 1; }

}  // namespace dt::net
