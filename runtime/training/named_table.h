// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <string>
#include <unordered_map>
#include <vector>

#include "training/named_messages.h"

namespace dt::training {

/// Operations that are carried out as one: places in the list of an answer, in their order.
using NamedBatch = std::vector<size_t>;
/// Allreduces of one dtype and op are put together up to `fuse_bytes`, each other operation is
/// alone. Every rank computes it from the same list.
std::vector<NamedBatch> plan_batches(const std::vector<NamedAnswer::Operation>& operations,
                                     int64_t fuse_bytes);

/// The coordinator's knowledge: which rank has submitted what. It decides what is carried out, and
/// in which order. No threads, no clock and no messages of its own; one thread at a time.
class NamedTable {
 public:
  struct Options {
    std::string where;                 ///< "named submission on comm \"world\""
    std::vector<std::string> members;  ///< "rank 3 (node7, pid 4711)", by rank
    std::vector<std::string> hosts;
    std::vector<int32_t> world_ranks;
    int64_t fuse_bytes = 0;
    int32_t cache = 0;  ///< calls that are remembered
    int64_t stall_ms = 0;
    int64_t cycle_us = 0;
  };
  explicit NamedTable(Options options);

  /// Failed: the rank broke the protocol.
  Status hear(int32_t rank, const NamedNews& news, int64_t now_ns);
  /// When take() is due; INT64_MAX: nothing is to be said.
  int64_t due_ns() const;
  /// Returns what to send to each rank now, by rank; an empty answer need not be sent.
  std::vector<NamedAnswer> take();
  /// Names that have waited for so long and were not in an earlier answer of this, a sentence each.
  std::vector<std::string> stalls(int64_t now_ns);
  /// When the next one may be; INT64_MAX: none.
  int64_t next_stall_ns() const;
  /// Of all names that wait, a line each.
  std::string report(int64_t now_ns) const;
  bool has_left(int32_t rank) const { return left_[static_cast<size_t>(rank)]; }
  bool all_left() const { return left_count_ == size(); }

 private:
  struct Other {
    int32_t rank;
    NamedCall call;
  };
  /// A name that some rank has submitted and another has not.
  struct Entry {
    std::string name;
    NamedCall call;               // of the first rank
    std::vector<bool> submitted;  // by rank
    int32_t count = 0;            // of these
    std::vector<Other> others;    // ranks with another call
    int64_t since_ns = 0;
    bool warned = false;
    Status failed;             // another name of a group of it failed
    std::vector<bool> doomed;  // on these ranks; by rank
  };
  using Place = std::list<Entry>::iterator;
  /// Names that are released together: those that all ranks have submitted. Where one fails, so do
  /// the others: what is here at once, and what is in entries_ once all ranks have submitted it,
  /// because the n-th submissions of a name on all ranks belong together. No other is still to
  /// come: a rank submits a whole group in one message, and hear() takes all of that in before it
  /// judges.
  using Group = std::vector<NamedAnswer::Operation>;
  struct Cached {
    uint32_t id;
    std::string name;
    NamedCall call;
  };
  struct Retired {
    Cached cached;
    uint32_t answer;  // a rank that has had it does not use the id any more
  };

  int32_t size() const { return static_cast<int32_t>(options_.members.size()); }
  Status submit(int32_t rank, const std::string& name, const NamedCall& call, int64_t now_ns,
                std::vector<Place>* all_there);
  const Cached* find(uint32_t id) const;
  bool complete(const Entry& entry) const;
  void finish(Place place, int64_t now_ns);
  Status judge(const Entry& entry) const;
  void release(NamedAnswer::Operation operation, int64_t now_ns);
  void fail_all(const std::string& name, const Status& status);
  void fail_group(const std::string& group, std::vector<bool> ranks, const Status& why);
  std::vector<bool> ranks_in(const Entry& entry, const std::string& group) const;
  void join(int32_t rank, int64_t now_ns);
  void leave(int32_t rank);
  void overdue(int32_t rank, const std::string& name);
  void break_with(const Status& status);
  void remember(NamedAnswer::Operation& operation, std::vector<uint32_t>* forgotten);
  void retire(std::list<Cached>::iterator cached, std::vector<uint32_t>* forgotten);
  Status error(Code code, int32_t rank, const std::string& text) const;
  std::string missing_text(const Entry& entry) const;
  std::vector<int32_t> missing(const Entry& entry) const;

  const Options options_;
  std::list<Entry> entries_;  // in the order in which their first rank submitted them
  std::unordered_map<std::string, Place> places_;
  std::unordered_map<std::string, Group> groups_;  // not empty; by the name of the first
  std::vector<NamedAnswer::Operation> ready_;
  int64_t ready_bytes_ = 0;
  int64_t ready_since_ns_ = 0;
  std::vector<NamedAnswer> answers_;  // by rank; but the operations
  bool urgent_ = false;               // answers_ holds something
  std::vector<bool> left_;
  int32_t left_count_ = 0;
  int32_t first_left_ = -1;
  std::vector<bool> joined_;
  int32_t joined_count_ = 0;
  Status broken_;

  std::list<Cached> cache_;  // the last used one first
  std::unordered_map<std::string, std::list<Cached>::iterator> cached_names_;
  std::unordered_map<uint32_t, std::list<Cached>::iterator> cached_ids_;
  std::deque<Retired> retired_;  // which a rank that has not heard of it may still use
  uint32_t next_id_ = 0;
  uint32_t answered_ = 0;        // answers with operations
  std::vector<uint32_t> heard_;  // of these, by rank
};

}  // namespace dt::training
