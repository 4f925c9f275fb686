// SPDX-License-Identifier: Apache-2.0
#include "store/keyspace.h"

#include <algorithm>
#include <charconv>

#include "store/text.h"

namespace dt::store {

namespace {

/// PyTorch's clients name keys of these only, see torch_service.h.
Owner owner_of(const std::string& key) {
  const bool guests = key.rfind("torch/", 0) == 0 || key.rfind("dt.torch", 0) == 0;
  return guests ? Owner::kGuests : Owner::kMembers;
}

}  // namespace

SharedText SharedTexts::keep(std::string text) {
  *bytes_ += text.size();
  return {new std::string(std::move(text)), [all = bytes_](const std::string* gone) {
            *all -= gone->size();
            delete gone;
          }};
}

Patience Patience::starting(int64_t now_ns, int64_t timeout_ms) {
  Patience patience;
  patience.timeout_ms = timeout_ms;
  if (timeout_ms >= 0 && timeout_ms < (kNeverNs - now_ns) / kNsPerMs) {
    patience.deadline_ns = now_ns + timeout_ms * kNsPerMs;
  }
  return patience;
}

// ---- keys and values ----

const SharedText& Keyspace::share(const std::string& key) const {
  static const SharedText kAbsent;
  const auto found = values_.find(key);
  return found == values_.end() ? kAbsent : found->second;
}

Status Keyspace::check_room(Owner owner, size_t added, size_t removed) const {
  const bool full = bytes_ - removed + added > max_bytes_;
  const bool guests_full =
      owner == Owner::kGuests && guest_bytes_ - removed + added > max_guest_bytes_;
  if (!full && !guests_full) return {};
  return Status(
      Code::kOutOfMemory,
      format("%s is full: %zu of %zu bytes are used and %zu more were asked for; delete keys that "
             "are no longer needed, or raise store.memory_mb",
             full ? "the store" : "the share of PyTorch's clients in the store",
             full ? bytes_ : guest_bytes_, full ? max_bytes_ : max_guest_bytes_, added));
}

void Keyspace::charge(Owner owner, size_t added, size_t removed) {
  bytes_ += added - removed;
  if (owner == Owner::kGuests) guest_bytes_ += added - removed;
}

void Keyspace::put(const std::string& key, std::string value, Answers* released) {
  ++version_;
  const auto [position, inserted] = values_.try_emplace(key);
  if (on_change_) on_change_(key, position->second.get(), &value);
  const Owner owner = owner_of(key);
  const size_t before = inserted ? 0 : position->second->size();
  charge(owner, value.size() + (inserted ? key.size() + kItemBytes : 0), before);
  value_bytes_[static_cast<size_t>(owner)] += value.size() - before;
  position->second = texts(owner).keep(std::move(value));
  const auto waiting = waiting_for_.find(key);
  if (waiting == waiting_for_.end()) return;
  const std::set<Ticket> tickets = std::move(waiting->second);
  waiting_for_.erase(waiting);
  for (const Ticket& ticket : tickets) {
    release(waits_.find(ticket), key, position->second, released);
  }
}

void Keyspace::release(Waits::iterator wait, const std::string& key, const SharedText& value,
                       Answers* released) {
  wait->second.missing.erase(key);
  if (!wait->second.missing.empty()) return;
  released->push_back(
      {wait->first, {}, {}, wait->second.kind == WaitKind::kValue ? value : nullptr});
  remove(wait);
}

void Keyspace::notice(const std::string& key, size_t count, Answers* released) {
  const auto waiting = waiting_for_.find(key);
  if (waiting == waiting_for_.end()) return;
  std::vector<Ticket> chosen;
  for (const Ticket& ticket : waiting->second) {
    if (chosen.size() == count) break;
    if (waits_.at(ticket).kind == WaitKind::kNoticed) chosen.push_back(ticket);
  }
  for (const Ticket& ticket : chosen) waiting->second.erase(ticket);
  if (waiting->second.empty()) waiting_for_.erase(waiting);
  for (const Ticket& ticket : chosen) release(waits_.find(ticket), key, nullptr, released);
}

Status Keyspace::reserve(size_t bytes) {
  DT_TRY(check_room(Owner::kGuests, bytes, 0));
  charge(Owner::kGuests, bytes, 0);
  return {};
}

Status Keyspace::set(const std::string& key, std::string value, Answers* released) {
  const std::string* old = find(key);
  DT_TRY(check_room(owner_of(key), value.size() + (old == nullptr ? key.size() + kItemBytes : 0),
                    old == nullptr ? 0 : old->size()));
  put(key, std::move(value), released);
  return {};
}

Status Keyspace::multi_set(const std::vector<std::string>& keys, std::vector<std::string> values,
                           Answers* released) {
  // Overwriting may need less; the check must only never be too late.
  size_t added[2] = {};
  for (size_t i = 0; i < keys.size(); ++i) {
    added[static_cast<size_t>(owner_of(keys[i]))] += keys[i].size() + values[i].size() + kItemBytes;
  }
  DT_TRY(check_room(Owner::kMembers, added[0] + added[1], 0));
  DT_TRY(check_room(Owner::kGuests, added[1], 0));
  for (size_t i = 0; i < keys.size(); ++i) put(keys[i], std::move(values[i]), released);
  return {};
}

Result<int64_t> Keyspace::add(const std::string& key, int64_t delta, Answers* released) {
  int64_t sum = 0;
  if (const std::string* text = find(key); text != nullptr) {
    const char* end = text->data() + text->size();
    const auto parsed = std::from_chars(text->data(), end, sum);
    if (parsed.ec != std::errc() || parsed.ptr != end) {
      return Status(Code::kInvalidArgument,
                    format("add to key %s: its value %s is no number", store::quoted(key).c_str(),
                           store::quoted(*text).c_str()));
    }
  }
  if (__builtin_add_overflow(sum, delta, &sum)) {
    return Status(Code::kInvalidArgument, format("add to key %s: the sum does not fit into 64 bits",
                                                 store::quoted(key).c_str()));
  }
  DT_TRY(set(key, std::to_string(sum), released));
  return sum;
}

Result<CompareSet> Keyspace::compare_set(const std::string& key,
                                         const std::optional<std::string>& expected,
                                         const std::string& desired, Answers* released) {
  CompareSet result;
  const std::string* value = find(key);
  if (value != nullptr) result.current = *value;
  if (result.current != expected) return result;
  DT_TRY(set(key, desired, released));
  result.swapped = true;
  result.current = desired;
  return result;
}

void Keyspace::erase_of(Owner owner) {
  for (const std::string& key : list("")) {
    if (owner_of(key) == owner) erase(key);
  }
}

bool Keyspace::erase(const std::string& key) {
  const auto found = values_.find(key);
  if (found == values_.end()) return false;
  ++version_;
  if (on_change_) on_change_(key, found->second.get(), nullptr);
  const Owner owner = owner_of(key);
  const size_t value_bytes = found->second->size();
  charge(owner, 0, key.size() + kItemBytes + value_bytes);
  value_bytes_[static_cast<size_t>(owner)] -= value_bytes;
  values_.erase(found);
  return true;
}

std::vector<std::string> Keyspace::list(const std::string& prefix) const {
  std::vector<std::string> keys;
  for (auto entry = values_.lower_bound(prefix);
       entry != values_.end() && entry->first.compare(0, prefix.size(), prefix) == 0; ++entry) {
    keys.push_back(entry->first);
  }
  return keys;
}

size_t Keyspace::count(const std::string& prefix) const {
  size_t count = 0;
  for (auto entry = values_.lower_bound(prefix);
       entry != values_.end() && entry->first.compare(0, prefix.size(), prefix) == 0; ++entry) {
    ++count;
  }
  return count;
}

// ---- waits ----

Status Keyspace::admit(Ticket ticket, Owner owner, size_t bytes) const {
  if (waits_.count(ticket) != 0) {
    return Status(Code::kInvalidArgument, "the request's number is in use on this connection");
  }
  const auto count = waits_of_client_.find(ticket.first);
  if (count != waits_of_client_.end() && count->second >= kMaxWaitsPerClient) {
    return Status(Code::kInvalidArgument,
                  format("this connection has %zu calls waiting in the store, the limit",
                         kMaxWaitsPerClient));
  }
  return check_room(owner, bytes, 0);
}

void Keyspace::insert(Ticket ticket, PendingWait wait) {
  for (const std::string& key : wait.missing) waiting_for_[key].insert(ticket);
  if (wait.patience.deadline_ns != kNeverNs) {
    deadlines_.insert({wait.patience.deadline_ns, ticket});
  }
  charge(wait.owner, wait.bytes, 0);
  ++waits_of_client_[ticket.first];
  waits_.emplace(ticket, std::move(wait));
}

Keyspace::PendingWait Keyspace::remove(Waits::iterator position) {
  const Ticket ticket = position->first;
  PendingWait wait = std::move(position->second);
  waits_.erase(position);
  charge(wait.owner, 0, wait.bytes);
  deadlines_.erase({wait.patience.deadline_ns, ticket});
  if (const auto count = waits_of_client_.find(ticket.first); --count->second == 0) {
    waits_of_client_.erase(count);
  }
  for (const std::string& key : wait.missing) {
    const auto waiting = waiting_for_.find(key);
    if (waiting == waiting_for_.end()) continue;
    waiting->second.erase(ticket);
    if (waiting->second.empty()) waiting_for_.erase(waiting);
  }
  if (const auto state = barriers_.find(wait.barrier); state != barriers_.end()) {
    std::erase(state->second.arrived, ticket);
    if (state->second.arrived.empty()) barriers_.erase(state);
  }
  return wait;
}

void Keyspace::wait(Ticket ticket, std::vector<std::string> keys, WaitKind kind, Patience patience,
                    int64_t now_ns, Answers* answers) {
  PendingWait wait;
  wait.key_count = keys.size();
  wait.kind = kind;
  wait.patience = patience;
  wait.owner = kind == WaitKind::kNoticed ? Owner::kGuests : Owner::kMembers;
  wait.bytes = kItemBytes;
  SharedText value;
  for (std::string& key : keys) {
    value = share(key);
    if (value != nullptr) continue;
    wait.bytes += kItemBytes + 2 * key.size();
    wait.missing.insert(std::move(key));
  }
  if (wait.missing.empty()) {
    answers->push_back({ticket, {}, {}, kind == WaitKind::kValue ? value : nullptr});
  } else if (patience.ended(now_ns)) {
    answers->push_back({ticket, timeout_status(wait), {}});
  } else if (Status admitted = admit(ticket, wait.owner, wait.bytes); !admitted.ok()) {
    answers->push_back({ticket, std::move(admitted), {}});
  } else {
    insert(ticket, std::move(wait));
  }
}

void Keyspace::barrier(Ticket ticket, const std::string& who, const std::string& name,
                       int32_t count, Patience patience, int64_t now_ns, Answers* answers) {
  const auto existing = barriers_.find(name);
  if (existing != barriers_.end() && existing->second.count != count) {
    answers->push_back(
        {ticket,
         Status(Code::kMismatch,
                format("barrier %s: %s waits for %d arrivals, but %s for %d; give the same count "
                       "everywhere",
                       store::quoted(name).c_str(), who.c_str(), count,
                       waits_.at(existing->second.arrived.front()).who.c_str(),
                       existing->second.count)),
         {}});
    return;
  }
  const size_t bytes = name.size() + who.size() + kItemBytes;
  if (Status admitted = admit(ticket, Owner::kMembers, bytes); !admitted.ok()) {
    answers->push_back({ticket, std::move(admitted), {}});
    return;
  }
  PendingWait wait;
  wait.barrier = name;
  wait.who = who;
  wait.patience = patience;
  wait.bytes = bytes;
  BarrierState& state = barriers_[name];
  state.count = count;
  state.arrived.push_back(ticket);
  insert(ticket, std::move(wait));
  if (state.arrived.size() < static_cast<size_t>(count)) {
    if (patience.ended(now_ns)) expire(now_ns, answers);
    return;
  }
  const std::vector<Ticket> arrived = state.arrived;
  for (const Ticket& each : arrived) {
    remove(waits_.find(each));
    answers->push_back({each, {}, {}});
  }
}

void Keyspace::cancel(Ticket ticket) {
  if (const auto wait = waits_.find(ticket); wait != waits_.end()) remove(wait);
}

void Keyspace::drop(uint64_t client) {
  for (auto wait = waits_.lower_bound({client, 0});
       wait != waits_.end() && wait->first.first == client;) {
    remove(wait++);
  }
}

void Keyspace::expire(int64_t now_ns, Answers* answers) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now_ns) {
    const auto wait = waits_.find(deadlines_.begin()->second);
    answers->push_back({wait->first, timeout_status(wait->second), {}});
    remove(wait);
  }
}

