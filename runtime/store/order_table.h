// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "store/messages.h"

namespace dt::store {

/// What the ranks of each communicator say they called, compared. Pure state, as JoinTable; times
/// are of the monotonic clock.
///
/// A *point* is a collective of a communicator; ranks that are of one mind there have called the
/// same up to it. A point is forgotten when all ranks were, or when many newer ones are known. Of
/// the first point at which ranks differ the other ranks are waited for a little: then it is plain
/// who differs from most.
class OrderTable {
 public:
  void tell(const Member& member, const Orders& orders, int64_t now_ns);
  /// The rank has left, and told all that it called.
  void leave(int32_t rank);
  /// Ranks that have not called an operation that others have called.
  struct Laggards {
    std::vector<Member> ranks;
    int64_t since_ns = 0;  ///< when the first told of the operation
    bool nobody = false;   ///< all ranks have called all that anybody has
  };
  /// Looks for the operation by the number that `reporter` gave it; nullopt: nothing is known of
  /// the communicator. `job`: all ranks of the job. If the communicator has as many, those that
  /// have called nothing on it are among the result.
  std::optional<Laggards> laggards(const std::string& communicator, int32_t reporter,
                                   const std::string& operation, int64_t sequence,
                                   const std::vector<Member>& job) const;
  /// Each disagreement once, when all ranks have come to it or `patience_ns` after it was found.
  std::vector<Failure> verdicts(int64_t now_ns, int64_t patience_ns);

 private:
  struct Mind {
    uint64_t chain = 0;
    int64_t sequence = 0;
    std::string call;  // empty: not known any more
    int64_t told_ns = 0;
    std::vector<int32_t> ranks;
  };
  using Point = std::vector<Mind>;
  struct Teller {
    Member member;
    int64_t reached = 0;  // its last position
  };
  struct Comm {
    int32_t size = 0;
    std::map<int64_t, Point> points;  // by position
    std::map<int32_t, Teller> tellers;
    // The rank that has left with the lowest position; -1: none has left.
    int32_t left_first = -1;
    int64_t heard_ns = 0;
    int64_t differs_at = 0;  // position of the first point with several minds; 0: none
    int64_t differs_since_ns = 0;
    bool over = false;  // was told
  };

  Comm& comm_of(const Orders& orders, int64_t now_ns);
  static void add(Comm* comm, int32_t rank, const Order& order, int64_t now_ns);
  static void note_leaver(Comm* comm, int32_t rank);
  static std::optional<Failure> left_behind(const std::string& name, const Comm& comm);
  static Failure failure_at(const std::string& name, int64_t position, const Mind& mind, Code code,
                            const Member& culprit, const std::string& what);
  static Failure failure_of(const std::string& name, const Comm& comm);

  std::map<std::string, Comm> comms_;
  std::set<int32_t> gone_;
};

}  // namespace dt::store
