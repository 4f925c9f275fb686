// SPDX-License-Identifier: Apache-2.0
#include "base/slice.h"

#include <doctest/doctest.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <thread>

namespace {

/// The words of struct sched_attr: [0] size and policy, [3] the slice in nanoseconds.
using Words = std::array<uint64_t, 6>;

Words attributes() {
  Words words{};
  (void)syscall(SYS_sched_getattr, 0, words.data(), sizeof words, 0);
  return words;
}

uint64_t slice_ns() { return attributes()[3]; }

/// `body` on a thread of this policy.
template <class Body>
void on_thread(int policy, Body body) {
  std::thread([&] {
    const sched_param none{};
    if (sched_setscheduler(0, policy, &none) == 0) return body();
    MESSAGE("a thread cannot have policy " << policy << " here");
  }).join();
}

}  // namespace

TEST_CASE("ShortSlices: a thread has them while it waits, and then those that it had") {
  on_thread(SCHED_OTHER, [] {
    const uint64_t before = slice_ns();
    if (before == 0) {
      const dt::ShortSlices slices(true);
      CHECK(slice_ns() == 0);
      MESSAGE("this kernel has no slices of threads");
      return;
    }
    {
      const dt::ShortSlices none(false);
      CHECK(slice_ns() == before);
      dt::ShortSlices slices;
      CHECK(slice_ns() == before);
      slices.begin();
      slices.begin();
      CHECK(slice_ns() == 100'000);
      const dt::ShortSlices inner(true);
    }
    CHECK(slice_ns() == before);
    Words own = attributes();
    own[3] = 700'000;
    {
      const dt::ShortSlices slices(true);
      CHECK(syscall(SYS_sched_setattr, 0, own.data(), 0) == 0);
    }
    CHECK(slice_ns() == 700'000);  // the program's own choice meanwhile
  });
}

TEST_CASE("ShortSlices: a thread of dt's own keeps them, but not what it starts") {
  on_thread(SCHED_OTHER, [] {
    const uint64_t before = slice_ns();
    dt::use_short_slices();
    CHECK(slice_ns() == (before == 0 ? 0 : 100'000));
    { const dt::ShortSlices slices(true); }
    CHECK(slice_ns() == (before == 0 ? 0 : 100'000));
    std::thread([&] { CHECK((before == 0 || slice_ns() > 100'000)); }).join();
    dt::use_usual_slices();
    CHECK(slice_ns() == before);
  });
}

TEST_CASE("ShortSlices: a thread with another policy keeps it") {
  on_thread(SCHED_BATCH, [] {
    const Words before = attributes();
    dt::use_short_slices();
    const dt::ShortSlices slices(true);
    CHECK(attributes() == before);
  });
}