int64_t Keyspace::next_deadline_ns() const {
  return deadlines_.empty() ? kNeverNs : deadlines_.begin()->first;
}

Status Keyspace::timeout_status(const PendingWait& wait) const {
  const std::string time = seconds_text(wait.patience.timeout_ms);
  if (wait.barrier.empty()) {
    std::vector<std::string> missing;
    for (const std::string& key : wait.missing) missing.push_back(store::quoted(key));
    if (wait.key_count == 1) {
      return Status(Code::kTimeout, format("key %s was not set within %s; look for the rank that "
                                           "should set it",
                                           missing[0].c_str(), time.c_str()));
    }
    return Status(Code::kTimeout,
                  format("%zu of %zu keys were not set within %s: %s; look for the ranks that "
                         "should set them",
                         missing.size(), wait.key_count, time.c_str(), item_list(missing).c_str()));
  }
  const BarrierState& state = barriers_.at(wait.barrier);
  std::vector<std::string> arrived;
  for (const Ticket& ticket : state.arrived) arrived.push_back(waits_.at(ticket).who);
  return Status(
      Code::kTimeout,
      format("barrier %s: %zu of %d arrived within %s: %s; look for the ones that did not",
             store::quoted(wait.barrier).c_str(), arrived.size(), state.count, time.c_str(),
             item_list(arrived).c_str()));
}

}  // namespace dt::store
