// SPDX-License-Identifier: Apache-2.0
#include "net/loop.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <thread>
#include <vector>

#include "base/fork.h"
#include "base/wait.h"
#include "net/address.h"

using dt::Deadline;
using dt::Event;
using dt::net::Loop;

namespace {

constexpr int64_t kPatienceMs = 10'000;

std::unique_ptr<Loop> new_loop() {
  auto loop = Loop::start();
  REQUIRE(loop.ok());
  return std::move(loop).value();
}

}  // namespace

TEST_CASE("Loop: runs every task of every thread, in each thread's order, before it ends") {
  constexpr int kThreads = 4;
  constexpr int kTasks = 1000;
  std::vector<std::vector<int>> seen(kThreads);
  {
    const auto loop = new_loop();
    std::vector<std::thread> posting;
    for (int t = 0; t < kThreads; ++t) {
      posting.emplace_back([&, t] {
        for (int i = 0; i < kTasks; ++i) loop->post([&seen, t, i] { seen[t].push_back(i); });
      });
    }
    for (std::thread& thread : posting) thread.join();
  }
  for (const std::vector<int>& tasks : seen) {
    REQUIRE(tasks.size() == kTasks);
    for (int i = 0; i < kTasks; ++i) CHECK(tasks[i] == i);
  }
}

TEST_CASE("Loop: its thread has every signal blocked, the caller's mask stays as it was") {
  const auto loop = new_loop();
  sigset_t inside, outside;
  loop->run([&] { pthread_sigmask(SIG_SETMASK, nullptr, &inside); });
  pthread_sigmask(SIG_SETMASK, nullptr, &outside);
  for (const int signal : {SIGPIPE, SIGINT, SIGTERM, SIGCHLD, SIGUSR1}) {
    CHECK(sigismember(&inside, signal) == 1);
    CHECK(sigismember(&outside, signal) == 0);
  }
}

TEST_CASE("Loop: run() on its own thread runs at once; a task posted at the end still runs") {
  bool nested = false;
  bool late = false;
  {
    const auto loop = new_loop();
    CHECK_FALSE(loop->on_thread());
    loop->run([&] {
      CHECK(loop->on_thread());
      loop->run([&] { nested = true; });
    });
    loop->post([&] { loop->post([&] { late = true; }); });
  }
  CHECK(nested);
  CHECK(late);
}

TEST_CASE(
    "Loop: a visitor does the loop's work on its own thread, then the loop's thread goes on") {
  const auto loop = new_loop();
  pthread_t of_loop{};
  loop->run([&] { of_loop = pthread_self(); });
  CHECK_FALSE(loop->enter());  // the thread is at work
  const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  int heard = 0;
  std::unique_ptr<dt::net::FdWatcher> watcher;
  loop->run([&] {
    auto made = dt::net::FdWatcher::watch(loop.get(), fd, [&] {
      eventfd_t value = 0;
      (void)eventfd_read(fd, &value);
      CHECK(pthread_equal(pthread_self(), of_loop) == 0);
      CHECK(loop->on_thread());
      ++heard;
    });
    REQUIRE(made.ok());
    watcher = std::move(made).value();
  });
  for (const bool busy : {false, true}) {
    const Deadline limit = Deadline::after_ms(kPatienceMs);
    loop->knock();
    while (!loop->enter() && !limit.passed()) {
    }
    loop->unknock();
    REQUIRE(loop->on_thread());
    CHECK_FALSE(loop->enter());
    bool own = false;
    loop->post([&] { own = true; });
    loop->turn(0);
    CHECK(own);
    heard = 0;
    (void)eventfd_write(fd, 1);
    while (heard == 0 && !limit.passed()) loop->turn(20);
    CHECK(heard == 1);
    const auto posted = std::make_shared<Event>();
    loop->post([posted] { posted->set(); });  // left behind: for the loop's thread
    loop->leave(busy);
    CHECK_FALSE(loop->on_thread());
    CHECK(posted->wait({Deadline::after_ms(kPatienceMs)}));
    bool back = false;
    loop->run([&] { back = pthread_equal(pthread_self(), of_loop) != 0; });
    CHECK(back);
  }
  loop->run([&] { watcher = nullptr; });
  close(fd);
}

