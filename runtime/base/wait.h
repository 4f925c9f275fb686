// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/guarded.h"
#include "base/status.h"

namespace dt {

/// A point in time, computed once at the edge from a duration. Monotonic clock.
class Deadline {
 public:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  static Deadline never() { return Deadline(kNever, kNever); }
  /// A negative duration means never.
  static Deadline after_ms(int64_t timeout_ms);
  static Deadline after_ns(int64_t timeout_ns);
  /// after_ms() at a fifth of the cost: never earlier, but later by up to 20 ms if it is a second
  /// or more.
  static Deadline roughly_after_ms(int64_t timeout_ms);

  bool passed() const { return remaining_ns() <= 0; }
  bool is_never() const { return at_ns_ == kNever; }
  int64_t remaining_ns() const;
  /// Rounded up, so that a wait of this length does not wake before the deadline.
  int64_t remaining_ms() const;
  /// The duration that it was made from, for messages: how much of it is left when a wait begins
  /// depends on how busy the machine is.
  int64_t limit_ms() const { return is_never() ? kNever : (limit_ns_ + 999'999) / 1'000'000; }
  bool operator==(const Deadline& other) const { return at_ns_ == other.at_ns_; }
  /// Later by so much; never stays never.
  Deadline plus_ms(int64_t ms) const {
    return is_never() ? *this : Deadline(at_ns_ + ms * 1'000'000, limit_ns_ + ms * 1'000'000);
  }
  /// The later of this and a point of the monotonic clock.
  Deadline later_ns(int64_t at_ns) const {
    return Deadline(at_ns_ < at_ns ? at_ns : at_ns_, limit_ns_);
  }
  /// With its whole duration again from a point of the monotonic clock; never earlier.
  Deadline renewed_at(int64_t at_ns) const {
    return is_never() ? *this : later_ns(at_ns + limit_ns_);
  }
  bool is_at_or_before(int64_t now_ns) const { return at_ns_ <= now_ns; }
  bool before(Deadline other) const { return at_ns_ < other.at_ns_; }
  /// The sooner of two.
  Deadline earlier(Deadline other) const { return at_ns_ < other.at_ns_ ? *this : other; }
  /// Never later than either of the two, also where all of them are renewed at one point.
  Deadline bound(Deadline other) const {
    return Deadline(std::min(at_ns_, other.at_ns_), std::min(limit_ns_, other.limit_ns_));
  }

 private:
  Deadline(int64_t at_ns, int64_t limit_ns) : at_ns_(at_ns), limit_ns_(limit_ns) {}
  int64_t at_ns_;
  int64_t limit_ns_;
};

/// Nanoseconds of the monotonic clock.
int64_t monotonic_ns();

/// A word to sleep on. Lives in the sleeper's own memory, which may be shared with other processes.
///
/// Sleeper: `ticket = prepare()`; look at the condition; `sleep(ticket, ...)` if it does not hold;
/// `cancel()` if it does. Ringer: change the condition, then `ring()`. The condition is an atomic
/// that both sides access sequentially consistent.
///
/// No wake-up is lost: prepare() counts the sleeper before the condition is read, ring() reads the
/// count after the condition was written, all in the one total order, so at least one side sees the
/// other; and wake() moves `bell_`, so a sleep with an old ticket returns at once.
class Doorbell {
 public:
  uint32_t prepare() {
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    return bell_.load(std::memory_order_seq_cst);
  }
  void cancel() { sleepers_.fetch_sub(1, std::memory_order_relaxed); }
  /// Sleeps until rung or until the deadline, whichever is first; may return early. Ends what
  /// prepare() began.
  void sleep(uint32_t ticket, Deadline deadline);
  /// Wakes every sleeper. Costs one load when nobody sleeps.
  void ring() {
    if (sleepers_.load(std::memory_order_seq_cst) != 0) wake();
  }

 private:
  void wake();

  std::atomic<uint32_t> bell_{0};
  std::atomic<uint32_t> sleepers_{0};
};
static_assert(sizeof(Doorbell) == 8 && std::atomic<uint32_t>::is_always_lock_free);

/// Fired at most once, by the control plane: whoever waits under it returns its status.
/// Any thread may call any function.
class Interrupt {
 public:
  /// Keeps the first status; later calls change nothing. Rings every attached doorbell.
  void fire(Status status);
  bool fired() const { return fired_.load(std::memory_order_seq_cst); }
  /// Ok while not fired.
  Status status() const;
  /// `bell` is borrowed until detach() returns.
  void attach(Doorbell* bell);
  void detach(Doorbell* bell);

 private:
  struct State {
    Status status;
    std::vector<Doorbell*> bells;
  };
  std::atomic<bool> fired_{false};
  mutable Guarded<State> state_;
};

/// Under what a blocking call waits. Every blocking wait of dt takes one.
struct Wait {
  Deadline deadline = Deadline::never();
  const Interrupt* interrupt = nullptr;  ///< borrowed; may be null

  bool interrupted() const { return interrupt != nullptr && interrupt->fired(); }
};

/// Set once by one thread, waited for by others.
class Event {
 public:
  /// Still touches the event after a waiter may have returned: where the waiter would then destroy
  /// it, both sides hold it by a shared_ptr.
  void set();
  bool is_set() const { return set_.load(std::memory_order_seq_cst); }
  /// True when set, false at the deadline or when interrupted.
  bool wait(const Wait& wait);

 private:
  std::atomic<bool> set_{false};
  Doorbell bell_;
};

}  // namespace dt
