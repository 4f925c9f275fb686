// SPDX-License-Identifier: Apache-2.0
#include "store/vitals.h"

#include <algorithm>

#include "base/status.h"
#include "store/text.h"

namespace dt::store {
namespace {

constexpr size_t kReportedMax = 1024;  // communicators; a hostile rank must not fill the memory
constexpr int64_t kFreshMs = 2000;     // ranks tell once a second or oftener
constexpr size_t kReportedEach = 16;   // operations of each

std::string operation_text(const Activity& activity) {
  const std::string label = activity.label.empty() ? "" : " " + store::quoted(activity.label);
  return format("%s #%lld%s on comm %s", activity.operation.c_str(),
                static_cast<long long>(activity.sequence), label.c_str(),
                store::quoted(activity.communicator).c_str());
}

}  // namespace

void Vitals::begin(const Member& member, int64_t now_ns) {
  Signs& signs = signs_[member.rank];
  signs.member = member;
  signs.heard_ns = now_ns;
}

void Vitals::end(int32_t rank) { signs_.erase(rank); }

void Vitals::heard(int32_t rank, int64_t now_ns) {
  if (const auto found = signs_.find(rank); found != signs_.end()) found->second.heard_ns = now_ns;
}

std::optional<std::string> Vitals::tell(int32_t rank, Activity activity, int64_t now_ns) {
  const auto found = signs_.find(rank);
  if (found == signs_.end()) return std::nullopt;
  Signs& signs = found->second;
  signs.told_ns = signs.heard_ns = now_ns;
  signs.activity = std::move(activity);
  const Activity& told = signs.activity;
  if (!told.inside || !told.stalled) return std::nullopt;
  if (!not_reported_yet(told)) return std::nullopt;
  return stall_text(told, now_ns);
}

bool Vitals::not_reported_yet(const Activity& stalled) {
  const auto known = reported_.find(stalled.communicator);
  if (known == reported_.end() && reported_.size() >= kReportedMax) return false;
  std::set<int64_t>& sequences = reported_[stalled.communicator];
  const bool full = sequences.size() >= kReportedEach;
  // What was let go of is older than all that is kept, and is not reported again.
  if (full && stalled.sequence < *sequences.begin()) return false;
  if (!sequences.insert(stalled.sequence).second) return false;
  if (full) sequences.erase(sequences.begin());
  return true;
}

void Vitals::busy(const Busy& busy, int64_t now_ns) {
  const auto found = signs_.find(busy.rank);
  if (found == signs_.end()) return;
  Signs& signs = found->second;
  signs.heard_ns = now_ns;
  signs.busy_with = busy.what;
  signs.busy_since_ns = now_ns;
  signs.busy_until_ns = busy.max_ms == 0 ? 0 : now_ns + busy.max_ms * kNsPerMs;
}

void Vitals::excuse_all(int64_t now_ns) {
  for (auto& [rank, signs] : signs_) signs.heard_ns = now_ns;
}

std::vector<int32_t> Vitals::silent(int64_t now_ns, int64_t limit_ms) const {
  std::vector<int32_t> ranks;
  for (const auto& [rank, signs] : signs_) {
    const int64_t since_ns = std::max(signs.heard_ns, signs.busy_until_ns);
    if (now_ns - since_ns > limit_ms * kNsPerMs) ranks.push_back(rank);
  }
  return ranks;
}

int32_t Vitals::unheard_elsewhere(const std::string& host, int64_t now_ns, int64_t ms) const {
  int32_t count = 0;
  for (const auto& [rank, signs] : signs_) {
    if (signs.member.host == host) continue;
    if (now_ns - signs.heard_ns <= ms * kNsPerMs) return 0;
    ++count;
  }
  return count;
}

int64_t Vitals::silence_ms(int32_t rank, int64_t now_ns) const {
  const auto found = signs_.find(rank);
  return found == signs_.end() ? 0 : (now_ns - found->second.heard_ns) / kNsPerMs;
}

int64_t Vitals::told_ns(int32_t rank) const {
  const auto found = signs_.find(rank);
  return found == signs_.end() ? 0 : found->second.told_ns;
}

size_t Vitals::kept_bytes(int32_t rank) const {
  const auto found = signs_.find(rank);
  if (found == signs_.end()) return 0;
  const Activity& told = found->second.activity;
  return told.communicator.size() + told.operation.size() + told.label.size() +
         told.refused.size() + told.members.size() * sizeof(int32_t) +
         found->second.busy_with.size();
}

const Activity* Vitals::last_told(int32_t rank) const {
  const auto found = signs_.find(rank);
  return found == signs_.end() || found->second.told_ns == 0 ? nullptr : &found->second.activity;
}

std::string Vitals::whereabouts(int32_t rank, int64_t now_ns) const {
  const auto found = signs_.find(rank);
  if (found == signs_.end()) return {};
  const Signs& signs = found->second;
  if (signs.busy_until_ns > now_ns) {
    return format("is busy with %s for %s now, of at most %s",
                  store::quoted(signs.busy_with).c_str(),
                  seconds_text((now_ns - signs.busy_since_ns) / kNsPerMs).c_str(),
                  seconds_text((signs.busy_until_ns - signs.busy_since_ns) / kNsPerMs).c_str());
  }
  std::string late;
  if (signs.busy_until_ns != 0) {
    late = format("was to be back from %s %s ago",
                  signs.busy_with.empty() ? "a pause" : quoted(signs.busy_with).c_str(),
                  seconds_text((now_ns - signs.busy_until_ns) / kNsPerMs).c_str());
  }
  if (signs.told_ns == 0) return late;
  if (!late.empty()) late = ", and " + late;
  const Activity& activity = signs.activity;
  if (!activity.refused.empty()) late += "; a call of it was refused: " + activity.refused;
  const int64_t told_ms = (now_ns - signs.told_ns) / kNsPerMs;
  if (activity.communicator.empty()) {
    return (told_ms < kFreshMs ? std::string("has entered no operation yet")
                               : format("had entered no operation when it last told, %s ago",
                                        seconds_text(told_ms).c_str())) +
           late;
  }
  const std::string age = seconds_text(activity.age_ms + told_ms);
  const std::string operation = operation_text(activity);
  return (activity.inside ? format("is inside %s for %s", operation.c_str(), age.c_str())
                          : format("left %s %s ago", operation.c_str(), age.c_str())) +
         late;
}

std::string Vitals::stall_text(const Activity& stalled, int64_t now_ns) const {
  std::vector<int32_t> inside;
  std::vector<std::string> missing;
  for (const int32_t rank : stalled.members) {
    const auto found = signs_.find(rank);
    if (found == signs_.end()) {
      missing.push_back(format("rank %d, which has left", rank));
      continue;
    }
    const Activity& other = found->second.activity;
    if (other.inside && other.communicator == stalled.communicator &&
        other.sequence == stalled.sequence) {
      inside.push_back(rank);
      continue;
    }
    const std::string where = whereabouts(rank, now_ns);
    missing.push_back(found->second.member.text() + ", which " +
                      (where.empty() ? "has told nothing yet" : where));
  }
  std::string text = format("%s is under way for %s: inside %s %s", operation_text(stalled).c_str(),
                            seconds_text(stalled.age_ms).c_str(), inside.size() == 1 ? "is" : "are",
                            ranks_text(inside).c_str());
  text += missing.empty() ? ", so nobody is missing: it is slow, or the data does not get through"
                          : "; missing: " + item_list(missing);
  return text;
}

}  // namespace dt::store
