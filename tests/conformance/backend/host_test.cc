// SPDX-License-Identifier: Apache-2.0
// What only the host backend can do or get wrong: ranks that disagree, are late, die, are many.
#include <doctest/doctest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

#include "backend/host/host_backend.h"
#include "play.h"

using namespace conformance;

extern char** environ;

namespace {

Setup host(int32_t size) {
  Setup one;
  one.size = size;
  one.host.inline_bytes = 256;
  one.host.slot_bytes = 1024;
  one.host.ring_bytes = 4096;
  return one;
}

}  // namespace

TEST_CASE("Host: ranks that disagree all get MISMATCH with both sides, and the comm stays broken") {
  for (const int64_t count : {10, 4000}) {
    std::atomic<int> reports{0};
    Setup setup = host(3);
    setup.on_broken = [&](const Status& status) {
      if (status.code() == Code::kMismatch) ++reports;
    };
    play(setup, [&](Rank& rank) {
      std::vector<float> data(5000, 1);
      const int64_t mine = rank.rank == 2 ? count + 1 : count;
      Collective reduce = allreduce_f32(data.data(), data.data(), mine);
      reduce.name = "bucket 3";
      const Status status = rank.backend->run(reduce);
      rank.expect(status.code() == Code::kMismatch, "MISMATCH: " + status.message());
      if (status.ok()) return;
      const std::string text = status.message();
      rank.expect(contains(text, dt::format("allreduce f32 sum x %d \"bucket 3\"",
                                            static_cast<int>(count))) &&
                      contains(text, dt::format("allreduce f32 sum x %d \"bucket 3\"",
                                                static_cast<int>(count + 1))),
                  "both sides: " + text);
      rank.expect(contains(text, "allreduce \"bucket 3\" #1 on comm \"world\"") &&
                      contains(text, "rank 2 (world rank 102, thishost, pid "),
                  "where: " + text);
      rank.expect(status.info().rank == 102 && status.info().pid == getpid() &&
                      status.info().operation == "allreduce" && status.info().sequence == 1,
                  "as data");
      rank.expect(data[0] == 1, "no data moved");
      rank.expect(rank.backend->run(Collective()).message() == text, "later calls");
      rank.expect(rank.backend->submit(Collective(), std::make_shared<Work>()).message() == text,
                  "later submits");
      rank.meet();
    });
    CHECK(reports.load() == 3);
  }
}

TEST_CASE("Host: each field that ranks must agree on is compared") {
  check_each_field_is_compared(host(2));
}

