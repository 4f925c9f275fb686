// SPDX-License-Identifier: Apache-2.0
// join_load DT PYTHON TORCH_RANK_PY [OPTIONS]: how long N ranks take to meet in dt's store, and in
// the store of PyTorch's rank that TORCH_RANK_PY serves. One thread plays all ranks, with epoll;
// the server is a process of its own, new in each round; the rounds of the two take turns.
//
//   --ranks N         ranks (4096)
//   --rounds R        rounds of each kind (7)
//   --read-ranks N    ranks of the kinds in which each rank reads all records; 0: none (4096)
//   --read-rounds R   their rounds (3)
//   --client-reads N  ranks of the kind that reads as PyTorch 1.13's client does; 0: none (512)
//   --torch 0         dt only
//   --auth 0          without the kind whose connections are authenticated (security.mode = auth)
//
// What a rank does, from the first connect of all to the last answer of all:
//   dt         connect, hello, join; the verdict comes when all have joined
//   dt, HMAC   the same behind a handshake in which both sides prove that they have the token
//   PyTorch    connect, set its record and add 1 to a counter (in one piece), wait for a key that
//   the
//              last one sets
//   PyTorch's client   the same as release 1.13 does it: before that it adds to init/ and opens its
//              second connection
// and with all records:
//   dt         one multi_get of all records of the join
//   PyTorch    a get of each record, all sent without waiting for answers
//   PyTorch's client   for each record wait, then get, as TCPStore.get() does it
// A record is as long in both.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/wait.h"
#include "net/guard.h"
#include "net/security.h"
#include "store/messages.h"
#include "store/protocol.h"
#include "store/torch_protocol.h"

