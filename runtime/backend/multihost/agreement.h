// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/multihost/roster.h"
#include "base/status.h"
#include "collective/operation.h"

namespace dt::backend {

inline constexpr size_t kListedMax = 8;  ///< entries of a list in a message, and of a host

/// What a rank is about to do. Before data moves, all ranks of a communicator compare it: within
/// each host, then the leaders of the hosts with each other, then the leaders tell their hosts.
struct Said {
  uint64_t signature = 0;  ///< collective::signature_of(), with flag::kWithheld
  /// Elements; of an irregular collective its collective::balance(), of several ranks their sum.
  int64_t count = 0;

  bool operator==(const Said&) const = default;
};

/// The same with what messages need; for several ranks that said the same. Travels as it is.
struct Statement {
  static constexpr size_t kNameBytes = 48;
  static constexpr size_t kReasonBytes = 416;

  Said said;
  int32_t rank = 0;  ///< the lowest that said it, in the communicator
  int32_t more = 0;  ///< others that said the same
  int64_t pid = 0;
  char name[kNameBytes] = {};
  char withheld[kReasonBytes] = {};
};

/// Whether both call the same operation. Of an irregular one counts show only in the sum of all.
bool same_call(const Said& a, const Said& b);
/// The sum of what all said of an irregular collective; zero: counts fit together.
uint64_t balance_of(const std::vector<Statement>& statements);

/// `size`: of the communicator.
Said said_of(const collective::Collective& collective, int32_t rank, int32_t size);
/// Without the process: a system call.
Statement statement_of(const collective::Collective& collective, int32_t rank, int32_t size);
/// One for each distinct call and each reason, a few at most; in the order of their ranks.
std::vector<Statement> collapse(const std::vector<Statement>& statements);
/// The verdict over the statements of all ranks, collapsed by host, in the order of the hosts: ok,
/// MISMATCH with both sides, or INVALID_STATE with the reasons of those that withhold. Statements
/// may come from a broken peer. Equal on all ranks but for the name of the rank that says it.
Status verdict_over(const Roster& roster, collective::Kind kind, int64_t sequence,
                    const std::vector<Statement>& statements);

}  // namespace dt::backend
