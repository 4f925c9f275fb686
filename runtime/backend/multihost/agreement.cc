// SPDX-License-Identifier: Apache-2.0
#include "backend/multihost/agreement.h"

#include <algorithm>
#include <map>

#include "collective/blocks.h"
#include "collective/descriptor.h"

namespace dt::backend {
namespace {

namespace flag = collective::flag;
using collective::get_text;
using collective::put_text;

bool irregular(const Said& said) {
  return is_irregular(static_cast<collective::Kind>(said.signature & 0xff));
}

using Call = std::pair<uint64_t, int64_t>;

Call call_of(const Statement& statement) {
  const uint64_t signature = statement.said.signature & ~flag::kAll;
  return {signature, irregular(statement.said) ? 0 : statement.said.count};
}

bool withholds(const Statement& statement) {
  return (statement.said.signature & flag::kWithheld) != 0;
}

std::string speaker(const Roster& roster, const Statement& statement) {
  std::string text = roster.member_text(statement.rank, statement.pid);
  if (statement.more > 0) text += format(" and %d more", statement.more);
  return text;
}

Status disagreement(const Roster& roster, collective::Kind kind, int64_t sequence,
                    const std::vector<Statement>& statements, std::map<Call, int64_t> votes) {
  Call common = call_of(statements[0]);
  for (const auto& [call, count] : votes) {
    if (count > votes[common]) common = call;
  }
  std::string text;
  const Statement* culprit = nullptr;
  size_t listed = 0;
  for (const Statement& statement : statements) {
    if (culprit == nullptr && call_of(statement) != common) culprit = &statement;
    // The common call once, the others as often as they are told.
    if (call_of(statement) == common && votes[common] == 0) continue;
    if (listed++ >= kListedMax) continue;
    Statement shown = statement;
    if (call_of(statement) == common) {
      shown.more = static_cast<int32_t>(votes[common] - 1);
      votes[common] = 0;
    }
    text += format("%s%s: %s", text.empty() ? "" : ", ", speaker(roster, shown).c_str(),
                   collective::describe(call_of(statement).first, statement.said.count,
                                        get_text(statement.name))
                       .c_str());
    if (withholds(statement)) text += " (" + get_text(statement.withheld) + ")";
  }
  if (listed > kListedMax) text += format(", and %zu other calls", listed - kListedMax);
  return roster.failure(Code::kMismatch, kind, sequence, culprit != nullptr ? culprit->rank : -1,
                        culprit != nullptr ? culprit->pid : 0,
                        "ranks disagree: " + text +
                            "; make all ranks issue the same operations in the same order, then go "
                            "on with dt_comm_shrink");
}

}  // namespace

std::string Roster::member_text(int32_t of_rank, int64_t pid) const {
  std::string text = format("rank %d (", of_rank);
  if (world_ranks[of_rank] != of_rank) text += format("world rank %d, ", world_ranks[of_rank]);
  text += host_name(of_rank);
  if (pid != 0) text += format(", pid %lld", static_cast<long long>(pid));
  return text + ")";
}

Status Roster::failure(Code code, collective::Kind kind, int64_t sequence, int32_t culprit,
                       int64_t pid, const std::string& message, const std::string& label) const {
  ErrorInfo info;
  info.code = code;
  info.message = kind_name(kind) + collective::label_text(label);
  if (sequence >= 0) info.message += format(" #%lld", static_cast<long long>(sequence));
  info.message += format(" on comm \"%s\", rank %d (%s): %s", name.c_str(), rank,
                         host_name(rank).c_str(), message.c_str());
  info.operation = kind_name(kind);
  info.sequence = sequence;
  if (culprit >= 0) {
    info.rank = world_ranks[culprit];
    info.host = host_name(culprit);
    info.pid = pid;
  }
  return Status(std::move(info));
}

bool same_call(const Said& a, const Said& b) {
  return a.signature == b.signature && (irregular(a) || a.count == b.count);
}

uint64_t balance_of(const std::vector<Statement>& statements) {
  uint64_t sum = 0;
  for (const Statement& statement : statements) sum += static_cast<uint64_t>(statement.said.count);
  return sum;
}

Said said_of(const collective::Collective& collective, int32_t rank, int32_t size) {
  Said said{collective::signature_of(collective), collective.count};
  if (collective.kind == collective::Kind::kBarrier) said.count = 0;
  if (is_irregular(collective.kind)) {
    said.count = static_cast<int64_t>(collective::balance(collective, rank, size));
  }
  if (collective.withheld) said.signature |= flag::kWithheld;
  return said;
}

Statement statement_of(const collective::Collective& collective, int32_t rank, int32_t size) {
  Statement statement;
  statement.said = said_of(collective, rank, size);
  statement.rank = rank;
  put_text(statement.name, collective.name);
  if (collective.withheld) put_text(statement.withheld, *collective.withheld);
  return statement;
}

std::vector<Statement> collapse(const std::vector<Statement>& statements) {
  std::vector<Statement> result;
  for (const Statement& statement : statements) {
    Statement* same = nullptr;
    for (Statement& known : result) {
      // Beyond the limit reasons are only counted.
      const bool alike = same_call(known.said, statement.said) &&
                         (!withholds(statement) || result.size() >= kListedMax);
      if (alike) same = &known;
    }
    if (same != nullptr) {
      same->more += statement.more + 1;
    } else {
      result.push_back(statement);
    }
  }
  return result;
}

Status verdict_over(const Roster& roster, collective::Kind kind, int64_t sequence,
                    const std::vector<Statement>& statements) {
  std::map<Call, int64_t> votes;
  for (const Statement& statement : statements) {
    if (statement.rank < 0 || statement.rank >= roster.topology.size() || statement.more < 0) {
      return roster.failure(Code::kInternal, kind, sequence, -1, 0,
                            "a rank announced what no rank can; report this");
    }
    votes[call_of(statement)] += statement.more + 1;
  }
  if (votes.size() > 1) return disagreement(roster, kind, sequence, statements, std::move(votes));
  std::string text;
  const Statement* culprit = nullptr;
  size_t listed = 0;
  int64_t unlisted = 0;
  for (const Statement& statement : statements) {
    if (!withholds(statement)) continue;
    if (culprit == nullptr) culprit = &statement;
    if (listed == kListedMax) {
      unlisted += statement.more + 1;
      continue;
    }
    ++listed;
    unlisted += statement.more;
    text += format("%s%s: %s", text.empty() ? "" : "; ",
                   roster.member_text(statement.rank, statement.pid).c_str(),
                   get_text(statement.withheld).c_str());
  }
  if (culprit == nullptr) return {};
  if (unlisted > 0) text += format("; and %lld more ranks", static_cast<long long>(unlisted));
  return roster.failure(Code::kInvalidState, kind, sequence, culprit->rank, culprit->pid, text);
}

}  // namespace dt::backend
