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
//   --relayed N       ranks of the kind in which a relay for each 8 of them brings them over one
//                     connection, with --auth also behind a handshake; 0: none (0)
//   --end N           after each round of dt's N of the ranks end at once, as if they were killed:
//                     what it costs the server to tell each of the others of each of them
//
// What a rank does, from the first connect of all to the last answer of all:
//   dt         connect, hello, join; the verdict comes when all have joined
//   dt, HMAC   the same behind a handshake in which both sides prove that they have the token
//   dt, relays    a relay connects, opens a channel for each rank and says its hello there, all in
//              one piece; then the joins of all, in one piece
//   PyTorch    connect, set its record and add 1 to a counter (in one piece), wait for a key that
//              the last one sets
//   PyTorch's client   the same as release 1.13 does it: before that it adds to init/ and opens its
//              second connection
//   least server       connect, one question and one answer as long as dt's, to a bare loop
// and with all records:
//   dt         one multi_get of all records of the join
//   PyTorch    a get of each record, all sent without waiting for answers
//   PyTorch's client   for each record wait, then get, as TCPStore.get() does it
// A record is as long in both.
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/wait.h"
#include "join_scripts.h"
#include "least_server.h"
#include "server.h"
#include "store/protocol.h"

namespace {

using namespace dt;
using namespace dt::load;

// At a time: the servers' queues of connections hold that many, and dt's store lets no more than
// some thousand be there that have not said who they are.
constexpr int kConnecting = 1024;
constexpr char kLeastMode[] = "--serve-least";
constexpr int kLeastQuestionBytes = 591;  // as many as a rank of dt sends and receives
constexpr int kLeastAnswerBytes = 465;

struct Outcome {
  double seconds = 0;
  double server_cpu_s = 0;
  double own_cpu_s = 0;  ///< of this process, which plays the ranks
  int64_t sent_bytes = 0;
  int64_t received_bytes = 0;
  int64_t resident_bytes = 0;  ///< the server's growth while all are connected
  double end_s = 0;            ///< until the ranks that are left know of all that have ended
  double end_cpu_s = 0;        ///< of the server, over that
  int connections = 0;
};

/// All ranks of one round.
class Round {
 public:
  Round(ServerProcess& server, Script* script, int ranks)
      : server_(server),
        script_(*script),
        ranks_(static_cast<size_t>(ranks)),
        epoll_(epoll_create1(EPOLL_CLOEXEC)) {
    for (int i = 0; i < ranks; ++i) ranks_[static_cast<size_t>(i)].index = i;
  }
  ~Round() {
    server_.end();
    for (Rank& rank : ranks_) reset(&rank);
    close(epoll_);
  }
  Round(const Round&) = delete;
  Round& operator=(const Round&) = delete;

  void run() {
    const int64_t before = server_.resident_bytes();
    const double cpu_before = server_.cpu_s();
    const double own_before = own_cpu_s();
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
    outcome_.own_cpu_s = own_cpu_s() - own_before;
    outcome_.resident_bytes = server_.resident_bytes() - before;
  }

  /// The first `dead` ranks end at once; until each of the others was told of each of them.
  void end_ranks(size_t dead) {
    const double cpu_before = server_.cpu_s();
    const int64_t start = monotonic_ns();
    for (size_t i = 0; i < dead; ++i) reset(&ranks_[i]);
    std::vector<store::FrameParser> parsers(ranks_.size(),
                                            store::FrameParser(store::kMaxPayloadBytes));
    std::vector<size_t> told(ranks_.size());
    std::vector<epoll_event> events(1024);
    for (size_t informed = dead; informed < ranks_.size();) {
      const int count = epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), 30'000);
      if (count == 0 || monotonic_ns() - start > kRoundLimitMs * 1'000'000) {
        fail(format("only %zu of %zu ranks were told of all deaths", informed - dead,
                    ranks_.size() - dead));
      }
      for (int i = 0; i < count; ++i) {
        const size_t index = events[static_cast<size_t>(i)].data.u64 / 2;
        const size_t before = told[index];
        hear_of_deaths(ranks_[index], &parsers[index], &told[index]);
        if (before < dead && told[index] >= dead) ++informed;
      }
    }
    outcome_.end_s = static_cast<double>(monotonic_ns() - start) / 1e9;
    outcome_.end_cpu_s = server_.cpu_s() - cpu_before;
  }
  const Outcome& outcome() const { return outcome_; }

