// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "net/security.h"
#include "net/tls.h"

namespace dt::net {

/// What stands in front of every connection of dt: before it is established, no byte reaches
/// anybody else, and one stranger costs a few KiB. Pure: bytes in, bytes out.
///
/// Both sides have one mode from the start, and nothing is negotiated: sides that differ refuse
/// each other. The client speaks first:
///
///   none     nothing; a server only recognizes a client that expects more
///   auth     client: greeting with a nonce        server: greeting with a nonce, its proof
///            client: its proof, then data         (one round trip in front of the data)
///   encrypt  client: greeting, TLS 1.3            server: TLS 1.3, or a greeting that refuses
///
/// A proof is the HMAC-SHA256 of both greetings, under a key made of the token for this purpose and
/// this side. The greetings hold mode, version, purpose, side and 256 random bits of each side, so
/// a proof fits no other connection, no other purpose and not the reverse direction.
class Guard {
 public:
  Guard(const Security& security, Purpose purpose, Side side);
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  /// How many bytes it takes at most; what comes behind the greeting is never among them. 0: over.
  size_t wanted() const;
  /// `bytes` <= wanted().
  void feed(const char* data, size_t bytes);
  /// What to send now; of a guard that has failed, too: then the connection ends.
  std::string take_output() { return std::move(output_); }

  bool established() const { return stage_ == Stage::kEstablished; }
  /// Not ok: the other side is refused, or refuses. CONFIG and VERSION are final: what the two
  /// sides have does not fit. Else what speaks there is something else, or broke off.
  const Status& failure() const { return failure_; }
  /// With failure(): the other side speaks, but without a guard.
  bool met_plain() const { return met_plain_; }
  /// Data that a guard of mode none has looked at; to be read once it is established.
  std::string take_held() { return established() ? std::exchange(held_, {}) : std::string(); }
  /// The encryption of what follows; null unless the mode is encrypt.
  std::unique_ptr<Tls> take_tls() { return std::move(tls_); }

 private:
  enum class Stage { kSniff, kGreeting, kProof, kTlsHeader, kTlsRecord, kEstablished, kFailed };
  enum class Reason : uint8_t;
  struct Greeting;

  void begin();
  Greeting own_greeting() const;
  void take(const std::string& piece);
  void sniff(const std::string& piece);
  void greeted(const std::string& piece);
  void greeted_by_client();
  void judge_proof(const std::string& proof);
  void take_record();
  void go_on_with_tls(const std::string& record);
  std::string proof_of(Side side) const;
  void want(Stage stage, size_t bytes);
  void establish() { stage_ = Stage::kEstablished; }
  void fail(Status status) {
    stage_ = Stage::kFailed;
    failure_ = std::move(status);
  }
  /// Tells the other side why, too.
  void refuse(Reason reason, Status status);
  Status told(const Greeting& refusal) const;
  Status differing_modes(SecurityMode other) const;
  Status differing_tokens() const;

  const Security security_;
  const Purpose purpose_;
  const Side side_;
  Stage stage_ = Stage::kSniff;
  size_t wanted_ = 0;      ///< bytes of this stage's piece
  std::string piece_;      ///< those that have come
  std::string greetings_;  ///< the client's, then the server's
  std::string output_;
  std::string held_;
  std::string header_;  ///< of the TLS record that is coming
  std::unique_ptr<Tls> tls_;
  size_t records_ = 0;  ///< of TLS, so far
  bool met_plain_ = false;
  Status failure_;
};

/// For protocols that have a greeting of their own: whether `bytes`, at least three, begin one.
bool begins_greeting(std::string_view bytes);

}  // namespace dt::net
