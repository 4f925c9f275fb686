// SPDX-License-Identifier: Apache-2.0
#include "store/gather.h"

#include <algorithm>
#include <memory>
#include <set>

#include "store/protocol.h"
#include "store/text.h"

namespace dt::store {

Status GatherTable::check(int32_t rank, const Call& call) const {
  const auto refused = [&](const std::string& why) {
    return Status(Code::kInvalidArgument, call.name + ": " + why);
  };
  const std::set<int32_t> unique(call.members.begin(), call.members.end());
  const bool in_range =
      !unique.empty() && *unique.begin() >= 0 && *unique.rbegin() < options_.world_size;
  if (!in_range || unique.size() != call.members.size()) {
    return refused(format("its %zu members are no ranks of a job of %d", call.members.size(),
                          options_.world_size));
  }
  if (unique.count(rank) == 0) return refused(format("rank %d is not among its members", rank));
  if (call.says.size() > kMaxSaysBytes) {
    return refused(format("%zu bytes are over the limit of %zu", call.says.size(), kMaxSaysBytes));
  }
  // Bounds what one connection can make the server keep.
  for (const auto& [name, gathering] : gatherings_) {
    if (gathering.guests.count(rank) == 0) continue;
    return Status(Code::kInvalidState, format("%s: rank %d is still inside %s; one at a time",
                                              call.name.c_str(), rank, name.c_str()));
  }
  const auto open = gatherings_.find(call.name);
  if (open != gatherings_.end() && open->second.members != call.members) {
    return Status(Code::kMismatch,
                  format("%s: rank %d and rank %d name different members of it", call.name.c_str(),
                         rank, open->second.guests.begin()->first));
  }
  return {};
}

void GatherTable::come(Ticket ticket, int32_t rank, Call call, Patience patience, int64_t now_ns,
                       Answers* answers) {
  Status status = options_.roll(rank) == nullptr
                      ? Status(Code::kInvalidState,
                               call.name + ": only ranks that take part in the job can come")
                      : check(rank, call);
  if (!status.ok()) {
    answers->push_back({ticket, std::move(status), {}});
    return;
  }
  Gathering& gathering = gatherings_[call.name];
  gathering.members = std::move(call.members);
  gathering.guests[rank] = {ticket, patience, std::move(call.says)};
  if (conclude(call.name, &gathering, answers)) {
    gatherings_.erase(call.name);
  } else {
    expire(now_ns, answers);  // who has no patience is answered at once
  }
}

bool GatherTable::conclude(const std::string& name, Gathering* gathering, Answers* answers) {
  std::erase_if(gathering->guests,
                [&](const auto& guest) { return options_.roll(guest.first) == nullptr; });
  if (gathering->guests.empty()) return true;
  GatherVerdict verdict;
  Parting parting;
  for (const int32_t rank : gathering->members) {
    const auto guest = gathering->guests.find(rank);
    if (guest != gathering->guests.end()) {
      verdict.present.emplace_back(rank, guest->second.says);
      parting.present.push_back(rank);
    } else if (options_.roll(rank) != nullptr) {
      return false;
    } else {
      parting.absent.push_back(rank);
    }
  }
  verdict.session = options_.session();
  verdict.number = ++count_;
  const auto text = std::make_shared<const std::string>(encode(verdict));
  const bool fits = text->size() <= kMaxPayloadBytes;
  const Status too_large(Code::kSystem, name + ": the ranks' records are too large together");
  for (const auto& [rank, guest] : gathering->guests) {
    answers->push_back({guest.ticket, fits ? Status() : too_large, {}, fits ? text : nullptr});
  }
  if (fits) partings_.push_back(std::move(parting));
  return true;
}

void GatherTable::cancel(Ticket ticket) {
  for (auto entry = gatherings_.begin(); entry != gatherings_.end();) {
    auto& guests = entry->second.guests;
    std::erase_if(guests, [&](const auto& guest) { return guest.second.ticket == ticket; });
    entry = guests.empty() ? gatherings_.erase(entry) : std::next(entry);
  }
}

void GatherTable::review(Answers* answers) {
  for (auto entry = gatherings_.begin(); entry != gatherings_.end();) {
    const bool over = conclude(entry->first, &entry->second, answers);
    entry = over ? gatherings_.erase(entry) : std::next(entry);
  }
}

/// One guest's deadline ends it for all: they would otherwise not agree about its outcome.
void GatherTable::expire(int64_t now_ns, Answers* answers) {
  std::erase_if(gatherings_, [&](const auto& entry) {
    int64_t timeout_ms = -1;
    for (const auto& [rank, guest] : entry.second.guests) {
      if (guest.patience.ended(now_ns))
        timeout_ms = std::max(timeout_ms, guest.patience.timeout_ms);
    }
    if (timeout_ms < 0) return false;
    const Status status = missing(entry.first, entry.second, timeout_ms);
    for (const auto& [rank, guest] : entry.second.guests) {
      answers->push_back({guest.ticket, status, {}});
    }
    return true;
  });
}

int64_t GatherTable::next_deadline_ns() const {
  int64_t next = kNeverNs;
  for (const auto& [name, gathering] : gatherings_) {
    for (const auto& [rank, guest] : gathering.guests) {
      next = std::min(next, guest.patience.deadline_ns);
    }
  }
  return next;
}

size_t GatherTable::kept_bytes(int32_t rank) const {
  for (const auto& [name, gathering] : gatherings_) {  // it is in one at most
    const auto guest = gathering.guests.find(rank);
    if (guest == gathering.guests.end()) continue;
    return name.size() + gathering.members.size() * sizeof(int32_t) + guest->second.says.size();
  }
  return 0;
}

Status GatherTable::missing(const std::string& name, const Gathering& gathering,
                            int64_t timeout_ms) const {
  std::vector<std::string> absent;
  size_t alive = 0;
  ErrorInfo info;
  for (const int32_t rank : gathering.members) {
    const Member* member = options_.roll(rank);
    if (member == nullptr) continue;
    ++alive;
    if (gathering.guests.count(rank) != 0) continue;
    if (absent.empty()) {
      info.rank = member->rank;
      info.host = member->host;
      info.pid = member->pid;
    }
    absent.push_back(member->text());
  }
  info.code = Code::kTimeout;
  info.message = format(
      "%s: %zu of %zu living ranks came within %s; missing: %s; look at what they do: each "
      "rank that lives has to call it, or to end",
      name.c_str(), alive - absent.size(), alive, seconds_text(timeout_ms).c_str(),
      item_list(absent).c_str());
  info.operation = kGatherOperation;
  return Status(std::move(info));
}

}  // namespace dt::store
