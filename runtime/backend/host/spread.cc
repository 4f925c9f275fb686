// SPDX-License-Identifier: Apache-2.0
#include "backend/host/spread.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>

#include "base/numa.h"
#include "base/processors.h"

namespace dt::backend {

int32_t Spread::better(const std::vector<int32_t>& ranks, int32_t own,
                       const std::vector<int32_t>& usable) {
  const auto count = [&](int32_t processor) {
    return std::count(ranks.begin(), ranks.end(), processor);
  };
  int32_t best = own;
  for (const int32_t each : usable) {
    if (count(each) < count(best) ||
        (count(each) == count(best) && std::abs(each - own) < std::abs(best - own))) {
      best = each;
    }
  }
  return count(best) + 2 <= count(own) ? best : -1;
}

void Spread::look_around(int64_t now_ns) {
  int64_t next = next_ns_.load(std::memory_order_relaxed);
  if (now_ns < next || !next_ns_.compare_exchange_strong(next, now_ns + kLookEveryNs)) return;
  const int32_t own = sched_getcpu();
  shm::SectionHeader& header = arena_->own_header();
  if (header.processor.load(std::memory_order_relaxed) != own)
    header.processor.store(own, std::memory_order_relaxed);

  int32_t here = 0;
  for (int32_t rank = 0; rank < arena_->local_size(); ++rank)
    here += arena_->header(rank).processor.load(std::memory_order_relaxed) == own ? 1 : 0;
  if (here < 2) return;
  std::vector<int32_t> ranks;
  for (int32_t rank = 0; rank < arena_->local_size(); ++rank)
    ranks.push_back(arena_->header(rank).processor.load(std::memory_order_relaxed));
  const std::vector<int32_t> usable = allowed_cpus();
  const int32_t target = better(ranks, own, usable);
  if (target < 0) next_ns_.store(now_ns + kFullEveryNs, std::memory_order_relaxed);
  if (target < 0 || !is_first(now_ns)) return;

  header.processor.store(target, std::memory_order_relaxed);
  if (restrict_to({target}) == 0) (void)restrict_to(usable);
  int64_t rest = rest_ns_.load(std::memory_order_relaxed);
  const bool calm = now_ns - moved_ns_.exchange(now_ns, std::memory_order_relaxed) > kCalm * rest;
  rest = calm ? kRestMinNs : std::min(2 * rest, kRestMaxNs);
  rest_ns_.store(rest, std::memory_order_relaxed);
  next_ns_.store(now_ns + rest, std::memory_order_relaxed);
}

bool Spread::is_first(int64_t now_ns) const {
  std::atomic<int64_t>& spread = arena_->header(0).spread_ns;
  int64_t last = spread.load(std::memory_order_relaxed);
  return now_ns - last >= kMoveEveryNs && spread.compare_exchange_strong(last, now_ns);
}

}  // namespace dt::backend
