// SPDX-License-Identifier: Apache-2.0
#include "base/wait.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

namespace dt {
namespace {

constexpr int64_t kNsPerMs = 1'000'000;
constexpr int64_t kNsPerS = 1'000'000'000;
constexpr int64_t kRoughMs = 1'000;  // from here on a deadline may be late by a tick
constexpr int64_t kTickMs = 10;      // by which the coarse clock is behind, with HZ=100
// Interrupts ring only the doorbells attached to them; an Event is not attached, so its waiter
// looks at its interrupt this often. Control-plane waits only: no collective waits on an Event.
constexpr int64_t kInterruptPollMs = 20;

}  // namespace

int64_t monotonic_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kNsPerS + now.tv_nsec;
}

Deadline Deadline::after_ms(int64_t timeout_ms) {
  if (timeout_ms < 0) return never();
  const int64_t now = monotonic_ns();
  if (timeout_ms > (kNever - now) / kNsPerMs - 1) return never();
  return Deadline(now + timeout_ms * kNsPerMs, timeout_ms * kNsPerMs);
}

Deadline Deadline::roughly_after_ms(int64_t timeout_ms) {
  timespec now;
  if (timeout_ms < kRoughMs || timeout_ms > kNever / kNsPerMs / 2 ||
      clock_gettime(CLOCK_MONOTONIC_COARSE, &now) != 0) {
    return after_ms(timeout_ms);
  }
  return Deadline(now.tv_sec * kNsPerS + now.tv_nsec + (timeout_ms + kTickMs) * kNsPerMs,
                  timeout_ms * kNsPerMs);
}

Deadline Deadline::after_ns(int64_t timeout_ns) {
  const int64_t now = monotonic_ns();
  return timeout_ns < 0 || timeout_ns > kNever - now ? never()
                                                     : Deadline(now + timeout_ns, timeout_ns);
}

int64_t Deadline::remaining_ns() const {
  if (is_never()) return kNever;
  return at_ns_ - monotonic_ns();
}

int64_t Deadline::remaining_ms() const {
  if (is_never()) return kNever;
  const int64_t left = remaining_ns();
  return left <= 0 ? 0 : (left + kNsPerMs - 1) / kNsPerMs;
}

void Doorbell::sleep(uint32_t ticket, Deadline deadline) {
  timespec timeout;
  timespec* limit = nullptr;
  if (!deadline.is_never()) {
    const int64_t left = std::max<int64_t>(deadline.remaining_ns(), 0);
    timeout.tv_sec = left / kNsPerS;
    timeout.tv_nsec = left % kNsPerS;
    limit = &timeout;
  }
  // Shared futex: the word may lie in memory of several processes. EAGAIN, EINTR and ETIMEDOUT all
  // mean the same to the caller: look again.
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&bell_), FUTEX_WAIT, ticket, limit, nullptr, 0);
  cancel();
}

void Doorbell::wake() {
  bell_.fetch_add(1, std::memory_order_seq_cst);
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&bell_), FUTEX_WAKE, INT32_MAX, nullptr, nullptr,
          0);
}

void Interrupt::fire(Status status) {
  state_.with([&](State& state) {
    if (fired_.load(std::memory_order_relaxed)) return;
    state.status = std::move(status);
    fired_.store(true, std::memory_order_seq_cst);
    for (Doorbell* bell : state.bells) bell->ring();
  });
}

Status Interrupt::status() const {
  if (!fired()) return {};
  return state_.with([](const State& state) { return state.status; });
}

void Interrupt::attach(Doorbell* bell) {
  state_.with([&](State& state) { state.bells.push_back(bell); });
}

void Interrupt::detach(Doorbell* bell) {
  state_.with([&](State& state) { std::erase(state.bells, bell); });
}

void Event::set() {
  set_.store(true, std::memory_order_seq_cst);
  bell_.ring();
}

bool Event::wait(const Wait& wait) {
  for (;;) {
    const uint32_t ticket = bell_.prepare();
    if (is_set() || wait.interrupted() || wait.deadline.passed()) {
      bell_.cancel();
      return is_set();
    }
    bell_.sleep(ticket, wait.interrupt == nullptr
                            ? wait.deadline
                            : wait.deadline.earlier(Deadline::after_ms(kInterruptPollMs)));
  }
}

}  // namespace dt