namespace {

using namespace dt;
using namespace dt::store;

constexpr int64_t kRoundLimitMs = 3'600'000;
constexpr int kEndMs = 5'000;  // of a server that was asked to end
// At a time: the servers' queues of connections hold that many, and dt's store lets no more than
// some thousand be there that have not said who they are.
constexpr int kConnecting = 1024;
constexpr int kGetsAtATime = 64;  // that one rank of PyTorch sends in one piece

pid_t serving = -1;  // no server is left behind by a failure

[[noreturn]] void fail(const std::string& message) {
  fprintf(stderr, "join_load: %s\n", message.c_str());
  if (serving > 0) kill(serving, SIGKILL);
  exit(1);
}

void require(bool holds, const char* what) {
  if (!holds) fail(std::string(what) + ": " + strerror(errno));
}

JoinRecord record_of(int rank, int ranks) {
  JoinRecord record;
  record.rank = rank;
  record.world_size = ranks;
  const int host = rank / 8;
  record.host_id =
      "4b1f0c52-7a3d-4d9e-9c55-0a1b2c3d4e5f node" + std::to_string(host) + " 4026531840";
  record.host_name = "node" + std::to_string(host);
  record.pid = 1000 + rank;
  record.socket_name = std::string("\0dt-1a2b3c4d5e6f7081-", 20) + std::to_string(rank);
  record.equal_config = {{"host.inline_bytes", "8192"}, {"host.slot_bytes", "65536"},
                         {"backend.name", "auto"},      {"reducer.bucket_cap_bytes", "26214400"},
                         {"reducer.rebuild", "true"},   {"reducer.first_bucket_bytes", "1048576"}};
  const std::string address = format("10.%d.%d.1", 1 + host / 250, host % 250);
  record.reach.network_id = record.host_id;
  record.reach.address = address;
  record.reach.port = static_cast<uint16_t>(29600 + rank % 8);
  record.reach.interfaces = {"lo 127.0.0.1/8", "eth0 " + address + "/8", "docker0 172.17.0.1/16"};
  return record;
}

// ---- servers ----

/// A process that prints where it listens.
class ServerProcess {
 public:
  ServerProcess(const std::vector<std::string>& command, const std::string& token) {
    // One way or the other, whatever the user's own files say.
    setenv("DT_SECURITY_MODE", token.empty() ? "none" : "auth", 1);
    unsetenv("DT_TOKEN_FILE");
    if (token.empty()) {
      unsetenv("DT_TOKEN");
    } else {
      setenv("DT_TOKEN", token.c_str(), 1);
    }
    int out[2];
    int in[2];
    require(pipe2(out, O_CLOEXEC) == 0 && pipe2(in, O_CLOEXEC) == 0, "pipe");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
    std::vector<char*> arguments;
    for (const std::string& each : command) arguments.push_back(const_cast<char*>(each.c_str()));
    arguments.push_back(nullptr);
    errno = posix_spawnp(&pid_, arguments[0], &actions, nullptr, arguments.data(), environ);
    require(errno == 0, command[0].c_str());
    serving = pid_;
    posix_spawn_file_actions_destroy(&actions);
    close(out[1]);
    close(in[0]);
    input_ = in[1];
    std::string line;
    for (char byte = 0; read(out[0], &byte, 1) == 1 && byte != '\n';) line.push_back(byte);
    close(out[0]);
    const size_t colon = line.rfind(':');
    if (colon == std::string::npos) fail(command[0] + " said no address");
    address_.sin_family = AF_INET;
    address_.sin_port = htons(static_cast<uint16_t>(atoi(line.c_str() + colon + 1)));
    inet_pton(AF_INET, line.substr(0, colon).c_str(), &address_.sin_addr);
  }
  ~ServerProcess() {
    kill(pid_, SIGTERM);
    pollfd ended{static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)), POLLIN, 0};
    if (poll(&ended, 1, kEndMs) != 1) kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    serving = -1;
    close(ended.fd);
    close(input_);
  }
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  const sockaddr_in& address() const { return address_; }
  int64_t resident_bytes() const {
    std::ifstream status("/proc/" + std::to_string(pid_) + "/statm");
    int64_t total = 0;
    int64_t resident = 0;
    status >> total >> resident;
    return resident * sysconf(_SC_PAGESIZE);
  }
  double cpu_s() const {
    std::ifstream file("/proc/" + std::to_string(pid_) + "/stat");
    std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    long user = 0;
    long kernel = 0;
    sscanf(text.c_str() + text.rfind(')') + 2,
           "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %ld %ld", &user, &kernel);
    return static_cast<double>(user + kernel) / static_cast<double>(sysconf(_SC_CLK_TCK));
  }

 private:
  pid_t pid_ = -1;
  int input_ = -1;
  sockaddr_in address_{};
};

// ---- ranks ----

struct Rank {
  int index = 0;
  int fd = -1;
  int second_fd = -1;
  bool connected = false;
  bool second_connected = false;
  bool greeted = false;               ///< the server has answered for the first time
  std::unique_ptr<net::Guard> guard;  ///< until both sides have proved that they have the token
  std::string out;                    ///< what is to be said; empty once it was
  size_t sent = 0;                    ///< of out
  int stage = 0;
  int next = 0;         ///< record to ask for
  int expected = 0;     ///< record to be answered
  std::string partial;  ///< of a header
  size_t skip = 0;      ///< bytes of a payload that are still to come
  bool done = false;
};

/// One way of meeting: what a rank says, and when it is content.
class Script {
 public:
  virtual ~Script() = default;
  virtual void connected(Rank* rank) = 0;
  /// All was said: there may be more.
  virtual void drained(Rank*) {}
  virtual void heard(Rank* rank, const char* data, size_t bytes) = 0;
  /// True: the rank wants its second connection now; second_open() follows.
  virtual bool wants_second(const Rank&) const { return false; }
  virtual void second_open(Rank*) {}
};

