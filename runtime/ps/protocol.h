// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "transport/tcp/link.h"

/// What workers and parameter servers say to each other, in messages of tcp::Link. A worker asks,
/// the server answers each request once; answers to kClock and kSave may come later than those to
/// requests behind them. In Header, `sequence` is the request's number, which the answer repeats.
///
///   kEnter     worker: who it is. The first one; its number is 0, as in kWelcome.
///   kOpen      `signature`: the worker's number of a variable; ask: OpenRequest
///   kPush      signature, count: rows; ask: RowsHead, places if they are not a range, gradients
///   kSet       likewise, with values and without a rate
///   kPull      likewise, without either; answer: values
///   kClock     `count`: the worker's clock, `signature`: how far it may be ahead; kWaiting may
///              come before the answer and says who holds it up
///   kSave      answered once a file is written
///   kSign      a sign of life
///   kGoodbye   the worker leaves; nothing follows the answer
namespace dt::ps {

enum class What : uint32_t {
  kEnter = 1,
  kOpen,
  kPush,
  kSet,
  kPull,
  kClock,
  kSave,
  kSign,
  kGoodbye,
  // answers
  kWelcome = 101,
  kDone,
  kValues,
  kRefused,  ///< Refusal
  kWaiting,  ///< Waiting
};

/// Handshake's name for connections of workers to servers.
inline constexpr char kConnectionName[] = "parameter server";
/// The most that follows a header: a request is cut into parts, so that others get their turn.
inline constexpr int64_t kMostBytes = int64_t{64} << 20;
/// What rows of one part may take; a single row may take more.
inline constexpr int64_t kPartBytes = int64_t{1} << 20;
inline constexpr int64_t kNsPerMs = 1'000'000;
/// A worker that stays out of the clocks' way.
inline constexpr int64_t kNoClock = -1;
/// "As many clocks ahead as it likes."
inline constexpr uint64_t kAnyAhead = UINT64_MAX;

/// The number that stands for the job in greetings.
uint64_t session_of(const std::string& job_id);

struct Enter {
  static constexpr uint32_t kVersion = 1;
  uint32_t version = kVersion;  ///< of this protocol; a server refuses others
  uint64_t nonce = 0;           ///< of the worker's connection object: a restarted one has another
  int64_t clock = kNoClock;     ///< kNoClock of a new one: the server's lowest
  bool keeps_clock = true;      ///< false: an evaluator
  std::string host;
  int64_t pid = 0;
};

struct Welcome {
  uint64_t last_change = 0;  ///< the last kPush or kSet of this nonce that took effect
  int64_t lowest_clock = 0;
  std::string host;
  int64_t pid = 0;
};

struct OpenRequest {
  bool existed = false;  ///< this worker has used it on this server
  std::string variable;  ///< encoded
};

/// In front of rows. `first` >= 0: `count` places from there; else as many places follow.
struct RowsHead {
  int64_t first = -1;
  double rate = -1;  ///< of a kPush; negative: the variable's
};

struct Refusal {
  Code code = Code::kInternal;
  std::string text;
};

struct Waiting {
  int32_t worker = -1;
  int64_t clock = 0;
  std::string host;
  int64_t pid = 0;
};

std::string encode(const Enter& enter);
std::string encode(const Welcome& welcome);
std::string encode(const OpenRequest& request);
std::string encode(const Refusal& refusal);
std::string encode(const Waiting& waiting);
/// False: the bytes are no such thing.
bool decode(std::string_view bytes, Enter* out);
bool decode(std::string_view bytes, Welcome* out);
bool decode(std::string_view bytes, OpenRequest* out);
bool decode(std::string_view bytes, Refusal* out);
bool decode(std::string_view bytes, Waiting* out);

/// The parts of a kPush, kSet or kPull in its payload, which is aligned to 8 bytes.
struct Rows {
  RowsHead head;
  const int64_t* places = nullptr;  ///< [count]; null: a range
  const float* values = nullptr;    ///< [count][columns]; null: of kPull
};
/// Of untrusted bytes: INVALID_ARGUMENT unless they have the right size and each place is in
/// [0, rows) and the rate of a kPush finite or negative.
Status parse_rows(What what, std::string_view payload, int64_t count, int32_t columns, int64_t rows,
                  Rows* out);

}  // namespace dt::ps
