// SPDX-License-Identifier: Apache-2.0
#include "base/slice.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace dt {
namespace {

constexpr uint64_t kShortNs = 100'000;  // the least that Linux gives

/// The first version of the kernel's struct sched_attr, which older C libraries lack.
struct Attributes {
  uint32_t size = sizeof(Attributes);
  uint32_t policy = 0;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime_ns = 0;  ///< the slice; 0: unknown, or as for all threads
  uint64_t deadline_ns = 0;
  uint64_t period_ns = 0;
};
static_assert(sizeof(Attributes) == 48);

}  // namespace

void use_short_slices(bool on) {
  static thread_local bool in_use = false;
  static thread_local uint64_t before_ns = 0;
  if (in_use == on) return;
  in_use = on;
  const int saved = errno;
  Attributes now;
  if (syscall(SYS_sched_getattr, 0, &now, sizeof now, 0) == 0 && now.policy == SCHED_OTHER) {
    if (on) before_ns = now.runtime_ns;
    now.runtime_ns = on ? kShortNs : before_ns;
    (void)syscall(SYS_sched_setattr, 0, &now, 0);
  }
  errno = saved;
}

}  // namespace dt