class DtScript final : public Script {
 public:
  DtScript(int ranks, bool reads, net::Security security)
      : ranks_(ranks), reads_(reads), security_(std::move(security)) {
    if (!reads) return;
    Request request;
    request.type = FrameType::kMultiGet;
    for (int i = 0; i < ranks; ++i) request.keys.push_back(join_record_key(i));
    read_all_ = encode_frame(request.type, 3, encode_request(request));
    size_t records = sizeof(uint32_t);
    for (int i = 0; i < ranks; ++i) records += 5 + encode(record_of(i, ranks)).size();
    answer_bytes_ = records;
  }
  void connected(Rank* rank) override {
    if (security_.mode == net::SecurityMode::kNone) return say_hello(rank);
    rank->guard = std::make_unique<net::Guard>(security_, net::Purpose::kStore, net::Side::kClient);
    rank->out = rank->guard->take_output();
  }
  void say_hello(Rank* rank) {
    Request request;
    request.type = FrameType::kHello;
    request.hello.protocol = kProtocolVersion;
    request.hello.job_id = "load";
    request.hello.attempt = 0;
    request.hello.member = {rank->index, "node" + std::to_string(rank->index / 8),
                            1000 + rank->index};
    request.hello.world_size = ranks_;
    request.hello.nonce = static_cast<uint64_t>(rank->index) + 1;
    request.hello.dialled = "10.0.0.5:29400";
    rank->out += encode_frame(request.type, 1, encode_request(request));
  }
  void heard(Rank* rank, const char* data, size_t bytes) override {
    while (rank->guard != nullptr && bytes > 0) {
      const size_t piece = std::min(bytes, rank->guard->wanted());
      rank->guard->feed(data, piece);
      data += piece;
      bytes -= piece;
      if (!rank->guard->failure().ok()) fail(rank->guard->failure().message());
      rank->out += rank->guard->take_output();
      if (!rank->guard->established()) continue;
      rank->guard = nullptr;
      say_hello(rank);
    }
    while (bytes > 0) {
      if (rank->skip == 0) {
        const size_t piece = std::min(bytes, kHeaderBytes - rank->partial.size());
        rank->partial.append(data, piece);
        data += piece;
        bytes -= piece;
        if (rank->partial.size() < kHeaderBytes) return;
        uint32_t payload = 0;
        memcpy(&payload, rank->partial.data() + 8, sizeof payload);
        if (rank->partial[5] != static_cast<char>(FrameType::kReply)) fail("dt refused a rank");
        if (rank->stage == 2 && payload != answer_bytes_) fail("dt answered other records");
        rank->partial.clear();
        rank->skip = payload;
      }
      const size_t piece = std::min(bytes, rank->skip);
      rank->skip -= piece;
      data += piece;
      bytes -= piece;
      if (rank->skip == 0) answered(rank);
    }
  }

 private:
  void answered(Rank* rank) {
    if (++rank->stage == 1) {
      Request request;
      request.type = FrameType::kJoin;
      request.join = record_of(rank->index, ranks_);
      request.timeout_ms = kRoundLimitMs;
      rank->out = encode_frame(request.type, 2, encode_request(request));
    } else if (rank->stage == 2 && reads_) {
      rank->out = read_all_;
    } else {
      rank->done = true;
    }
  }

  const int ranks_;
  const bool reads_;
  const net::Security security_;
  std::string read_all_;
  size_t answer_bytes_ = 0;
};

enum class Reading { kNone, kPipelined, kAsClient };