TEST_CASE("Host: a deadline names the ranks that have not arrived, and only these") {
  for (const bool queued : {false, true}) {
    std::atomic<int> reports{0};
    Setup setup = host(4);
    setup.on_broken = [&](const Status&) { ++reports; };
    play(setup, [&](Rank& rank) {
      rank.expect_ok(rank.backend->run(Collective()), "barrier");
      rank.meet();
      if (rank.rank != 1 && rank.rank != 3) {
        std::vector<float> data(5000, 1);
        Collective reduce = allreduce_f32(data.data(), data.data(), 5000);
        reduce.deadline = Deadline::after_ms(30);
        Status status;
        if (queued) {
          auto work = std::make_shared<Work>();
          rank.expect_ok(rank.backend->submit(reduce, work), "submit");
          rank.expect(rank.backend->wait(*work, {Deadline::after_ms(30'000)}), "wait");
          status = work->status();
        } else {
          status = rank.backend->run(reduce);
        }
        const std::string text = status.message();
        rank.expect(status.code() == Code::kTimeout, "TIMEOUT: " + text);
        rank.expect(contains(text, "has not arrived: rank 1 (world rank 101, thishost, pid ") &&
                        contains(text, ", rank 3 (world rank 103") &&
                        contains(text, "(last operation: barrier #1)") &&
                        !contains(text, "rank 0 (") && !contains(text, "rank 2 ("),
                    text);
        rank.expect(status.info().rank == 101 && status.info().sequence == 2, "as data");
      }
      rank.meet();
    });
    CHECK(reports.load() == 2);
  }
}

TEST_CASE("Host: a failure is reported before callers see it") {
  std::atomic<int> told{0};
  Setup setup = host(2);
  setup.on_broken = [&](const Status&) { ++told; };
  play(setup, [&](Rank& rank) {
    if (rank.rank == 1) return rank.meet();
    auto work = std::make_shared<Work>();
    Collective barrier;
    barrier.deadline = Deadline::after_ms(10);
    rank.expect_ok(rank.backend->submit(barrier, work), "submit");
    const Deadline deadline = Deadline::after_ms(30'000);
    while (rank.backend->broken().ok() && !deadline.passed()) sched_yield();
    rank.expect(told.load() == 1, "told");
    rank.expect(rank.backend->wait(*work, {deadline}), "wait");
    rank.expect(work->status().code() == Code::kTimeout, work->status().message());
    rank.expect(rank.backend->run(Collective()).code() == Code::kTimeout, "run");
    rank.meet();
  });
  CHECK(told.load() == 1);
}

TEST_CASE("Host: a wait that runs out of time cancels nothing") {
  play(host(2), [](Rank& rank) {
    std::vector<float> data(3000, 1);
    auto work = std::make_shared<Work>();
    if (rank.rank == 0) {
      rank.expect_ok(rank.backend->submit(allreduce_f32(data.data(), data.data(), 3000), work), "");
      rank.expect(!rank.backend->wait(*work, {Deadline::after_ms(5)}), "not done");
      dt::Interrupt interrupt;
      interrupt.fire(Status(Code::kAborted, "stop waiting"));
      rank.expect(!rank.backend->wait(*work, {Deadline::never(), &interrupt}), "interrupted");
    }
    rank.meet();
    if (rank.rank == 1) {
      rank.expect_ok(rank.backend->run(allreduce_f32(data.data(), data.data(), 3000)), "run");
    } else {
      rank.expect(rank.backend->wait(*work, {Deadline::after_ms(30'000)}), "done");
    }
    rank.expect(data[2999] == 2, "result");
  });
}

TEST_CASE("Host: who comes first fills its ring, and overwrites nothing that others still read") {
  // Slots of 256 floats, four of them; short messages behind long ones, and the other way round.
  const int64_t counts[] = {3000, 200, 1000, 700, 5000, 1024, 300, 2000};
  for (const int32_t size : {2, 3}) {
    for (const bool in_place : {true, false}) {
      play(host(size), [&](Rank& rank) {
        int32_t turn = 0;
        for (int round = 0; round < 3; ++round) {
          for (const int64_t count : counts) {
            std::vector<float> data(static_cast<size_t>(count));
            std::vector<float> sums(static_cast<size_t>(count));
            for (int64_t i = 0; i < count; ++i) {
              data[i] = static_cast<float>(i % 100 + rank.rank + turn);
            }
            float* const result = in_place ? data.data() : sums.data();
            Collective reduce = allreduce_f32(data.data(), result, count);
            // One operation in two, another rank each time, begins while nobody else has come.
            const bool alone = turn % 2 == 0;
            if (alone && rank.rank != turn / 2 % size) rank.meet();
            auto work = std::make_shared<Work>();
            rank.expect_ok(rank.backend->submit(reduce, work), "submit");
            if (alone && rank.rank == turn / 2 % size) {
              rank.expect(!rank.backend->wait(*work, {Deadline::after_ms(2)}), "not done");
              rank.meet();
            }
            rank.expect(rank.backend->wait(*work, {Deadline::after_ms(30'000)}), "done");
            rank.expect_ok(work->status(), "allreduce");
            for (int64_t i = 0; i < count; ++i) {
              const int64_t wanted = size * (i % 100 + turn) + size * (size - 1) / 2;
              if (result[i] == static_cast<float>(wanted)) continue;
              rank.expect(false,
                          dt::format("element %lld of %lld in turn %d", static_cast<long long>(i),
                                     static_cast<long long>(count), turn));
              break;
            }
            ++turn;
          }
        }
      });
    }
  }
  play(host(3), [&](Rank& rank) {
    for (int round = 0; round < 3; ++round) {
      for (const int64_t count : counts) {
        for (const Kind kind : {Kind::kBroadcast, Kind::kReduce, Kind::kAllgather,
                                Kind::kReduceScatter, Kind::kAllreduce}) {
          check_collective(rank, kind, Dtype::kF32, ReduceOp::kSum, count, round,
                           round == 1 ? Placement::kInPlace : Placement::kOrdinary);
        }
      }
    }
  });
}

TEST_CASE("Host: a buffer stays mapped while it is used, however many others are mapped") {
  play(host(2), [](Rank& rank) {
    constexpr int64_t kElements = 4096;
    const auto allocate = [&](int64_t elements) {
      auto memory = rank.backend->allocate(elements * 4);
      rank.expect_ok(memory.status(), "allocate");
      return memory.ok() ? static_cast<float*>(memory.value()) : nullptr;
    };
    int turn = 0;
    const auto sum = [&](float* send, float* recv) {
      ++turn;
      for (int64_t i = 0; i < kElements; ++i) {
        send[i] = static_cast<float>(i % 100 + rank.rank + turn);
      }
      rank.expect_ok(rank.backend->run(allreduce_f32(send, recv, kElements)), "allreduce");
      bool right = true;
      for (int64_t i = 0; i < kElements; ++i) {
        right &= recv[i] == static_cast<float>(2 * (i % 100 + turn) + 1);
      }
      rank.expect(right, dt::format("turn %d", turn));
    };
    // The place of the first buffer is used by a longer one in between, so that of its mapping only
    // the communicator knows, which remembers eight buffers of each peer.
    float* first = allocate(kElements);
    sum(first, first);
    rank.meet();
    rank.expect_ok(rank.backend->release(first), "release");
    float* const longer = allocate(2 * kElements);
    sum(longer, longer);
    rank.meet();
    rank.expect_ok(rank.backend->release(longer), "release");
    first = allocate(kElements);
    std::vector<float*> others;
    for (int i = 0; i < 7; ++i) others.push_back(allocate(kElements));
    for (int i = 0; i < 6; ++i) sum(others[i], others[i]);
    // Found as the oldest of the eight, whose place the last buffer takes.
    sum(first, others[6]);
    rank.meet();
    rank.expect_ok(rank.backend->release(first), "release");
    for (float* const buffer : others) rank.expect_ok(rank.backend->release(buffer), "release");
  });
}

TEST_CASE("Host: a look at who is awaited holds up no operation") {
  // Nobody helps here: the progress thread does it all, and finds the turn taken now and then.
  play(host(2), [](Rank& rank) {
    auto* const backend = dynamic_cast<dt::backend::HostBackend*>(rank.backend.get());
    rank.expect(backend != nullptr, "a host backend");
    if (backend == nullptr) return;
    std::atomic<bool> over{false};
    std::thread looks([&] {
      while (!over.load()) backend->count_wait(1);
    });
    for (int round = 0; round < 100; ++round) {
      Collective barrier;
      barrier.deadline = Deadline::after_ms(30'000);
      auto work = std::make_shared<Work>();
      dt::Doorbell bell;
      work->watch(&bell);
      rank.expect_ok(rank.backend->submit(barrier, work), "submit");
      while (!work->done()) {
        const uint32_t ticket = bell.prepare();
        work->done() ? bell.cancel() : bell.sleep(ticket, barrier.deadline);
      }
      work->unwatch(&bell);
      if (!work->status().ok()) {
        rank.expect_ok(work->status(), "barrier");
        break;
      }
    }
    over = true;
    looks.join();
  });
}

TEST_CASE("Host: interrupt wakes a blocked call in each path") {
  for (const int64_t count : {4, 5000}) {
    for (const bool shared : {false, true}) {
      for (const bool queued : {false, true}) {
        play(host(3), [&](Rank& rank) {
          auto memory = rank.backend->allocate(20'000);
          std::vector<float> ordinary(5000);
          auto* data = shared ? static_cast<float*>(memory.value()) : ordinary.data();
          if (rank.rank != 2) {
            std::atomic<bool> entered{false};
            std::thread control([&] {
              while (!entered.load()) std::this_thread::yield();
              rank.backend->interrupt(Status(Code::kPeerLost, "rank 2 died"));
            });
            entered.store(true);
            Status status;
            const Collective reduce = allreduce_f32(data, data, count);
            if (queued) {
              auto work = std::make_shared<Work>();
              status = rank.backend->submit(reduce, work);
              if (status.ok() && rank.backend->wait(*work, Wait())) status = work->status();
            } else {
              status = rank.backend->run(reduce);
            }
            rank.expect(status.message() == "rank 2 died", "status: " + status.message());
            control.join();
          }
          rank.meet();
        });
      }
    }
  }
}

TEST_CASE("Host: many threads of one rank share a communicator and several communicators") {
  play(host(2), [](Rank& rank) {
    std::vector<std::shared_ptr<Backend>> children;
    for (int i = 0; i < 3; ++i) {
      auto child =
          rank.backend->split(0, rank.rank, dt::format("child %d", i), Deadline::after_ms(30'000));
      rank.expect_ok(child.status(), "split");
      children.push_back(child.value().backend);
    }
    // Independent communicators may be driven in any order by any thread.
    std::vector<std::thread> threads;
    std::mutex guard;
    for (int i = 0; i < 3; ++i) {
      const int index = rank.rank == 0 ? i : 2 - i;
      threads.emplace_back([&, index] {
        for (int round = 0; round < 30; ++round) {
          std::vector<float> data(2000, 1);
          const Status status = children[index]->run(allreduce_f32(data.data(), data.data(), 2000));
          std::lock_guard lock(guard);
          rank.expect_ok(status, "run");
          rank.expect(data[1999] == 2, "result");
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    // Several threads, one communicator: equal calls, so that their order does not matter.
    threads.clear();
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        for (int round = 0; round < 30; ++round) {
          std::vector<float> data(500, 1);
          const Status status = rank.backend->run(allreduce_f32(data.data(), data.data(), 500));
          std::lock_guard lock(guard);
          rank.expect_ok(status, "run");
          rank.expect(data[499] == 2, "result");
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

TEST_CASE("Host: communicators and engines are destroyed in any order, with works queued") {
  for (int round = 0; round < 20; ++round) {
    play(host(3), [&](Rank& rank) {
      auto child = rank.backend->split(0, 0, "child", Deadline::after_ms(30'000));
      rank.expect_ok(child.status(), "split");
      check_collective(rank, Kind::kAllreduce, Dtype::kF32, ReduceOp::kSum, 3000, 0,
                       Placement::kShared);
      if (rank.rank == 1) rank.backend.reset();
      Rank in_child = rank;
      in_child.backend = child.value().backend;
      check_collective(in_child, Kind::kAllreduce, Dtype::kF32, ReduceOp::kSum, 3000, 0,
                       Placement::kOrdinary);
      std::vector<float> data(10);
      auto work = std::make_shared<Work>();
      if (rank.rank == 0) {
        rank.expect_ok(in_child.backend->submit(allreduce_f32(data.data(), data.data(), 10), work),
                       "submit");
      }
      in_child.backend.reset();
      child = Backend::Split();
      if (rank.rank == 0) {
        // The progress thread may hold the last reference for a moment.
        const Deadline deadline = Deadline::after_ms(30'000);
        while (!work->done() && !deadline.passed()) std::this_thread::yield();
        rank.expect(work->status().code() == Code::kAborted, "aborted");
        rank.expect(contains(work->status().message(), "\"child\" was destroyed"),
                    work->status().message());
      }
    });
  }
}

TEST_CASE("Host: splitting and dropping many times gives the memory back") {
  play(host(2), [](Rank& rank) {
    for (int i = 0; i < 200; ++i) {
      auto child =
          rank.backend->split(i % 2 == 0 ? 0 : rank.rank, 0, "child", Deadline::after_ms(30'000));
      rank.expect_ok(child.status(), "split");
      if (!child.ok()) return;
      rank.expect_ok(child.value().backend->run(Collective()), "barrier");
    }
  });
}

TEST_CASE("Host: contributions arrive whole, however a rank writes them into the arena") {
  using dt::collective::Staging;
  for (const int32_t size : {2, 3}) {
    CAPTURE(size);
    Setup setup = host(size);
    setup.host.staging = Staging::kStreaming;
    play(setup, [&](Rank& rank) {
      for (const Kind kind : {Kind::kAllreduce, Kind::kReduce, Kind::kBroadcast, Kind::kAllgather,
                              Kind::kReduceScatter}) {
        for (const Placement placement :
             {Placement::kOrdinary, Placement::kInPlace, Placement::kMisaligned}) {
          check_collective(rank, kind, Dtype::kF32, ReduceOp::kSum, 3001, 1, placement);
          check_collective(rank, kind, Dtype::kBf16, ReduceOp::kSum, 3001, 1, placement);
        }
      }
    });
    // Segments that are long enough to be timed, and enough of them that all stores are tried.
    setup.host.staging = Staging::kAuto;
    setup.host.slot_bytes = 32 << 10;
    setup.host.ring_bytes = 128 << 10;
    play(setup, [&](Rank& rank) {
      for (int i = 0; i < 20; ++i) {
        check_collective(rank, Kind::kAllreduce, Dtype::kF32, ReduceOp::kSum, 40'000, 0,
                         i % 2 == 0 ? Placement::kOrdinary : Placement::kInPlace);
      }
    });
  }
}

TEST_CASE("Host: other thresholds choose other ways, and every one gives the same result") {
  dt::collective::Thresholds all[4];
  all[0].exchange_ranks = 1;  // two ranks share the sum
  all[0].segments = 3;
  all[0].segment_bytes = 192;
  all[1].exchange_ranks = 8;  // each of three sums all
  all[1].segments = 1;
  all[1].streaming_bytes = 0;  // every sum is written past the caches
  all[2].push_bytes = 100;     // a line at once
  all[2].mapped_bytes = 1;
  all[3].exchange_ranks = 1;
  all[3].streaming_bytes = 0;
  for (const dt::collective::Thresholds& thresholds : all) {
    for (const int32_t size : {2, 3}) {
      CAPTURE(size);
      CAPTURE(&thresholds - all);
      Setup setup = host(size);
      setup.host.thresholds = thresholds;
      play(setup, [](Rank& rank) {
        for (const Kind kind : {Kind::kAllreduce, Kind::kReduce, Kind::kBroadcast, Kind::kAllgather,
                                Kind::kReduceScatter}) {
          for (const Placement placement : kPlacements) {
            for (const int64_t count : {67, 1201}) {
              check_collective(rank, kind, Dtype::kF32, ReduceOp::kSum, count, 1, placement);
            }
          }
        }
      });
    }
  }
}

TEST_CASE("Host: 64 ranks on few processors") {
  Setup setup = host(64);
  setup.host.slot_bytes = 16 << 10;
  setup.host.ring_bytes = 64 << 10;
  play(setup, [](Rank& rank) {
    for (const Placement placement : {Placement::kOrdinary, Placement::kShared}) {
      for (const int64_t count : {3, 9001}) {
        check_collective(rank, Kind::kAllreduce, Dtype::kI32, ReduceOp::kSum, count, 0, placement);
      }
    }
    check_collective(rank, Kind::kReduceScatter, Dtype::kI32, ReduceOp::kSum, 301, 0,
                     Placement::kOrdinary);
    rank.expect_ok(rank.backend->run(Collective()), "barrier");
  });
}

TEST_CASE("Host: different thresholds are refused by name, a second world too") {
  std::vector<dt::shm::ArenaListener> own;
  for (int i = 0; i < 2; ++i) own.push_back(dt::shm::ArenaListener::create().value());
  const std::string leader = own[0].name();
  std::string texts[2];
  const auto join = [&](int32_t rank) {
    dt::backend::HostEngine::Options options;
    options.leader_name = leader;
    options.session = 77;
    options.local_rank = rank;
    options.local_size = 2;
    options.world_ranks = {5, 6};
    options.slot_bytes = rank == 0 ? 65536 : 32768;
    options.thresholds.segments = rank == 0 ? 8 : 3;
    const Wait wait{Deadline::after_ms(30'000)};
    auto engine = dt::backend::HostEngine::create(std::move(own[rank]), options, wait);
    texts[rank] = engine.status().message();
    if (!engine.ok()) return;
    auto world = dt::backend::create_host_world(engine.value(), {}, wait);
    texts[rank] = world.status().message();
    auto again = dt::backend::create_host_world(engine.value(), {}, wait);
    if (again.status().code() != Code::kInvalidState) texts[rank] += "a second world";
  };
  std::thread other([&] { join(1); });
  join(0);
  other.join();
  CHECK_MESSAGE(contains(texts[0], "set the same host.* values on all ranks"), texts[0]);
  CHECK_MESSAGE(contains(texts[0], "host.slot_bytes 32768, here 65536; host.segments 3, here 8"),
                texts[0]);
  CHECK_MESSAGE(contains(texts[1], "rank 5"), texts[1]);
}

TEST_CASE("Host: a block that others may know of is not reused, another one is") {
  auto listener = dt::shm::ArenaListener::create();
  REQUIRE(listener.ok());
  dt::backend::HostEngine::Options options;
  options.leader_name = listener.value().name();
  options.session = 78;
  options.local_size = 1;
  options.world_ranks = {0};
  auto engine = dt::backend::HostEngine::create(std::move(listener).value(), options,
                                                Wait{Deadline::after_ms(30'000)});
  REQUIRE_MESSAGE(engine.ok(), engine.status().message());
  const auto offset_of_one = [&](bool reserved) {
    auto block = dt::backend::HostBlock::make(engine.value(), 1);
    REQUIRE_MESSAGE(block.ok(), block.status().message());
    if (reserved) block.value().leave_reserved();
    return block.value().offset();
  };
  const int64_t first = offset_of_one(false);
  CHECK(offset_of_one(true) == first);
  CHECK(offset_of_one(false) != first);
}

namespace {

/// The body of a rank that is a process: exits 0 if all is well.
int process_rank(char** arguments) {
  const std::string leader = arguments[0];
  const int32_t rank = atoi(arguments[1]);
  const int32_t size = atoi(arguments[2]);
  auto listener = dt::shm::ArenaListener::create();
  if (!listener.ok()) return 10;
  dt::backend::HostEngine::Options options;
  options.leader_name = leader;
  options.session = 99;
  options.local_rank = rank;
  options.local_size = size;
  for (int32_t i = 0; i < size; ++i) options.world_ranks.push_back(i);
  const Wait wait{Deadline::after_ms(30'000)};
  auto engine = dt::backend::HostEngine::create(std::move(listener).value(), options, wait);
  if (!engine.ok()) return 11;
  auto world = dt::backend::create_host_world(engine.value(), {}, wait);
  if (!world.ok()) return 12;
  std::vector<std::string> failures;
  Rank me;
  me.rank = rank;
  me.size = size;
  me.backend = world.value();
  me.failures = &failures;
  for (const Placement placement : kPlacements) {
    check_collective(me, Kind::kAllreduce, Dtype::kF32, ReduceOp::kSum, 300'001, 0, placement);
    check_collective(me, Kind::kAllgather, Dtype::kF32, ReduceOp::kSum, 50'001, 0, placement);
  }
  if (rank == size - 1) raise(SIGKILL);  // dies without a goodbye
  std::vector<float> data(100'000);
  Collective reduce = allreduce_f32(data.data(), data.data(), 100'000);
  reduce.deadline = Deadline::after_ms(200);
  const Status status = world.value()->run(reduce);
  if (status.code() != Code::kTimeout || status.info().rank != size - 1) {
    failures.push_back("timeout: " + status.message());
  }
  for (const std::string& failure : failures) fprintf(stderr, "%s\n", failure.c_str());
  return failures.empty() ? 0 : 13;
}

/// Runs before doctest: this program started itself as a rank.
struct AsRank {
  AsRank() {
    char line[4096];
    FILE* file = fopen("/proc/self/cmdline", "re");
    if (file == nullptr) return;
    const size_t length = fread(line, 1, sizeof line - 1, file);
    fclose(file);
    line[length] = '\0';
    std::vector<char*> arguments;
    for (size_t at = 0; at < length; at += strlen(line + at) + 1) arguments.push_back(line + at);
    if (arguments.size() == 5 && strcmp(arguments[1], "as-rank") == 0) {
      _exit(process_rank(arguments.data() + 2));
    }
  }
};

}  // namespace

TEST_CASE("Host: ranks are processes; one is killed and the others name it") {
  auto listener = dt::shm::ArenaListener::create();
  REQUIRE(listener.ok());
  const std::string leader = listener.value().name();
  constexpr int32_t kSize = 3;
  std::vector<pid_t> children;
  for (int32_t rank = 1; rank < kSize; ++rank) {
    std::string words[] = {"/proc/self/exe", "as-rank", leader, std::to_string(rank),
                           std::to_string(kSize)};
    char* arguments[6] = {};
    for (int i = 0; i < 5; ++i) arguments[i] = words[i].data();
    pid_t child = 0;
    REQUIRE(posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, arguments, environ) == 0);
    children.push_back(child);
  }
  dt::backend::HostEngine::Options options;
  options.leader_name = leader;
  options.session = 99;
  options.local_size = kSize;
  options.world_ranks = {0, 1, 2};
  const Wait wait{Deadline::after_ms(30'000)};
  auto engine = dt::backend::HostEngine::create(std::move(listener).value(), options, wait);
  REQUIRE_MESSAGE(engine.ok(), engine.status().message());
  auto world = dt::backend::create_host_world(engine.value(), {}, wait);
  REQUIRE_MESSAGE(world.ok(), world.status().message());
  std::vector<std::string> failures;
  Rank me;
  me.size = kSize;
  me.backend = world.value();
  me.failures = &failures;
  for (const Placement placement : kPlacements) {
    check_collective(me, Kind::kAllreduce, Dtype::kF32, ReduceOp::kSum, 300'001, 0, placement);
    check_collective(me, Kind::kAllgather, Dtype::kF32, ReduceOp::kSum, 50'001, 0, placement);
  }
  for (const std::string& failure : failures) FAIL_CHECK(failure);
  std::vector<float> data(100'000);
  Collective reduce = allreduce_f32(data.data(), data.data(), 100'000);
  reduce.deadline = Deadline::after_ms(200);
  const Status status = world.value()->run(reduce);
  CHECK(status.code() == Code::kTimeout);
  CHECK_MESSAGE(contains(status.message(), dt::format("has not arrived: rank 2 (pid %d)",
                                                      static_cast<int>(children[1]))),
                status.message());
  CHECK_MESSAGE(status.info().pid == children[1], status.message());
  int result = -1;
  waitpid(children[0], &result, 0);
  CHECK((WIFEXITED(result) && WEXITSTATUS(result) == 0));
  waitpid(children[1], &result, 0);
  CHECK((WIFSIGNALED(result) && WTERMSIG(result) == SIGKILL));
}

static const AsRank as_rank;
