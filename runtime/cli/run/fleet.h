// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/guarded.h"
#include "base/log.h"
#include "base/status.h"
#include "base/wait.h"
#include "cli/run/fd.h"
#include "cli/run/fleet_words.h"
#include "cli/run/lost_ranks.h"
#include "cli/run/node_place.h"
#include "cli/run/outcome.h"
#include "net/loop.h"
#include "store/client.h"
#include "store/messages.h"
#include "store/server.h"

namespace dt::cli {

inline constexpr int kMaxLocalRanks = 4096;  // on one host; far above its cores is a typing mistake

struct FleetOptions {
  NodePlace node;
  int local_size = 1;  ///< ranks that this node starts
  /// Listens for the parameter servers of this node, and says their addresses; null: it has none.
  /// Called once, when node 0 has been found.
  std::function<Result<std::vector<std::string>>(const Wait& wait)> open_servers;
  int max_restarts = 0;        ///< node 0's counts
  std::string host_name;       ///< for texts
  int64_t pid = 0;             ///< likewise
  std::string job_id;          ///< of the job that the agents run; node 0's counts
  std::string bind_address;    ///< where node 0 listens; empty: the rendezvous address
  int64_t timeout_ms = 0;      ///< for the meeting
  int64_t remind_ms = 15'000;  ///< how often node 0 says whom it waits for
  /// From a failure to the report of every node; then it is told without the missing ones.
  int64_t settle_timeout_ms = 0;
  net::Security security;            ///< equal on all nodes
  LoggerPtr logger;                  ///< may be null
  int64_t heartbeat_ms = 0;          ///< signs of life between the agents; node 0's counts; 0: none
  int64_t heartbeat_timeout_ms = 0;  ///< after such a silence a node counts as lost; likewise

  LostRanks* lost_ranks = nullptr;  ///< hears of those of all nodes; may be null

  bool others_go_on = false;  ///< after the failure of a rank; node 0's counts
  // Of agents that may go on with another attempt when a node is lost.
  bool elastic = false;
  bool allow_minority = false;
  int restarts = 0;  ///< after failures, so far; else the attempt says it
  /// Node 0 serves there now, and waits for the others. Not ok ends the meeting.
  std::function<Status(const std::string& host, uint16_t port)> on_served;
  /// This agent joins now: from here on the attempt may begin without its notice.
  std::function<void()> on_join;
  /// Node 0: all have joined, and the attempt begins. On the loop's thread, before any agent hears
  /// of it; not after meet() has failed.
  std::function<void()> on_verdict;
};

/// One node as it introduced itself.
struct NodeRecord {
  std::string host;
  int64_t pid = 0;
  int local_size = 0;
  int first_rank = 0;
  std::vector<std::string> servers;  ///< addresses of its parameter servers
};

/// What has happened on the other nodes since the last look.
struct FleetNews {
  bool failed = false;  ///< a rank of this attempt
  /// Node 0: ranks of other nodes that have ended, and how.
  std::vector<std::pair<store::Member, std::string>> ended;
  bool lost = false;  ///< an agent: no restart of this attempt
  /// Others may go on without this node: its ranks must not live for long.
  bool fence = false;
  bool regroup = false;        ///< the attempt shall end, so that the next one has more nodes
  bool ranks_ended = false;    ///< those of all nodes, where there are parameter servers
  bool server_failed = false;  ///< for good: the job ends
  int stop_signal = 0;         ///< came to an agent; 0 none
  bool kill = false;           ///< and once more: at once
};

/// The agents of all nodes of one job, as one of them sees them.
///
/// Node 0 serves a store at the rendezvous address. Each agent joins it as the "rank" that its node
/// rank is, so that the store notices the end of an agent, and has a second connection for keys,
/// which outlives the failure of the job. Signs of life go over both: nothing here waits for a node
/// 0 that is silent. The loop's thread gives them, which no output and no rank holds up. News come
/// through the store's failure messages: scope "end/ATTEMPT" for a failed rank, "gone/ATTEMPT" for
/// each rank that has ended, with how as the message and for node 0 alone, "stop/SIGNAL/COUNT" for
/// a signal to an agent, "heed/ATTEMPT" when a rank of it ends where it is asked to stop,
/// "silent/ATTEMPT/RANK" for a rank that is taken for lost, "ended/ATTEMPT/NODE" when the ranks of
/// a node have ended, "server/ATTEMPT" when a parameter server has failed for good,
/// "regroup/ATTEMPT" to make room for a node.
///
/// Used by the agent's main thread, except where a comment says otherwise.
class Fleet {
 public:
  /// Returns when all agents are there, or why not. `loop` is borrowed.
  static Result<std::unique_ptr<Fleet>> meet(net::Loop* loop, const FleetOptions& options,
                                             const Wait& wait);
  ~Fleet();
  Fleet(const Fleet&) = delete;
  Fleet& operator=(const Fleet&) = delete;

  int node_rank() const { return options_.node.node_rank; }
  const std::vector<NodeRecord>& nodes() const { return nodes_; }
  const NodeRecord& own() const { return nodes_[static_cast<size_t>(node_rank())]; }
  int world_size() const { return nodes_.back().first_rank + nodes_.back().local_size; }
  /// Node 0's job id and restarts.
  const std::string& job_id() const { return job_id_; }
  int max_restarts() const { return max_restarts_; }
  /// Where node 0 serves, for the store of the job: to bind, and as the other nodes reach it.
  std::string bind_address() const;
  std::string reachable_host() const;

