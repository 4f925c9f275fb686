// SPDX-License-Identifier: Apache-2.0
// What somebody does who can reach a port of a job and is no part of it; and what he sees who is.
#pragma once

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "../sanitizers.h"
#include "base/wait.h"
#include "dt_run.h"
#include "net/guard.h"
#include "net/loop.h"
#include "net/security.h"
#include "store/client.h"
#include "store/protocol.h"

namespace dt::test::intruder {

inline constexpr char kToken[] = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
inline constexpr char kOther[] = "a0112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
/// Each byte has several of ThreadSanitizer's.
inline constexpr int64_t kGrowthBytes = kThreadSanitizer ? 512 << 20 : 64 << 20;

inline net::Security secure(net::SecurityMode mode, const char* digits) {
  net::Security security;
  security.mode = mode;
  security.token = std::move(net::Token::from_text(digits)).value();
  return security;
}

/// A socket of an intruder, which blocks for no longer than the patience.
class Raw {
 public:
  explicit Raw(uint16_t port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const timeval limit{kPatienceMs / 1000, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }
  ~Raw() {
    if (fd_ >= 0) close(fd_);
  }
  Raw(Raw&& other) noexcept : fd_(std::exchange(other.fd_, -1)), connected_(other.connected_) {}
  Raw(const Raw&) = delete;
  Raw& operator=(const Raw&) = delete;

  bool connected() const { return connected_; }
  bool say(const std::string& bytes) const {
    return send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  /// What is taken at once of it. False: not all.
  bool push(const std::string& bytes) const {
    return send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
           static_cast<ssize_t>(bytes.size());
  }
  void end() const { shutdown(fd_, SHUT_WR); }
  /// At most `bytes`; fewer at the end of the stream or of the patience.
  std::string hear(size_t bytes) const {
    std::string heard;
    while (heard.size() < bytes) {
      char buffer[4096];
      const ssize_t got = recv(fd_, buffer, std::min(sizeof buffer, bytes - heard.size()), 0);
      if (got <= 0) break;
      heard.append(buffer, static_cast<size_t>(got));
    }
    return heard;
  }
  std::string hear_all() const { return hear(SIZE_MAX); }

 private:
  int fd_;
  bool connected_ = false;
};

/// Comes in as one who has the token; what it said is in `words`.
inline bool greet(const Raw& raw, net::SecurityMode mode, net::Purpose purpose,
                  std::string* words) {
  net::Guard guard(secure(mode, kToken), purpose, net::Side::kClient);
  for (;;) {
    const std::string output = guard.take_output();
    *words += output;
    if (!output.empty() && !raw.say(output)) return false;
    if (guard.established()) return true;
    if (!guard.failure().ok()) return false;
    const std::string heard = raw.hear(guard.wanted());
    if (heard.empty()) return false;
    guard.feed(heard.data(), heard.size());
  }
}

inline void truncate(uint16_t port, net::SecurityMode mode, net::Purpose purpose) {
  std::string words;
  REQUIRE(greet(Raw(port), mode, purpose, &words));
  for (const size_t bytes : {size_t{1}, size_t{20}, size_t{47}, size_t{48}, size_t{60}}) {
    const Raw raw(port);
    CHECK(raw.say(words.substr(0, bytes)));
    raw.end();
    (void)raw.hear_all();
  }
}

/// In pieces of 4 MiB, as fast as it is taken.
inline void send_garbage(uint16_t port, size_t bytes) {
  std::string garbage(1 << 16, '\0');
  uint32_t state = 12345;
  for (char& byte : garbage) {
    state = state * 1664525 + 1013904223;
    byte = static_cast<char>(state >> 24);
  }
  const Deadline deadline = Deadline::after_ms(kPatienceMs);
  for (size_t sent = 0; sent < bytes && !deadline.passed();) {
    const Raw raw(port);
    for (int i = 0; i < 64 && raw.say(garbage); ++i) sent += garbage.size();
  }
}

/// At most `most`, and as many as this process may have.
inline std::vector<Raw> crowd(uint16_t port, size_t most) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  const size_t count = std::min<size_t>(most, limit.rlim_cur - 100);
  std::vector<Raw> idle;
  while (idle.size() < count) {
    idle.emplace_back(port);
    if (!idle.back().connected()) break;
  }
  return idle;
}

inline int64_t resident_bytes(pid_t pid) {
  const std::string path = "/proc/" + std::to_string(pid) + "/statm";
  FILE* file = fopen(path.c_str(), "r");
  if (file == nullptr) return 0;
  long long all = 0;
  long long resident = 0;
  const int fields = fscanf(file, "%lld %lld", &all, &resident);
  fclose(file);
  return fields == 2 ? resident * sysconf(_SC_PAGESIZE) : 0;
}

/// Whether the store there lets us in.
inline Status knock(uint16_t port, const net::Security& security) {
  const auto loop = std::move(net::Loop::start()).value();
  store::ClientOptions options;
  options.host = "127.0.0.1";
  options.port = port;
  options.attempt = -1;
  options.security = security;
  const auto client =
      store::Client::connect(loop.get(), options, {Deadline::after_ms(kPatienceMs)});
  return client.ok() ? client.value()->ping({Deadline::after_ms(kPatienceMs)}) : client.status();
}

inline void knock_without_the_token(uint16_t port, net::SecurityMode mode) {
  const Status none = knock(port, {});
  CHECK(none.code() == Code::kConfig);
  CHECK(none.message().find("this side sent a plain hello") != std::string::npos);
  const Status other = knock(port, secure(mode, kOther));
  CHECK(other.code() == Code::kConfig);
  CHECK(other.message().find("the other side has another token") != std::string::npos);
  CHECK(knock(port, secure(mode, kToken)).ok());
}

/// The port of the store, which a rank of `rank_program until` has said.
inline uint16_t store_port(const std::string& output) {
  for (const std::string& line : lines_of(output)) {
    if (line.find("] store ") == std::string::npos) continue;
    return static_cast<uint16_t>(atoi(line.c_str() + line.rfind(':') + 1));
  }
  return 0;
}

/// Until it is there a job goes on; it goes with the object.
class StopFile {
 public:
  StopFile() {
    const int fd = mkstemp(name_.data());
    if (fd >= 0) close(fd);
    unlink(name_.c_str());
  }
  ~StopFile() { unlink(name_.c_str()); }
  StopFile(const StopFile&) = delete;
  StopFile& operator=(const StopFile&) = delete;

