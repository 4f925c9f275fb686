// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <doctest/doctest.h>

#include <atomic>
#include <thread>

using dt::Deadline;
using dt::Event;
using dt::Logger;
using dt::LogLevel;
using dt::Wait;

namespace {

constexpr int64_t kLogLimitMs = 20'000;

Wait until_ms(int64_t ms) { return Wait{Deadline::after_ms(ms), nullptr}; }

}  // namespace

TEST_CASE("Logger: a muted one gives nothing to its sink") {
  int calls = 0;
  Logger logger(LogLevel::kInfo, [&](LogLevel, const char*) { ++calls; });
  logger.log(LogLevel::kInfo, "one");
  logger.tell("two");
  logger.log(LogLevel::kDebug, "not asked for");
  CHECK(calls == 2);
  logger.mute(until_ms(0));
  logger.log(LogLevel::kError, "three");
  logger.tell("four");
  CHECK(calls == 2);
}

TEST_CASE("Logger: mute returns behind the call that is under way, or at its deadline") {
  Event inside;
  Event go_on;
  std::atomic<bool> returned{false};
  const auto logger = std::make_shared<Logger>(LogLevel::kInfo, [&](LogLevel, const char*) {
    inside.set();
    (void)go_on.wait(until_ms(kLogLimitMs));
    returned.store(true);
  });
  std::thread writer([logger] { logger->log(LogLevel::kError, "slow"); });
  CHECK(inside.wait(until_ms(kLogLimitMs)));
  logger->mute(until_ms(1));
  CHECK_FALSE(returned.load());
  std::atomic<bool> early{false};
  Event muted;
  std::thread muter([&] {
    logger->mute(until_ms(kLogLimitMs));
    early.store(!returned.load());
    muted.set();
  });
  CHECK_FALSE(muted.wait(until_ms(20)));
  go_on.set();
  muter.join();
  writer.join();
  CHECK_FALSE(early.load());
}

TEST_CASE("Logger: mute does not wait for the call of the sink that it comes from") {
  const Deadline limit = Deadline::after_ms(kLogLimitMs);
  int calls = 0;
  Logger* self = nullptr;
  Logger logger(LogLevel::kInfo, [&](LogLevel, const char*) {
    ++calls;
    self->mute(Wait{limit, nullptr});
  });
  self = &logger;
  logger.tell("one");
  CHECK_FALSE(limit.passed());
  logger.tell("two");
  CHECK(calls == 1);
}

TEST_CASE("Logger: threads that go on logging do not keep mute from ending") {
  std::atomic<bool> gone{false};
  std::atomic<int> late{0};
  const auto logger = std::make_shared<Logger>(LogLevel::kInfo, [&](LogLevel, const char*) {
    if (gone.load()) ++late;
  });
  std::atomic<bool> stop{false};
  std::vector<std::thread> writers;
  for (int i = 0; i < 3; ++i) {
    writers.emplace_back([&stop, logger] {
      while (!stop.load()) logger->tell("more");
    });
  }
  logger->mute(until_ms(kLogLimitMs));
  gone.store(true);
  for (int i = 0; i < 100; ++i) logger->tell("after");
  stop.store(true);
  for (std::thread& writer : writers) writer.join();
  CHECK(late.load() == 0);
}
