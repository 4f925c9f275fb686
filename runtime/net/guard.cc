// SPDX-License-Identifier: Apache-2.0
#include "net/guard.h"

#include <algorithm>
#include <cstring>

#include "net/refusal.h"

namespace dt::net {

enum class Guard::Reason : uint8_t { kNone, kMode, kToken, kPurpose, kVersion, kTls };

/// As it goes over the wire; there is no number in it that has an order of bytes.
struct Guard::Greeting {
  static constexpr char kMagic[9] = "dtGuard1";  // no operation of PyTorch's store begins with a d
  static constexpr uint8_t kVersion = 1;
  static constexpr uint8_t kHello = 1;
  static constexpr uint8_t kRefusal = 2;

  char magic[8];
  uint8_t version;
  uint8_t kind;
  uint8_t mode;     ///< SecurityMode of the sender
  uint8_t purpose;  ///< Purpose
  uint8_t side;     ///< Side of the sender
  uint8_t reason;   ///< of a refusal
  uint8_t zero[2];
  unsigned char nonce[32];

  std::string bytes() const {
    return std::string(reinterpret_cast<const char*>(this), sizeof *this);
  }
};

namespace {

constexpr size_t kGreetingBytes = 48;
constexpr size_t kProofBytes = 32;
constexpr size_t kSniffBytes = 3;  // "dtG": data begin otherwise
constexpr size_t kTlsHeaderBytes = 5;
// What TLS 1.3 with a pre-shared key sends before its data: under 600 bytes in 3 records a side.
constexpr size_t kMaxRecordBytes = 4096;
constexpr size_t kMaxRecords = 8;

constexpr char kSameToken[] =
    "the same token (a file that DT_TOKEN_FILE names, or ~/.config/dt/token)";

}  // namespace

std::string plain_refusal(SecurityMode mode) {
  return format(
      "it uses security.mode = %s, and this side sent a plain hello: here is no token, or "
      "security.mode = \"none\"; give all processes of the job %s",
      mode_name(mode), kSameToken);
}

bool begins_greeting(std::string_view bytes) {
  return bytes.size() >= kSniffBytes && memcmp(bytes.data(), "dtG", kSniffBytes) == 0;
}

Guard::Guard(const Security& security, Purpose purpose, Side side)
    : security_(security), purpose_(purpose), side_(side) {
  static_assert(sizeof(Greeting) == kGreetingBytes);
  begin();
}

void Guard::begin() {
  if (security_.mode == SecurityMode::kNone) {
    if (side_ == Side::kClient) return establish();
    return want(Stage::kSniff, 1);
  }
  want(Stage::kGreeting, kGreetingBytes);
  if (side_ == Side::kServer) return;
  Greeting hello = own_greeting();
  if (security_.mode == SecurityMode::kAuth) {
    if (Status status = random_bytes(hello.nonce, sizeof hello.nonce); !status.ok()) {
      return fail(std::move(status));
    }
  }
  output_ = greetings_ = hello.bytes();
  if (security_.mode != SecurityMode::kEncrypt) return;
  tls_ = Tls::create(*security_.token, purpose_, side_);
  if (tls_ == nullptr) return fail(Status(Code::kSystem, "OpenSSL offers no TLS 1.3 here"));
  want(Stage::kTlsHeader, kTlsHeaderBytes);
  if (Status status = tls_->greet(nullptr, 0, &output_); !status.ok()) fail(std::move(status));
}

Guard::~Guard() = default;

Guard::Greeting Guard::own_greeting() const {
  Greeting greeting{};
  memcpy(greeting.magic, Greeting::kMagic, sizeof greeting.magic);
  greeting.version = Greeting::kVersion;
  greeting.kind = Greeting::kHello;
  greeting.mode = static_cast<uint8_t>(security_.mode);
  greeting.purpose = static_cast<uint8_t>(purpose_);
  greeting.side = static_cast<uint8_t>(side_);
  return greeting;
}

void Guard::want(Stage stage, size_t bytes) {
  stage_ = stage;
  wanted_ = bytes;
  piece_.clear();
}

size_t Guard::wanted() const {
  if (stage_ == Stage::kEstablished || stage_ == Stage::kFailed) return 0;
  return wanted_ - piece_.size();
}

void Guard::feed(const char* data, size_t bytes) {
  while (bytes > 0 && wanted() > 0) {
    const size_t taken = std::min(bytes, wanted());
    piece_.append(data, taken);
    data += taken;
    bytes -= taken;
    // Foreign bytes are seen as such at once: their sender may never send as many as a greeting
    // has.
    if (stage_ == Stage::kGreeting &&
        memcmp(piece_.data(), Greeting::kMagic, std::min(piece_.size(), sizeof Greeting::magic)) !=
            0) {
      met_plain_ = true;
      return fail(
          side_ == Side::kClient
              ? Status(Code::kSystem,
                       "what answers there is no part of a job: something else uses this port")
              : Status(
                    Code::kConfig,
                    format("this side uses security.mode = %s, the other side sent a plain hello: "
                           "it has no token or security.mode = \"none\", or is not dt; give all "
                           "processes of the job %s",
                           mode_name(security_.mode), kSameToken)));
    }
    if (piece_.size() < wanted_) return;
    take(std::exchange(piece_, {}));
  }
}

void Guard::take(const std::string& piece) {
  switch (stage_) {
    case Stage::kSniff: return sniff(piece);
    case Stage::kGreeting: return greeted(piece);
    case Stage::kProof: return judge_proof(piece);
    case Stage::kTlsHeader:
      // A refusal comes in the place of a record.
      if (side_ == Side::kClient && begins_greeting(piece)) {
        want(Stage::kGreeting, kGreetingBytes);
        piece_ = piece;
        return;
      }
      header_ = piece;
      return take_record();
    case Stage::kTlsRecord: return go_on_with_tls(std::exchange(header_, {}) + piece);
    case Stage::kEstablished:
    case Stage::kFailed: return;
  }
}

/// Byte by byte: data that are shorter than a greeting must not be held up.
void Guard::sniff(const std::string& piece) {
  held_ += piece;
  if (memcmp(held_.data(), Greeting::kMagic, held_.size()) != 0) return establish();
  if (held_.size() < kSniffBytes) return want(Stage::kSniff, 1);
  want(Stage::kGreeting, kGreetingBytes);
  piece_ = std::exchange(held_, {});
}

void Guard::greeted(const std::string& piece) {
  Greeting greeting;
  memcpy(&greeting, piece.data(), sizeof greeting);
  if (greeting.kind == Greeting::kRefusal) return fail(told(greeting));
  if (greeting.version != Greeting::kVersion) {
    return refuse(
        Reason::kVersion,
        Status(Code::kVersion, format("the other side greets by version %u, this one by "
                                      "%u; use the same release of dt everywhere",
                                      unsigned{greeting.version}, unsigned{Greeting::kVersion})));
  }
  const auto other = static_cast<SecurityMode>(greeting.mode);
  if (other != security_.mode || other == SecurityMode::kNone) {
    return refuse(Reason::kMode, differing_modes(other));
  }
  const Side expected = side_ == Side::kClient ? Side::kServer : Side::kClient;
  if (greeting.purpose != static_cast<uint8_t>(purpose_) ||
      greeting.side != static_cast<uint8_t>(expected) || greeting.kind != Greeting::kHello) {
    return refuse(Reason::kPurpose, Status(Code::kConfig,
                                           "the other side connects for another purpose: check the "
                                           "addresses and ports of the job"));
  }
  greetings_ += piece;
  if (side_ == Side::kServer) return greeted_by_client();
  want(Stage::kProof, kProofBytes);  // of auth: a server that encrypts greets by TLS alone
}

void Guard::greeted_by_client() {
  if (security_.mode == SecurityMode::kEncrypt) {
    tls_ = Tls::create(*security_.token, purpose_, side_);
    if (tls_ == nullptr) return fail(Status(Code::kSystem, "OpenSSL offers no TLS 1.3 here"));
    return want(Stage::kTlsHeader, kTlsHeaderBytes);
  }
  Greeting hello = own_greeting();
  if (Status status = random_bytes(hello.nonce, sizeof hello.nonce); !status.ok()) {
    return fail(std::move(status));
  }
  greetings_ += hello.bytes();
  output_ += hello.bytes() + proof_of(Side::kServer);
  want(Stage::kProof, kProofBytes);
}

std::string Guard::proof_of(Side side) const {
  const std::string use = format("auth %s %s", purpose_ == Purpose::kStore ? "store" : "mesh",
                                 side == Side::kClient ? "client" : "server");
  const Key proof = security_.token->mac(use, greetings_);
  return std::string(reinterpret_cast<const char*>(proof.bytes.data()), proof.bytes.size());
}

void Guard::judge_proof(const std::string& proof) {
  if (side_ == Side::kServer) {
    if (equal_in_constant_time(proof, proof_of(Side::kClient))) return establish();
    // A client that was not convinced says so instead; the rest of its words does not matter.
    return refuse(Reason::kToken, differing_tokens());
  }
  if (!equal_in_constant_time(proof, proof_of(Side::kServer))) {
    return refuse(Reason::kToken, differing_tokens());
  }
  output_ += proof_of(Side::kClient);
  establish();
}

// ---- TLS ----

void Guard::take_record() {
  const size_t bytes = (size_t{static_cast<unsigned char>(header_[3])} << 8) |
                       static_cast<unsigned char>(header_[4]);
  if (bytes == 0 || bytes > kMaxRecordBytes || ++records_ > kMaxRecords) {
    return fail(Status(Code::kSystem, "what greets there speaks no TLS 1.3 of dt's"));
  }
  want(Stage::kTlsRecord, bytes);
}

void Guard::go_on_with_tls(const std::string& record) {
  std::string answer;
  const Status status = tls_->greet(record.data(), record.size(), &answer);
  if (status.ok()) {
    output_ += answer;
    return tls_->greeted() ? establish() : want(Stage::kTlsHeader, kTlsHeaderBytes);
  }
  if (status.code() == Code::kConfig) return refuse(Reason::kToken, differing_tokens());
  refuse(Reason::kTls,
         Status(Code::kSystem, "the encrypted connection cannot be made: " + status.message()));
}

// ---- refusals ----

void Guard::refuse(Reason reason, Status status) {
  Greeting refusal = own_greeting();
  refusal.kind = Greeting::kRefusal;
  refusal.reason = static_cast<uint8_t>(reason);
  output_ += refusal.bytes();
  fail(std::move(status));
}

Status Guard::told(const Greeting& refusal) const {
  switch (static_cast<Reason>(refusal.reason)) {
    case Reason::kMode: return differing_modes(static_cast<SecurityMode>(refusal.mode));
    case Reason::kToken: return differing_tokens();
    case Reason::kVersion:
      return Status(
          Code::kVersion,
          "the other side greets by another version; use the same release of dt everywhere");
    case Reason::kTls:
      return Status(Code::kSystem,
                    "the encrypted connection cannot be made: the other side breaks it off");
    case Reason::kPurpose:
    case Reason::kNone: break;
  }
  return Status(Code::kConfig,
                "the other side expects connections of another purpose: check the addresses and "
                "ports of the job");
}

Status Guard::differing_modes(SecurityMode other) const {
  return Status(Code::kConfig,
                format("this side uses security.mode = %s, the other side security.mode = %s; give "
                       "all processes of the job the same security.mode and %s",
                       mode_name(security_.mode), mode_name(other), kSameToken));
}

Status Guard::differing_tokens() const {
  return Status(Code::kConfig,
                format("the other side has another token (both use security.mode = %s); give all "
                       "processes of the job %s",
                       mode_name(security_.mode), kSameToken));
}

}  // namespace dt::net
