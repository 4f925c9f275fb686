// SPDX-License-Identifier: Apache-2.0
#include "base/fork.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <mutex>

namespace dt {
namespace {

// One bit per descriptor number: adding and removing need no lock and no search. Zero pages of the
// bitmap cost no memory until used. Numbers beyond it are close-on-exec only; the kernel's default
// ceiling of a process (fs.nr_open) is exactly this.
constexpr int kMaxFds = 1 << 20;
constexpr int kBitsPerWord = 64;

// Process-wide by nature: a fork copies the process, not a job.
std::atomic<uint64_t> guarded_fds[kMaxFds / kBitsPerWord];
std::atomic<uint32_t> generation{0};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// Runs in the child between fork() and its return: async-signal-safe calls only.
void close_guarded_fds() {
  generation.fetch_add(1, std::memory_order_relaxed);
  for (int word = 0; word < kMaxFds / kBitsPerWord; ++word) {
    uint64_t bits = guarded_fds[word].load(std::memory_order_relaxed);
    if (bits == 0) continue;
    guarded_fds[word].store(0, std::memory_order_relaxed);
    for (; bits != 0; bits &= bits - 1) close(word * kBitsPerWord + __builtin_ctzll(bits));
  }
}

void register_once() {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, close_guarded_fds); });
}

uint64_t bit_of(int fd) { return uint64_t{1} << (fd % kBitsPerWord); }

}  // namespace

void guard_fd_from_fork(int fd) {
  if (fd < 0 || fd >= kMaxFds) return;
  register_once();
  guarded_fds[fd / kBitsPerWord].fetch_or(bit_of(fd), std::memory_order_relaxed);
}

void release_fd_from_fork_guard(int fd) {
  if (fd < 0 || fd >= kMaxFds) return;
  guarded_fds[fd / kBitsPerWord].fetch_and(~bit_of(fd), std::memory_order_relaxed);
}

uint32_t fork_generation() {
  register_once();
  return generation.load(std::memory_order_relaxed);
}

}  // namespace dt