  const std::string& name() const { return name_; }
  void make() const { fclose(fopen(name_.c_str(), "w")); }

 private:
  std::string name_ = "/tmp/dt-intruder-XXXXXX";
};

/// A job of two ranks under dt run that goes on until it is told to stop.
class RunningJob {
 public:
  explicit RunningJob(std::vector<std::string> environment, const std::string& memory_group = "")
      : run_(in_group(dt_run({"-n", "2"}, {"until", stop_.name()}), memory_group),
             options(std::move(environment))) {
    REQUIRE(run_.wait_for_output("] store ", 2));
    port_ = store_port(run_.out);
    REQUIRE(port_ != 0);
  }

  uint16_t port() const { return port_; }
  int64_t server_bytes() const { return resident_bytes(run_.pid()); }
  void end_well() {
    stop_.make();
    const int code = run_.wait();
    INFO(run_.out);
    INFO(run_.err);
    CHECK(code == 0);
    CHECK(count_of(run_.out, "] good to the end\n") == 2);
    CHECK(count_of(run_.err, kToken) == 0);
    CHECK(count_of(run_.out, kToken) == 0);
  }
  const Process& process() const { return run_; }

 private:
  static Process::Options options(std::vector<std::string> environment) {
    Process::Options options;
    options.environment = std::move(environment);
    options.environment.push_back("DT_TOKEN=" + std::string(kToken));
    return options;
  }
  static std::vector<std::string> in_group(std::vector<std::string> command,
                                           const std::string& group) {
    if (group.empty()) return command;
    const std::vector<std::string> enter = {
        "/bin/sh", "-c", "echo $$ > " + group + "/cgroup.procs && exec \"$@\"", "sh"};
    command.insert(command.begin(), enter.begin(), enter.end());
    return command;
  }

  const StopFile stop_;
  Process run_;
  uint16_t port_ = 0;
};

}  // namespace dt::test::intruder