  // One attempt, in this order.
  /// Instead of the next two, on a node that will start no ranks in it.
  void begin(int attempt);
  /// Node 0 only.
  Status publish(const Endpoints& endpoints);
  Result<Endpoints> await_endpoints(int attempt, const Wait& wait);
  /// Readable when take_news() or outcome() has something new.
  int wake_fd() const { return wake_.get(); }
  FleetNews take_news();
  /// A rank of this node has failed, or could not be started (-1).
  void tell_failure(int attempt, int rank);
  /// Tells node 0 that a rank of this node has ended. `how`: "killed by SIGKILL after 0.3 s". Does
  /// not wait.
  void tell_end(int attempt, const store::Member& rank, const std::string& how);
  /// Node 0: a rank ends where the store asks it to stop. Any thread; does not wait.
  void tell_heed(int attempt);
  /// Node 0: the store took a rank for lost because it was silent. Any thread; does not wait.
  void tell_silent(int attempt, int rank);
  /// Whether a heed was told.
  bool heeded(int attempt) const;
  /// A signal came to this agent for the `count`th time. Before it is passed on: what fails from
  /// then on is its effect.
  void tell_stop(int attempt, int signal, int count);
  /// All ranks of this node have ended, or were never started: its parameter servers, and those of
  /// the others, may end when all nodes say so.
  void tell_ranks_ended(int attempt);
  /// A parameter server of this node has failed for good, or was not started.
  void tell_server_failure(int attempt);
  /// Node 0: this attempt shall end well before its time, see FleetNews. Any thread. False: the
  /// store did not answer in time, so the others may not know; to be called again.
  [[nodiscard]] bool tell_regroup(int attempt);
  /// Nodes whose agent is gone, or does not answer; 0 where this one knows no more of node 0.
  std::set<int> lost() const;
  /// One of them may live behind a broken network.
  bool lost_in_silence() const;
  /// All ranks of this node have ended: agrees with the other nodes, in the background.
  /// `first_told` as in OutcomeFacts, asked on node 0 only. SYSTEM: there is no thread for it.
  Status settle(int attempt, NodeEnds mine, FirstTold first_told);
  /// What all nodes say, once they do.
  std::optional<Outcome> outcome();

  /// Says goodbye to the other agents.
  void leave();

 private:
  struct State {
    FleetNews news;           // not yet taken
    int attempt = -1;         // begun here
    int failed_attempt = -1;  // the last one in which another node had a failure
    int heeding_attempt = -1;
    int server_attempt = -1;
    int ended_attempt = -1;  // of which `ended` holds nodes
    std::set<int> ended;     // nodes whose ranks have
    int regroup_attempt = -1;
    std::set<int> lost;
    std::set<int> silent;  // of them: their connection did not end
    bool lost_in_silence = false;
    bool disowned = false;  // the others have lost this node
    Deadline settle_until = Deadline::never();
    std::optional<Outcome> outcome;
    bool closing = false;
  };

  Fleet(net::Loop* loop, FleetOptions options) : loop_(loop), options_(std::move(options)) {}

  // The meeting.
  Status serve(const Wait& wait);
  Status check_in(const Wait& wait);
  Status refused(const std::string& why) const;
  Status join(const Wait& wait);
  Status read_records(const Wait& wait);
  Status check_servers() const;
  void remind(Event& joined) const;
  /// Node 0 says "0.0.0.0" where it listens everywhere, which means nothing here: then the host at
  /// which this agent has reached it.
  std::string host_seen_here(const std::string& told) const;
  Status missing_nodes(const Status& joined, const Wait& wait) const;
  Result<std::shared_ptr<store::Client>> connect(int rank, const Wait& wait) const;
  std::string address() const;
  std::string self() const;
  // The life of an attempt. hear() runs on the loop's thread, the rest on the settling one.
  void hear(const store::Failure& failure);
  bool hear_end(const store::Failure& failure);
  void report_nonsense(const std::string& text) const;
  void wake();
  void expect_end(State& state, bool all = false) const;
  void note_ranks_ended(State& state, int attempt, int node) const;
  void look_for_ranks(State& state) const;
  void note_lost(State& state, const store::Failure& failure) const;
  Outcome agree(int attempt, const NodeEnds& mine, const FirstTold& first_told);
  Outcome gather(int attempt, const NodeEnds& mine, const FirstTold& first_told);
  void collect(int attempt, std::map<int, NodeEnds>* told);
  std::string lost_text(int node) const;
  std::string own_text() const;
  std::string cut_off_text() const;
  std::string disowned_text() const;
  std::string silent_text(int node) const;

  net::Loop* const loop_;
  const FleetOptions options_;
  uint16_t port_ = 0;  // of node 0's store
  std::vector<NodeRecord> nodes_;
  std::string job_id_;
  int max_restarts_ = 0;
  Fd wake_;
  Guarded<State> state_;
  std::unique_ptr<store::Server> server_;  // node 0's
  std::shared_ptr<store::Client> keys_;
  std::shared_ptr<store::Client> member_;
  std::thread settling_;
};

/// The address to listen on so that `host` leads here. The name of a pod may appear later than the
/// pod: tries until the deadline.
Result<std::string> await_bind_host(const std::string& host, const LoggerPtr& logger,
                                    const Wait& wait);

}  // namespace dt::cli
