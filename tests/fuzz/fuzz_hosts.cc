// SPDX-License-Identifier: Apache-2.0
// What comes over a connection between two hosts: the hello and its answer, behind the guard of
// each mode, and the messages after them. Real sockets and a real loop; the other side has said all
// that it ever says and has closed its half. Properties: no crash; one end and one only; nobody
// comes through without the token; what is accepted is what a plain reading of the bytes finds, and
// not one byte behind it is lost; a message reaches no further than the buffer that was given for
// it.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/wait.h"
#include "net/loop.h"
#include "transport/tcp/handshake.h"
#include "transport/tcp/link.h"

namespace {

using namespace dt::tcp;
using dt::net::SecurityMode;

constexpr size_t kStreamMost = 4096;
constexpr int64_t kMessageMost = 1024;
constexpr size_t kHelloBytes = 32;
constexpr size_t kAnswerBytes = 8;
constexpr uint64_t kHelloMagic = 0x316f'6c6c'6548'5444;
constexpr uint32_t kAnswerMagic = 0x576f'5444;

void require_link(bool holds) {
  if (!holds) std::abort();
}

dt::net::Loop* io() {
  // Never ended: what OpenSSL keeps for its thread would be freed after OpenSSL is.
  static dt::net::Loop* const loop = std::move(dt::net::Loop::start()).value().release();
  return loop;
}

dt::net::Security guarded_by(SecurityMode mode) {
  static const auto token = std::move(dt::net::Token::from_text(std::string(64, '7'))).value();
  dt::net::Security security;
  security.mode = mode;
  if (mode != SecurityMode::kNone) security.token = token;
  return security;
}

/// A socket, and its other side, which has said everything.
struct Pair {
  explicit Pair(std::string_view words) {
    int ends[2];
    require_link(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    near = Socket(ends[0]);
    far = Socket(ends[1]);
    require_link(send(far.fd(), words.data(), words.size(), MSG_NOSIGNAL) ==
                 static_cast<ssize_t>(words.size()));
    require_link(shutdown(far.fd(), SHUT_WR) == 0);
  }
  Socket near;
  Socket far;
};

std::string all_of(Socket* socket) {
  std::string all;
  char buffer[4096];
  for (;;) {
    const ssize_t got = socket->read(buffer, sizeof buffer);
    if (got <= 0) return all;
    all.append(buffer, static_cast<size_t>(got));
  }
}

template <class Number>
Number number_at(std::string_view bytes, size_t at) {
  Number number;
  memcpy(&number, bytes.data() + at, sizeof number);
  return number;
}

/// What a callback was given; the callbacks run on the loop's thread.
struct Ending {
  dt::Event done;
  int count = 0;
  std::optional<Hello> hello;
  Socket socket;
  bool welcome = false;
};

void check_accept(SecurityMode mode, std::string_view words) {
  Pair pair(words);
  const auto ending = std::make_shared<Ending>();
  std::shared_ptr<Handshake> handshake;
  io()->run([&] {
    handshake = Handshake::accept(
        io(), std::move(pair.near), guarded_by(mode),
        [](const Hello& hello) {
          require_link(hello.communicator.size() <= kMaxNameBytes);
          return hello.to == 1 ? dt::Status() : dt::Status(dt::Code::kInvalidArgument, "not here");
        },
        [ending](const Hello& hello, Socket socket) {
          ++ending->count;
          ending->hello = hello;
          ending->socket = std::move(socket);
          ending->done.set();
        },
        [ending] {
          ++ending->count;
          ending->done.set();
        });
  });
  ending->done.wait({});
  io()->run([&] {
    handshake->close();
    handshake = nullptr;
  });
  require_link(ending->count == 1);
  if (mode != SecurityMode::kNone) return require_link(!ending->hello);
  const size_t name_bytes = words.size() < kHelloBytes ? 0 : number_at<uint16_t>(words, 28);
  const bool good = words.size() >= kHelloBytes && name_bytes <= kMaxNameBytes &&
                    number_at<uint64_t>(words, 0) == kHelloMagic &&
                    words.size() >= kHelloBytes + name_bytes &&
                    number_at<uint32_t>(words, 16) == 1 && number_at<int32_t>(words, 24) == 1;
  require_link(good == ending->hello.has_value());
  if (!good) return;
  require_link(ending->hello->communicator == words.substr(kHelloBytes, name_bytes));
  require_link(ending->hello->connection == number_at<uint16_t>(words, 30));
  require_link(all_of(&ending->socket) == words.substr(kHelloBytes + name_bytes));
}

void check_dial(SecurityMode mode, std::string_view words) {
  Pair pair(words);
  const auto ending = std::make_shared<Ending>();
  std::shared_ptr<Handshake> handshake;
  io()->run([&] {
    handshake = Handshake::dial(io(), std::move(pair.near), guarded_by(mode), {7, 0, 1, "c"},
                                [ending](dt::Result<Socket> result) {
                                  ++ending->count;
                                  ending->welcome = result.ok();
                                  if (result.ok()) ending->socket = std::move(result).value();
                                  ending->done.set();
                                });
  });
  ending->done.wait({});
  io()->run([&] {
    handshake->close();
    handshake = nullptr;
  });
  require_link(ending->count == 1);
  if (mode != SecurityMode::kNone) return require_link(!ending->welcome);
  const bool good = words.size() >= kAnswerBytes && number_at<uint32_t>(words, 0) == kAnswerMagic &&
                    number_at<uint32_t>(words, 4) == 0;
  require_link(good == ending->welcome);
  if (good) require_link(all_of(&ending->socket) == words.substr(kAnswerBytes));
}

/// What a Link is to make of the bytes.
struct Reading {
  std::vector<std::string> messages;
  bool left = false;
  bool refused = false;  ///< a message that nobody awaits
};

Reading plain_reading(std::string_view words) {
  Reading reading;
  while (words.size() >= sizeof(Header)) {
    const auto header = number_at<Header>(words, 0);
    words.remove_prefix(sizeof header);
    if (header.magic != Header::kMagic || header.bytes < 0) return reading;
    reading.left = header.is_last();
    reading.refused = !reading.left && header.bytes > kMessageMost;
    if (reading.left || reading.refused) return reading;
    const auto bytes = static_cast<size_t>(header.bytes);
    if (words.size() < bytes) return reading;
    reading.messages.emplace_back(words.substr(0, bytes));
    words.remove_prefix(bytes);
  }
  return reading;
}

/// Awaits one message after the other, each in memory that ends where the message does.
class Receiver {
 public:
  void start(Socket socket, bool sends_too) {
    link_ = std::make_shared<Link>(
        io(), [this](const std::string&) { end(); },
        [this](bool) {
          found_.left = true;
          end();
        });
    if (sends_too) {
      Header header;
      header.bytes = static_cast<int64_t>(sizeof words_);
      link_->send(header, words_, [] {});
    }
    await();
    link_->open(std::move(socket));
  }
  void stop() {
    link_->close();
    link_ = nullptr;
  }
  dt::Event& done() { return done_; }
  int ends() const { return ends_; }
  const Reading& found() const { return found_; }

