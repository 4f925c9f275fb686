// SPDX-License-Identifier: Apache-2.0
#include "base/slice.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace dt {
namespace {

constexpr uint64_t kShortNs = 100'000;  // the least that Linux gives
constexpr uint64_t kResetOnFork = 1;    // SCHED_FLAG_RESET_ON_FORK

/// The first version of the kernel's struct sched_attr, which older C libraries lack.
struct Attributes {
  uint32_t size = sizeof(Attributes);
  uint32_t policy = 0;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime_ns = 0;  ///< the slice; 0: this kernel has none
  uint64_t deadline_ns = 0;
  uint64_t period_ns = 0;
};
static_assert(sizeof(Attributes) == 48);

/// Gives the calling thread slices of `ns` (0: the usual ones), if it has others, of `from_ns` (0:
/// any). @return those that it had; 0: nothing was changed.
uint64_t change(uint64_t from_ns, uint64_t ns, uint64_t flags) {
  const int saved = errno;
  Attributes now;
  uint64_t before_ns = 0;
  if (syscall(SYS_sched_getattr, 0, &now, sizeof now, 0) == 0 && now.policy == SCHED_OTHER &&
      now.runtime_ns != 0 && now.runtime_ns != ns && (from_ns == 0 || from_ns == now.runtime_ns)) {
    before_ns = now.runtime_ns;
    now.runtime_ns = ns;
    if (now.nice >= 0) now.flags |= flags;  // it would reset a negative one, too
    if (syscall(SYS_sched_setattr, 0, &now, 0) != 0) before_ns = 0;
  }
  errno = saved;
  return before_ns;
}

}  // namespace

void ShortSlices::begin() {
  if (before_ns_ == 0) before_ns_ = change(0, kShortNs, 0);
}

void ShortSlices::end() { (void)change(kShortNs, before_ns_, 0); }

void use_usual_slices() { (void)change(kShortNs, 0, 0); }

void use_short_slices() { (void)change(0, kShortNs, kResetOnFork); }

}  // namespace dt
