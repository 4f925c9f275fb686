// SPDX-License-Identifier: Apache-2.0
#include "job/local_store.h"

#include <doctest/doctest.h>

#include <atomic>
#include <thread>
#include <vector>

using dt::Code;
using dt::Deadline;
using dt::Status;
using dt::Wait;
using dt::job::LocalStore;

namespace {

Wait wait_of(int64_t ms) { return Wait{Deadline::after_ms(ms), nullptr}; }

}  // namespace

TEST_CASE("LocalStore: a get returns what another thread sets") {
  LocalStore store;
  std::thread setter([&] { (void)store.set("key", "value", wait_of(0)); });
  const auto got = store.get("key", wait_of(20'000));
  setter.join();
  REQUIRE(got.ok());
  CHECK(got.value() == "value");
}

TEST_CASE("LocalStore: a get whose key never comes names it at the deadline") {
  LocalStore store;
  for (const int64_t ms : {0, 30}) {
    const Status status = store.get("never", wait_of(ms)).status();
    CHECK(status.code() == Code::kTimeout);
    CHECK(status.message().find("\"never\" did not come in time") != std::string::npos);
  }
}

TEST_CASE("LocalStore: a get goes on waiting where its key is deleted again") {
  LocalStore store;
  std::atomic<bool> stop{false};
  std::vector<std::thread> others;
  for (int i = 0; i < 3; ++i) {
    others.emplace_back([&] {
      while (!stop.load()) {
        (void)store.set("key", "value", wait_of(0));
        (void)store.erase("key", wait_of(0));
      }
    });
  }
  Status first;
  const Deadline end = Deadline::after_ms(1000);
  while (first.ok() && !end.passed()) first = store.get("key", wait_of(20'000)).status();
  stop.store(true);
  for (std::thread& other : others) other.join();
  CHECK_MESSAGE(first.ok(), first.message());
}

TEST_CASE("LocalStore: every call on a closed one fails with its status") {
  LocalStore store;
  store.close(Status(Code::kInvalidState, "over"));
  const Wait wait = wait_of(20'000);
  const Status seen[] = {store.set("key", "value", wait),
                         store.get("key", wait).status(),
                         store.add("key", 1, wait).status(),
                         store.wait_for({"key"}, wait),
                         store.compare_set("key", {}, "value", wait).status(),
                         store.erase("key", wait).status(),
                         store.list("", wait).status(),
                         store.multi_get({"key"}, wait).status(),
                         store.multi_set({}, wait),
                         store.barrier("all", 1, wait)};
  for (const Status& status : seen) CHECK(status.message() == "over");
}
