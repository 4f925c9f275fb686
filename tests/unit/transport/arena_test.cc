// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/arena.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <functional>
#include <thread>
#include <utility>

#include "../as_other_user.h"
#include "../contains.h"

using dt::Code;
using dt::Deadline;
using dt::Wait;
using dt::shm::ArenaListener;
using dt::shm::HostArena;
using dt::shm::kHugePageBytes;
using dt::shm::kPageBytes;
using dt::shm::Location;
using dt::test::as_other_user;
using dt::test::contains;

namespace {

thread_local int fallocate_interruptions = 0;

}  // namespace

/// That of the C library, but the next calls of this thread are interrupted by signals.
extern "C" int fallocate(int fd, int mode, off_t offset, off_t length) {
  if (fallocate_interruptions > 0) {
    --fallocate_interruptions;
    errno = EINTR;
    return -1;
  }
  return static_cast<int>(syscall(SYS_fallocate, fd, mode, offset, length));
}

namespace {

using ArenaPtr = std::shared_ptr<HostArena>;
using Joined = dt::Result<ArenaPtr>;

HostArena::Options options(int32_t rank, int32_t size, uint64_t session = 7) {
  HostArena::Options one;
  one.session = session;
  one.local_rank = rank;
  one.local_size = size;
  one.world_rank = 10 + rank;
  return one;
}

Joined join(ArenaListener listener, const std::string& leader, const HostArena::Options& one,
            int64_t timeout_ms = 20'000) {
  return HostArena::create(std::move(listener), leader, one, {Deadline::after_ms(timeout_ms)});
}

/// All ranks of one arena, made by threads.
std::vector<ArenaPtr> make(int32_t size) {
  std::vector<ArenaListener> listeners;
  for (int32_t i = 0; i < size; ++i) listeners.push_back(ArenaListener::create().value());
  const std::string leader = listeners[0].name();
  std::vector<ArenaPtr> arenas(size);
  std::vector<std::thread> threads;
  for (int32_t i = 0; i < size; ++i) {
    threads.emplace_back([&, i] {
      auto arena = join(std::move(listeners[i]), leader, options(i, size));
      if (arena.ok()) arenas[i] = arena.value();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return arenas;
}

std::string message(const Joined& joined) { return joined.status().message(); }

}  // namespace

TEST_CASE("Arena: a hundred ranks that connect before their leader answers") {
  constexpr int32_t kRanks = 100;
  auto listener = ArenaListener::create().value();
  const std::string leader = listener.name();
  std::vector<dt::Status> results(kRanks);
  std::vector<std::thread> threads;
  for (int32_t rank = 1; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      results[rank] = join(ArenaListener::create().value(), leader, options(rank, kRanks)).status();
    });
  }
  results[0] = join(std::move(listener), leader, options(0, kRanks)).status();
  for (std::thread& thread : threads) thread.join();
  for (const dt::Status& result : results) CHECK_MESSAGE(result.ok(), result.message());
}

TEST_CASE("Arena: signals that interrupt an allocation do not fail it") {
  const ArenaPtr arena = make(1)[0];
  REQUIRE(arena);
  fallocate_interruptions = 3;
  const auto memory = arena->allocate(kPageBytes);
  CHECK(std::exchange(fallocate_interruptions, 0) == 0);
  REQUIRE_MESSAGE(memory.ok(), memory.status().message());
  static_cast<char*>(memory.value())[kPageBytes - 1] = 1;
  CHECK(arena->release(memory.value()).ok());
}

TEST_CASE("Arena: ranks see each other's headers and memory") {
  auto arenas = make(3);
  for (const auto& arena : arenas) REQUIRE(arena);
  for (int32_t i = 0; i < 3; ++i) {
    CHECK(arenas[0]->header(i).pid == getpid());
    CHECK(arenas[0]->header(i).world_rank == 10 + i);
  }
  for (const int64_t bytes : {int64_t{100}, int64_t{5} << 20}) {
    auto memory = arenas[1]->allocate(bytes);
    REQUIRE(memory.ok());
    auto* data = static_cast<char*>(memory.value());
    data[bytes - 1] = 42;
    Location at;
    REQUIRE(arenas[1]->locate(data + 3, bytes - 3, &at));
    CHECK(at.offset - at.allocation_offset == 3);
    CHECK(at.allocation_offset % (bytes < kHugePageBytes ? kPageBytes : kHugePageBytes) == 0);
    auto view = arenas[2]->view(1, at.allocation_offset, at.allocation_bytes);
    REQUIRE(view.ok());
    CHECK(view.value()->data()[bytes - 1] == 42);
    view.value()->data()[0] = 17;
    CHECK(data[0] == 17);
    CHECK(arenas[2]->view(1, at.allocation_offset, at.allocation_bytes).value() == view.value());
    CHECK_FALSE(arenas[1]->locate(data, at.allocation_bytes + 1, &at));
    CHECK_FALSE(arenas[1]->locate(data - 1, 1, &at));
    CHECK(arenas[1]->release(data).ok());
    CHECK_FALSE(arenas[1]->locate(data, 1, &at));
    CHECK(arenas[1]->release(data).code() == Code::kInvalidArgument);
    // A view outlives the block; what it shows was given back.
    CHECK(view.value()->data()[0] == 0);
  }
}

TEST_CASE("Arena: memory is asked for on the node of its owner; where that fails it is said once") {
  std::vector<std::string> lines;
  HostArena::Options one = options(0, 1);
  one.logger = std::make_shared<dt::Logger>(
      dt::LogLevel::kDebug, [&](dt::LogLevel, const char* text) { lines.push_back(text); });
  const auto allocates = [&](int32_t node) {
    one.home = {node, true};
    auto listener = ArenaListener::create().value();
    const std::string leader = listener.name();
    auto arena = join(std::move(listener), leader, one);
    REQUIRE(arena.ok());
    CHECK(arena.value()->node(0) == node);
    for (const int64_t bytes : {int64_t{100}, int64_t{5} << 20}) {
      auto memory = arena.value()->allocate(bytes);
      REQUIRE(memory.ok());
      static_cast<char*>(memory.value())[bytes - 1] = 42;
      int mode = -1;
      const long told =
          syscall(SYS_get_mempolicy, &mode, nullptr, 0UL, memory.value(), MPOL_F_ADDR);
      if (told == 0 && lines.empty()) CHECK(mode == MPOL_PREFERRED);
    }
  };
  allocates(0);  // a container may forbid it
  lines.clear();
  allocates(1000);
  REQUIRE(lines.size() == 1);
  CHECK_MESSAGE(contains(lines[0], "rank 10: its memory cannot be asked for on NUMA node 1000"),
                lines[0]);
}

TEST_CASE("Arena: released memory is used again and zeroed, after a failure it is neither") {
  auto arenas = make(1);
  REQUIRE(arenas[0]);
  HostArena& arena = *arenas[0];
  Location first;
  Location second;
  auto* data = static_cast<char*>(arena.allocate(10'000).value());
  REQUIRE(arena.locate(data, 1, &first));
  data[9'999] = 1;
  CHECK(arena.release(data).ok());
  data = static_cast<char*>(arena.allocate(10'000).value());
  REQUIRE(arena.locate(data, 1, &second));
  CHECK(first.offset == second.offset);
  CHECK(data[9'999] == 0);
  arena.quarantine();
  CHECK(arena.release(data).ok());
  data = static_cast<char*>(arena.allocate(10'000).value());
  REQUIRE(arena.locate(data, 1, &second));
  CHECK(first.offset != second.offset);
}

TEST_CASE("Arena: a shortage says how much was asked and what to look at") {
  auto arenas = make(1);
  REQUIRE(arenas[0]);
  for (const int64_t bytes : {int64_t{1} << 39, int64_t{1} << 41}) {
    const auto memory = arenas[0]->allocate(bytes);
    CHECK(memory.status().code() == Code::kOutOfMemory);
    const std::string text = memory.status().message();
    CHECK_MESSAGE(contains(text, std::to_string(bytes)), text);
    CHECK_MESSAGE(contains(text, "rank 10 cannot reserve"), text);
    CHECK_MESSAGE(contains(text, "memory limit of the container"), text);
  }
  CHECK(arenas[0]->allocate(1 << 20).ok());
}

TEST_CASE("Arena: retired memory goes back when its last reader has signed off") {
  std::atomic<uint32_t> never{0};
  auto arenas = make(1);
  REQUIRE(arenas[0]);
  auto* counter = new (arenas[0]->allocate(100).value()) std::atomic<uint32_t>(1);
  Location at;
  arenas[0]->retire({counter}, counter, 2);
  CHECK(arenas[0]->locate(counter, 1, &at));
  counter->store(2);
  arenas[0]->retire({}, &never, 1);  // looks at the older ones too
  CHECK_FALSE(arenas[0]->locate(counter, 1, &at));
}

TEST_CASE("Arena: the memory cannot be shrunk under a reader") {
  auto arenas = make(1);
  REQUIRE(arenas[0]);
  // The only descriptor of the arena is private: look for it among our own.
  bool found = false;
  for (int fd = 3; fd < 200; ++fd) {
    const int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0) continue;
    found = true;
    CHECK((seals & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) ==
          (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
    CHECK((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
  }
  CHECK(found);
}

TEST_CASE("Arena: a leader that waits in vain names the missing ranks") {
  auto leader = ArenaListener::create();
  const std::string name = leader.value().name();
  Joined second = dt::Status(Code::kInternal, "");
  std::thread other([&] { second = join(ArenaListener::create().value(), name, options(1, 4)); });
  const Joined first = join(std::move(leader).value(), name, options(0, 4), 300);
  other.join();
  CHECK(first.status().code() == Code::kTimeout);
  CHECK_MESSAGE(contains(message(first), "these local ranks did not come in time: 2, 3;"),
                message(first));
  CHECK(second.status().code() == Code::kTimeout);
  CHECK_MESSAGE(contains(message(second), "local rank 0 refused: "), message(second));
}

TEST_CASE("Arena: strangers, foreign sessions and doubles are refused, the others join") {
  auto leader = ArenaListener::create();
  const std::string name = leader.value().name();
  Joined foreign = dt::Status(Code::kInternal, "");
  Joined miscounted = foreign;
  Joined second = foreign;
  Joined twin = foreign;
  std::vector<std::string> log;
  HostArena::Options leading = options(0, 3);
  leading.logger = std::make_shared<dt::Logger>(
      dt::LogLevel::kWarning, [&](dt::LogLevel, const char* text) { log.push_back(text); });
  Joined first = foreign;
  std::thread leads([&] { first = join(std::move(leader).value(), name, leading); });
  // A stranger that says nonsense, and one that says nothing.
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path + 1, name.data(), name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  int strangers[2];
  for (int& stranger : strangers) {
    stranger = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    REQUIRE(connect(stranger, reinterpret_cast<sockaddr*>(&address), length) == 0);
  }
  REQUIRE(send(strangers[0], "hello", 5, 0) == 5);
  foreign = join(ArenaListener::create().value(), name, options(1, 3, 8));
  CHECK_MESSAGE(contains(message(foreign), "belongs to session 0000000000000007, not to"),
                message(foreign));
  miscounted = join(ArenaListener::create().value(), name, options(1, 2));
  CHECK_MESSAGE(contains(message(miscounted), "counts 3 ranks on this host, local rank 1 counts 2"),
                message(miscounted));
  // One of the two that claim to be rank 1 gets in.
  std::thread one([&] { second = join(ArenaListener::create().value(), name, options(1, 3)); });
  twin = join(ArenaListener::create().value(), name, options(1, 3), 200);
  Joined third = join(ArenaListener::create().value(), name, options(2, 3));
  one.join();
  leads.join();
  for (const int stranger : strangers) close(stranger);
  const bool twin_refused = contains(message(twin), "another process joined as local rank 1");
  const bool second_refused = contains(message(second), "another process joined as local rank 1");
  CHECK(twin_refused != second_refused);
  CHECK(log.size() >= 3);
  if (twin_refused) {
    CHECK_MESSAGE(first.ok(), message(first));
    CHECK_MESSAGE(third.ok(), message(third));
  }
}

TEST_CASE("Arena: connections of another user are refused, and the log has one line of them all") {
  auto leader = ArenaListener::create().value();
  const std::string name = leader.name();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path + 1, name.data(), name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  constexpr int kOthers = 100;  // more than the leader accepts in one go, fewer than wait for it
  int connected = 0;
  const bool tried = as_other_user([&] {
    for (int i = 0; i < kOthers; ++i) {
      const int other = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
      connected += connect(other, reinterpret_cast<sockaddr*>(&address), length) == 0 ? 1 : 0;
      close(other);
    }
  });
  if (!tried) {
    MESSAGE("not root: another user is not tested");
    return;
  }
  REQUIRE(connected == kOthers);
  std::vector<std::string> log;
  HostArena::Options leading = options(0, 2);
  leading.logger = std::make_shared<dt::Logger>(
      dt::LogLevel::kWarning, [&](dt::LogLevel, const char* text) { log.push_back(text); });
  Joined second = dt::Status(Code::kInternal, "");
  std::thread joins([&] { second = join(ArenaListener::create().value(), name, options(1, 2)); });
  const Joined first = join(std::move(leader), name, leading);
  joins.join();
  CHECK_MESSAGE(first.ok(), message(first));
  CHECK_MESSAGE(second.ok(), message(second));
  REQUIRE(log.size() == 1);
  CHECK_MESSAGE(contains(log[0], "refused a connection from pid"), log[0]);
  CHECK_MESSAGE(contains(log[0],
                         "of user 65534: it belongs to another user; more of the kind are refused "
                         "without another word"),
                log[0]);
}

TEST_CASE("Arena: nobody listens, a bad rank, an interrupt") {
  std::string gone = ArenaListener::create().value().name();
  const Joined alone = join(ArenaListener::create().value(), gone, options(1, 2));
  CHECK(alone.status().code() == Code::kPeerLost);
  CHECK_MESSAGE(contains(message(alone), "nobody listens at \"@" + gone), message(alone));
  for (const auto& bad : {options(2, 2), options(-1, 2), options(0, 0), options(0, 100'000)}) {
    CHECK(join(ArenaListener::create().value(), gone, bad).status().code() ==
          Code::kInvalidArgument);
  }
  dt::Interrupt interrupt;
  std::thread control([&] { interrupt.fire(dt::Status(Code::kAborted, "stop")); });
  auto leader = ArenaListener::create();
  const std::string name = leader.value().name();
  const Joined stopped = HostArena::create(std::move(leader).value(), name, options(0, 2),
                                           {Deadline::never(), &interrupt});
  control.join();
  CHECK(message(stopped) == "stop");
}

TEST_CASE("Arena: what a rank withdraws keeps its place and contents, and peers reach it no more") {
  auto arenas = make(2);
  for (const auto& arena : arenas) REQUIRE(arena);
  for (const int64_t bytes : {int64_t{100}, int64_t{3} << 20}) {
    auto* data = static_cast<char*>(arenas[0]->allocate(bytes).value());
    auto* control =
        static_cast<char*>(arenas[0]->allocate(bytes, HostArena::Use::kControl).value());
    Location at;
    Location control_at;
    REQUIRE(arenas[0]->locate(data, bytes, &at));
    REQUIRE(arenas[0]->locate(control, bytes, &control_at));
    const auto peers = arenas[1]->view(0, at.allocation_offset, at.allocation_bytes).value();
    const auto peers_control =
        arenas[1]->view(0, control_at.allocation_offset, control_at.allocation_bytes).value();
    for (int64_t i = 0; i < bytes; ++i) data[i] = static_cast<char>(i % 113);
    REQUIRE(arenas[0]->withdraw().ok());
    REQUIRE(arenas[0]->withdraw().ok());  // nothing is left to do
    memset(peers->data(), 99, static_cast<size_t>(bytes));
    memset(peers_control->data(), 99, static_cast<size_t>(bytes));
    int64_t same = 0;
    for (int64_t i = 0; i < bytes; ++i) same += data[i] == static_cast<char>(i % 113) ? 1 : 0;
    CHECK(same == bytes);
    CHECK(control[bytes - 1] == 99);  // how ranks speak with each other stays shared
    CHECK_FALSE(arenas[0]->locate(data, bytes, &at));
    CHECK(arenas[0]->locate(control, bytes, &at));
    // Later allocations lie elsewhere, so that nobody's old view shows them.
    auto* later = static_cast<char*>(arenas[0]->allocate(bytes).value());
    CHECK(arenas[0]->release(data).ok());
    auto* last = static_cast<char*>(arenas[0]->allocate(bytes).value());
    memset(peers->data(), 98, static_cast<size_t>(bytes));
    CHECK(later[0] == 0);
    CHECK(last[0] == 0);
  }
}
