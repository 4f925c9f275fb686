// SPDX-License-Identifier: Apache-2.0
#include "backend/host/contention.h"

#include <doctest/doctest.h>

#include "backend/host/spin_policy.h"
#include "base/wait.h"

using dt::monotonic_ns;
using dt::backend::Contention;
using dt::backend::SpinPolicy;

namespace {

constexpr int64_t kMs = 1'000'000;

/// A yield that took 2 ms and ended at `now_ns`.
void yield_long(Contention& contention, int64_t now_ns) {
  CHECK(contention.yielded(now_ns - 2 * kMs, now_ns, false));
}

}  // namespace

TEST_CASE("Contention: a yield that returns soon is no sign of it") {
  Contention contention;
  CHECK_FALSE(contention.ever());
  CHECK_FALSE(contention.yielded(1000 * kMs, 1000 * kMs + 20'000, false));
  CHECK_FALSE(contention.ever());
  CHECK_FALSE(contention.present(1000 * kMs + 20'000));
}

TEST_CASE("Contention: with more ranks than processors a yield of 1 ms may be a rank's own work") {
  Contention contention;
  CHECK_FALSE(contention.yielded(1000 * kMs, 1001 * kMs, true));
  CHECK(contention.yielded(1000 * kMs, 1002 * kMs, true));
}

TEST_CASE("Contention: a long yield stops spinning for 10 ms") {
  Contention contention;
  yield_long(contention, 1000 * kMs);
  CHECK(contention.ever());
  CHECK(contention.present(1000 * kMs));
  CHECK(contention.present(1010 * kMs - 1));
  CHECK_FALSE(contention.present(1010 * kMs));
}

TEST_CASE("Contention: the pause doubles up to a second while it lasts, and is short again later") {
  Contention contention;
  int64_t now = 1000 * kMs;
  yield_long(contention, now);
  for (const int64_t pause_ms : {10, 20, 40, 80, 160, 320, 640, 1000, 1000}) {
    CAPTURE(pause_ms);
    CHECK(contention.present(now + pause_ms * kMs - 1));
    CHECK_FALSE(contention.present(now + pause_ms * kMs));
    now += pause_ms * kMs + 3 * kMs;  // the next wait spins, and is kept away again
    yield_long(contention, now);
  }
  now += 1000 * kMs;
  for (int i = 0; i < 100; ++i, now += kMs) CHECK_FALSE(contention.yielded(now - 1000, now, false));
  yield_long(contention, now);
  CHECK(contention.present(now + 10 * kMs - 1));
  CHECK_FALSE(contention.present(now + 10 * kMs));
}

TEST_CASE("SpinPolicy: sleeps at once under contention, with spin_us 0, and not otherwise") {
  for (const bool oversubscribed : {false, true}) {
    CAPTURE(oversubscribed);
    Contention contention;
    SpinPolicy none(oversubscribed, /*spin_ns=*/0, &contention, nullptr);
    CHECK_FALSE(none.spin());
    yield_long(contention, monotonic_ns() + 3'600'000 * kMs);
    SpinPolicy adapting(oversubscribed, /*spin_ns=*/1'000'000'000, &contention, nullptr);
    CHECK_FALSE(adapting.spin());
    CHECK(adapting.since_ns() > 0);
  }
  Contention contention;
  SpinPolicy quiet(/*oversubscribed=*/false, /*spin_ns=*/1'000'000'000, &contention, nullptr);
  CHECK(quiet.spin());  // one pause, no yield yet
  yield_long(contention, monotonic_ns() + 3'600'000 * kMs);
  SpinPolicy fixed(/*oversubscribed=*/false, /*spin_ns=*/1'000'000'000, nullptr, nullptr);
  CHECK(fixed.spin());
}
