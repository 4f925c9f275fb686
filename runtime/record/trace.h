// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/kinds.h"
#include "base/status.h"

namespace dt::record {

/// An operation's kind is the number of its dt::Kind, or this: a split of the communicator.
inline constexpr uint8_t kSplitKind = 64;
inline constexpr auto kSendKind = static_cast<uint8_t>(Kind::kSend);
inline constexpr auto kRecvKind = static_cast<uint8_t>(Kind::kRecv);

constexpr bool is_transfer(uint8_t kind) { return dt::is_transfer(static_cast<Kind>(kind)); }

enum class State : uint8_t {
  kQueued = 0,   ///< the program has called it
  kStarted = 1,  ///< it is being carried out; on a device: being enqueued there
  kDone = 2,     ///< well or ill
};

/// One operation of one rank.
struct Entry {
  uint32_t communicator = 0;  ///< index into Recorded::communicators
  uint8_t kind = 0;
  uint8_t dtype = 0;
  uint8_t op = 0;
  State state = State::kQueued;
  int32_t root = -1;  ///< of those that have one; the peer of send and recv; -1: none
  Code status = Code::kOk;
  /// From 1, of the collectives of its communicator, so that equal positions on all ranks are one
  /// operation; of a send or receive among those with the same peer and direction.
  int64_t position = 0;
  int64_t count = 0;
  int64_t bytes = 0;  ///< count elements
  // Monotonic clock of the host; 0: not yet.
  int64_t enqueued_ns = 0;
  int64_t started_ns = 0;
  int64_t completed_ns = 0;
  std::string label;  ///< "bucket 3"; may be empty or cut
};

/// What a rank knows of one of its communicators.
struct CommunicatorRecord {
  std::string name;  ///< equal on all ranks
  int32_t rank = 0;  ///< in it
  std::vector<int32_t> world_ranks;
  int64_t issued = 0;  ///< collectives called so far: the highest position
  bool on_device = false;
  bool ended = false;  ///< this rank has let go of it
};

/// What a recorder holds at one moment.
struct Recorded {
  std::vector<CommunicatorRecord> communicators;
  std::vector<Entry> entries;  ///< by the time of their call
  int64_t dropped = 0;         ///< operations that found no room: all were under way
  int64_t monotonic_ns = 0;    ///< now
  int64_t realtime_ns = 0;     ///< the same moment since 1970, to compare hosts
};

/// Who recorded it, and why it was written.
struct Identity {
  std::string job_id;
  int32_t attempt = 0;
  uint64_t session = 0;  ///< equal on the ranks of one attempt, different between jobs
  int32_t rank = 0;
  int32_t world_size = 1;
  std::string host;
  int64_t pid = 0;
};

enum class Reason : uint8_t {
  kCalled = 0,  ///< dt_trace_dump
  kAsked = 1,   ///< dt trace dump
  kFailed = 2,
};

/// One file.
struct Trace {
  Identity identity;
  Reason reason = Reason::kCalled;
  /// The first failure that this rank saw; code OK: none.
  ErrorInfo failure{Code::kOk, {}, -1, {}, 0, {}, -1};
  std::string failure_scope;        ///< the communicator; empty: the whole job
  int64_t failure_realtime_ns = 0;  ///< when
  Recorded recorded;
};

}  // namespace dt::record
