// SPDX-License-Identifier: Apache-2.0
#include "base/wait.h"

#include <doctest/doctest.h>

#include <thread>

using dt::Deadline;

TEST_CASE("Deadline: a negative duration never passes, zero has passed") {
  CHECK(Deadline::after_ms(-1).is_never());
  CHECK(Deadline::after_ms(0).passed());
  CHECK_FALSE(Deadline::after_ms(1'000'000).passed());
  CHECK(Deadline::after_ms(INT64_MAX).is_never());
}

TEST_CASE("Deadline: a rough one is never earlier, and later by little") {
  for (const int64_t ms : {int64_t{-1}, int64_t{0}, int64_t{999}, int64_t{1'000}, int64_t{600'000},
                           INT64_MAX / 2'000'000, INT64_MAX}) {
    CAPTURE(ms);
    const Deadline before = Deadline::after_ms(ms);
    const Deadline rough = Deadline::roughly_after_ms(ms);
    const Deadline after = Deadline::after_ms(ms);
    CHECK_FALSE(rough.before(before));
    CHECK(rough.is_never() == before.is_never());
    CHECK_FALSE(after.plus_ms(20).before(rough));
  }
}

TEST_CASE("Deadline: it knows the duration that it was made from") {
  CHECK(Deadline::never().limit_ms() == Deadline::never().remaining_ms());
  CHECK(Deadline::after_ms(0).limit_ms() == 0);
  CHECK(Deadline::after_ns(1).limit_ms() == 1);
  CHECK(Deadline::roughly_after_ms(2'000).limit_ms() == 2'000);
  const Deadline soon = Deadline::after_ms(50);
  CHECK(soon.plus_ms(25).limit_ms() == 75);
  CHECK(soon.later_ns(INT64_MAX - 1).limit_ms() == 50);
  CHECK(soon.earlier(Deadline::after_ms(1'000'000)).limit_ms() == 50);
  CHECK(Deadline::after_ms(1'000'000).earlier(soon).limit_ms() == 50);
}

TEST_CASE("Event: wait returns at the deadline, when set, and when interrupted") {
  dt::Event event;
  CHECK_FALSE(event.wait({Deadline::after_ms(1)}));
  dt::Interrupt interrupt;
  std::thread firing([&] { interrupt.fire(dt::Status(dt::Code::kAborted, "stop")); });
  CHECK_FALSE(event.wait({Deadline::never(), &interrupt}));
  firing.join();
  CHECK(interrupt.status().message() == "stop");
  std::thread setting([&] { event.set(); });
  CHECK(event.wait({Deadline::never()}));
  setting.join();
}

TEST_CASE("Interrupt: keeps the first status") {
  dt::Interrupt interrupt;
  CHECK(interrupt.status().ok());
  interrupt.fire(dt::Status(dt::Code::kPeerLost, "first"));
  interrupt.fire(dt::Status(dt::Code::kAborted, "second"));
  CHECK(interrupt.status().code() == dt::Code::kPeerLost);
}

TEST_CASE("Doorbell: two threads hand over 100,000 turns without losing one") {
  constexpr int kTurns = 100'000;
  dt::Doorbell bells[2];
  std::atomic<int> turn{0};
  auto play = [&](int me) {
    for (int i = me; i < kTurns; i += 2) {
      for (;;) {
        const uint32_t ticket = bells[me].prepare();
        if (turn.load(std::memory_order_seq_cst) == i) {
          bells[me].cancel();
          break;
        }
        bells[me].sleep(ticket, Deadline::after_ms(60'000));
      }
      turn.store(i + 1, std::memory_order_seq_cst);
      bells[1 - me].ring();
    }
  };
  std::thread other([&] { play(1); });
  play(0);
  other.join();
  CHECK(turn.load() == kTurns);
}

TEST_CASE("Deadline: a bound is not later than either, also when both are renewed") {
  const Deadline early = Deadline::after_ms(100'000);
  const Deadline late = Deadline::after_ms(50'000).later_ns(INT64_MAX / 2);
  const Deadline bound = late.bound(early);
  CHECK(bound == early);
  CHECK(late.bound(Deadline::never()) == late);
  CHECK(Deadline::never().bound(Deadline::never()).is_never());
  const int64_t at_ns = INT64_MAX / 2 - 75'000 * INT64_C(1'000'000);
  CHECK_FALSE(early.renewed_at(at_ns).before(bound.renewed_at(at_ns)));
  CHECK_FALSE(late.renewed_at(at_ns).before(bound.renewed_at(at_ns)));
  CHECK(late.renewed_at(at_ns).before(early.renewed_at(at_ns)));  // another order than before
}
