// SPDX-License-Identifier: Apache-2.0
// Communicators over device memory: deadlines, ranks that are missing, what NCCL may do wrong. The
// GPU and NCCL are made of threads.
#include <atomic>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

#include "backend/device/channel.h"
#include "backend/nccl/nccl_carrier.h"
#include "backend/staged/staged_carrier.h"
#include "collective/blocks.h"
#include "device_setup.h"
#include "job/device_watch.h"

using namespace conformance;
using dt::test::FakeNccl;
using Fault = FakeNccl::Fault;

namespace {

constexpr int64_t kDeadlineMs = 300;

/// Whether all threads of that name in this process come to sleep: what spins is always running.
bool threads_sleep(const std::string& name) {
  const Deadline deadline = Deadline::after_ms(20'000);
  for (int asleep = 0; asleep < 50 && !deadline.passed(); sched_yield()) {
    bool all = true;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      std::ifstream file(task.path() / "stat");
      std::string stat;
      std::getline(file, stat);
      const size_t end = stat.rfind(") ");
      if (end == std::string::npos || stat.find("(" + name + ")") == std::string::npos) continue;
      all = all && stat[end + 2] == 'S';
    }
    asleep = all ? asleep + 1 : 0;
  }
  return !deadline.passed();
}

/// From now on NCCL tells rank 0 of this error.
void fail_rank_0(dt::nccl::Answer answer) {
  FakeNccl::Order order;
  order.function = "ncclCommGetAsyncError";
  order.answer = answer;
  order.rank = 0;
  fake().order(order);
}

/// Whether no abort counts as hanging. One that does hang is found: it has begun for long enough.
bool no_hang(const Rank& rank) {
  const Deadline deadline = Deadline::after_ms(20'000);
  while (fake().calls("ncclCommAbort") == 0 && !deadline.passed()) sched_yield();
  const Deadline old = Deadline::after_ms(5);
  while (!old.passed()) sched_yield();
  // A turn of the device thread may take that long, too, but not all do.
  while (!rank.backend->hang(1).ok() && !deadline.passed()) sched_yield();
  return !deadline.passed();
}

/// What ranks were told when a communicator could not be made.
struct Refusals {
  std::mutex mutex;
  std::vector<Status> by_rank;

  explicit Refusals(Setup* setup) : by_rank(static_cast<size_t>(setup->size)) {
    setup->on_not_made = [this](int32_t rank, const Status& status) {
      std::lock_guard lock(mutex);
      by_rank[static_cast<size_t>(rank)] = status;
    };
  }
};

/// A communicator over host memory that takes no operation.
class RefusingHost final : public dt::backend::Backend {
 public:
  int endless_waits = 0;

  const char* name() const override { return "refusing"; }
  Status submit(const Collective&, std::shared_ptr<dt::backend::Work>) override {
    return Status(Code::kPeerLost, "a peer is gone");
  }
  Status run(const Collective& collective) override { return submit(collective, nullptr); }
  bool wait(dt::backend::Work& work, const Wait& wait) override {
    if (wait.deadline.is_never()) ++endless_waits;
    return work.done();
  }
  dt::Result<int> completion_fd() override { return unsupported(); }
  dt::Result<void*> allocate(int64_t) override { return unsupported(); }
  Status release(void*) override { return unsupported(); }
  void interrupt(Status) override {}
  Status broken() const override { return {}; }
  dt::Result<Split> split(int32_t, int32_t, const std::string&, Deadline) override {
    return unsupported();
  }

 private:
  static Status unsupported() { return Status(Code::kUnsupported, "not in this test"); }
};

}  // namespace

TEST_CASE("device: a rank that never comes is a time-out at the deadline, and NCCL is aborted") {
  for (const bool waits : {true, false}) {
    require_none(run_ranks(over_nccl(3), [&](Rank& rank) {
      std::vector<float> data(kDeviceCount, 1);
      if (rank.rank == 2) return rank.meet();
      const int64_t begin_ns = dt::monotonic_ns();
      Status status;
      if (waits) {
        status = rank.run(sum(&data, kDeadlineMs));
      } else {
        rank.expect_ok(rank.backend->run(sum(&data, kDeadlineMs)), "enqueued");
        while (rank.backend->broken().ok()) sched_yield();
        status = rank.backend->broken();
      }
      rank.expect(status.code() == Code::kTimeout, "TIMEOUT: " + status.message());
      rank.expect(contains(status, dt::format("allreduce #1 on comm \"world\", rank %d (thishost): "
                                              "timed out on the GPU: it waits for the other ranks' "
                                              "part, in NCCL",
                                              rank.rank)),
                  status.message());
      const int64_t took_ms = (dt::monotonic_ns() - begin_ns) / 1'000'000;
      rank.expect(took_ms >= kDeadlineMs, "not before the deadline");
      rank.expect(rank.run(sum(&data)).message() == status.message(), "later calls");
      rank.meet();
    }));
  }
  CHECK(fake().communicators() == 0);
}

TEST_CASE("device: a deadline is moved by a pause, of collectives and of transfers") {
  for (const char* backend : {"nccl", "staged"}) {
    for (const bool transfers : {false, true}) {
      CAPTURE(backend);
      CAPTURE(transfers);
      fake().reset();
      require_none(run_ranks(over(backend, 2), [&](Rank& rank) {
        std::vector<float> data(kDeviceCount, 1);
        rank.backend->excuse(dt::monotonic_ns() + 600'000'000'000);
        rank.meet();
        if (rank.rank == 1) {  // comes when the other's operation would be over
          const Deadline late = Deadline::after_ms(2 * kDeadlineMs);
          while (!late.passed()) sched_yield();
        }
        Collective collective = sum(&data, kDeadlineMs);
        if (transfers) {
          collective.kind = rank.rank == 0 ? Kind::kRecv : Kind::kSend;
          collective.root = 1 - rank.rank;
        }
        rank.expect_ok(rank.run(collective), "after the pause");
        rank.meet();
      }));
    }
  }
  require_no_misuse();
}

TEST_CASE("device: earlier work of the program that does not end is told from absent ranks") {
  require_none(run_ranks(over_nccl(2), [](Rank& rank) {
    const auto stream = rank.cuda->create_stream(dt::cuda::StreamPriority::kNormal).value();
    const auto gate = std::make_shared<dt::Event>();
    rank.expect_ok(rank.cuda->launch(stream, [gate] { gate->wait({Deadline::after_ms(30'000)}); }),
                   "kernel");
    std::vector<float> data(kDeviceCount, 1);
    Collective collective = sum(&data, kDeadlineMs);
    collective.stream = stream;
    const Status status = rank.run(collective);
    rank.expect(contains(status,
                         "the caller's stream has not come to it: earlier work of this "
                         "program is still running on the GPU"),
                status.message());
    gate->set();
    rank.expect(rank.cuda->finish(stream), "finish");
    rank.expect_ok(rank.cuda->destroy_stream(stream), "destroy");
    rank.meet();
  }));
}

TEST_CASE("device: a peer that NCCL finds gone is PEER_LOST, another error is NCCL's") {
  for (const auto& found : {std::pair(dt::nccl::Answer::kRemoteError, Code::kPeerLost),
                            std::pair(dt::nccl::Answer::kInternalError, Code::kNccl)}) {
    Setup setup = over_nccl(2);
    std::atomic<int> told{0};
    setup.on_broken = [&](const Status&) { ++told; };
    require_none(run_ranks(setup, [&](Rank& rank) {
      std::vector<float> data(kDeviceCount, 1);
      rank.expect_ok(rank.run(sum(&data)), "first");
      if (rank.rank == 1) return rank.meet();
      fail_rank_0(found.first);
      const Status status = rank.run(sum(&data, 20'000));
      rank.expect(status.code() == found.second, status.message());
      rank.expect(contains(status, "allreduce #2 on comm \"world\", rank 0 (thishost): "),
                  status.message());
      rank.expect(threads_sleep("dt-device"), "the device thread sleeps");
      rank.meet();
    }));
    CHECK(told == 1);
  }
}

TEST_CASE(
    "device: the error names the rank that died, even if NCCL fails before the store reports it") {
  Setup setup = over_nccl(2);
  setup.on_broken = [](const Status&) {};
  require_none(run_ranks(setup, [&](Rank& rank) {
    std::vector<float> data(kDeviceCount, 1);
    rank.expect_ok(rank.run(sum(&data)), "first");
    if (rank.rank == 1) return rank.meet();
    fail_rank_0(dt::nccl::Answer::kRemoteError);
    const int64_t asked = fake().calls("ncclCommGetAsyncError");
    const auto work = std::make_shared<Work>();
    const int64_t begin_ns = dt::monotonic_ns();
    rank.expect_ok(rank.backend->submit(sum(&data), work), "submit");
    while (fake().calls("ncclCommGetAsyncError") == asked) sched_yield();
    rank.backend->interrupt(Status(Code::kPeerLost, "rank 1 died"));
    const bool at_once = dt::monotonic_ns() - begin_ns < 500'000'000;
    rank.expect(rank.backend->wait(*work, {Deadline::after_ms(30'000)}), "ends");
    rank.expect(work->status().code() == Code::kPeerLost, work->status().message());
    if (at_once) rank.expect(work->status().message() == "rank 1 died", work->status().message());
    rank.meet();
  }));
}

TEST_CASE("device: the first error is kept where the host communicator failed first") {
  require_none(run_ranks(over_nccl(2), [&](Rank& rank) {
    Collective late;
    late.deadline = Deadline::after_ms(10);
    if (rank.rank == 1) return rank.meet();
    const Status first = rank.backend->on_host().run(late);
    rank.expect(first.code() == Code::kTimeout, first.message());
    rank.backend->interrupt(Status(Code::kPeerLost, "rank 1 has ended because of it"));
    rank.expect(rank.backend->broken().message() == first.message(),
                rank.backend->broken().message());
    std::vector<float> data(kDeviceCount, 1);
    const Status later = rank.run(sum(&data));
    rank.expect(later.message() == first.message(), later.message());
    rank.meet();
  }));
}

TEST_CASE("device: a call of NCCL that hangs holds up nobody for longer than the deadline") {
  Setup setup = over_nccl(2);
  require_none(run_ranks(setup, [&](Rank& rank) {
    std::vector<float> data(kDeviceCount, 1);
    rank.expect_ok(rank.run(sum(&data)), "first");
    rank.meet();
    if (rank.rank == 1) return rank.meet();
    FakeNccl::Order order;
    order.function = "ncclAllReduce";
    order.fault = Fault::kHang;
    order.rank = 0;
    fake().order(order);
    const Status status = rank.run(sum(&data, kDeadlineMs));
    rank.expect(status.code() == Code::kTimeout, status.message());
    rank.expect(contains(status, "timed out: the thread dt-device hangs in a call"),
                status.message());
    fake().release();
    rank.meet();
  }));
}

TEST_CASE("device: what keeps one rank from making the communicator is told to all") {
  struct Case {
    FakeNccl::Order order;
    std::string text;
  };
  FakeNccl::Order no_id;
  no_id.function = "ncclGetUniqueId";
  no_id.answer = dt::nccl::Answer::kSystemError;
  FakeNccl::Order no_comm;
  no_comm.function = "ncclCommInitRankConfig";
  no_comm.answer = dt::nccl::Answer::kUnhandledCudaError;
  no_comm.rank = 1;
  FakeNccl::Order for_ever = no_comm;
  for_ever.fault = Fault::kStayInProgress;
  for_ever.rank = -1;
  for_ever.times = -1;
  for (const auto& [order, text] :
       {Case{no_id, "ncclGetUniqueId"}, Case{no_comm, "ncclCommInitRankConfig"},
        Case{for_ever, "it waits for ncclCommInitRankConfig"}}) {
    Setup setup = over_nccl(3);
    setup.open_ms = 2'000;
    Refusals refusals(&setup);
    fake().order(order);
    require_none(run_ranks(setup, [](Rank& rank) { rank.expect(false, "was made"); }));
    for (const Status& status : refusals.by_rank) {
      CHECK_MESSAGE(contains(status, text), status.message());
    }
    CHECK(fake().communicators() == 0);
    fake().release();
  }
}

TEST_CASE("device: an interrupt ends what is under way at once, and NCCL is aborted") {
  for (const char* backend : {"nccl", "staged"}) {
    fake().reset();
    require_none(run_ranks(over(backend, 2), [](Rank& rank) {
      std::vector<float> data(kDeviceCount, 1);
      if (rank.rank == 1) return rank.meet();
      const auto work = std::make_shared<Work>();
      rank.expect_ok(rank.backend->submit(sum(&data), work), "submit");
      rank.backend->interrupt(Status(Code::kPeerLost, "rank 1 died"));
      rank.expect(rank.backend->wait(*work, {Deadline::after_ms(30'000)}), "ends");
      rank.expect(work->status().message() == "rank 1 died", work->status().message());
      rank.meet();
    }));
    CHECK(fake().communicators() == 0);
  }
}

TEST_CASE("device: what the host carries fails at once where a rank of another host has left") {
  Setup setup = over("staged", 2);
  setup.hosts = {0, 1};
  for (const int32_t leaver : {0, 1}) {
    require_none(run_ranks(setup, [&](Rank& rank) {
      std::vector<float> data(kDeviceCount, 1);
      rank.expect_ok(rank.run(sum(&data)), "first");
      rank.expect(rank.backend->idle(), "idle");
      rank.meet();
      if (rank.rank == leaver) {
        rank.backend->leave();
        return rank.meet();
      }
      const Status status = rank.run(sum(&data, 60'000));
      rank.expect(status.code() == Code::kPeerLost && status.info().rank == 100 + leaver &&
                      contains(status, " has left the job with dt_finalize, and this operation"),
                  status.message());
      rank.meet();
    }));
  }
}

TEST_CASE("device: who only polls hears of a hanging call when the device is looked after") {
  require_none(run_ranks(over_nccl(2), [&](Rank& rank) {
    std::vector<float> data(kDeviceCount, 1);
    rank.expect_ok(rank.run(sum(&data)), "first");
    rank.meet();
    if (rank.rank == 1) return rank.meet();
    FakeNccl::Order order;
    order.function = "ncclAllReduce";
    order.fault = Fault::kHang;
    order.rank = 0;
    fake().order(order);
    const auto work = std::make_shared<Work>();
    rank.expect_ok(rank.backend->submit(sum(&data, kDeadlineMs), work), "submit");
    const auto behind = std::make_shared<Work>();
    rank.expect_ok(rank.backend->submit(sum(&data, 60'000), behind), "submit");
    const Deadline limit = Deadline::after_ms(30'000);
    while (!(work->done() && behind->done()) && !limit.passed()) {
      rank.backend->look_after();
      (void)dt::Event().wait({Deadline::after_ms(20)});
    }
    rank.expect(work->status().code() == Code::kTimeout, work->status().message());
    rank.expect(behind->status().message() == work->status().message(), "the same for all");
    fake().release();
    rank.meet();
  }));
}

TEST_CASE("device: an abort that hangs is told, and ends the process where that is wanted") {
  for (const bool ends : {true, false}) {
    require_none(run_ranks(over_nccl(2), [&](Rank& rank) {
      std::vector<float> data(kDeviceCount, 1);
      rank.expect_ok(rank.run(sum(&data)), "first");
      rank.meet();
      if (rank.rank == 1) return rank.meet();
      const auto loop = std::move(dt::net::Loop::start()).value();
      dt::Event told;
      dt::Event ended;
      std::string text;
      dt::job::DeviceWatch::Options options;
      options.self = "rank 0 (thishost pid 7)";
      options.abort_timeout_ms = 100;
      if (ends) options.end_process = [&] { ended.set(); };
      options.logger =
          std::make_shared<dt::Logger>(dt::LogLevel::kError, [&](dt::LogLevel, const char* line) {
            text = line;
            told.set();
          });
      dt::job::DeviceWatch watch(loop.get(), rank.backend.get(), options);
      FakeNccl::Order order;
      order.function = "ncclCommAbort";
      order.fault = Fault::kHang;
      order.rank = 0;
      fake().order(order);
      const auto work = std::make_shared<Work>();
      rank.expect_ok(rank.backend->submit(sum(&data, 60'000), work), "submit");
      rank.backend->interrupt(Status(Code::kPeerLost, "rank 1 died"));
      rank.expect(told.wait({Deadline::after_ms(30'000)}), "told");
      rank.expect(
          text.find("rank 0 (thishost pid 7): the end of its communicators on fake GPU hangs for "
                    "more than 100 ms in a call of CUDA or NCCL") != std::string::npos &&
              text.find("aborted because: rank 1 died") != std::string::npos,
          text);
      rank.expect(!ends || ended.wait({Deadline::after_ms(30'000)}), "ended");
      // The operation fails all the same, with the first reason.
      rank.expect(rank.backend->wait(*work, {Deadline::after_ms(30'000)}), "wait");
      rank.expect(work->status().message() == "rank 1 died", work->status().message());
      fake().release();
      rank.meet();
    }));
  }
}

TEST_CASE("device: an abort waits for another communicator's operation, and nothing else does") {
  Setup setup = over_nccl(2);
  setup.registers = true;
  fake().set_abort_synchronises(true);
  require_none(run_ranks(setup, [](Rank& rank) {
    std::vector<float> data(kDeviceCount, 1);
    auto part = rank.backend->split(0, rank.rank, "part", Deadline::after_ms(30'000));
    rank.expect_ok(part.status(), "split");
    rank.meet();
    if (rank.rank == 1) {  // comes late to "world", and never to "part"
      rank.meet();
    } else {
      const auto held_back = std::make_shared<Work>();
      rank.expect_ok(rank.backend->submit(sum(&data), held_back), "submit");
      std::vector<float> other(kDeviceCount, 1);
      const auto late = std::make_shared<Work>();
      rank.expect_ok(part.value().backend->submit(sum(&other, 500), late), "submit");
      rank.expect(part.value().backend->wait(*late, {Deadline::after_ms(30'000)}), "ends");
      rank.expect(late->status().code() == Code::kTimeout, late->status().message());
      rank.expect(no_hang(rank), "the abort only waits for what is in front of it");
      // The device thread does it. The memory goes with its communicator.
      rank.expect_ok(rank.backend->allocate(64).status(), "allocate");
      rank.expect(!held_back->done(), "held back");
      rank.meet();
      rank.expect(rank.backend->wait(*held_back, {Deadline::after_ms(30'000)}), "ends");
      rank.expect_ok(held_back->status(), "held back");
    }
    if (rank.rank == 1) rank.expect_ok(rank.run(sum(&data)), "late");
    rank.expect_ok(rank.run(sum(&data)), "later");
    rank.meet();
  }));
  CHECK(fake().communicators() == 0);
}

TEST_CASE("device: an abort that waits for the program's own kernel does not end the process") {
  over_nccl(1);
  fake().set_abort_synchronises(true);
  require_none(run_ranks(over("nccl", 2), [](Rank& rank) {
    const auto stream = rank.cuda->create_stream(dt::cuda::StreamPriority::kNormal).value();
    const auto kernel_ends = std::make_shared<dt::Event>();
    const auto kernel = [kernel_ends] { kernel_ends->wait({Deadline::after_ms(50'000)}); };
    rank.expect_ok(rank.cuda->launch(stream, kernel), "kernel");
    std::vector<float> data(kDeviceCount, 1);
    Collective collective = sum(&data, kDeadlineMs);
    collective.stream = stream;
    const Status status = rank.run(collective);
    rank.expect(contains(status, "the caller's stream has not come to it"), status.message());
    rank.expect(no_hang(rank), "the abort only waits for the kernel");
    kernel_ends->set();
    rank.expect(rank.cuda->finish(stream), "finish");
    rank.expect_ok(rank.cuda->destroy_stream(stream), "destroy");
    rank.meet();
  }));
  CHECK(fake().communicators() == 0);
}

TEST_CASE("device: an end that waits for peers holds up no other communicator") {
  for (const bool breaks : {false, true}) {
    over_nccl(2);
    fake().set_destroy_waits_for_peers(true);
    require_none(run_ranks(over("nccl", 2), [&](Rank& rank) {
      std::vector<float> data(kDeviceCount, 1);
      auto part = rank.backend->split(0, rank.rank, "part", Deadline::after_ms(30'000));
      rank.expect_ok(part.status(), "split");
      if (rank.rank == 0) {
        if (breaks) part.value().backend->interrupt(Status(Code::kAborted, "no more of it"));
        part.value().backend = nullptr;
        const char* const call = breaks ? "ncclCommAbort" : "ncclCommDestroy";
        const Deadline limit = Deadline::after_ms(30'000);
        while (fake().calls(call) == 0 && !limit.passed()) sched_yield();
        rank.expect(!limit.passed(), "it ends");
      }
      rank.expect_ok(rank.run(sum(&data, 20'000)), "the other goes on");
      part.value().backend = nullptr;  // by rank 1
      rank.meet();
    }));
    const Deadline limit = Deadline::after_ms(30'000);
    while (fake().communicators() > 0 && !limit.passed()) sched_yield();
    CHECK(fake().communicators() == 0);
    require_no_misuse();
  }
}

TEST_CASE("device: a communicator ends while operations of another one are under way") {
  require_none(run_ranks(over_nccl(2), [](Rank& rank) {
    std::vector<float> data(kDeviceCount, 1);
    auto part = rank.backend->split(0, rank.rank, "part", Deadline::after_ms(30'000));
    rank.expect_ok(part.status(), "split");
    rank.meet();
    const auto held_back = std::make_shared<Work>();
    if (rank.rank == 0) rank.expect_ok(rank.backend->submit(sum(&data), held_back), "submit");
    part.value().backend = nullptr;
    const Deadline limit = Deadline::after_ms(20'000);
    while (fake().communicators() > rank.size && !limit.passed()) sched_yield();
    rank.expect(!limit.passed(), "the part has ended");
    rank.meet();
    if (rank.rank == 1) rank.expect_ok(rank.backend->submit(sum(&data), held_back), "submit");
    rank.expect(rank.backend->wait(*held_back, {Deadline::after_ms(30'000)}), "ends");
    rank.expect_ok(held_back->status(), "held back");
  }));
  CHECK(fake().communicators() == 0);
  require_no_misuse();
}

TEST_CASE("device: a communicator that is dropped inside a group fails what was in it") {
  require_none(run_ranks(over_nccl(2), [](Rank& rank) {
    std::vector<float> data(kDeviceCount, 1);
    auto part = rank.backend->split(0, 0, "part", Deadline::after_ms(30'000));
    rank.expect_ok(part.status(), "split");
    rank.expect_ok(part.value().backend->begin_group(), "begin");
    const auto work = std::make_shared<Work>();
    rank.expect_ok(part.value().backend->submit(sum(&data), work), "submit");
    part.value().backend = nullptr;
    rank.expect(work->done() && work->status().code() == Code::kAborted, "failed");
    rank.expect(contains(work->status(), "its communicator was destroyed inside a group"),
                work->status().message());
    rank.expect(rank.backend->drain({Deadline::after_ms(30'000)}), "nothing is left");
    rank.expect_ok(rank.run(sum(&data)), "the other goes on");
  }));
  require_no_misuse();
}

TEST_CASE("device: an operation that the host communicator refuses is waited for by nobody") {
  const auto cuda = std::make_shared<dt::test::FakeCuda>(0);
  auto engine = dt::backend::DeviceEngine::start({cuda, dt::cuda::StreamPriority::kHigh, nullptr});
  REQUIRE(engine.ok());
  const auto host = std::make_shared<RefusingHost>();
  std::vector<float> data(kDeviceCount, 1);
  Collective reduction = allreduce_f32(data.data(), data.data(), kDeviceCount);
  Collective exchange = reduction;
  exchange.kind = Kind::kAlltoallv;
  auto blocks = std::make_shared<dt::collective::Blocks>();
  blocks->outgoing = blocks->incoming = {{0, 1}, {1, 1}};
  exchange.blocks = blocks;
  Collective send = reduction;
  send.kind = Kind::kSend;
  send.root = 1;
  Collective receive = send;
  receive.kind = Kind::kRecv;
  for (const Collective* const each : {&reduction, &exchange, &send, &receive}) {
    CAPTURE(dt::kind_name(each->kind));
    const auto carrier =
        dt::backend::make_staged_carrier(engine.value()->device_thread(), {0, 2, host});
    REQUIRE(carrier->begin_open(Deadline::after_ms(10'000)).ok());
    const Collective* const operations[] = {each};
    REQUIRE(carrier->begin(operations).ok());
    std::vector<const Collective*> ended;
    const Deadline deadline = Deadline::after_ms(20'000);
    Status status;
    while (status.ok() && !deadline.passed()) status = carrier->progress(&ended);
    CHECK(status.code() == Code::kPeerLost);
    carrier->abort();
    CHECK(carrier->release());
  }
  CHECK(cuda->counters().live_allocations == 0);

  fake().reset();
  auto library = dt::nccl::Library::open(DT_FAKE_NCCL);
  REQUIRE(library.ok());
  dt::backend::NcclOptions options;
  options.size = 2;
  options.on_host = host;
  options.library = library.value();
  auto carrier =
      dt::backend::make_nccl_carrier(engine.value()->device_thread(), std::move(options));
  CHECK(carrier->begin_open(Deadline::after_ms(10'000)).code() == Code::kPeerLost);
  carrier = nullptr;
  CHECK(host->endless_waits == 0);
}

TEST_CASE("device: a call that the device thread had no time for is not made later") {
  const auto cuda = std::make_shared<dt::test::FakeCuda>(0);
  auto engine = dt::backend::DeviceEngine::start({cuda, dt::cuda::StreamPriority::kHigh, nullptr});
  REQUIRE(engine.ok());
  const auto& thread = engine.value()->device_thread();
  dt::backend::DeviceChannel::Options options;
  options.name = "alone";
  options.carrier = dt::backend::make_nccl_carrier(thread, {});
  const auto channel = std::make_shared<dt::backend::DeviceChannel>(thread, std::move(options));
  REQUIRE(channel->open(Wait{Deadline::after_ms(20'000)}).ok());
  const auto began = std::make_shared<dt::Event>();
  const auto may_end = std::make_shared<dt::Event>();
  Status long_one;
  std::thread first([&] {
    const auto task = [=] {
      began->set();
      (void)may_end->wait({Deadline::after_ms(30'000)});
      return Status();
    };
    long_one = channel->call(task, Deadline::after_ms(30'000));
  });
  CHECK(began->wait({Deadline::after_ms(20'000)}));
  const auto ran = std::make_shared<std::atomic<bool>>(false);
  const auto task = [ran] {
    ran->store(true);
    return Status();
  };
  CHECK(channel->call(task, Deadline::after_ms(10)).code() == Code::kTimeout);
  may_end->set();
  first.join();
  CHECK(long_one.ok());
  CHECK(channel->call([] { return Status(); }, Deadline::after_ms(20'000)).ok());
  CHECK_FALSE(ran->load());
  channel->retire({});
}
