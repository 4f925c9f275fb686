// SPDX-License-Identifier: Apache-2.0
#include "base/disagreement.h"

#include <map>
#include <utility>

#include "base/status.h"

namespace dt {
namespace {

constexpr size_t kListedCalls = 8;  // in a message

}  // namespace

Disagreement disagreement(const std::vector<CallOfRank>& calls) {
  std::map<uint64_t, size_t> votes;
  for (const CallOfRank& each : calls) ++votes[each.key];
  uint64_t common = calls[0].key;
  for (const auto& [key, count] : votes) {
    if (count > votes[common]) common = key;
  }
  Disagreement found;
  found.culprit = calls.size();
  std::map<uint64_t, bool> seen;
  std::string text;
  size_t listed = 0;
  for (size_t i = 0; i < calls.size(); ++i) {
    const CallOfRank& each = calls[i];
    if (found.culprit == calls.size() && each.key != common) found.culprit = i;
    if (std::exchange(seen[each.key], true) || listed == kListedCalls) continue;
    ++listed;
    const size_t others = votes[each.key] - 1;
    text += format("%s%s%s: %s", text.empty() ? "" : ", ", each.who.c_str(),
                   others > 0 ? format(" and %zu more", others).c_str() : "", each.call.c_str());
  }
  if (votes.size() > listed) text += format(", and %zu other calls", votes.size() - listed);
  if (found.culprit == calls.size()) found.culprit = 0;
  found.text = "ranks disagree: " + text +
               "; make all ranks issue the same operations in the same order, then go on with "
               "dt_comm_shrink";
  return found;
}

}  // namespace dt