 private:
  static void reset(Rank* rank) {
    const linger now{1, 0};  // leaves no port behind
    for (int* fd : {&rank->fd, &rank->second_fd}) {
      if (*fd < 0) continue;
      setsockopt(*fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
      close(std::exchange(*fd, -1));
    }
  }

  static void hear_of_deaths(const Rank& rank, store::FrameParser* parser, size_t* told) {
    static char buffer[256 << 10];
    for (;;) {
      const ssize_t bytes = recv(rank.fd, buffer, sizeof buffer, 0);
      if (bytes < 0 && errno == EAGAIN) return;
      if (bytes <= 0) fail(format("the server closed the connection of rank %d", rank.index));
      parser->feed(buffer, static_cast<size_t>(bytes));
      store::Frame frame;
      while (parser->next(&frame)) *told += frame.type == store::FrameType::kFailure ? 1 : 0;
    }
  }

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
        if (!script_.greets()) {
          rank.greeted = true;
          --connecting_;
        }
      }
    }
    advance(&rank, (event.events & EPOLLIN) != 0);
  }

  /// An event is told once, and behind the last of what came: what comes later has its own.
  void advance(Rank* rank, bool readable) {
    static char buffer[256 << 10];
    for (;;) {
      write_all(rank);
      if (rank->done || !readable) return;
      const ssize_t bytes = recv(rank->fd, buffer, sizeof buffer, 0);
      if (bytes < 0 && errno == EAGAIN) return;
      if (bytes <= 0) fail(format("the server closed the connection of rank %d", rank->index));
      outcome_.received_bytes += bytes;
      // All that was there, unless it filled the buffer.
      readable = static_cast<size_t>(bytes) == sizeof buffer;
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

  ServerProcess& server_;
  Script& script_;
  std::vector<Rank> ranks_;
  const int epoll_;
  int connecting_ = 0;
  size_t done_ = 0;
  Outcome outcome_;
};

// ---- kinds of rounds ----

enum class Store { kDt, kTorch, kLeast };

struct Kind {
  std::string name;
  Store store = Store::kDt;
  int ranks = 0;
  int rounds = 0;
  bool as_client = false;
  Reading reading = Reading::kNone;
  std::vector<Outcome> outcomes = {};
  bool auth = false;
  bool relayed = false;

  /// Of one round, on average.
  double server_cpu_s() const {
    double sum = 0;
    for (const Outcome& outcome : outcomes) sum += outcome.server_cpu_s;
    return sum / static_cast<double>(outcomes.size());
  }
  /// Those that the process plays: ranks, or relays.
  int players() const { return relayed ? ranks / kRelayedRanks : ranks; }
  double median_s() const {
    std::vector<double> seconds;
    for (const Outcome& outcome : outcomes) seconds.push_back(outcome.seconds);
    return median(std::move(seconds));
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
  int end = 0;
  int relayed = 0;
};

net::Security security_of(const Kind& kind) {
  if (!kind.auth) return {};
  Result<net::Token> token = net::Token::random();
  if (!token.ok()) fail(token.status().message());
  return {net::SecurityMode::kAuth, std::move(token).value()};
}

std::vector<std::string> command_of(const Options& options, const Kind& kind) {
  const std::string ranks = std::to_string(kind.ranks);
  switch (kind.store) {
    case Store::kDt:
      return {options.dt, "store", "serve", "--job-id", "load", "--world-size", ranks};
    case Store::kTorch: return {options.python, options.torch_rank, "serve"};
    case Store::kLeast: break;
  }
  return {"/proc/self/exe", kLeastMode, ranks};
}

std::unique_ptr<Script> script_of(const Kind& kind, const net::Security& security) {
  switch (kind.store) {
    case Store::kDt:
      if (kind.relayed) return relay_script(kind.ranks, security);
      return dt_script(kind.ranks, kind.reading != Reading::kNone, security);
    case Store::kTorch: return torch_script(kind.ranks, kind.as_client, kind.reading);
    case Store::kLeast: break;
  }
  return least_script(kLeastQuestionBytes, kLeastAnswerBytes);
}

Outcome run_round(const Options& options, const Kind& kind) {
  const net::Security security = security_of(kind);
  // One way or the other, whatever the user's own files say.
  setenv("DT_SECURITY_MODE", kind.auth ? "auth" : "none", 1);
  unsetenv("DT_TOKEN_FILE");
  unsetenv("DT_TOKEN");
  if (kind.auth) setenv("DT_TOKEN", security.token->text().c_str(), 1);
  ServerProcess server(command_of(options, kind), 0);
  const std::unique_ptr<Script> script = script_of(kind, security);
  Round round(server, script.get(), kind.players());
  round.run();
  if (options.end > 0 && kind.store == Store::kDt && !kind.relayed)
    round.end_ranks(static_cast<size_t>(std::min(options.end, kind.ranks)));
  return round.outcome();
}

void print_kind(const Kind& kind) {
  double least = 1e300;
  double most = 0;
  double own_s = 0;
  for (const Outcome& outcome : kind.outcomes) {
    least = std::min(least, outcome.seconds);
    most = std::max(most, outcome.seconds);
    own_s += outcome.own_cpu_s / static_cast<double>(kind.outcomes.size());
  }
  const Outcome& last = kind.outcomes.back();
  printf("%-34s %6d %6zu %9.3f %9.3f %9.3f %8.2f %8.2f %10.0f %10.0f %8.1f\n", kind.name.c_str(),
         kind.ranks, kind.outcomes.size(), kind.median_s(), least, most, kind.server_cpu_s(), own_s,
         static_cast<double>(last.sent_bytes) / kind.ranks,
         static_cast<double>(last.received_bytes) / kind.ranks,
         static_cast<double>(last.resident_bytes) / 1024.0 / last.connections);
}

void print_end(const Kind& kind, int dead) {
  std::vector<double> seconds;
  std::vector<double> cpu_s;
  for (const Outcome& outcome : kind.outcomes) {
    seconds.push_back(outcome.end_s);
    cpu_s.push_back(outcome.end_cpu_s);
  }
  if (seconds.empty() || kind.store != Store::kDt || kind.relayed) return;
  const auto [least, most] = std::minmax_element(seconds.begin(), seconds.end());
  printf(
      "%s: %d of %d ranks end at once, the others know after %.3f s (%.3f to %.3f), cpu s %.2f\n",
      kind.name.c_str(), dead, kind.ranks, median(seconds), *least, *most, median(cpu_s));
}

void print_relayed(const Kind& kind) {
  if (kind.outcomes.empty()) return;
  const Outcome& last = kind.outcomes.back();
  constexpr double kMiB = 1 << 20;
  printf(
      "%s: %d ranks over %d connections; the server has grown by %.1f MiB (%.1f KiB a rank), "
      "received %.1f MB and sent %.1f MB\n",
      kind.name.c_str(), kind.ranks, last.connections,
      static_cast<double>(last.resident_bytes) / kMiB,
      static_cast<double>(last.resident_bytes) / 1024.0 / kind.ranks,
      static_cast<double>(last.sent_bytes) / 1e6, static_cast<double>(last.received_bytes) / 1e6);
}

void print_ratio(const Kind& torch, const Kind& dt) {
  if (torch.outcomes.empty() || dt.outcomes.empty()) return;
  printf("%s takes %.1f times as long as %s (%d ranks), and %.1f times the processor time\n",
         torch.name.c_str(), torch.median_s() / dt.median_s(), dt.name.c_str(), dt.ranks,
         torch.server_cpu_s() / dt.server_cpu_s());
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
  parse_numbers(argc, argv, 4,
                {{"--ranks", &options.ranks},
                 {"--rounds", &options.rounds},
                 {"--read-ranks", &options.read_ranks},
                 {"--read-rounds", &options.read_rounds},
                 {"--client-reads", &options.client_reads},
                 {"--torch", &options.torch},
                 {"--auth", &options.auth},
                 {"--end", &options.end},
                 {"--relayed", &options.relayed}});
  if (options.relayed % kRelayedRanks != 0) {
    fail(format("--relayed %d: %d ranks to a relay", options.relayed, kRelayedRanks));
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && strcmp(argv[1], kLeastMode) == 0) {
    raise_open_files(atoi(argv[2]));
    return serve_least(atoi(argv[2]), kLeastQuestionBytes, kLeastAnswerBytes);
  }
  const Options options = parse(argc, argv);
  signal(SIGPIPE, SIG_IGN);
  raise_open_files(std::max(
      {options.ranks, options.read_ranks, options.client_reads, options.relayed / kRelayedRanks}));
  std::vector<Kind> kinds = {
      {"dt", Store::kDt, options.ranks, options.rounds, false, Reading::kNone},
      {"PyTorch", Store::kTorch, options.ranks, options.rounds, false, Reading::kNone},
      {"PyTorch's client", Store::kTorch, options.ranks, options.rounds, true, Reading::kNone},
  };
  if (options.read_ranks > 0) {
    kinds.push_back({"dt, all records", Store::kDt, options.read_ranks, options.read_rounds, false,
                     Reading::kPipelined});
    kinds.push_back({"PyTorch, all records", Store::kTorch, options.read_ranks, options.read_rounds,
                     false, Reading::kPipelined});
  }
  if (options.client_reads > 0) {
    kinds.push_back({"dt, all records, fewer ranks", Store::kDt, options.client_reads,
                     options.read_rounds, false, Reading::kPipelined});
    kinds.push_back({"PyTorch's client, all records", Store::kTorch, options.client_reads,
                     options.read_rounds, true, Reading::kAsClient});
  }
  const size_t pairs = kinds.size();
  if (options.auth != 0) {
    kinds.push_back({"dt, HMAC", Store::kDt, options.ranks, options.rounds, false, Reading::kNone});
    kinds.back().auth = true;
  }
  const size_t least = kinds.size();
  kinds.push_back({"least server", Store::kLeast, options.ranks, options.rounds});
  for (const bool auth : {false, true}) {
    if (options.relayed == 0 || (auth && options.auth == 0)) continue;
    kinds.push_back({auth ? "dt, relays, HMAC" : "dt, relays", Store::kDt, options.relayed,
                     options.rounds, false, Reading::kNone});
    kinds.back().auth = auth;
    kinds.back().relayed = true;
  }
  if (options.torch == 0) {
    for (Kind& kind : kinds) kind.rounds = kind.store == Store::kTorch ? 0 : kind.rounds;
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
         store::encode(record_of(0, options.ranks)).size());
  printf("%-34s %6s %6s %9s %9s %9s %8s %8s %10s %10s %8s\n", "", "ranks", "rounds", "median s",
         "min s", "max s", "cpu s", "own s", "sent B", "received B", "KiB");
  for (const Kind& kind : kinds) {
    if (!kind.outcomes.empty()) print_kind(kind);
  }
  printf(
      "cpu s: of the server; own s: of the process that plays the ranks; sent, received: by a "
      "rank, on average; KiB: of the server's memory "
      "for each connection\n");
  for (const Kind& kind : kinds) {
    if (kind.relayed) print_relayed(kind);
    if (options.end > 0) print_end(kind, options.end);
  }
  print_ratio(kinds[1], kinds[0]);
  print_ratio(kinds[2], kinds[0]);
  for (size_t i = 3; i + 1 < pairs; i += 2) print_ratio(kinds[i + 1], kinds[i]);
  print_ratio(kinds[1], kinds[least]);
  if (options.auth == 0) return 0;
  print_ratio(kinds[1], kinds[pairs]);
  print_ratio(kinds[2], kinds[pairs]);
  return 0;
}
