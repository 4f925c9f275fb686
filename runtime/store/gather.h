// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "store/keyspace.h"
#include "store/messages.h"

namespace dt::store {

/// ErrorInfo::operation of the answer to ranks that came in vain: all of them get it.
inline constexpr char kGatherOperation[] = "gathering";  // no collective is named so

/// Where the ranks of a communicator come together after a failure. A gathering has a name and the
/// world ranks that may come. It is over when each of them that still takes part in the job has
/// come; all then get the same answer: who is there, and what each said. One that has ended
/// meanwhile is not waited for, and is not in the answer, even if it had come.
///
/// Pure state, as Keyspace.
class GatherTable {
 public:
  static constexpr size_t kMaxSaysBytes = 32 << 10;

  /// Who a rank is, while it takes part in the job; null: it is lost or has left.
  using Roll = std::function<const Member*(int32_t rank)>;
  struct Options {
    int32_t world_size = 1;
    Roll roll;
    std::function<uint64_t()> session;  ///< a random number, never 0
  };
  explicit GatherTable(Options options) : options_(std::move(options)) {}

  struct Call {
    std::string name;              ///< for messages, too
    std::vector<int32_t> members;  ///< in the same order on all ranks
    std::string says;
  };
  void come(Ticket ticket, int32_t rank, Call call, Patience patience, int64_t now_ns,
            Answers* answers);
  /// The one who asked gave up.
  void cancel(Ticket ticket);
  /// Somebody may have ended: looks at all gatherings again.
  void review(Answers* answers);
  void expire(int64_t now_ns, Answers* answers);
  int64_t next_deadline_ns() const;
  /// What a rank told that has come and waits for others.
  size_t kept_bytes(int32_t rank) const;

  /// A gathering that is over: those who were there go on without the others.
  struct Parting {
    std::vector<int32_t> present;
    std::vector<int32_t> absent;
  };
  std::vector<Parting> take_partings() { return std::exchange(partings_, {}); }

 private:
  struct Guest {
    Ticket ticket;
    Patience patience;
    std::string says;
  };
  struct Gathering {
    std::vector<int32_t> members;
    std::map<int32_t, Guest> guests;  ///< by rank
  };
  using Gatherings = std::map<std::string, Gathering>;

  Status check(int32_t rank, const Call& call) const;
  /// True: it is over, and its guests have their answers.
  bool conclude(const std::string& name, Gathering* gathering, Answers* answers);
  Status missing(const std::string& name, const Gathering& gathering, int64_t timeout_ms) const;

  Options options_;
  Gatherings gatherings_;
  uint64_t count_ = 0;  ///< of those that were concluded
  std::vector<Parting> partings_;
};

}  // namespace dt::store
