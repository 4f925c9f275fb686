// SPDX-License-Identifier: Apache-2.0
// A line in the log every now and then: what a step takes.
#include <utility>

#include "base/wait.h"
#include "training/reducer.h"

namespace dt::training {

/// Behind a step that was counted, by the thread that finishes it. The first one only starts the
/// clock: it allocates, and waits for ranks that begin later. On GPUs steps are counted once they
/// have passed, so a line may come late, and be about some more.
void Reducer::log_steps() {
  if (options_.log_steps == 0 || comm_->rank() != 0) return;
  const Statistics now = statistics_.with([](const Statistics& s) { return s; });
  const int64_t steps = now.steps - logged_.steps;
  const bool starts = logged_ns_ == 0;
  const bool due = now.steps / options_.log_steps > logged_.steps / options_.log_steps;
  if (steps == 0 || !(starts || due)) return;
  const Statistics before = std::exchange(logged_, now);
  const int64_t now_ns = monotonic_ns();
  const int64_t began_ns = std::exchange(logged_ns_, now_ns);
  if (starts) return;
  const auto mean = [&](int64_t later, int64_t earlier, double unit) {
    return static_cast<double>(later - earlier) / static_cast<double>(steps) / unit;
  };
  std::string text = format(
      "reducer on comm \"%s\", steps %lld to %lld: %.2f ms a step; %.2f MB of gradients were under "
      "way for %.2f ms, of which %.2f ms were waited for",
      comm_->name().c_str(), static_cast<long long>(before.steps + 1),
      static_cast<long long>(now.steps), mean(now_ns, began_ns, 1e6),
      mean(now.total_bytes, before.total_bytes, 1e6),
      mean(now.total_communication_ns, before.total_communication_ns, 1e6),
      mean(now.total_exposed_ns, before.total_exposed_ns, 1e6));
  if (now.total_gather_ns > before.total_gather_ns) {
    text += format("; besides, it waited %.2f ms for parameters",
                   mean(now.total_gather_ns, before.total_gather_ns, 1e6));
  }
  options_.logger->tell(text);
}

}  // namespace dt::training
