// SPDX-License-Identifier: Apache-2.0
#include "comm/observer.h"

#include <algorithm>

#include "comm/communicator.h"

namespace dt::comm {

Observer::Activity Observer::look(int64_t now_ns) {
  Activity found;
  int64_t since_ns = 0;
  for (auto& [name, seen] : seen_) seen.looked = false;
  for (const auto& communicator : board_->communicators()) {
    if (communicator->use() != Use::kForeground) continue;
    backend::Pulse pulse = communicator->backend().pulse();
    Seen& seen = seen_[communicator->name()];
    if (seen.since_ns == 0 || seen.stamp != pulse.stamp) seen = {pulse.stamp, now_ns, true};
    seen.looked = true;
    if (pulse.sequence < 0) continue;
    const bool first = found.communicator.empty();
    const bool better = pulse.inside == found.pulse.inside
                            ? (pulse.inside ? seen.since_ns < since_ns : seen.since_ns > since_ns)
                            : pulse.inside;
    if (!first && !better) continue;
    since_ns = seen.since_ns;
    found.communicator = communicator->name();
    found.pulse = std::move(pulse);
    found.members = communicator->world_ranks();
  }
  std::erase_if(seen_, [](const auto& entry) { return !entry.second.looked; });
  found.age_ms = (now_ns - since_ns) / 1'000'000;
  std::sort(found.members.begin(), found.members.end());
  return found;
}

}  // namespace dt::comm
