// SPDX-License-Identifier: Apache-2.0
#include "capi/handles.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "../../sanitizers.h"

using dt::capi::HandleKind;
using dt::capi::HandleTable;

namespace {

std::string why(HandleTable& table, const void* handle, HandleKind kind) {
  return table.find(handle, kind).status().message();
}

}  // namespace

TEST_CASE("HandleTable: an open handle finds its object, a closed one says so") {
  HandleTable table;
  const auto object = std::make_shared<int>(7);
  auto opened = table.open(HandleKind::kComm, object);
  REQUIRE(opened.ok());
  void* const handle = opened.value();
  auto found = table.find(handle, HandleKind::kComm);
  REQUIRE(found.ok());
  CHECK(found.value() == object);
  CHECK(table.close(handle, HandleKind::kComm) == object);
  CHECK(why(table, handle, HandleKind::kComm) == "is closed");
  CHECK(table.close(handle, HandleKind::kComm) == nullptr);
}

TEST_CASE("HandleTable: NULL, foreign and made-up handles are told apart") {
  HandleTable table;
  auto opened = table.open(HandleKind::kJob, std::make_shared<int>(1));
  REQUIRE(opened.ok());
  CHECK(why(table, nullptr, HandleKind::kJob) == "is NULL");
  CHECK(why(table, opened.value(), HandleKind::kComm) ==
        "is a job handle; a communicator handle is wanted");
  int on_stack = 0;
  CHECK(why(table, &on_stack, HandleKind::kJob) == "is not a handle of dt");
  CHECK(why(table, reinterpret_cast<void*>(~uintptr_t{0}), HandleKind::kJob) ==
        "is not a handle of dt");
  CHECK(table.close(&on_stack, HandleKind::kJob) == nullptr);
}

TEST_CASE("HandleTable: a slot that is used again does not revive the old handle") {
  HandleTable table;
  void* const old = table.open(HandleKind::kWork, std::make_shared<int>(1)).value();
  table.close(old, HandleKind::kWork);
  void* const next = table.open(HandleKind::kWork, std::make_shared<int>(2)).value();
  CHECK(old != next);
  CHECK(why(table, old, HandleKind::kWork) == "is closed");
  CHECK(table.find(next, HandleKind::kWork).ok());
}

TEST_CASE("HandleTable: a forked child is refused and does not destroy the object") {
  HandleTable table;
  auto object = std::make_shared<int>(1);
  void* const handle = table.open(HandleKind::kJob, object).value();
  const pid_t child = fork();
  if (child == 0) {
    const bool refused =
        table.find(handle, HandleKind::kJob).status().code() == dt::Code::kInvalidState;
    std::weak_ptr<int> alive = object;
    table.close(handle, HandleKind::kJob);
    object = nullptr;
    _exit(refused && !alive.expired() ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(table.find(handle, HandleKind::kJob).ok());
}

TEST_CASE("HandleTable: a child that was forked while threads look handles up is refused, too") {
  constexpr unsigned kChildSeconds = 30;
  HandleTable table;
  void* const looked_up = table.open(HandleKind::kJob, std::make_shared<int>(1)).value();
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      while (!stop.load()) {
        (void)table.find(looked_up, HandleKind::kJob);
        void* const own = table.open(HandleKind::kWork, std::make_shared<int>(2)).value();
        table.close(own, HandleKind::kWork);
      }
    });
  }
  int failed = 0;
  for (int i = 0; i < 25 && failed == 0; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(kChildSeconds);  // ends a child that waits for a thread of the parent
      const dt::Code code = table.find(looked_up, HandleKind::kJob).status().code();
      table.close(looked_up, HandleKind::kJob);
      const auto opened = table.open(HandleKind::kWork, std::make_shared<int>(3));
      const bool ended = opened.ok() || opened.status().code() == dt::Code::kInvalidState;
      _exit(ended && code == dt::Code::kInvalidState ? 0 : 1);
    }
    int status = 0;
    if (waitpid(child, &status, 0) != child || status != 0) ++failed;
  }
  stop.store(true);
  for (std::thread& thread : threads) thread.join();
  CHECK(failed == 0);
}

TEST_CASE("HandleTable: a child whose parent is not inside the table opens its own handles") {
  HandleTable table;
  CHECK(table.open(HandleKind::kJob, std::make_shared<int>(1)).ok());
  const pid_t child = fork();
  if (child == 0) {
    const auto opened = table.open(HandleKind::kJob, std::make_shared<int>(1));
    _exit(opened.ok() && table.find(opened.value(), HandleKind::kJob).ok() ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(table.open(HandleKind::kJob, std::make_shared<int>(1)).ok());
}

TEST_CASE("HandleTable: look-ups that race with a close find the object or nothing") {
  HandleTable table;
  std::atomic<void*> shared{nullptr};
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  std::vector<std::thread> readers;
  for (int t = 0; t < 3; ++t) {
    readers.emplace_back([&] {
      while (!stop.load()) {
        void* const handle = shared.load();
        if (handle == nullptr) continue;
        auto found = table.find(handle, HandleKind::kWork);
        if (found.ok() && *std::static_pointer_cast<int>(found.value()) != 42) ++wrong;
      }
    });
  }
  for (int i = 0; i < 20'000; ++i) {
    void* const handle = table.open(HandleKind::kWork, std::make_shared<int>(42)).value();
    shared.store(handle);
    table.close(handle, HandleKind::kWork);
  }
  stop.store(true);
  for (std::thread& reader : readers) reader.join();
  CHECK(wrong == 0);
}

TEST_CASE("HandleTable: thousands of handles are open at once") {
  HandleTable table;
  std::vector<void*> handles;
  for (int i = 0; i < 5000; ++i) {
    handles.push_back(table.open(HandleKind::kConfig, std::make_shared<int>(i)).value());
  }
  for (int i = 0; i < 5000; ++i) {
    auto found = table.find(handles[static_cast<size_t>(i)], HandleKind::kConfig);
    REQUIRE(found.ok());
    CHECK(*std::static_pointer_cast<int>(found.value()) == i);
  }
}
