// SPDX-License-Identifier: Apache-2.0
#include "job/background_threads.h"

#include <doctest/doctest.h>

using dt::Deadline;
using dt::EndingThread;
using dt::Event;
using dt::Wait;
using dt::job::BackgroundThreads;

namespace {

constexpr int64_t kLimitMs = 20'000;

/// Ends once `go` is set.
std::shared_ptr<EndingThread> thread_until(std::shared_ptr<Event> go) {
  auto made = EndingThread::start("tests", [go = std::move(go)] {
    (void)go->wait(Wait{Deadline::after_ms(kLimitMs), nullptr});
  });
  REQUIRE(made.ok());
  return made.value();
}

}  // namespace

TEST_CASE("a thread that has ended has let go of all it held") {
  auto go = std::make_shared<Event>();
  const std::weak_ptr<Event> held = go;
  const auto thread = thread_until(go);
  CHECK_FALSE(thread->join(Wait{Deadline::after_ms(1), nullptr}));
  go->set();
  go = nullptr;
  CHECK(thread->join(Wait{Deadline::after_ms(kLimitMs), nullptr}));
  CHECK(held.expired());
  CHECK(thread->join(Wait()));
}

TEST_CASE("threads end with the job, and those that ended before are dropped") {
  BackgroundThreads threads;
  auto go = std::make_shared<Event>();
  const auto first = thread_until(go);
  auto own = std::make_shared<int>(0);
  threads.add(first, [own] {});
  CHECK(own.use_count() == 2);
  go->set();
  // Not joined: that is what the next one does.
  const Deadline limit = Deadline::after_ms(kLimitMs);
  while (!first->ended() && !limit.passed()) std::this_thread::yield();
  go = std::make_shared<Event>();
  const auto second = thread_until(go);
  threads.add(second, [&] { go->set(); });
  CHECK(own.use_count() == 1);
  threads.join_all(Wait{Deadline::after_ms(0), nullptr});
  CHECK_FALSE(second->ended());
  threads.add(second, [&] { go->set(); });
  threads.end_all();
  threads.join_all(Wait{Deadline::after_ms(kLimitMs), nullptr});
  CHECK(second->ended());
}
