// SPDX-License-Identifier: Apache-2.0
#include "training/named_table.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "base/disagreement.h"

namespace dt::training {
namespace {

constexpr int64_t kNotDue = std::numeric_limits<int64_t>::max();
constexpr size_t kRanksInSentence = 8;  // in a sentence
constexpr size_t kNamesInReport = 64;   // in a report

/// `rank 2`, `ranks 0, 1 and 3`; the first of many.
std::string sentence_of_ranks(const std::vector<int32_t>& ranks,
                              const std::vector<std::string>* hosts) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  const size_t listed = std::min(ranks.size(), kRanksInSentence);
  for (size_t i = 0; i < listed; ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += format("%d", ranks[i]);
    if (hosts != nullptr) text += " (" + (*hosts)[static_cast<size_t>(ranks[i])] + ")";
  }
  if (listed < ranks.size()) text += format(" and %zu more", ranks.size() - listed);
  return text;
}

/// A rank that has joined gives zeros: that changes no result.
bool takes_zeros(const NamedCall& call) {
  if (call.kind != backend::Kind::kAllreduce) return false;
  return call.op == ReduceOp::kSum || call.op == ReduceOp::kAvg || call.op == ReduceOp::kBor ||
         call.op == ReduceOp::kBxor;
}

}  // namespace

std::vector<NamedBatch> plan_batches(const std::vector<NamedAnswer::Operation>& operations,
                                     int64_t fuse_bytes) {
  struct Open {
    size_t batch;
    int64_t bytes;
  };
  std::vector<NamedBatch> batches;
  std::map<std::pair<Dtype, ReduceOp>, Open> open;  // the last batch of each
  for (size_t i = 0; i < operations.size(); ++i) {
    const NamedCall& call = operations[i].call;
    if (call.kind == backend::Kind::kAllreduce) {
      const auto found = open.find({call.dtype, call.op});
      if (found != open.end() && call.bytes() <= fuse_bytes - found->second.bytes) {
        batches[found->second.batch].push_back(i);
        found->second.bytes += call.bytes();
        continue;
      }
      open[{call.dtype, call.op}] = {batches.size(), call.bytes()};
    }
    batches.push_back({i});
  }
  return batches;
}

NamedTable::NamedTable(Options options)
    : options_(std::move(options)),
      answers_(options_.members.size()),
      left_(options_.members.size()),
      joined_(options_.members.size()),
      heard_(options_.members.size()) {}

Status NamedTable::error(Code code, int32_t rank, const std::string& text) const {
  ErrorInfo info;
  info.code = code;
  info.message = options_.where + ": " + text;
  info.operation = "named submission";
  if (rank >= 0) {
    info.rank = options_.world_ranks[static_cast<size_t>(rank)];
    info.host = options_.hosts[static_cast<size_t>(rank)];
  }
  return Status(std::move(info));
}

Status NamedTable::hear(int32_t rank, const NamedNews& news, int64_t now_ns) {
  const auto at = static_cast<size_t>(rank);
  heard_[at] = std::max(heard_[at], news.heard);
  const uint32_t all_heard = *std::min_element(heard_.begin(), heard_.end());
  std::vector<Place> all_there;
  for (const uint32_t id : news.known) {
    const Cached* const cached = find(id);
    if (cached == nullptr) return error(Code::kInternal, rank, format("no call has id %u", id));
    DT_TRY(submit(rank, cached->name, cached->call, now_ns, &all_there));
  }
  while (!retired_.empty() && retired_.front().answer <= all_heard) retired_.pop_front();
  for (const auto& fresh : news.fresh) {
    DT_TRY(submit(rank, fresh.name, fresh.call, now_ns, &all_there));
  }
  for (const Place place : all_there) finish(place, now_ns);
  for (const std::string& name : news.overdue) overdue(rank, name);
  if (news.joins) join(rank, now_ns);
  if (news.asks) {
    answers_[at].report = report(now_ns);
    urgent_ = true;
  }
  if (news.leaves) leave(rank);
  return {};
}

const NamedTable::Cached* NamedTable::find(uint32_t id) const {
  if (const auto found = cached_ids_.find(id); found != cached_ids_.end()) return &*found->second;
  for (const Retired& retired : retired_) {
    if (retired.cached.id == id) return &retired.cached;
  }
  return nullptr;
}