class TorchScript final : public Script {
 public:
  TorchScript(int ranks, bool as_client, Reading reading)
      : ranks_(ranks), as_client_(as_client), reading_(reading) {
    for (int i = 0; i < ranks; ++i) {
      records_.push_back(encode(record_of(i, ranks)));
      gets_.push_back(encode_torch({TorchOp::kGet, {key_of(i)}}, TorchDialect::kOld));
      waits_.push_back(encode_torch({TorchOp::kWait, {key_of(i)}}, TorchDialect::kOld));
    }
  }
  void connected(Rank* rank) override {
    if (as_client_) {
      rank->out = encode_torch({TorchOp::kAdd, {"init/"}, 1}, TorchDialect::kOld);
    } else {
      arrive(rank);
    }
  }
  bool wants_second(const Rank& rank) const override {
    return as_client_ && rank.stage == kCounted && rank.second_fd < 0;
  }
  void second_open(Rank* rank) override { arrive(rank); }
  void drained(Rank* rank) override {
    if (rank->stage != kReading || reading_ != Reading::kPipelined || rank->next == ranks_) return;
    const int end = std::min(ranks_, rank->next + kGetsAtATime);
    for (; rank->next < end; ++rank->next) rank->out += gets_[static_cast<size_t>(rank->next)];
  }
  void heard(Rank* rank, const char* data, size_t bytes) override {
    while (bytes > 0) {
      if (rank->skip > 0) {
        const size_t piece = std::min(bytes, rank->skip);
        rank->skip -= piece;
        data += piece;
        bytes -= piece;
        if (rank->skip == 0) record_read(rank);
        continue;
      }
      const bool one_byte = rank->stage == kWaiting || rank->stage == kWaitingForRecord;
      const size_t wanted = one_byte ? 1 : sizeof(uint64_t);
      const size_t piece = std::min(bytes, wanted - rank->partial.size());
      rank->partial.append(data, piece);
      data += piece;
      bytes -= piece;
      if (rank->partial.size() < wanted) return;
      uint64_t number = 0;
      memcpy(&number, rank->partial.data(), wanted);
      rank->partial.clear();
      answered(rank, number);
    }
  }

 private:
  enum Stage { kBegin, kCounted, kAdding, kWaiting, kReading, kWaitingForRecord };

  static std::string key_of(int rank) { return "/join/record/" + std::to_string(rank); }

  void arrive(Rank* rank) {
    rank->stage = kAdding;
    rank->out = encode_torch(
        {TorchOp::kSet, {key_of(rank->index), records_[static_cast<size_t>(rank->index)]}},
        TorchDialect::kOld);
    rank->out += encode_torch({TorchOp::kAdd, {"/join/count"}, 1}, TorchDialect::kOld);
  }
  void answered(Rank* rank, uint64_t number) {
    switch (rank->stage) {
      case kBegin: rank->stage = kCounted; break;
      case kAdding:
        if (number == static_cast<uint64_t>(ranks_)) {
          rank->out = encode_torch({TorchOp::kSet, {"/join/all", "1"}}, TorchDialect::kOld);
        }
        rank->out += encode_torch({TorchOp::kWait, {"/join/all"}}, TorchDialect::kOld);
        rank->stage = kWaiting;
        break;
      case kWaiting:
        if (reading_ == Reading::kNone) {
          rank->done = true;
        } else if (reading_ == Reading::kPipelined) {
          rank->stage = kReading;
          drained(rank);
        } else {
          rank->stage = kWaitingForRecord;
          rank->out = waits_[0];
        }
        break;
      case kWaitingForRecord:
        rank->stage = kReading;
        rank->out = gets_[static_cast<size_t>(rank->expected)];
        break;
      default:
        if (number != records_[static_cast<size_t>(rank->expected)].size()) {
          fail("PyTorch answered another record");
        }
        rank->skip = number;
        break;
    }
  }
  void record_read(Rank* rank) {
    if (++rank->expected == ranks_) {
      rank->done = true;
    } else if (reading_ == Reading::kAsClient) {
      rank->stage = kWaitingForRecord;
      rank->out = waits_[static_cast<size_t>(rank->expected)];
    }
  }

  const int ranks_;
  const bool as_client_;
  const Reading reading_;
  std::vector<std::string> records_;
  std::vector<std::string> gets_;
  std::vector<std::string> waits_;
};

struct Outcome {
  double seconds = 0;
  double server_cpu_s = 0;
  int64_t sent_bytes = 0;
  int64_t received_bytes = 0;
  int64_t resident_bytes = 0;  ///< the server's growth while all are connected
  int connections = 0;
};

/// All ranks of one round.
class Round {
 public:
  Round(const ServerProcess& server, Script* script, int ranks)
      : server_(server),
        script_(*script),
        ranks_(static_cast<size_t>(ranks)),
        epoll_(epoll_create1(EPOLL_CLOEXEC)) {
    for (int i = 0; i < ranks; ++i) ranks_[static_cast<size_t>(i)].index = i;
  }
  ~Round() {
    const linger now{1, 0};  // leaves no port behind
    for (const Rank& rank : ranks_) {
      for (const int fd : {rank.fd, rank.second_fd}) {
        if (fd < 0) continue;
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
        close(fd);
      }
    }
    close(epoll_);
  }
  Round(const Round&) = delete;
  Round& operator=(const Round&) = delete;

