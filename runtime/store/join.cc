// SPDX-License-Identifier: Apache-2.0
#include "store/join.h"

#include <algorithm>

#include "store/protocol.h"
#include "store/text.h"

namespace dt::store {
namespace {

// "(hostA pid 12)": the process without its rank.
std::string process_text(const Member& member) {
  return format("(%s pid %lld)", member.host.c_str(), static_cast<long long>(member.pid));
}

}  // namespace

Status refusal(const Member& member, std::string message) {
  ErrorInfo info;
  info.code = Code::kConfig;
  info.message = std::move(message);
  info.rank = member.rank;
  info.host = member.host;
  info.pid = member.pid;
  info.operation = "join";
  return Status(std::move(info));
}

// ---- hello ----

Status check_rank(const Hello& hello) {
  const Member& member = hello.member;
  const bool is_tool = member.rank == -1;
  // A world size that makes no sense is refused as such.
  if (is_tool || hello.world_size < 1) return {};
  if (member.rank >= 0 && member.rank < hello.world_size) return {};
  return refusal(member, format("rank %d %s is out of range: the job has world size %d, so ranks "
                                "are 0 to %d",
                                member.rank, process_text(member).c_str(), hello.world_size,
                                hello.world_size - 1));
}

namespace {

Status over(const char* operation, const Member& member, std::string message) {
  ErrorInfo info = refusal(member, std::move(message)).info();
  info.operation = operation;
  return Status(std::move(info));
}

}  // namespace

Status JoinTable::check_identity(const Hello& hello) const {
  const std::string store = "store at " + (hello.dialled.empty() ? "?" : hello.dialled);
  if (hello.protocol != kProtocolVersion) {
    return Status(
        Code::kVersion,
        format("%s speaks protocol %u; %s speaks %u; use the same release of dt "
               "everywhere",
               store.c_str(), kProtocolVersion, hello.member.text().c_str(), hello.protocol));
  }
  const bool is_tool = hello.member.rank == -1;
  const bool job_differs = hello.job_id != setup_.job_id && !(is_tool && hello.job_id.empty());
  const bool attempt_differs = hello.attempt != setup_.attempt && !(is_tool && hello.attempt == -1);
  if (job_differs || attempt_differs) {
    const char* reason = job_differs                      ? "another job"
                         : hello.attempt < setup_.attempt ? "stale"
                                                          : "the store is stale";
    const bool is_old = !job_differs && hello.attempt > setup_.attempt;
    const std::string text = format(
        "%s serves job %s attempt %d; this process belongs to job %s attempt %d "
        "(%s)",
        store.c_str(), store::quoted(setup_.job_id).c_str(), setup_.attempt,
        store::quoted(hello.job_id).c_str(), hello.attempt, reason);
    return is_old ? over(kAttemptOver, hello.member, text) : refusal(hello.member, text);
  }
  if (is_tool) return {};
  if (hello.world_size != setup_.world_size) {
    return refusal(
        hello.member,
        format("%s serves a job with world size %d; %s has world size %d; start every "
               "rank with the same world size",
               store.c_str(), setup_.world_size, hello.member.text().c_str(), hello.world_size));
  }
  return check_rank(hello);
}

Status JoinTable::rank_is_over(const Slot& slot, const Member& newcomer) const {
  const std::string rank = format("rank %d %s", newcomer.rank, process_text(slot.member).c_str());
  const std::vector<Member> others = members();
  if (setup_.several_jobs && deaths_.empty() && !others.empty()) {
    std::vector<std::string> names;
    for (const Member& other : others) names.push_back(other.text());
    // No final refusal: it may come again.
    return Status(Code::kTimeout,
                  format("%s has left a job that others are still in: %s; the next one can begin "
                         "when they have said goodbye",
                         rank.c_str(), item_list(names).c_str()));
  }
  // After another's death it may have gone without a goodbye, which looks like a death, too.
  const int32_t first_dead = deaths_.empty() ? newcomer.rank : deaths_[0].info().rank;
  std::string what = rank;
  if (first_dead != newcomer.rank) {
    what += format(" has left attempt %d, in which rank %d died", setup_.attempt, first_dead);
  } else {
    what += format(" has %s attempt %d", slot.stage == Stage::kDead ? "died in" : "left",
                   setup_.attempt);
  }
  return over(kRankOver, newcomer,
              format("%s; %s cannot take its place: start a new attempt%s", what.c_str(),
                     process_text(newcomer).c_str(),
                     setup_.any_job ? " with a higher job.attempt on all ranks, or a job of "
                                      "another job.id"
                                    : ""));
}

Status JoinTable::admit(const Hello& hello, uint64_t client, std::optional<uint64_t>* superseded) {
  DT_TRY(check_identity(hello));
  const Member& member = hello.member;
  if (member.rank == -1) return {};
  if (const auto taken = slots_.find(member.rank); taken != slots_.end()) {
    const Slot& slot = taken->second;
    if (slot.stage == Stage::kDead || slot.stage == Stage::kLeft) {
      return rank_is_over(slot, member);
    }
    if (slot.nonce != hello.nonce || slot.stage != Stage::kConnected) {
      return refusal(member, format("duplicate rank %d: %s has it, and %s claims it too and is "
                                    "refused; give every process its own rank",
                                    member.rank, process_text(slot.member).c_str(),
                                    process_text(member).c_str()));
    }
    // The same client: its first hello was answered too late.
    *superseded = slot.client;
    rank_of_client_.erase(slot.client);
  }
  Slot slot;
  slot.member = member;
  slot.nonce = hello.nonce;
  slot.client = client;
  erase(member.rank);
  ++counts_[static_cast<size_t>(slot.stage)];
  slots_.emplace(member.rank, std::move(slot));
  rank_of_client_[client] = member.rank;
  return {};
}

JoinTable::Slot* JoinTable::slot_of(uint64_t client) {
  const auto rank = rank_of_client_.find(client);
  return rank == rank_of_client_.end() ? nullptr : &slots_.at(rank->second);
}

void JoinTable::move(Slot* slot, Stage stage) {
  --counts_[static_cast<size_t>(slot->stage)];
  ++counts_[static_cast<size_t>(stage)];
  slot->stage = stage;
}

void JoinTable::begin_waiting(Slot* slot, uint64_t request, Patience patience) {
  slot->waiting = request;
  slot->patience = patience;
  deadlines_.insert({patience.deadline_ns, slot->member.rank});
}

void JoinTable::end_waiting(Slot* slot) {
  if (!slot->waiting.has_value()) return;
  slot->waiting.reset();
  deadlines_.erase({slot->patience.deadline_ns, slot->member.rank});
}

void JoinTable::erase(int32_t rank) {
  const auto slot = slots_.find(rank);
  if (slot == slots_.end()) return;
  end_waiting(&slot->second);
  --counts_[static_cast<size_t>(slot->second.stage)];
  slots_.erase(slot);
}

// ---- join ----

void JoinTable::join(Ticket ticket, JoinRecord record, Patience patience, int64_t now_ns,
                     Answers* answers) {
  Slot* slot = slot_of(ticket.first);
  Status status;
  if (slot == nullptr) {
    status = Status(Code::kInvalidState, "a tool has no rank and cannot join");
  } else if (record.rank != slot->member.rank || record.world_size != setup_.world_size) {
    status = Status(
        Code::kInvalidArgument,
        format("%s of %d joins as rank %d of %d; give hello and join the same values",
               slot->member.text().c_str(), setup_.world_size, record.rank, record.world_size));
  } else if (slot->stage != Stage::kConnected) {
    status =
        Status(Code::kInvalidState, slot->member.text() + " has joined already; join only once");
  } else if (!failed_.ok()) {
    status = failed_before();
  }
  if (!status.ok()) {
    answers->push_back({ticket, std::move(status), {}});
    return;
  }
  if (count(Stage::kJoining) == 0) {
    first_join_ = Patience::starting(now_ns, setup_.timeout_ms);
    first_join_ns_ = now_ns;
    late_at_ns_ = setup_.warn_ms > 0 ? now_ns + setup_.warn_ms * kNsPerMs : kNeverNs;
  }
  died_joining_.erase(record.rank);
  move(slot, Stage::kJoining);
  if (record.limit_ms >= 0) patience.timeout_ms = record.limit_ms;
  begin_waiting(slot, ticket.second, patience);
  slot->record = std::move(record);
  slot->record_bytes = store::kept_bytes(slot->record);
  if (!first_ended_.ok()) fail_join(first_ended_, answers);
  decide(answers);
  // A joiner without patience is answered at once, like one whose deadline passes later.
  if (!decided_ && failed_.ok()) expire(now_ns, answers);
}

/// What the others were told, for a rank that joins after them.
Status JoinTable::failed_before() const {
  if (!setup_.any_job) return failed_;
  ErrorInfo info = failed_.info();
  info.message += format(
      "; with that attempt %d is over: start it again with a higher job.attempt on all ranks, or "
      "as "
      "a job of another job.id",
      setup_.attempt);
  return Status(std::move(info));
}

/// A replacement that has said hello and has not joined yet is alive, so the others wait for it.
std::vector<Member> JoinTable::missing_dead() const {
  std::vector<Member> dead;
  for (const auto& [rank, member] : died_joining_) {
    if (slots_.count(rank) == 0) dead.push_back(member);
  }
  return dead;
}

void JoinTable::decide(Answers* answers) {
  const size_t joined = count(Stage::kJoining);
  const size_t world_size = static_cast<size_t>(setup_.world_size);
  const std::vector<Member> dead = missing_dead();
  if (joined > 0 && joined < world_size && joined + dead.size() >= world_size) {
    std::vector<std::string> names;
    for (const Member& each : dead) names.push_back(each.text());
    const Member& first = dead.front();
    ErrorInfo info;
    info.code = Code::kPeerLost;
    info.message = format(
        "join: %s died after joining, before all ranks were there; look at its "
        "log, then start a new attempt",
        item_list(names).c_str());
    info.rank = first.rank;
    info.host = first.host;
    info.pid = first.pid;
    info.operation = "join";
    fail_join(Status(std::move(info)), answers);
    return;
  }
  if (joined < world_size) return;
  // Whatever the verdict, it ends all joining: the slots need theirs no more.
  std::vector<JoinRecord> records;
  records.reserve(world_size);
  for (auto& entry : slots_) {
    records.push_back(std::move(entry.second.record));
    entry.second.record_bytes = 0;
  }
  for (const auto compare : {compare_configs, compare_addresses}) {
    if (const Status compared = compare(records); !compared.ok()) {
      fail_join(compared, answers);
      return;
    }
  }
  const std::vector<Placement> places = place_ranks(records);
  Verdict common;
  common.attempt = setup_.attempt;
  common.session = setup_.session;
  common.world_size = setup_.world_size;
  for (const Placement& place : places) {
    common.node_count = std::max(common.node_count, place.node_rank + 1);
  }
  common.hosts.resize(static_cast<size_t>(common.node_count));
  for (size_t rank = 0; rank < records.size(); ++rank) {
    HostEntry& host = common.hosts[static_cast<size_t>(places[rank].node_rank)];
    host.host_name = records[rank].host_name;
    host.node_rank = places[rank].node_rank;
    host.ranks.push_back(static_cast<int32_t>(rank));
  }
  // The largest part.
  const auto hosts = std::make_shared<const std::string>(encode_hosts(common));
  for (auto& [rank, slot] : slots_) {
    answers->push_back(
        {{slot.client, *slot.waiting}, {}, verdict_for(rank, records, places, common), hosts});
    end_waiting(&slot);
    move(&slot, Stage::kMember);
    records_.emplace_back(join_record_key(rank), encode(records[static_cast<size_t>(rank)]));
  }
  decided_ = true;
}

// Without the hosts.
std::string JoinTable::verdict_for(int32_t rank, const std::vector<JoinRecord>& records,
                                   const std::vector<Placement>& places,
                                   const Verdict& common) const {
  const Placement& own = places[static_cast<size_t>(rank)];
  Verdict verdict;
  verdict.attempt = common.attempt;
  verdict.session = common.session;
  verdict.world_size = common.world_size;
  verdict.node_count = common.node_count;
  verdict.node_rank = own.node_rank;
  verdict.local_rank = own.local_rank;
  const std::vector<int32_t>& ranks = common.hosts[static_cast<size_t>(own.node_rank)].ranks;
  verdict.local_size = static_cast<int32_t>(ranks.size());
  for (const int32_t local : ranks) {
    const JoinRecord& record = records[static_cast<size_t>(local)];
    verdict.locals.push_back({local, record.pid, record.socket_name});
  }
  return encode_without_hosts(verdict);
}

void JoinTable::fail_join(const Status& status, Answers* answers) {
  failed_ = status;
  for (auto& entry : slots_) {
    Slot& slot = entry.second;
    slot.record = {};
    slot.record_bytes = 0;
    if (slot.stage != Stage::kJoining) continue;
    answers->push_back({{slot.client, *slot.waiting}, status, {}});
    end_waiting(&slot);
    move(&slot, Stage::kConnected);
  }
}

Status JoinTable::missing_status(int64_t timeout_ms) const {
  std::vector<int32_t> missing;
  std::vector<std::string> joined;
  for (int32_t rank = 0; rank < setup_.world_size; ++rank) {
    const auto entry = slots_.find(rank);
    if (entry == slots_.end() || entry->second.stage != Stage::kJoining) {
      missing.push_back(rank);
    } else {
      joined.push_back(format("%d %s", rank, process_text(entry->second.member).c_str()));
    }
  }
  ErrorInfo info;
  info.code = Code::kTimeout;
  info.message = format("%zu of %d ranks joined within %s; missing %s; joined: %s", joined.size(),
                        setup_.world_size, seconds_text(timeout_ms).c_str(),
                        ranks_text(missing).c_str(), item_list(joined).c_str());
  std::vector<std::string> dead;
  for (const auto& entry : died_joining_) dead.push_back(entry.second.text());
  if (!dead.empty()) info.message += "; died after joining: " + item_list(dead);
  info.rank = missing.front();
  info.operation = "join";
  return Status(std::move(info));
}

std::string JoinTable::late(int64_t now_ns) {
  if (now_ns < late_at_ns_ || count(Stage::kJoining) == 0) return {};
  const int64_t waited_ns = now_ns - first_join_ns_;
  late_at_ns_ = now_ns + waited_ns;
  return missing_status(waited_ns / kNsPerMs).message();
}

std::vector<std::pair<std::string, std::string>> JoinTable::take_records() {
  return std::exchange(records_, {});
}

}  // namespace dt::store