Status NamedTable::submit(int32_t rank, const std::string& name, const NamedCall& call,
                          int64_t now_ns, std::vector<Place>* all_there) {
  if (!broken_.ok()) return {};
  if (left_count_ > 0) {
    const auto& leaver = options_.members[static_cast<size_t>(first_left_)];
    answers_[static_cast<size_t>(rank)].failures.push_back(
        {name, error(Code::kAborted, first_left_,
                     format("\"%s\" (%s) needs %s, which has destroyed its part; destroy this one "
                            "and make a new one on all ranks",
                            name.c_str(), call.text().c_str(), leaver.c_str()))});
    urgent_ = true;
    return {};
  }
  auto found = places_.find(name);
  if (found == places_.end()) {
    Entry entry;
    entry.name = name;
    entry.call = call;
    entry.submitted.resize(options_.members.size());
    entry.doomed.resize(options_.members.size());
    entry.since_ns = now_ns;
    entries_.push_back(std::move(entry));
    found = places_.emplace(name, std::prev(entries_.end())).first;
  }
  const Place place = found->second;
  if (place->submitted[static_cast<size_t>(rank)]) {
    return error(Code::kInternal, rank, format("\"%s\" came twice", name.c_str()));
  }
  place->submitted[static_cast<size_t>(rank)] = true;
  ++place->count;
  if (!(call == place->call)) place->others.push_back({rank, call});
  if (complete(*place)) all_there->push_back(place);
  return {};
}

bool NamedTable::complete(const Entry& entry) const {
  return entry.count == size() || (joined_count_ > 0 && missing(entry).empty());
}

std::vector<int32_t> NamedTable::missing(const Entry& entry) const {
  std::vector<int32_t> ranks;
  for (int32_t rank = 0; rank < size(); ++rank) {
    const auto at = static_cast<size_t>(rank);
    if (!entry.submitted[at] && !joined_[at]) ranks.push_back(rank);
  }
  return ranks;
}

std::string NamedTable::missing_text(const Entry& entry) const {
  std::vector<int32_t> there;
  for (int32_t rank = 0; rank < size(); ++rank) {
    if (entry.submitted[static_cast<size_t>(rank)]) there.push_back(rank);
  }
  return format("\"%s\" (%s) was submitted by %s and not by %s", entry.name.c_str(),
                entry.call.text().c_str(), sentence_of_ranks(there, nullptr).c_str(),
                sentence_of_ranks(missing(entry), &options_.hosts).c_str());
}

/// Whether it can be carried out.
Status NamedTable::judge(const Entry& entry) const {
  if (!entry.others.empty()) {
    std::vector<CallOfRank> calls;
    std::vector<int32_t> ranks;  // of these
    std::vector<NamedCall> kinds;
    for (int32_t rank = 0; rank < size(); ++rank) {
      if (!entry.submitted[static_cast<size_t>(rank)]) continue;
      const auto other = std::find_if(entry.others.begin(), entry.others.end(),
                                      [&](const Other& each) { return each.rank == rank; });
      const NamedCall& call = other == entry.others.end() ? entry.call : other->call;
      const auto kind = std::find(kinds.begin(), kinds.end(), call) - kinds.begin();
      if (kind == static_cast<std::ptrdiff_t>(kinds.size())) kinds.push_back(call);
      calls.push_back(
          {options_.members[static_cast<size_t>(rank)], static_cast<uint64_t>(kind), call.text()});
      ranks.push_back(rank);
    }
    const Disagreement found = disagreement(calls);
    // What to do is another thing here: the rest goes on.
    const std::string text = found.text.substr(0, found.text.rfind("; "));
    return error(Code::kMismatch, ranks[found.culprit],
                 format("\"%s\": %s; submit the same under one name on all ranks",
                        entry.name.c_str(), text.c_str()));
  }
  if (entry.count == size() || takes_zeros(entry.call)) return {};
  int32_t joined = 0;
  while (entry.submitted[static_cast<size_t>(joined)]) ++joined;
  return error(Code::kUnsupported, joined,
               format("\"%s\" (%s): %s has joined, and gives zeros; that works with an allreduce "
                      "of sum, avg, bor or bxor only",
                      entry.name.c_str(), entry.call.text().c_str(),
                      options_.members[static_cast<size_t>(joined)].c_str()));
}

/// All ranks have submitted it: no rank of them can have the name once more on its way.
void NamedTable::finish(Place place, int64_t now_ns) {
  const Entry entry = std::move(*place);
  places_.erase(entry.name);
  entries_.erase(place);
  const Status judged = judge(entry);
  const Status& failed = judged.ok() ? entry.failed : judged;
  const NamedCall& call = entry.call;
  if (!failed.ok()) {
    fail_all(entry.name, failed);
    std::set<std::string> groups{call.group};  // ranks may have it in different ones
    for (const Other& other : entry.others) groups.insert(other.call.group);
    for (const std::string& group : groups) {
      if (group.empty()) continue;
      std::vector<bool> ranks = ranks_in(entry, group);
      // The rest of a group that failed before has heard of it.
      for (size_t rank = 0; rank < ranks.size(); ++rank) {
        if (entry.doomed[rank]) ranks[rank] = false;
      }
      fail_group(group, std::move(ranks), failed);
    }
    return;
  }
  NamedAnswer::Operation operation;
  operation.name = entry.name;
  operation.call = call;
  if (call.group_size == 0) return release(std::move(operation), now_ns);
  Group& group = groups_[call.group];
  group.push_back(std::move(operation));
  if (group.size() < static_cast<size_t>(call.group_size)) return;
  Group whole = std::move(group);
  groups_.erase(call.group);
  std::sort(whole.begin(), whole.end(),
            [](const auto& a, const auto& b) { return a.call.group_index < b.call.group_index; });
  for (auto& part : whole) release(std::move(part), now_ns);
}