  Outcome run() {
    const int64_t before = server_.resident_bytes();
    const double cpu_before = server_.cpu_s();
    const int64_t start = monotonic_ns();
    size_t next = 0;
    std::vector<epoll_event> events(1024);
    while (done_ < ranks_.size()) {
      for (; next < ranks_.size() && connecting_ < kConnecting; ++next) dial(&ranks_[next], false);
      const int count = epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), 30'000);
      if (count == 0 || monotonic_ns() - start > kRoundLimitMs * 1'000'000) {
        fail(format("after %.0f s only %zu of %zu ranks are done",
                    static_cast<double>(monotonic_ns() - start) / 1e9, done_, ranks_.size()));
      }
      for (int i = 0; i < count; ++i) handle(events[static_cast<size_t>(i)]);
    }
    outcome_.seconds = static_cast<double>(monotonic_ns() - start) / 1e9;
    outcome_.server_cpu_s = server_.cpu_s() - cpu_before;
    outcome_.resident_bytes = server_.resident_bytes() - before;
    return outcome_;
  }

 private:
  // An event's number: twice the rank, plus one for its second connection.
  void dial(Rank* rank, bool second) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    require(fd >= 0, "socket");
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (second ? rank->second_fd : rank->fd) = fd;
    ++connecting_;
    ++outcome_.connections;
    const auto* address = reinterpret_cast<const sockaddr*>(&server_.address());
    require(connect(fd, address, sizeof(sockaddr_in)) == 0 || errno == EINPROGRESS, "connect");
    epoll_event event{};
    event.events = EPOLLIN | EPOLLOUT | EPOLLET;
    event.data.u64 = static_cast<uint64_t>(rank->index) * 2 + (second ? 1 : 0);
    require(epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
  }

  void handle(const epoll_event& event) {
    Rank& rank = ranks_[event.data.u64 / 2];
    const bool second = event.data.u64 % 2 == 1;
    if ((event.events & (EPOLLERR | EPOLLHUP)) != 0) fail("the server dropped a connection");
    bool& connected = second ? rank.second_connected : rank.connected;
    if (!connected) {
      if ((event.events & EPOLLOUT) == 0) return;
      connected = true;
      if (second) --connecting_;
      if (second) {
        script_.second_open(&rank);
      } else {
        script_.connected(&rank);
      }
    }
    advance(&rank);
  }

  void advance(Rank* rank) {
    static char buffer[256 << 10];
    for (;;) {
      write_all(rank);
      if (rank->done) return;
      const ssize_t bytes = recv(rank->fd, buffer, sizeof buffer, 0);
      if (bytes < 0 && errno == EAGAIN) return;
      if (bytes <= 0) fail(format("the server closed the connection of rank %d", rank->index));
      outcome_.received_bytes += bytes;
      if (!std::exchange(rank->greeted, true)) --connecting_;
      script_.heard(rank, buffer, static_cast<size_t>(bytes));
      if (script_.wants_second(*rank)) dial(rank, true);
      if (rank->done) {
        ++done_;
        return;
      }
    }
  }

  void write_all(Rank* rank) {
    for (;;) {
      while (rank->sent < rank->out.size()) {
        const ssize_t bytes = send(rank->fd, rank->out.data() + rank->sent,
                                   rank->out.size() - rank->sent, MSG_NOSIGNAL);
        if (bytes < 0 && errno == EAGAIN) return;
        require(bytes >= 0, "send");
        rank->sent += static_cast<size_t>(bytes);
        outcome_.sent_bytes += bytes;
      }
      rank->out.clear();
      rank->sent = 0;
      script_.drained(rank);
      if (rank->out.empty()) return;
    }
  }

  const ServerProcess& server_;
  Script& script_;
  std::vector<Rank> ranks_;
  const int epoll_;
  int connecting_ = 0;
  size_t done_ = 0;
  Outcome outcome_;
};

