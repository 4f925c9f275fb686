// SPDX-License-Identifier: Apache-2.0
// Who can reach the port of a running job's store, and is no part of it: the job goes on
// undisturbed, ends well, and its server does not grow.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/wait.h"
#include "dt_run.h"
#include "net/guard.h"
#include "net/loop.h"
#include "net/security.h"
#include "store/client.h"
#include "store/protocol.h"

using dt::Code;
using dt::Deadline;
using dt::Status;
using dt::test::count_of;
using dt::test::dt_run;
using dt::test::lines_of;
using dt::test::Process;
using dt::test::starts_with;

namespace {

constexpr int kPatienceMs = 30'000;
constexpr char kToken[] = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
constexpr char kOther[] = "a0112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
constexpr size_t kGarbageBytes = size_t{64} << 20;
#if defined(__SANITIZE_THREAD__)
constexpr int64_t kGrowthBytes = int64_t{512} << 20;  // each byte has several of the sanitizer's
#else
constexpr int64_t kGrowthBytes = int64_t{64} << 20;
#endif

dt::net::Security secure(dt::net::SecurityMode mode, const char* digits) {
  dt::net::Security security;
  security.mode = mode;
  security.token = std::move(dt::net::Token::from_text(digits)).value();
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
bool greet(const Raw& raw, dt::net::SecurityMode mode, std::string* words) {
  dt::net::Guard guard(secure(mode, kToken), dt::net::Purpose::kStore, dt::net::Side::kClient);
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

std::string hello_frame() {
  dt::store::Request request;
  request.type = dt::store::FrameType::kHello;
  request.hello.protocol = dt::store::kProtocolVersion;
  return encode_frame(request.type, 1, encode_request(request));
}

int64_t resident_bytes(pid_t pid) {
  const std::string path = "/proc/" + std::to_string(pid) + "/statm";
  FILE* file = fopen(path.c_str(), "r");
  if (file == nullptr) return 0;
  long long all = 0;
  long long resident = 0;
  const int fields = fscanf(file, "%lld %lld", &all, &resident);
  fclose(file);
  return fields == 2 ? resident * sysconf(_SC_PAGESIZE) : 0;
}

/// A job of two ranks under dt run that goes on until it is told to stop.
class RunningJob {
 public:
  explicit RunningJob(const std::string& mode)
      : run_(dt_run({"-n", "2"}, {"until", stop_}), options(mode)) {
    REQUIRE(run_.wait_for_output("] store ", 2));
    for (const std::string& line : lines_of(run_.out)) {
      if (line.find("] store ") == std::string::npos) continue;
      port_ = static_cast<uint16_t>(atoi(line.c_str() + line.rfind(':') + 1));
    }
    REQUIRE(port_ != 0);
  }
  ~RunningJob() { unlink(stop_.c_str()); }

  uint16_t port() const { return port_; }
  int64_t server_bytes() const { return resident_bytes(run_.pid()); }
  void end_well() {
    fclose(fopen(stop_.c_str(), "w"));
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
  static Process::Options options(const std::string& mode) {
    Process::Options options;
    options.environment = {"DT_TOKEN=" + std::string(kToken), "DT_SECURITY_MODE=" + mode};
    return options;
  }
  static std::string free_name() {
    char name[] = "/tmp/dt-intruder-XXXXXX";
    const int fd = mkstemp(name);
    if (fd >= 0) close(fd);
    unlink(name);
    return name;
  }

  const std::string stop_ = free_name();
  Process run_;
  uint16_t port_ = 0;
};

Status knock(uint16_t port, const dt::net::Security& security) {
  const auto loop = std::move(dt::net::Loop::start()).value();
  dt::store::ClientOptions options;
  options.host = "127.0.0.1";
  options.port = port;
  options.attempt = -1;
  options.security = security;
  const auto client =
      dt::store::Client::connect(loop.get(), options, {Deadline::after_ms(kPatienceMs)});
  return client.ok() ? client.value()->ping({Deadline::after_ms(kPatienceMs)}) : client.status();
}

void knock_without_the_token(uint16_t port, dt::net::SecurityMode mode) {
  const Status none = knock(port, {});
  CHECK(none.code() == Code::kConfig);
  CHECK(none.message().find("this side sent a plain hello") != std::string::npos);
  const Status other = knock(port, secure(mode, kOther));
  CHECK(other.code() == Code::kConfig);
  CHECK(other.message().find("the other side has another token") != std::string::npos);
  CHECK(knock(port, secure(mode, kToken)).ok());
}

void replay(uint16_t port, dt::net::SecurityMode mode) {
  std::string words;
  const Raw honest(port);
  REQUIRE(greet(honest, mode, &words));
  const Raw again(port);
  (void)again.say(words + hello_frame());
  again.end();
  const std::string heard = again.hear_all();
  CHECK(heard.find("dtSt") == std::string::npos);  // no frame of the store
}

void truncate(uint16_t port, dt::net::SecurityMode mode) {
  std::string words;
  REQUIRE(greet(Raw(port), mode, &words));
  for (const size_t bytes : {size_t{1}, size_t{20}, size_t{47}, size_t{48}, size_t{60}}) {
    const Raw raw(port);
    CHECK(raw.say(words.substr(0, bytes)));
    raw.end();
    (void)raw.hear_all();
  }
}

void announce_too_much(uint16_t port, dt::net::SecurityMode mode) {
  const std::string header = encode_header(dt::store::FrameType::kHello, 1, 0xfffffff0);
  const Raw stranger(port);
  CHECK(stranger.say(header));
  stranger.end();
  CHECK(stranger.hear_all().find("sent a plain hello") != std::string::npos);
  if (mode != dt::net::SecurityMode::kAuth) return;
  // One who has the token may not, either.
  std::string words;
  const Raw member(port);
  REQUIRE(greet(member, mode, &words));
  CHECK(member.say(header));
  CHECK(member.hear_all().find("over the limit") != std::string::npos);
}

void send_garbage(uint16_t port) {
  std::string garbage(1 << 16, '\0');
  uint32_t state = 12345;
  for (char& byte : garbage) {
    state = state * 1664525 + 1013904223;
    byte = static_cast<char>(state >> 24);
  }
  const Deadline deadline = Deadline::after_ms(kPatienceMs);
  for (size_t sent = 0; sent < kGarbageBytes && !deadline.passed();) {
    const Raw raw(port);
    for (int i = 0; i < 64 && raw.say(garbage); ++i) sent += garbage.size();
  }
}

/// As many as this process may have.
std::vector<Raw> crowd(uint16_t port) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  const size_t count = std::min<size_t>(10'000, limit.rlim_cur - 100);
  std::vector<Raw> idle;
  while (idle.size() < count) {
    idle.emplace_back(port);
    if (!idle.back().connected()) break;
  }
  return idle;
}

}  // namespace

TEST_CASE(
    "intruders: the job goes on undisturbed, whatever they send, and its server does not grow") {
  for (const dt::net::SecurityMode mode :
       {dt::net::SecurityMode::kAuth, dt::net::SecurityMode::kEncrypt}) {
    CAPTURE(std::string(mode_name(mode)));
    RunningJob job(mode_name(mode));
    knock_without_the_token(job.port(), mode);
    const int64_t before = job.server_bytes();
    replay(job.port(), mode);
    truncate(job.port(), mode);
    announce_too_much(job.port(), mode);
    send_garbage(job.port());
    {
      const std::vector<Raw> idle = crowd(job.port());
      MESSAGE(idle.size() << " idle connections");
      CHECK(idle.size() > 500);
      CHECK(knock(job.port(), secure(mode, kToken)).ok());  // who belongs comes in beside them
      const int64_t growth = job.server_bytes() - before;
      MESSAGE("the server grew by " << growth / 1024 << " KiB");
      CHECK(growth < kGrowthBytes);
      job.end_well();
    }
    CHECK(count_of(job.process().err, "store: refused a connection from 127.0.0.1") >= 1);
  }
}