 private:
  void await() {
    link_->receive(
        [this](const Header& header) -> void* {
          if (header.bytes > kMessageMost) {
            found_.refused = true;
            link_->close();
            end();
            return nullptr;
          }
          message_.reset(new char[static_cast<size_t>(header.bytes)]);
          bytes_ = static_cast<size_t>(header.bytes);
          return message_.get();
        },
        [this] {
          found_.messages.emplace_back(message_.get(), bytes_);
          await();
        });
  }
  void end() {
    ++ends_;
    done_.set();
  }

  std::shared_ptr<Link> link_;
  std::unique_ptr<char[]> message_;
  size_t bytes_ = 0;
  Reading found_;
  int ends_ = 0;
  dt::Event done_;
  char words_[1000] = {};
};

void check_link(bool sends_too, std::string_view words) {
  Pair pair(words);
  Receiver receiver;
  io()->run([&] { receiver.start(std::move(pair.near), sends_too); });
  receiver.done().wait({});
  io()->run([&] { receiver.stop(); });
  const Reading expected = plain_reading(words);
  require_link(receiver.ends() == 1);
  require_link(receiver.found().left == expected.left);
  require_link(receiver.found().refused == expected.refused);
  require_link(receiver.found().messages == expected.messages);
}

}  // namespace

/// The first byte says which of them reads the rest, and in which mode.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  if (bytes < 1 || bytes > kStreamMost) return 0;
  const std::string_view words(reinterpret_cast<const char*>(data) + 1, bytes - 1);
  const auto mode = static_cast<SecurityMode>(data[0] / 3 % 3);
  switch (data[0] % 3) {
    case 0: check_accept(mode, words); break;
    case 1: check_dial(mode, words); break;
    default: check_link(data[0] / 3 % 2 == 1, words); break;
  }
  return 0;
}