// ---- kinds of rounds ----

struct Kind {
  std::string name;
  bool dt = true;
  int ranks = 0;
  int rounds = 0;
  bool as_client = false;
  Reading reading = Reading::kNone;
  std::vector<Outcome> outcomes = {};
  bool auth = false;

  double median_s() const {
    std::vector<double> seconds;
    for (const Outcome& outcome : outcomes) seconds.push_back(outcome.seconds);
    std::sort(seconds.begin(), seconds.end());
    const size_t half = seconds.size() / 2;
    return seconds.size() % 2 == 1 ? seconds[half] : (seconds[half - 1] + seconds[half]) / 2;
  }
};

struct Options {
  std::string dt;
  std::string python;
  std::string torch_rank;
  int ranks = 4096;
  int rounds = 7;
  int read_ranks = 4096;
  int read_rounds = 3;
  int client_reads = 512;
  int torch = 1;
  int auth = 1;
};

net::Security security_of(const Kind& kind) {
  if (!kind.auth) return {};
  Result<net::Token> token = net::Token::random();
  if (!token.ok()) fail(token.status().message());
  return {net::SecurityMode::kAuth, std::move(token).value()};
}

Outcome run_round(const Options& options, const Kind& kind) {
  const net::Security security = security_of(kind);
  const ServerProcess server(
      kind.dt ? std::vector<std::string>{options.dt, "store", "serve", "--job-id", "load",
                                         "--world-size", std::to_string(kind.ranks)}
              : std::vector<std::string>{options.python, options.torch_rank, "serve"},
      kind.auth ? security.token->text() : std::string());
  std::unique_ptr<Script> script;
  if (kind.dt) {
    script = std::make_unique<DtScript>(kind.ranks, kind.reading != Reading::kNone, security);
  } else {
    script = std::make_unique<TorchScript>(kind.ranks, kind.as_client, kind.reading);
  }
  Round round(server, script.get(), kind.ranks);
  return round.run();
}

void print_kind(const Kind& kind) {
  double least = 1e300;
  double most = 0;
  double cpu_s = 0;
  for (const Outcome& outcome : kind.outcomes) {
    least = std::min(least, outcome.seconds);
    most = std::max(most, outcome.seconds);
    cpu_s += outcome.server_cpu_s / static_cast<double>(kind.outcomes.size());
  }
  const Outcome& last = kind.outcomes.back();
  printf("%-34s %6d %6zu %9.3f %9.3f %9.3f %8.2f %10.0f %10.0f %8.1f\n", kind.name.c_str(),
         kind.ranks, kind.outcomes.size(), kind.median_s(), least, most, cpu_s,
         static_cast<double>(last.sent_bytes) / kind.ranks,
         static_cast<double>(last.received_bytes) / kind.ranks,
         static_cast<double>(last.resident_bytes) / 1024.0 / last.connections);
}

void print_ratio(const Kind& torch, const Kind& dt) {
  if (torch.outcomes.empty() || dt.outcomes.empty()) return;
  printf("%s takes %.1f times as long as %s (%d ranks)\n", torch.name.c_str(),
         torch.median_s() / dt.median_s(), dt.name.c_str(), dt.ranks);
}