/// Ranks that have submitted it in this group.
std::vector<bool> NamedTable::ranks_in(const Entry& entry, const std::string& group) const {
  std::vector<bool> ranks(options_.members.size());
  if (entry.call.group == group) ranks = entry.submitted;
  for (const Other& other : entry.others) {
    ranks[static_cast<size_t>(other.rank)] = other.call.group == group;
  }
  return ranks;
}

/// The group that these ranks have submitted; `why`: of the name in it that failed.
void NamedTable::fail_group(const std::string& group, std::vector<bool> ranks, const Status& why) {
  if (std::find(ranks.begin(), ranks.end(), true) == ranks.end()) return;
  const auto failure = [&](const std::string& name) {
    return error(why.code(), -1,
                 format("\"%s\" is in the group of \"%s\", of which another failed: %s",
                        name.c_str(), group.c_str(), why.message().c_str()));
  };
  if (const auto held = groups_.find(group); held != groups_.end()) {
    ranks.assign(ranks.size(), true);  // all have what is there
    for (const auto& part : held->second) fail_all(part.name, failure(part.name));
    groups_.erase(held);
  }
  for (Entry& entry : entries_) {
    const std::vector<bool> there = ranks_in(entry, group);
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      if (!there[rank] || !ranks[rank]) continue;
      entry.doomed[rank] = true;
      if (entry.failed.ok()) entry.failed = failure(entry.name);
    }
  }
}

void NamedTable::release(NamedAnswer::Operation operation, int64_t now_ns) {
  if (ready_.empty()) ready_since_ns_ = now_ns;
  ready_bytes_ += operation.call.bytes();
  ready_.push_back(std::move(operation));
}

void NamedTable::fail_all(const std::string& name, const Status& status) {
  for (NamedAnswer& answer : answers_) answer.failures.push_back({name, status});
  urgent_ = true;
}

void NamedTable::join(int32_t rank, int64_t now_ns) {
  joined_[static_cast<size_t>(rank)] = true;
  ++joined_count_;
  if (left_count_ > 0)
    return break_with(error(
        Code::kAborted, first_left_,
        format(
            "%s has joined, and %s has destroyed its part; destroy this one and make a new one on "
            "all ranks",
            options_.members[static_cast<size_t>(rank)].c_str(),
            options_.members[static_cast<size_t>(first_left_)].c_str())));
  for (auto place = entries_.begin(); place != entries_.end();) {
    const auto next = std::next(place);
    if (complete(*place)) finish(place, now_ns);
    place = next;
  }
  if (joined_count_ < size()) return;
  for (NamedAnswer& answer : answers_) answer.joined = rank;
  joined_.assign(joined_.size(), false);
  joined_count_ = 0;
  urgent_ = true;
}

void NamedTable::leave(int32_t rank) {
  const auto at = static_cast<size_t>(rank);
  left_[at] = true;
  if (left_count_++ == 0) first_left_ = rank;
  answers_[at].may_end = true;
  urgent_ = true;
  const auto gone = [&](const std::string& name, const NamedCall& call) {
    return error(Code::kAborted, rank,
                 format("%s destroyed its part while \"%s\" (%s) was not yet carried out; destroy "
                        "this one and make a new one on all ranks",
                        options_.members[at].c_str(), name.c_str(), call.text().c_str()));
  };
  for (const Entry& entry : entries_) {
    for (size_t each = 0; each < answers_.size(); ++each) {
      if (!entry.submitted[each]) continue;
      answers_[each].failures.push_back({entry.name, gone(entry.name, entry.call)});
    }
  }
  entries_.clear();
  places_.clear();
  for (const auto& [first, group] : groups_) {
    for (const auto& part : group) fail_all(part.name, gone(part.name, part.call));
  }
  groups_.clear();
  if (joined_count_ > 0) {
    break_with(error(Code::kAborted, rank,
                     format("%s destroyed its part while other ranks had joined; destroy this one "
                            "and make a new one on all ranks",
                            options_.members[at].c_str())));
  }
}