TEST_CASE(
    "Loop: visitors, the loop's thread and those who post never work at once, and lose nothing") {
  constexpr int kThreads = 3;
  constexpr int kRounds = 300;
  int64_t ran = 0;  // by whoever runs the loop; a race of two of them is seen by ThreadSanitizer
  {
    const auto loop = new_loop();
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < kRounds; ++i) {
          const auto done = std::make_shared<Event>();
          const bool knocks = (t + i) % 3 != 0;
          if (knocks) loop->knock();
          loop->post([&ran, done] {
            ++ran;
            done->set();
          });
          bool inside = false;
          while (!inside && !done->is_set()) inside = loop->enter();
          if (knocks) loop->unknock();
          while (inside && !done->is_set()) loop->turn(i % 2);
          if (inside) loop->leave(i % 5 == 0);
          CHECK(done->wait({Deadline::after_ms(kPatienceMs)}));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  CHECK(ran == int64_t{kThreads} * kRounds);
}

TEST_CASE("Loop: a poster that outlives it answers false") {
  Loop::Poster poster;
  {
    const auto loop = new_loop();
    poster = loop->poster();
    CHECK(poster([] {}));
  }
  CHECK_FALSE(poster([] {}));
}

TEST_CASE("Timer: fires once, not before its time, and not when stopped") {
  const auto loop = new_loop();
  const auto fired = std::make_shared<Event>();
  std::unique_ptr<dt::net::Timer> timer, stopped;
  int wrongly = 0;
  const int64_t started_ns = dt::monotonic_ns();
  loop->run([&] {
    timer = std::make_unique<dt::net::Timer>(loop.get(), [&, fired] { fired->set(); });
    stopped = std::make_unique<dt::net::Timer>(loop.get(), [&] { ++wrongly; });
    stopped->start(5);
    timer->start(20);
    stopped->stop();
  });
  CHECK(fired->wait({Deadline::after_ms(kPatienceMs)}));
  CHECK(dt::monotonic_ns() - started_ns >= 19'000'000);  // libuv counts whole milliseconds
  loop->run([&] {
    timer.reset();
    stopped.reset();
  });
  CHECK(wrongly == 0);
}

TEST_CASE("Timer: may be destroyed by its own callback") {
  const auto loop = new_loop();
  const auto fired = std::make_shared<Event>();
  std::unique_ptr<dt::net::Timer> timer;
  loop->run([&] {
    timer = std::make_unique<dt::net::Timer>(loop.get(), [&timer, fired] {
      timer.reset();
      fired->set();
    });
    timer->start(0);
  });
  CHECK(fired->wait({Deadline::after_ms(kPatienceMs)}));
}

TEST_CASE("FdWatcher: calls back when a foreign descriptor is readable; refuses a bad one") {
  const auto loop = new_loop();
  const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  const auto readable = std::make_shared<Event>();
  std::unique_ptr<dt::net::FdWatcher> watcher;
  loop->run([&] {
    auto watched = dt::net::FdWatcher::watch(loop.get(), fd, [fd, readable] {
      uint64_t value = 0;
      if (read(fd, &value, sizeof value) == sizeof value && value == 7) readable->set();
    });
    REQUIRE(watched.ok());
    watcher = std::move(watched).value();
    const auto bad = dt::net::FdWatcher::watch(loop.get(), -1, [] {});
    CHECK(bad.status().message() == "cannot watch descriptor -1: Bad file descriptor");
  });
  const uint64_t value = 7;
  CHECK(write(fd, &value, sizeof value) == sizeof value);
  CHECK(readable->wait({Deadline::after_ms(kPatienceMs)}));
  loop->run([&] { watcher.reset(); });
  close(fd);
}

TEST_CASE("Address: literals of both families, names, and a name that does not exist") {
  auto literal = dt::net::resolve_now("127.0.0.1", 4711, false);
  REQUIRE(literal.ok());
  CHECK(literal.value()[0].text() == "127.0.0.1:4711");
  literal = dt::net::resolve_now("::1", 4711, false);
  REQUIRE(literal.ok());
  CHECK(literal.value()[0].text() == "[::1]:4711");
  CHECK(literal.value()[0].port() == 4711);
  CHECK(dt::net::resolve_now("localhost", 1, false).ok());
  const auto wrong = dt::net::resolve_now("no-such-host.invalid", 1, false);
  CHECK(wrong.status().message().find("the name \"no-such-host.invalid\" cannot be resolved: ") ==
        0);
}

TEST_CASE("resolve: answers on the loop's thread, for literals and names") {
  const auto loop = new_loop();
  for (const char* host : {"127.0.0.1", "localhost"}) {
    const auto answered = std::make_shared<Event>();
    std::atomic<bool> on_loop{false};
    loop->run([&] {
      dt::net::resolve(loop.get(), host, 80, [&, answered](auto found) {
        on_loop = found.ok() && loop->on_thread();
        answered->set();
      });
    });
    CHECK(answered->wait({Deadline::after_ms(kPatienceMs)}));
    CHECK(on_loop);
  }
}

TEST_CASE("fork: guarded descriptors are closed in the child, a loop is refused there") {
  const auto loop = new_loop();
  const int guarded = eventfd(0, EFD_CLOEXEC);
  const int released = eventfd(0, EFD_CLOEXEC);
  dt::guard_fd_from_fork(guarded);
  dt::guard_fd_from_fork(released);
  dt::release_fd_from_fork_guard(released);
  const uint32_t generation = dt::fork_generation();
  const pid_t child = fork();
  if (child == 0) {
    const bool closed = fcntl(guarded, F_GETFD) == -1 && errno == EBADF;
    const bool kept = fcntl(released, F_GETFD) != -1;
    const bool counted = dt::fork_generation() == generation + 1;
    const bool refused =
        !loop->post([] {}) && loop->check_not_forked().code() == dt::Code::kInvalidState;
    _exit((closed ? 0 : 1) | (kept ? 0 : 2) | (counted ? 0 : 4) | (refused ? 0 : 8));
  }
  int result = 0;
  REQUIRE(waitpid(child, &result, 0) == child);
  CHECK(WIFEXITED(result));
  CHECK(WEXITSTATUS(result) == 0);
  CHECK(dt::fork_generation() == generation);
  CHECK(loop->check_not_forked().ok());
  dt::release_fd_from_fork_guard(guarded);
  close(guarded);
  close(released);
}
