// SPDX-License-Identifier: Apache-2.0
// What stands in front of each connection: who comes through, who does not, and what both are told.
#include "net/guard.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <utility>

#include "net/security.h"

using namespace dt;
using net::Guard;
using net::Purpose;
using net::Security;
using net::SecurityMode;
using net::Side;
using net::Token;

namespace {

constexpr char kDigitsA[] = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
constexpr char kDigitsB[] = "10112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
constexpr size_t kGreeting = 48;
constexpr size_t kProof = 32;

Security secure(SecurityMode mode, const char* digits = kDigitsA) {
  Security security;
  security.mode = mode;
  if (mode != SecurityMode::kNone) {
    auto token = Token::from_text(digits);
    REQUIRE(token.ok());
    security.token = std::move(token).value();
  }
  return security;
}

/// One side, and all that it has sent.
struct End {
  End(const Security& security, Side side, Purpose purpose = Purpose::kStore)
      : guard(security, purpose, side) {
    take();
  }
  void take() {
    const std::string output = guard.take_output();
    sent += output;
    unread += output;
  }
  /// As a socket's reader does: no more than the guard wants; what follows is data.
  void hear(const std::string& bytes, size_t step) {
    for (size_t at = 0; at < bytes.size();) {
      const size_t piece = std::min(step, bytes.size() - at);
      if (const size_t wanted = guard.wanted(); wanted > 0) {
        const size_t taken = std::min(piece, wanted);
        guard.feed(bytes.data() + at, taken);
        data += guard.take_held();
        take();
        at += taken;
      } else {
        data.append(bytes, at, piece);
        at += piece;
      }
    }
  }
  std::string speak() { return std::exchange(unread, {}); }

  Guard guard;
  std::string sent;
  std::string unread;
  std::string data;
};

/// Until neither has anything to say.
void converse(End* client, End* server, size_t step) {
  for (int round = 0; round < 20; ++round) {
    const std::string question = client->speak();
    server->hear(question, step);
    const std::string answer = server->speak();
    client->hear(answer, step);
    if (question.empty() && answer.empty()) return;
  }
  FAIL("they never end");
}

void check_texts(const End& end, Code code, const std::string& text) {
  CHECK_FALSE(end.guard.established());
  CHECK(end.guard.failure().code() == code);
  CHECK(end.guard.failure().message() == text);
  CHECK(end.guard.failure().message().find("00112233") == std::string::npos);
}

const std::string kOtherToken =
    "the other side has another token (both use security.mode = auth); give all processes of the "
    "job the same token (a file that DT_TOKEN_FILE names, or ~/.config/dt/token)";

}  // namespace

TEST_CASE("Token: 64 digits or more, and never a part of one in a message") {
  CHECK(Token::from_text(kDigitsA).ok());
  CHECK(Token::from_text(std::string("  ") + kDigitsA + "\r\n").ok());
  CHECK(Token::from_text(std::string(kDigitsA) + kDigitsB).ok());
  CHECK(Token::from_text(kDigitsA).value().text() == kDigitsA);
  CHECK(Token::from_text(kDigitsA).value() == Token::from_text(kDigitsA).value());
  CHECK_FALSE(Token::from_text(kDigitsA).value() == Token::from_text(kDigitsB).value());
  const auto refused = [](const std::string& text) {
    const Status status = Token::from_text(text).status();
    CHECK(status.code() == Code::kConfig);
    return status.message();
  };
  CHECK(refused("") ==
        "the token is empty: a token is 64 hexadecimal digits (256 bits); make one with dt token");
  CHECK(refused("\n").find("is empty") != std::string::npos);
  CHECK(refused(std::string(kDigitsA).substr(2)) ==
        "the token has 62 digits, too few to keep anybody out: a token is 64 hexadecimal digits "
        "(256 bits); make one with dt token");
  CHECK(refused(std::string(kDigitsA) + "a").find("has 65 digits, an odd number") !=
        std::string::npos);
  CHECK(refused(std::string(2000, 'a')).find("too many") != std::string::npos);
  CHECK(refused("secret secret secret") ==
        "the token holds something that is no hexadecimal digit: a token is 64 hexadecimal digits "
        "(256 bits); make one with dt token");
}

