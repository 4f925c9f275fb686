// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "store/join.h"
#include "store/text.h"

// The second half of JoinTable: goodbye, death, deadlines.
namespace dt::store {

bool JoinTable::goodbye(Ticket ticket, Patience patience, int64_t now_ns, Answers* answers) {
  Slot* slot = slot_of(ticket.first);
  if (slot == nullptr || slot->stage == Stage::kConnected) {
    // A tool, or a rank that never joined: nobody counts on it.
    answers->push_back({ticket, {}, {}});
    return false;
  }
  if (slot->stage != Stage::kMember) {
    answers->push_back({ticket,
                        Status(Code::kInvalidState,
                               slot->member.text() + " is joining or has said goodbye already"),
                        {}});
    return false;
  }
  move(slot, Stage::kLeft);
  begin_waiting(slot, ticket.second, patience);
  finish_goodbyes(answers);
  expire(now_ns, answers);
  return true;
}

void JoinTable::leave(uint64_t client, Answers* answers) {
  Slot* slot = slot_of(client);
  if (slot == nullptr || slot->stage != Stage::kMember) return;
  move(slot, Stage::kLeft);
  finish_goodbyes(answers);
}

bool JoinTable::is_over() const {
  return decided_ && deaths_.empty() && count(Stage::kLeft) == slots_.size();
}

void JoinTable::finish_goodbyes(Answers* answers) {
  if (!decided_ || count(Stage::kMember) != 0) return;
  for (auto& entry : slots_) {
    Slot& slot = entry.second;
    if (slot.stage != Stage::kLeft || !slot.waiting.has_value()) continue;
    const auto death = std::find_if(deaths_.begin(), deaths_.end(), [&](const Status& each) {
      return slot.forgiven.count(each.info().rank) == 0;
    });
    const Status status = death == deaths_.end() ? Status() : *death;
    answers->push_back({{slot.client, *slot.waiting}, status, {}});
    end_waiting(&slot);
  }
}

void JoinTable::forgive(const std::vector<int32_t>& by, const std::vector<int32_t>& gone) {
  for (const int32_t rank : by) {
    const auto slot = slots_.find(rank);
    if (slot != slots_.end()) slot->second.forgiven.insert(gone.begin(), gone.end());
  }
}

void JoinTable::cancel(Ticket ticket) {
  Slot* slot = slot_of(ticket.first);
  if (slot == nullptr || slot->waiting != ticket.second) return;
  end_waiting(slot);
  // A goodbye stays said: its connection may end silently.
  if (slot->stage == Stage::kJoining) move(slot, Stage::kConnected);
}

std::optional<Failure> JoinTable::lost(uint64_t client, const Ending& ending, Answers* answers) {
  const auto found = rank_of_client_.find(client);
  if (found == rank_of_client_.end()) return std::nullopt;
  const int32_t rank = found->second;
  Slot& slot = slots_.at(rank);
  rank_of_client_.erase(found);
  end_waiting(&slot);
  switch (slot.stage) {
    case Stage::kConnected:
      erase(rank);
      decide(answers);  // it may have been the last one that the others waited for
      return std::nullopt;
    case Stage::kJoining:
      died_joining_[rank] = slot.member;
      erase(rank);
      decide(answers);
      return std::nullopt;
    case Stage::kLeft:
    case Stage::kDead: return std::nullopt;
    case Stage::kMember: break;
  }
  move(&slot, Stage::kDead);
  Failure failure;
  failure.info.code = Code::kPeerLost;
  failure.info.message =
      format("%s %s; look at its log, then go on with dt_comm_shrink or start the job again",
             slot.member.text().c_str(), ending.what.c_str());
  failure.info.operation = ending.operation;
  failure.info.sequence = ending.sequence;
  failure.info.rank = rank;
  failure.info.host = slot.member.host;
  failure.info.pid = slot.member.pid;
  deaths_.emplace_back(failure.info);
  finish_goodbyes(answers);
  return failure;
}

void JoinTable::process_ended(const Member& rank, const std::string& how, Answers* answers) {
  if (rank.rank < 0 || rank.rank >= setup_.world_size || !first_ended_.ok()) return;
  const auto slot = slots_.find(rank.rank);
  if (slot != slots_.end() && slot->second.member.pid != rank.pid &&
      (slot->second.stage == Stage::kConnected || slot->second.stage == Stage::kJoining)) {
    return;
  }
  ErrorInfo info;
  info.code = Code::kPeerLost;
  info.message =
      format("join: %s %s, before all ranks were there; look at its log, then start a new attempt",
             rank.text().c_str(), how.c_str());
  info.rank = rank.rank;
  info.host = rank.host;
  info.pid = rank.pid;
  info.operation = "join";
  first_ended_ = Status(std::move(info));
  if (!decided_ && failed_.ok()) fail_join(first_ended_, answers);
}

void JoinTable::expire(int64_t now_ns, Answers* answers) {
  if (!decided_ && failed_.ok()) {
    // One joiner's deadline ends the join for all: without it the world cannot be complete.
    std::optional<int64_t> ended;
    for (const auto& [deadline_ns, rank] : deadlines_) {
      if (deadline_ns > now_ns) break;
      const Slot& slot = slots_.at(rank);
      if (slot.stage == Stage::kJoining) {
        ended = std::max(ended.value_or(0), slot.patience.timeout_ms);
      }
    }
    if (!ended.has_value() && count(Stage::kJoining) > 0 && first_join_.ended(now_ns)) {
      ended = first_join_.timeout_ms;
    }
    if (ended.has_value()) fail_join(missing_status(*ended), answers);
  }
  // What is left has said goodbye.
  while (!deadlines_.empty() && deadlines_.begin()->first <= now_ns) {
    Slot& slot = slots_.at(deadlines_.begin()->second);
    answers->push_back(
        {{slot.client, *slot.waiting}, still_there_status(slot.patience.timeout_ms), {}});
    end_waiting(&slot);
  }
}

std::vector<Member> JoinTable::members() const {
  std::vector<Member> members;
  for (const auto& [rank, slot] : slots_) {
    if (slot.stage == Stage::kMember) members.push_back(slot.member);
  }
  return members;
}

const Member* JoinTable::member(int32_t rank) const {
  const auto slot = slots_.find(rank);
  if (slot == slots_.end() || slot->second.stage != Stage::kMember) return nullptr;
  return &slot->second.member;
}

size_t JoinTable::kept_bytes(int32_t rank) const {
  const auto slot = slots_.find(rank);
  return slot == slots_.end() ? 0 : slot->second.record_bytes;
}

uint64_t JoinTable::client_of(int32_t rank) const {
  const auto slot = slots_.find(rank);
  return slot == slots_.end() || slot->second.stage == Stage::kDead ? 0 : slot->second.client;
}

int64_t JoinTable::next_deadline_ns() const {
  int64_t next = deadlines_.empty() ? kNeverNs : deadlines_.begin()->first;
  if (count(Stage::kJoining) > 0) next = std::min({next, first_join_.deadline_ns, late_at_ns_});
  return next;
}

Status JoinTable::still_there_status(int64_t timeout_ms) const {
  std::vector<std::string> there;
  const Member* first = nullptr;
  for (const auto& entry : slots_) {
    if (entry.second.stage != Stage::kMember) continue;
    if (first == nullptr) first = &entry.second.member;
    there.push_back(entry.second.member.text());
  }
  ErrorInfo info;
  info.code = Code::kTimeout;
  info.message = format("goodbye: %zu of %d ranks left within %s; still there: %s",
                        static_cast<size_t>(setup_.world_size) - there.size(), setup_.world_size,
                        seconds_text(timeout_ms).c_str(), item_list(there).c_str());
  if (first != nullptr) {
    info.rank = first->rank;
    info.host = first->host;
    info.pid = first->pid;
  }
  info.operation = "goodbye";
  return Status(std::move(info));
}

}  // namespace dt::store
