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

}  // namespace

TEST_CASE("use_short_slices: a thread gets short slices, and those that it had") {
  std::thread([] {
    const uint64_t before = slice_ns();
    dt::use_short_slices(true);
    const uint64_t during = slice_ns();
    dt::use_short_slices(true);
    CHECK(slice_ns() == during);
    dt::use_short_slices(false);
    CHECK(slice_ns() == before);
    if (before == 0) {
      MESSAGE("this kernel has no slices of threads");
      CHECK(during == 0);
      return;
    }
    CHECK(during == 100'000);
    Words own = attributes();
    own[3] = 700'000;
    REQUIRE(syscall(SYS_sched_setattr, 0, own.data(), 0) == 0);
    dt::use_short_slices(true);
    CHECK(slice_ns() == 100'000);
    dt::use_short_slices(false);
    CHECK(slice_ns() == 700'000);
  }).join();
}

TEST_CASE("use_short_slices: a thread with another policy keeps it") {
  std::thread([] {
    const sched_param none{};
    REQUIRE(sched_setscheduler(0, SCHED_BATCH, &none) == 0);
    const Words before = attributes();
    dt::use_short_slices(true);
    CHECK(attributes() == before);
    dt::use_short_slices(false);
    CHECK(attributes() == before);
  }).join();
}
