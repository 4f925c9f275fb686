// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "store/keyspace.h"
#include "store/messages.h"

namespace dt::store {

/// CONFIG for what `member` brought to the join.
Status refusal(const Member& member, std::string message);
/// Whether the rank is one of a job of the hello's own world size; a tool (-1) is in none.
Status check_rank(const Hello& hello);

/// The operation of a refusal by a store whose attempt is older than the one refused, or in which
/// the rank has been already: a newer store may follow at its address.
inline constexpr char kAttemptOver[] = "join of an attempt that is over";
inline constexpr char kRankOver[] = "join of a rank that is over";

/// How a rank came to be lost.
struct Ending {
  std::string what;       ///< follows its name: "closed its connection ..."
  std::string operation;  ///< the last one that it told of; empty: none
  int64_t sequence = -1;
};

/// Ok, or CONFIG with every key whose value is not the same in all records. By rank.
Status compare_configs(const std::vector<JoinRecord>& records);

/// Ok, or CONFIG where a rank cannot be reached by all ranks of other hosts: it listens nowhere, at
/// a loopback address, or at one that another host has too. Says what interfaces the hosts have.
/// Only where there is more than one host. By rank.
Status compare_addresses(const std::vector<JoinRecord>& records);

/// Where a rank lives. Hosts are told apart by host_id.
struct Placement {
  int32_t node_rank = 0;
  int32_t local_rank = 0;
};

/// records[i] is rank i. Hosts are numbered by their lowest rank and local ranks by rank, unless
/// the launcher's hints of all ranks fit together: then they win, because programs choose their
/// device by the launcher's local rank.
std::vector<Placement> place_ranks(const std::vector<JoinRecord>& records);

struct JoinSetup {
  std::string job_id;
  int32_t attempt = 0;
  int32_t world_size = 1;
  uint64_t session = 1;
  int64_t timeout_ms = -1;    ///< after the first join, whatever the joiners allow; -1 none
  bool several_jobs = false;  ///< another table may follow once this one is_over()
  bool any_job = false;       ///< a higher attempt may follow at any time, at the same store
  int64_t warn_ms = 0;        ///< after the first join, see late(); 0: never
};

/// Who belongs to the job: from hello through the join and the verdict to goodbye or death.
/// Pure state, as Keyspace. A rank is
///   connected (hello) -> joining -> member (verdict) -> left (goodbye) or dead.
/// Before the verdict, a lost connection frees the slot. A failed join is final for the attempt: a
/// late rank is told at once what the others were told.
class JoinTable {
 public:
  explicit JoinTable(JoinSetup setup) : setup_(std::move(setup)) {}

  /// Ok, or why a process that says this is none of this job's.
  Status check_identity(const Hello& hello) const;
  /// Checks a hello and, for a rank, takes its slot. `superseded` is set when the same process had
  /// it on an older connection, which the caller then closes without further ado.
  Status admit(const Hello& hello, uint64_t client, std::optional<uint64_t>* superseded);

  void join(Ticket ticket, JoinRecord record, Patience patience, int64_t now_ns, Answers* answers);
  /// True: a member has left by it.
  bool goodbye(Ticket ticket, Patience patience, int64_t now_ns, Answers* answers);
  /// The end of this connection is expected from now on (it aborted the job).
  void leave(uint64_t client, Answers* answers);
  /// The requester gave up waiting.
  void cancel(Ticket ticket);
  /// The connection is gone, or silent for too long. A Failure when that is a death after the
  /// verdict, for all to know: "rank 3 (hostB pid 4242) " and `what`.
  std::optional<Failure> lost(uint64_t client, const Ending& ending, Answers* answers);

  /// The process of this rank has ended, as its launcher saw, and none will take its place: before
  /// the verdict this fails the join. `how` follows "rank 3 (hostB pid 4242) ". Ignored when
  /// another process is connected as this rank: one that a wrapper left behind.
  void process_ended(const Member& rank, const std::string& how, Answers* answers);
  /// The first of them, for the table of the next job. Ok: none.
  const Status& first_ended() const { return first_ended_; }
  void set_first_ended(const Status& ended) { first_ended_ = ended; }

  /// `by` go on without `gone`, whose deaths are no matter at their goodbyes.
  void forgive(const std::vector<int32_t>& by, const std::vector<int32_t>& gone);

  /// All that are joining get `status`, and whoever joins later.
  void fail_join(const Status& status, Answers* answers);

  void expire(int64_t now_ns, Answers* answers);
  /// Who has joined and who is missing, if that is to be said now: after warn_ms, and whenever
  /// twice as much time has passed. Otherwise "".
  std::string late(int64_t now_ns);
  int64_t next_deadline_ns() const;
  bool decided() const { return decided_; }
  /// All ranks have said goodbye, and none has died.
  bool is_over() const;
  /// Those that take part: since the verdict, and until they leave or die.
  std::vector<Member> members() const;
  /// One of them; null: it is none.
  const Member* member(int32_t rank) const;
  /// What a rank that joins told, until the verdict.
  size_t kept_bytes(int32_t rank) const;
  /// The connection of a rank that is there; 0 none.
  uint64_t client_of(int32_t rank) const;
  /// Once after the verdict: the records, as keys and values for the store.
  std::vector<std::pair<std::string, std::string>> take_records();

 private:
  enum class Stage : size_t { kConnected, kJoining, kMember, kLeft, kDead };
  struct Slot {
    Stage stage = Stage::kConnected;
    Member member;
    uint64_t nonce = 0;
    uint64_t client = 0;
    std::optional<uint64_t>
        waiting;  // request id of a pending join or goodbye, see begin_waiting()
    Patience patience;
    std::set<int32_t> forgiven;  // ranks
    JoinRecord record;
    size_t record_bytes = 0;  // what it takes
  };
  using Slots = std::map<int32_t, Slot>;

  Slot* slot_of(uint64_t client);
  void move(Slot* slot, Stage stage);
  void begin_waiting(Slot* slot, uint64_t request, Patience patience);
  void end_waiting(Slot* slot);
  void erase(int32_t rank);
  Status rank_is_over(const Slot& slot, const Member& newcomer) const;
  size_t count(Stage stage) const { return counts_[static_cast<size_t>(stage)]; }
  std::vector<Member> missing_dead() const;
  void decide(Answers* answers);
  Status failed_before() const;
  Status missing_status(int64_t timeout_ms) const;
  void finish_goodbyes(Answers* answers);
  Status still_there_status(int64_t timeout_ms) const;
  std::string verdict_for(int32_t rank, const std::vector<JoinRecord>& records,
                          const std::vector<Placement>& places, const Verdict& common) const;

  JoinSetup setup_;
  Slots slots_;                                      // by rank
  std::array<size_t, 5> counts_{};                   // of slots, by stage
  std::set<std::pair<int64_t, int32_t>> deadlines_;  // of the ranks that wait
  std::map<uint64_t, int32_t> rank_of_client_;
  std::map<int32_t, Member> died_joining_;  // and have not joined again
  Status first_ended_;                      // of the processes that never join again
  Patience first_join_;                     // the server's own limit
  int64_t first_join_ns_ = 0;
  int64_t late_at_ns_ = kNeverNs;  // when late() has something to say
  bool decided_ = false;
  Status failed_;               // the join's end, when it failed
  std::vector<Status> deaths_;  // in order, each of one rank
  std::vector<std::pair<std::string, std::string>> records_;
};

}  // namespace dt::store