void raise_open_files(int ranks) {
  rlimit limit{};
  require(getrlimit(RLIMIT_NOFILE, &limit) == 0, "getrlimit");
  limit.rlim_cur = limit.rlim_max;
  require(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
  const rlim_t needed = 2 * static_cast<rlim_t>(ranks) + 64;
  if (limit.rlim_max < needed) {
    fail(format("%d ranks need %llu open files, the hard limit is %llu; raise it (ulimit -Hn)",
                ranks, static_cast<unsigned long long>(needed),
                static_cast<unsigned long long>(limit.rlim_max)));
  }
}

Options parse(int argc, char** argv) {
  if (argc < 4) fail("join_load DT PYTHON TORCH_RANK_PY [OPTIONS], see its source");
  Options options;
  options.dt = argv[1];
  options.python = argv[2];
  options.torch_rank = argv[3];
  const std::pair<const char*, int*> numbers[] = {{"--ranks", &options.ranks},
                                                  {"--rounds", &options.rounds},
                                                  {"--read-ranks", &options.read_ranks},
                                                  {"--read-rounds", &options.read_rounds},
                                                  {"--client-reads", &options.client_reads},
                                                  {"--torch", &options.torch},
                                                  {"--auth", &options.auth}};
  for (int i = 4; i < argc; i += 2) {
    const auto* found = std::find_if(std::begin(numbers), std::end(numbers), [&](const auto& each) {
      return strcmp(argv[i], each.first) == 0;
    });
    if (found == std::end(numbers) || i + 1 == argc) fail(std::string("what is ") + argv[i] + "?");
    *found->second = atoi(argv[i + 1]);
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  signal(SIGPIPE, SIG_IGN);
  raise_open_files(std::max({options.ranks, options.read_ranks, options.client_reads}));
  std::vector<Kind> kinds = {
      {"dt", true, options.ranks, options.rounds, false, Reading::kNone},
      {"PyTorch", false, options.ranks, options.rounds, false, Reading::kNone},
      {"PyTorch's client", false, options.ranks, options.rounds, true, Reading::kNone},
  };
  if (options.read_ranks > 0) {
    kinds.push_back({"dt, all records", true, options.read_ranks, options.read_rounds, false,
                     Reading::kPipelined});
    kinds.push_back({"PyTorch, all records", false, options.read_ranks, options.read_rounds, false,
                     Reading::kPipelined});
  }
  if (options.client_reads > 0) {
    kinds.push_back({"dt, all records, fewer ranks", true, options.client_reads,
                     options.read_rounds, false, Reading::kPipelined});
    kinds.push_back({"PyTorch's client, all records", false, options.client_reads,
                     options.read_rounds, true, Reading::kAsClient});
  }
  const size_t pairs = kinds.size();
  if (options.auth != 0) {
    kinds.push_back({"dt, HMAC", true, options.ranks, options.rounds, false, Reading::kNone});
    kinds.back().auth = true;
  }
  if (options.torch == 0) {
    for (Kind& kind : kinds) kind.rounds = kind.dt ? kind.rounds : 0;
  }
  int rounds = 0;
  for (const Kind& kind : kinds) rounds = std::max(rounds, kind.rounds);
  for (int round = 0; round < rounds; ++round) {
    for (Kind& kind : kinds) {
      if (round >= kind.rounds) continue;
      kind.outcomes.push_back(run_round(options, kind));
      fprintf(stderr, "round %d: %s: %.3f s\n", round + 1, kind.name.c_str(),
              kind.outcomes.back().seconds);
    }
  }
  utsname system{};
  uname(&system);
  printf("%u cores, Linux %s, g++ %s; one record has %zu bytes\n",
         std::thread::hardware_concurrency(), system.release, __VERSION__,
         encode(record_of(0, options.ranks)).size());
  printf("%-34s %6s %6s %9s %9s %9s %8s %10s %10s %8s\n", "", "ranks", "rounds", "median s",
         "min s", "max s", "cpu s", "sent B", "received B", "KiB");
  for (const Kind& kind : kinds) {
    if (!kind.outcomes.empty()) print_kind(kind);
  }
  printf(
      "cpu s: of the server; sent, received: by a rank, on average; KiB: of the server's memory "
      "for each connection\n");
  print_ratio(kinds[1], kinds[0]);
  print_ratio(kinds[2], kinds[0]);
  for (size_t i = 3; i + 1 < pairs; i += 2) print_ratio(kinds[i + 1], kinds[i]);
  if (options.auth == 0) return 0;
  print_ratio(kinds[1], kinds.back());
  print_ratio(kinds[2], kinds.back());
  return 0;
}
