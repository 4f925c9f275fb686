// SPDX-License-Identifier: Apache-2.0
#include "collective/descriptor.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/disagreement.h"
#include "base/dtype.h"
#include "collective/blocks.h"

namespace dt::collective {
namespace {

// A signature has 20 bits for the root, enough for the largest job, or the tag, and 12 for the
// bytes of a caller's element.
constexpr int kRootShift = 32;
constexpr int kElementShift = 52;
constexpr uint64_t kRootMask = (uint64_t{1} << (kElementShift - kRootShift)) - 1;
static_assert(Combine::kMaxElementBytes < 1 << (64 - kElementShift));

constexpr size_t kListedMax = 8;  // entries of a list in a message
constexpr size_t kLabelMax = 64;  // bytes of an operation's name in a message

int32_t shown_rank(const Group& group, int32_t rank) {
  const int32_t whole = group.options().members[rank].whole_rank;
  return whole >= 0 ? whole : rank;
}

}  // namespace

uint64_t signature_of(const Collective& collective) {
  uint64_t word = static_cast<uint64_t>(collective.kind) & 0xff;
  if (collective.kind == Kind::kBarrier) return word;
  word |= (static_cast<uint64_t>(collective.dtype) & 0xff) << 8;
  if (reduces(collective.kind)) word |= (static_cast<uint64_t>(collective.op) & 0xff) << 16;
  const int32_t root_or_tag = has_root(collective.kind) ? collective.root : collective.tag;
  word |= static_cast<uint64_t>(root_or_tag) << kRootShift;
  if (collective.op == ReduceOp::kCustom)
    word |= static_cast<uint64_t>(collective.custom.element_bytes) << kElementShift;
  return word;
}

int64_t contribution(const Collective& collective, int32_t members) {
  switch (collective.kind) {
    case Kind::kBarrier: return 0;
    case Kind::kReduceScatter: return collective.count * members;
    default: return collective.count;
  }
}

std::string describe(uint64_t signature, int64_t count, const std::string& name) {
  const auto kind = static_cast<Kind>(signature & 0xff);
  const auto dtype = static_cast<Dtype>(signature >> 8 & 0xff);
  const auto op = static_cast<ReduceOp>(signature >> 16 & 0xff);
  std::string text = kind_name(kind);
  if (kind != Kind::kBarrier) {
    if (reduces(kind) && op == ReduceOp::kCustom) {
      text += format(" custom of %d bytes", static_cast<int>(signature >> kElementShift));
    } else {
      text += format(" %s", dtype_name(dtype));
      if (reduces(kind)) text += format(" %s", reduce_op_name(op));
    }
    if (!is_irregular(kind)) text += format(" x %lld", static_cast<long long>(count));
    if (has_root(kind))
      text += format(" root %d", static_cast<int>(signature >> kRootShift & kRootMask));
  }
  return text + label_text(name);
}

std::string label_text(const std::string& name) {
  if (name.empty()) return {};
  return name.size() <= kLabelMax ? " \"" + name + "\""
                                  : " \"" + name.substr(0, kLabelMax) + "...\"";
}

std::string member_text(const Group& group, int32_t rank) {
  const Member& member = group.options().members[rank];
  const int32_t shown = shown_rank(group, rank);
  std::string text = format("rank %d (", shown);
  if (member.world_rank != shown) text += format("world rank %d, ", member.world_rank);
  if (!group.options().host.empty()) text += group.options().host + ", ";
  return text + format("pid %lld)", static_cast<long long>(member.pid));
}

Status failure(const Group& group, Code code, const Collective& collective, int64_t sequence,
               int32_t culprit, const std::string& message) {
  ErrorInfo info;
  info.code = code;
  info.operation = kind_name(collective.kind);
  info.message = info.operation + label_text(collective.name);
  if (sequence >= 0) info.message += format(" #%lld", static_cast<long long>(sequence));
  info.message += format(" on comm \"%s\", rank %d: %s", group.options().name.c_str(),
                         shown_rank(group, group.rank()), message.c_str());
  info.sequence = sequence;
  if (culprit >= 0) {
    info.rank = group.options().members[culprit].world_rank;
    info.pid = group.options().members[culprit].pid;
    info.host = group.options().host;
  }
  return Status(std::move(info));
}

Status mismatch(const Group& group, const Collective& collective, int64_t sequence,
                const std::vector<Announced>& announced) {
  using Key = std::pair<uint64_t, int64_t>;
  const auto key = [](const Announced& one) { return Key(one.signature & ~flag::kAll, one.count); };
  std::map<Key, int> votes;
  for (const Announced& one : announced) ++votes[key(one)];
  Key common = key(announced[0]);
  for (const auto& [candidate, count] : votes) {
    if (count > votes[common]) common = candidate;
  }
  // One rank for each distinct call, in rank order: two lines of text even among 64 ranks.
  std::string text;
  int32_t culprit = -1;
  size_t listed = 0;
  std::map<Key, bool> seen;
  for (int32_t rank = 0; rank < group.size(); ++rank) {
    const Announced& one = announced[rank];
    if (culprit < 0 && key(one) != common) culprit = rank;
    if (std::exchange(seen[key(one)], true) || listed == kListedMax) continue;
    ++listed;
    const int others = votes[key(one)] - 1;
    text += format("%s%s%s: %s", text.empty() ? "" : ", ", member_text(group, rank).c_str(),
                   others > 0 ? format(" and %d more", others).c_str() : "",
                   describe(one.signature, one.count, one.name).c_str());
    if (!one.withheld.empty()) text += " (" + one.withheld + ")";
  }
  if (votes.size() > listed) text += format(", and %zu other calls", votes.size() - listed);
  return failure(group, Code::kMismatch, collective, sequence, culprit,
                 "ranks disagree: " + text +
                     "; make all ranks issue the same operations in the same order, then go on "
                     "with dt_comm_shrink");
}

Status nothing_to_give(const Group& group, const Collective& collective, int64_t sequence,
                       const std::vector<Announced>& announced) {
  std::string text;
  int32_t culprit = -1;
  size_t listed = 0;
  size_t total = 0;
  for (int32_t rank = 0; rank < group.size(); ++rank) {
    if ((announced[rank].signature & flag::kWithheld) == 0) continue;
    if (culprit < 0) culprit = rank;
    ++total;
    if (listed == kListedMax) continue;
    ++listed;
    text += format("%s%s: %s", text.empty() ? "" : "; ", member_text(group, rank).c_str(),
                   announced[rank].withheld.c_str());
  }
  if (total > listed) text += format("; and %zu more ranks", total - listed);
  return failure(group, Code::kInvalidState, collective, sequence, culprit, text);
}

Status timed_out(const Group& group, const Collective& collective, int64_t sequence,
                 const std::vector<int32_t>& missing, const char* verb) {
  std::string text;
  for (size_t i = 0; i < missing.size(); ++i) {
    if (i == kListedMax) {
      text += format(", and %zu more", missing.size() - i);
      break;
    }
    const Member& member = group.options().members[missing[i]];
    const shm::SectionHeader& header = group.arena().header(member.local_rank);
    text += format("%s%s", text.empty() ? "" : ", ", member_text(group, missing[i]).c_str());
    const auto last = static_cast<int32_t>(header.last.kind.load(std::memory_order_relaxed));
    if (header.left.load(std::memory_order_relaxed) != 0) {
      text += " (left the job)";
    } else if (last >= 0 && last < kKindCount) {
      text += format(" (last operation: %s #%lld)", kind_name(static_cast<Kind>(last)),
                     static_cast<long long>(header.last.sequence.load(std::memory_order_relaxed)));
    } else {
      text += " (no operation yet)";
    }
  }
  return failure(
      group, Code::kTimeout, collective, sequence, missing.empty() ? -1 : missing[0],
      format("timed out: %s: %s; look at what these ranks do, or raise collective.timeout_ms", verb,
             text.c_str()));
}

/// "a, b, and 3 more"
static std::string list_of(const std::vector<std::string>& items) {
  std::string text;
  for (size_t i = 0; i < std::min(items.size(), kListedMax); ++i) {
    text += (i == 0 ? "" : ", ") + items[i];
  }
  if (items.size() > kListedMax) text += format(", and %zu more", items.size() - kListedMax);
  return text;
}

std::string obstacle_text(const Collective& collective, int64_t sequence,
                          const std::vector<std::string>& peers) {
  std::string text = kind_name(collective.kind);
  if (collective.is_transfer()) {
    text += (collective.kind == Kind::kSend ? " to " : " from ") + list_of(peers) + ", which ";
  } else {
    text += format(" #%lld, which ", static_cast<long long>(sequence));
    if (!peers.empty()) text += "waits for " + list_of(peers) + " and ";
  }
  return text + (collective.deadline.is_never() ? "has no deadline" : "has a later deadline");
}

std::string timed_out_behind(const std::vector<std::string>& obstacles) {
  return "timed out before it began: it waited behind " + list_of(obstacles) +
         "; look at why that does not end, or give it a deadline";
}

Status left_behind(const Group& group, const Collective& collective, int64_t sequence,
                   int32_t rank) {
  return failure(group, Code::kPeerLost, collective, sequence, rank,
                 member_text(group, rank) + kHasLeft);
}

}  // namespace dt::collective