TEST_CASE("Token: random ones differ, and each use has a key of its own") {
  const Token a = Token::random().value();
  CHECK(a.text().size() == 64);
  CHECK_FALSE(a == Token::random().value());
  CHECK(a.derive("x").bytes == a.derive("x").bytes);
  CHECK(a.derive("x").bytes != a.derive("y").bytes);
  CHECK(a.mac("x", "m").bytes != a.mac("x", "n").bytes);
}

TEST_CASE("Token: keys and codes are HKDF's and HMAC's") {
  // Computed with Python: hmac and hashlib, RFC 5869 with the salt "dt token 1".
  const Token token = Token::from_text(kDigitsA).value();
  const auto digits = [](const net::Key& key) {
    std::string text;
    for (const unsigned char byte : key.bytes) text += format("%02x", byte);
    return text;
  };
  CHECK(digits(token.derive("auth store client")) ==
        "972ffb389178b8e54055eb89c8282caf9237395995e0a262ada678363088d380");
  CHECK(digits(token.mac("auth store client", "message")) ==
        "a6495df7a2466efcc4cf97d08b345dc6be6c7a62e3f171e462b7d3b59d16f506");
}

TEST_CASE("Guard: both sides with one token come through, however the bytes are split") {
  for (const SecurityMode mode : {SecurityMode::kAuth, SecurityMode::kEncrypt}) {
    for (const Purpose purpose : {Purpose::kStore, Purpose::kMesh}) {
      for (size_t step = 1; step <= 600; step += step < 90 ? 1 : 85) {
        End client(secure(mode), Side::kClient, purpose);
        End server(secure(mode), Side::kServer, purpose);
        converse(&client, &server, step);
        REQUIRE(client.guard.established());
        REQUIRE(server.guard.established());
        CHECK(client.guard.wanted() == 0);
        CHECK(client.data == "");
        CHECK(server.data == "");
      }
    }
  }
}

TEST_CASE("Guard: what follows the greeting in one piece is data, not the guard's") {
  End client(secure(SecurityMode::kAuth), Side::kClient);
  End server(secure(SecurityMode::kAuth), Side::kServer);
  server.hear(client.speak(), 1000);
  client.hear(server.speak(), 1000);
  REQUIRE(client.guard.established());
  server.hear(client.speak() + "hello", 1000);
  CHECK(server.guard.established());
  CHECK(server.data == "hello");
  CHECK(client.sent.size() == kGreeting + kProof);  // one round trip in front of the data
  CHECK(server.sent.size() == kGreeting + kProof);
}