void NamedTable::overdue(int32_t rank, const std::string& name) {
  std::string why;
  int32_t culprit = -1;
  if (const auto found = places_.find(name); found != places_.end()) {
    // The name was carried out meanwhile, and another rank has submitted it again.
    if (!found->second->submitted[static_cast<size_t>(rank)]) return;
    why = missing_text(*found->second);
    if (const auto ranks = missing(*found->second); !ranks.empty()) culprit = ranks[0];
  } else {
    for (const auto& [first, group] : groups_) {
      for (const auto& part : group) {
        if (part.name != name) continue;
        why = format(
            "\"%s\" waits for its group of \"%s\", of which %d of %d names were submitted "
            "by all ranks",
            name.c_str(), first.c_str(), static_cast<int>(group.size()), part.call.group_size);
      }
    }
  }
  if (why.empty()) return;  // its answer is on the way
  break_with(error(Code::kTimeout, culprit,
                   format("timed out on %s: %s; look at what the missing ranks do, or give more "
                          "time (timeout_ms)",
                          options_.members[static_cast<size_t>(rank)].c_str(), why.c_str())));
}

void NamedTable::break_with(const Status& status) {
  if (!broken_.ok()) return;
  broken_ = status;
  for (NamedAnswer& answer : answers_) answer.broken = status;
  entries_.clear();
  places_.clear();
  groups_.clear();
  ready_.clear();
  ready_bytes_ = 0;
  urgent_ = true;
}

int64_t NamedTable::due_ns() const {
  if (urgent_) return 0;
  if (ready_.empty()) return kNotDue;
  // More may come in a moment where ranks are submitting; not, where nothing is half there.
  if (entries_.empty() || ready_bytes_ >= options_.fuse_bytes) return 0;
  return ready_since_ns_ + options_.cycle_us * 1000;
}

std::vector<NamedAnswer> NamedTable::take() {
  std::vector<uint32_t> forgotten;
  if (!ready_.empty()) ++answered_;
  for (NamedAnswer::Operation& operation : ready_) remember(operation, &forgotten);
  std::vector<NamedAnswer> taken(answers_.size());
  std::swap(taken, answers_);
  for (NamedAnswer& answer : taken) {
    answer.operations = ready_;
    answer.forgotten = forgotten;
  }
  ready_.clear();
  ready_bytes_ = 0;
  urgent_ = false;
  return taken;
}

void NamedTable::remember(NamedAnswer::Operation& operation, std::vector<uint32_t>* forgotten) {
  if (const auto found = cached_names_.find(operation.name); found != cached_names_.end()) {
    const auto cached = found->second;
    if (cached->call == operation.call) {
      cache_.splice(cache_.begin(), cache_, cached);
      operation.id = cached->id;
      operation.known = true;
      return;
    }
    retire(cached, forgotten);
  }
  if (options_.cache <= 0 || next_id_ == NamedAnswer::kNoId) return;
  operation.id = next_id_++;
  cache_.push_front({operation.id, operation.name, operation.call});
  cached_names_[operation.name] = cache_.begin();
  cached_ids_[operation.id] = cache_.begin();
  if (cache_.size() > static_cast<size_t>(options_.cache))
    retire(std::prev(cache_.end()), forgotten);
}

void NamedTable::retire(std::list<Cached>::iterator cached, std::vector<uint32_t>* forgotten) {
  forgotten->push_back(cached->id);
  cached_names_.erase(cached->name);
  cached_ids_.erase(cached->id);
  retired_.push_back({std::move(*cached), answered_});
  cache_.erase(cached);
}

std::vector<std::string> NamedTable::stalls(int64_t now_ns) {
  std::vector<std::string> sentences;
  if (options_.stall_ms <= 0) return sentences;
  for (Entry& entry : entries_) {
    if (entry.since_ns + options_.stall_ms * 1'000'000 > now_ns) break;
    if (std::exchange(entry.warned, true)) continue;
    sentences.push_back(format("%s: %s for %lld ms", options_.where.c_str(),
                               missing_text(entry).c_str(),
                               static_cast<long long>((now_ns - entry.since_ns) / 1'000'000)));
  }
  return sentences;
}

int64_t NamedTable::next_stall_ns() const {
  if (options_.stall_ms <= 0) return kNotDue;
  for (const Entry& entry : entries_) {
    if (!entry.warned) return entry.since_ns + options_.stall_ms * 1'000'000;
  }
  return kNotDue;
}

std::string NamedTable::report(int64_t now_ns) const {
  std::string lines;
  size_t listed = 0;
  for (const Entry& entry : entries_) {
    if (listed++ == kNamesInReport) break;
    lines += format("%s for %lld ms\n", missing_text(entry).c_str(),
                    static_cast<long long>((now_ns - entry.since_ns) / 1'000'000));
  }
  if (entries_.size() > kNamesInReport)
    lines += format("and %zu more names\n", entries_.size() - kNamesInReport);
  return lines;
}

}  // namespace dt::training