TEST_CASE("Guard: encrypted data are not plain, arrive whole, and break when they are changed") {
  End client(secure(SecurityMode::kEncrypt), Side::kClient);
  End server(secure(SecurityMode::kEncrypt), Side::kServer);
  converse(&client, &server, 7);
  const auto sealing = client.guard.take_tls();
  const auto opening = server.guard.take_tls();
  REQUIRE(sealing != nullptr);
  REQUIRE(opening != nullptr);
  std::string secret;
  for (int i = 0; i < 100'000; ++i) secret += static_cast<char>('a' + i % 23);
  std::string wire;
  REQUIRE(sealing->seal(secret, &wire).ok());
  CHECK(wire.find("abcdefgh") == std::string::npos);
  std::string plain;
  for (size_t at = 0; at < wire.size(); at += 1000) {
    REQUIRE(opening->open(wire.data() + at, std::min<size_t>(1000, wire.size() - at), &plain).ok());
  }
  CHECK(plain == secret);
  wire.clear();
  REQUIRE(opening->seal("an answer", &wire).ok());
  wire[wire.size() / 2] ^= 1;
  plain.clear();
  CHECK(sealing->open(wire.data(), wire.size(), &plain).code() == Code::kSystem);
  CHECK(plain == "");
}

TEST_CASE("Tls: however much is sealed and opened, it keeps the memory of a record each way") {
  constexpr size_t kMostKept = 24 << 10;  // a record, and a third more as OpenSSL grows it
  End client(secure(SecurityMode::kEncrypt), Side::kClient);
  End server(secure(SecurityMode::kEncrypt), Side::kServer);
  converse(&client, &server, 1000);
  const auto sealing = client.guard.take_tls();
  const auto opening = server.guard.take_tls();
  const size_t greeted = opening->kept_bytes();
  CHECK(greeted > 0);
  const std::string large(256 << 10, 'x');
  std::string wire;
  REQUIRE(sealing->seal(large, &wire).ok());
  CHECK(sealing->kept_bytes() < kMostKept + greeted);
  std::string plain;
  REQUIRE(opening->open(wire.data(), wire.size(), &plain).ok());
  CHECK(plain == large);
  CHECK(opening->kept_bytes() > greeted);
  CHECK(opening->kept_bytes() < kMostKept + greeted);
}

TEST_CASE("Guard: another token is refused, on both sides and for good") {
  End client(secure(SecurityMode::kAuth, kDigitsB), Side::kClient);
  End server(secure(SecurityMode::kAuth), Side::kServer);
  converse(&client, &server, 1000);
  check_texts(client, Code::kConfig, kOtherToken);
  check_texts(server, Code::kConfig, kOtherToken);

  End hidden_client(secure(SecurityMode::kEncrypt, kDigitsB), Side::kClient);
  End hidden_server(secure(SecurityMode::kEncrypt), Side::kServer);
  converse(&hidden_client, &hidden_server, 1000);
  const std::string text =
      "the other side has another token (both use security.mode = encrypt); give all processes of "
      "the job the same token (a file that DT_TOKEN_FILE names, or ~/.config/dt/token)";
  check_texts(hidden_client, Code::kConfig, text);
  check_texts(hidden_server, Code::kConfig, text);
}

TEST_CASE("Guard: modes that differ are refused, and each side says what it has") {
  const auto text = [](const char* mine, const char* other) {
    return format(
        "this side uses security.mode = %s, the other side security.mode = %s; give all processes "
        "of the job the same security.mode and the same token (a file that DT_TOKEN_FILE names, or "
        "~/.config/dt/token)",
        mine, other);
  };
  const SecurityMode modes[] = {SecurityMode::kNone, SecurityMode::kAuth, SecurityMode::kEncrypt};
  for (const SecurityMode mine : modes) {
    for (const SecurityMode other : modes) {
      if (mine == other || mine == SecurityMode::kNone) continue;
      for (const size_t step : {size_t{1}, size_t{1000}}) {
        End client(secure(mine), Side::kClient);
        End server(secure(other), Side::kServer);
        converse(&client, &server, step);
        check_texts(client, Code::kConfig, text(mode_name(mine), mode_name(other)));
        check_texts(server, Code::kConfig, text(mode_name(other), mode_name(mine)));
      }
    }
  }
}

TEST_CASE("Guard: who sends data at once is refused at the first byte that does not belong") {
  for (const SecurityMode mode : {SecurityMode::kAuth, SecurityMode::kEncrypt}) {
    End server(secure(mode), Side::kServer);
    server.hear("dtS", 1);
    CHECK(server.guard.met_plain());
    CHECK(server.sent == "");
    CHECK(server.guard.failure().code() == Code::kConfig);
    CHECK(server.guard.failure().message() ==
          format("this side uses security.mode = %s, the other side sent a plain hello: it has no "
                 "token or security.mode = \"none\", or is not dt; give all processes of the job "
                 "the same token (a file that DT_TOKEN_FILE names, or ~/.config/dt/token)",
                 mode_name(mode)));
  }
}

TEST_CASE("Guard: without security data pass untouched, to the last byte") {
  for (const std::string& words : {std::string("dtStore"), std::string("d"), std::string("dx"),
                                   std::string("\x16\x03\x01"), std::string(1000, 'd')}) {
    for (const size_t step : {size_t{1}, size_t{2}, size_t{1000}}) {
      End client(secure(SecurityMode::kNone), Side::kClient);
      End server(secure(SecurityMode::kNone), Side::kServer);
      CHECK(client.guard.established());
      server.hear(words, step);
      if (words == "d") continue;  // may still become a greeting
      CHECK(server.guard.established());
      CHECK(server.data == words);
      CHECK(server.sent == "");
    }
  }
}

TEST_CASE("Guard: a recorded conversation proves nothing the second time") {
  End client(secure(SecurityMode::kAuth), Side::kClient);
  End server(secure(SecurityMode::kAuth), Side::kServer);
  converse(&client, &server, 1000);
  REQUIRE(server.guard.established());
  End again(secure(SecurityMode::kAuth), Side::kServer);
  again.hear(client.sent, 1000);
  check_texts(again, Code::kConfig, kOtherToken);
  End other(secure(SecurityMode::kAuth), Side::kClient);
  other.hear(server.sent, 1000);
  check_texts(other, Code::kConfig, kOtherToken);

  End hidden_client(secure(SecurityMode::kEncrypt), Side::kClient);
  End hidden_server(secure(SecurityMode::kEncrypt), Side::kServer);
  converse(&hidden_client, &hidden_server, 1000);
  End hidden_again(secure(SecurityMode::kEncrypt), Side::kServer);
  hidden_again.hear(hidden_client.sent, 1000);
  CHECK_FALSE(hidden_again.guard.established());
  CHECK_FALSE(hidden_again.guard.failure().ok());
}

TEST_CASE("Guard: its own words, sent back, prove nothing") {
  End client(secure(SecurityMode::kAuth), Side::kClient);
  client.hear(client.sent, 1000);
  CHECK_FALSE(client.guard.established());
  CHECK(client.guard.failure().message() ==
        "the other side connects for another purpose: check the addresses and ports of the job");
  // The server's proof in the place of the client's.
  End asking(secure(SecurityMode::kAuth), Side::kClient);
  End server(secure(SecurityMode::kAuth), Side::kServer);
  server.hear(asking.speak(), 1000);
  server.hear(server.sent.substr(kGreeting), 1000);
  check_texts(server, Code::kConfig, kOtherToken);
  // A proof for the mesh is none for the store: the same nonces, the purpose changed on the way.
  End mesh(secure(SecurityMode::kAuth), Side::kServer, Purpose::kMesh);
  End store(secure(SecurityMode::kAuth), Side::kClient);
  std::string words = store.speak();
  words[11] = static_cast<char>(Purpose::kMesh);
  mesh.hear(words, 1000);
  std::string answer = mesh.speak();
  answer[11] = static_cast<char>(Purpose::kStore);
  store.hear(answer, 1000);
  check_texts(store, Code::kConfig, kOtherToken);
}

TEST_CASE("Guard: each changed byte of the greetings and proofs is found") {
  for (size_t at = 0; at < kGreeting; ++at) {
    End client(secure(SecurityMode::kAuth), Side::kClient);
    End server(secure(SecurityMode::kAuth), Side::kServer);
    std::string words = client.speak();
    words[at] ^= 1;
    server.hear(words, 1000);
    client.hear(server.speak(), 1000);
    server.hear(client.speak(), 1000);
    CHECK_FALSE(client.guard.established());
    CHECK_FALSE(server.guard.established());
  }
  for (size_t at = 0; at < kGreeting + kProof; ++at) {
    End client(secure(SecurityMode::kAuth), Side::kClient);
    End server(secure(SecurityMode::kAuth), Side::kServer);
    server.hear(client.speak(), 1000);
    std::string words = server.speak();
    words[at] ^= 1;
    client.hear(words, 1000);
    server.hear(client.speak(), 1000);
    CHECK_FALSE(client.guard.established());
    CHECK_FALSE(server.guard.established());
  }
  for (size_t at = 0; at < kProof; ++at) {
    End client(secure(SecurityMode::kAuth), Side::kClient);
    End server(secure(SecurityMode::kAuth), Side::kServer);
    server.hear(client.speak(), 1000);
    client.hear(server.speak(), 1000);
    std::string words = client.speak();
    words[at] ^= 1;
    server.hear(words, 1000);
    check_texts(server, Code::kConfig, kOtherToken);
  }
}

TEST_CASE("Guard: a greeting that ends early waits, and never comes through") {
  for (const SecurityMode mode : {SecurityMode::kAuth, SecurityMode::kEncrypt}) {
    End client(secure(mode), Side::kClient);
    for (size_t bytes = 0; bytes < client.sent.size(); ++bytes) {
      End server(secure(mode), Side::kServer);
      server.hear(client.sent.substr(0, bytes), 1000);
      CHECK_FALSE(server.guard.established());
      CHECK(server.guard.failure().ok());
      CHECK(server.guard.wanted() > 0);
    }
  }
}

TEST_CASE("Guard: it never wants more than a few KiB, whatever the other side announces") {
  End client(secure(SecurityMode::kEncrypt), Side::kClient);
  const std::string greeting = client.sent.substr(0, kGreeting);
  for (const std::string& header :
       {std::string("\x16\x03\x03\xff\xff", 5), std::string("\x16\x03\x03\x10\x01", 5),
        std::string("\x16\x03\x03\x00\x00", 5)}) {
    End server(secure(SecurityMode::kEncrypt), Side::kServer);
    server.hear(greeting + header, 1000);
    CHECK(server.guard.wanted() == 0);
    CHECK(server.guard.failure().code() == Code::kSystem);
    CHECK(server.guard.failure().message() == "what greets there speaks no TLS 1.3 of dt's");
  }
  // Records that never make a greeting.
  End server(secure(SecurityMode::kEncrypt), Side::kServer);
  server.hear(greeting, 1000);
  size_t fed = 0;
  while (server.guard.wanted() > 0 && fed < 100'000) {
    const size_t wanted = server.guard.wanted();
    REQUIRE(wanted <= 4096);
    const std::string bytes =
        wanted == 5 ? std::string("\x16\x03\x03\x00\x01", 5) : std::string(wanted, '\1');
    server.guard.feed(bytes.data(), bytes.size());
    fed += bytes.size();
  }
  CHECK(fed < 1000);
  CHECK_FALSE(server.guard.failure().ok());
}

TEST_CASE("Guard: something else that listens is no refusal, so it may be tried again") {
  End client(secure(SecurityMode::kAuth), Side::kClient);
  client.hear("SSH-2.0-OpenSSH", 1);
  CHECK(client.guard.failure().code() == Code::kSystem);
  CHECK(client.guard.failure().message() ==
        "what answers there is no part of a job: something else uses this port");
}

TEST_CASE("Guard: a server without security and a greeting that asks for none") {
  End server(secure(SecurityMode::kNone), Side::kServer);
  End client(secure(SecurityMode::kAuth), Side::kClient);
  std::string words = client.speak();
  words[10] = 0;  // a mode that nobody greets with
  server.hear(words, 1000);
  CHECK_FALSE(server.guard.established());
  CHECK(server.guard.failure().code() == Code::kConfig);
}

TEST_CASE("check_exposure: without a token only loopback, unless it was written") {
  const auto at = [](const char* text) { return net::literal_address(text, 0).value(); };
  Security none;
  CHECK(check_exposure(none, at("127.0.0.1"), "the store").ok());
  CHECK(check_exposure(none, at("::1"), "the store").ok());
  const Status refused = check_exposure(none, at("10.0.0.7"), "the store");
  CHECK(refused.code() == Code::kConfig);
  CHECK(
      refused.message() ==
      "the store would listen on 10.0.0.7, where anybody who can reach this host could join the "
      "job: there is no token. Give all processes of the job one: a file that DT_TOKEN_FILE (or "
      "security.token_file) names, or ~/.config/dt/token on every host, which dt token makes. Or "
      "start the ranks of one host with dt run, which makes one. Or, in a network that you trust, "
      "set security.mode = \"none\" (DT_SECURITY_MODE=none)");
  CHECK_FALSE(check_exposure(none, at("0.0.0.0"), "the store").ok());
  none.open_to_all = true;
  CHECK(check_exposure(none, at("10.0.0.7"), "the store").ok());
  CHECK(check_exposure(secure(SecurityMode::kAuth), at("0.0.0.0"), "the store").ok());
}
