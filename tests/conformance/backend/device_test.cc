// SPDX-License-Identifier: Apache-2.0
// Communicators over device memory: streams, order, groups, memory. The GPU and NCCL are made of
// threads.
#include <mutex>

#include "allocations.h"
#include "base/pool.h"
#include "device_setup.h"

using namespace conformance;
using dt::test::FakeNccl;

TEST_CASE("device: an operation waits for its inputs, and later work of the stream for it") {
  for (const char* backend : {"nccl", "staged"}) {
    fake().reset();
    require_none(run_ranks(over(backend, 3), [](Rank& rank) {
      const auto stream = rank.cuda->create_stream(dt::cuda::StreamPriority::kNormal).value();
      rank.cuda->set_delay_us(2000);
      std::vector<float> data(kDeviceCount, 0);
      float seen = -1;
      for (int step = 1; step <= 3; ++step) {
        rank.expect_ok(
            rank.cuda->launch(stream, [&, step] { data.assign(kDeviceCount, float(step)); }),
            "producer");
        Collective collective = sum(&data);
        collective.stream = stream;
        rank.expect_ok(rank.backend->run(collective), "run");
        rank.expect_ok(rank.cuda->launch(stream, [&] { seen = data[kDeviceCount - 1]; }),
                       "consumer");
        rank.expect(rank.cuda->finish(stream), "finish");
        rank.expect(seen == 3.0f * float(step), dt::format("the consumer saw %g", seen));
      }
      rank.expect_ok(rank.cuda->destroy_stream(stream), "destroy");
    }));
  }
  require_no_misuse();
}

TEST_CASE("device: a work orders another stream, without a wait of the host") {
  require_none(run_ranks(over_nccl(2), [](Rank& rank) {
    const auto produces = rank.cuda->create_stream(dt::cuda::StreamPriority::kNormal).value();
    const auto consumes = rank.cuda->create_stream(dt::cuda::StreamPriority::kNormal).value();
    rank.cuda->set_delay_us(3000);
    std::vector<float> data(kDeviceCount, 1);
    float seen = -1;
    Collective collective = sum(&data);
    collective.stream = produces;
    const auto work = std::make_shared<Work>();
    rank.expect_ok(rank.backend->submit(collective, work), "submit");
    rank.expect_ok(rank.backend->wait_stream(*work, consumes), "wait_stream");
    rank.expect_ok(rank.cuda->launch(consumes, [&] { seen = data[0]; }), "consumer");
    rank.expect(rank.cuda->finish(consumes), "finish");
    rank.expect(seen == 2, dt::format("the consumer saw %g", seen));
    rank.expect(rank.backend->wait(*work, {Deadline::after_ms(30'000)}), "the work is done too");
    rank.expect_ok(rank.cuda->destroy_stream(produces), "destroy");
    rank.expect_ok(rank.cuda->destroy_stream(consumes), "destroy");
  }));
  require_no_misuse();
}

TEST_CASE("device: a step allocates nothing and makes no event") {
  for (const char* backend : {"nccl", "staged"}) {
    fake().reset();
    require_none(run_ranks(over(backend, 2), [](Rank& rank) {
      std::vector<float> data(kDeviceCount, 1);
      rank.expect_ok(rank.run(sum(&data)), "first");
      const auto before = rank.cuda->counters();
      for (int i = 0; i < 20; ++i) rank.expect_ok(rank.run(sum(&data)), "step");
      const auto after = rank.cuda->counters();
      rank.expect(after.allocations == before.allocations &&
                      after.pinned_allocations == before.pinned_allocations &&
                      after.events == before.events && after.streams == before.streams,
                  "nothing is made in a step");
    }));
  }
}

TEST_CASE("device: a call allocates no host memory, either") {
  constexpr int kWarmup = 20;
  for (const char* backend : {"nccl", "staged"}) {
    fake().reset();
    require_none(run_ranks(over(backend, 2), [](Rank& rank) {
      const dt::cuda::Event event = rank.cuda->create_event(false).value();
      // Memory for what its stream may have before it when a thread is late.
      const auto gate = std::make_shared<dt::Event>();
      const auto closed = [gate] { (void)gate->wait({Deadline::after_ms(30'000)}); };
      rank.expect_ok(rank.cuda->launch(nullptr, closed), "gate");
      for (int i = 0; i < 2 * kWarmup; ++i) (void)rank.cuda->record(event, nullptr);
      gate->set();
      std::vector<float> data(kDeviceCount, 1);
      const Collective collective = sum(&data);
      const dt::Pool<Work> works;
      for (int i = 0; i < 100; ++i) {
        const int64_t before = dt::test::allocations();
        // What the stand-in for a GPU takes: dt asks it for the same.
        rank.expect(!rank.cuda->is_capturing(nullptr).value(), "is_capturing");
        rank.expect_ok(rank.cuda->record(event, nullptr), "record");
        const int64_t between = dt::test::allocations();
        const auto work = works.make();
        rank.expect_ok(rank.backend->submit(collective, work), "submit");
        const int64_t after = dt::test::allocations();
        rank.expect(rank.backend->wait(*work, {Deadline::after_ms(30'000)}), "wait");
        rank.expect_ok(work->status(), "work");
        if (i < kWarmup) continue;
        rank.expect(after - between == between - before,
                    dt::format("call %d allocates %lld times, of them the fake GPU %lld", i,
                               static_cast<long long>(after - between),
                               static_cast<long long>(between - before)));
      }
      rank.expect_ok(rank.cuda->destroy_event(event), "destroy");
    }));
  }
}

TEST_CASE("device: one rank asks nothing of NCCL") {
  require_none(run_ranks(over_nccl(1), [](Rank& rank) {
    std::vector<float> from(kDeviceCount, 5);
    std::vector<float> to(kDeviceCount, 0);
    rank.expect_ok(rank.run(allreduce_f32(from.data(), to.data(), kDeviceCount)), "allreduce");
    rank.expect(to == from, "copied");
    rank.expect_ok(rank.run(Collective()), "barrier");
  }));
  CHECK(fake().initialised().empty());
  CHECK(fake().calls("ncclGetUniqueId") == 0);
  CHECK(fake().calls("ncclAllReduce") == 0);
}

TEST_CASE("device: communicators are non-blocking, have one thread each, and end in peace") {
  require_none(run_ranks(over_nccl(3), [](Rank& rank) {
    std::vector<float> data(kDeviceCount, 1);
    rank.expect_ok(rank.run(sum(&data)), "allreduce");
    auto half = rank.backend->split(rank.rank % 2, 0, "half", Deadline::after_ms(30'000));
    rank.expect_ok(half.status(), "split");
    rank.meet();
  }));
  for (const FakeNccl::Seen& seen : fake().initialised()) {
    CHECK(seen.config.blocking == 0);
    CHECK((seen.comm_name == "world" || seen.comm_name == "half"));
  }
  CHECK(fake().initialised().size() == 5);  // the half of rank 1 is alone
  CHECK(fake().threads() == 1);
  CHECK(fake().communicators() == 0);
  CHECK(fake().calls("ncclCommAbort") == 0);
  CHECK(fake().calls("ncclCommDestroy") == 5);
  require_no_misuse();
}

TEST_CASE("device: a stream that records a graph is refused, and nothing happened") {
  require_none(run_ranks(over_nccl(2), [](Rank& rank) {
    const auto stream = rank.cuda->create_stream(dt::cuda::StreamPriority::kNormal).value();
    rank.cuda->set_capturing(stream, true);
    std::vector<float> data(kDeviceCount, 1);
    Collective collective = sum(&data);
    collective.stream = stream;
    const Status refused = rank.backend->run(collective);
    rank.expect(refused.code() == Code::kInvalidArgument, "INVALID_ARGUMENT");
    rank.expect(contains(refused, "allreduce on comm \"world\": the stream records a CUDA graph"),
                refused.message());
    rank.cuda->set_capturing(stream, false);
    rank.expect_ok(rank.run(collective), "afterwards");
    rank.expect_ok(rank.cuda->destroy_stream(stream), "destroy");
  }));
}

TEST_CASE("device: no work is ordered before a stream that records a graph") {
  require_none(run_ranks(over_nccl(2), [](Rank& rank) {
    const auto inputs = rank.cuda->create_stream(dt::cuda::StreamPriority::kNormal).value();
    const auto stream = rank.cuda->create_stream(dt::cuda::StreamPriority::kNormal).value();
    const auto gate = std::make_shared<dt::Event>();
    rank.expect_ok(
        rank.cuda->launch(inputs, [gate] { (void)gate->wait({Deadline::after_ms(30'000)}); }),
        "hold");
    std::vector<float> data(kDeviceCount, 1);
    Collective collective = sum(&data);
    collective.stream = inputs;
    const auto work = std::make_shared<dt::backend::Work>();
    rank.expect_ok(rank.backend->submit(collective, work), "submit");
    rank.cuda->set_capturing(stream, true);
    for (const bool done : {false, true}) {
      if (done) {
        gate->set();
        rank.expect(rank.backend->wait(*work, Wait{Deadline::after_ms(30'000)}), "it ends");
      }
      const Status refused = rank.backend->wait_stream(*work, stream);
      rank.expect(refused.code() == Code::kInvalidArgument, "INVALID_ARGUMENT");
      rank.expect(contains(refused,
                           "dt_work_wait_stream on comm \"world\": the stream records a "
                           "CUDA graph"),
                  refused.message());
    }
    rank.cuda->set_capturing(stream, false);
    rank.expect_ok(rank.backend->wait_stream(*work, stream), "afterwards");
    rank.expect_ok(rank.cuda->destroy_stream(stream), "destroy");
    rank.expect_ok(rank.cuda->destroy_stream(inputs), "destroy");
  }));
}

TEST_CASE("device: memory goes with its communicator") {
  std::mutex mutex;
  std::vector<std::shared_ptr<dt::test::FakeCuda>> devices;
  require_none(run_ranks(over_nccl(2), [&](Rank& rank) {
    rank.expect_ok(rank.backend->allocate(4096).status(), "allocate");
    auto half = rank.backend->split(0, 0, "again", Deadline::after_ms(30'000));
    rank.expect_ok(half.status(), "split");
    rank.expect_ok(half.value().backend->allocate(4096).status(), "allocate");
    std::lock_guard lock(mutex);
    devices.push_back(rank.cuda);
  }));
  for (const auto& device : devices) {
    CHECK(device->counters().live_allocations == 0);
    CHECK(device->counters().live_events == 0);
    CHECK(device->counters().live_streams == 0);
  }
}

TEST_CASE("device: operations are launched in the order of the calls, whatever the communicator") {
  for (const char* backend : {"nccl", "staged"}) {
    fake().reset();
    fake().set_polls(20);
    require_none(run_ranks(over(backend, 2), [](Rank& rank) {
      auto other = rank.backend->split(0, 0, "other", Deadline::after_ms(30'000));
      rank.expect_ok(other.status(), "split");
      std::string order;  // of the device thread
      std::vector<std::vector<float>> data;
      std::vector<std::shared_ptr<Work>> works;
      for (const char each : std::string("aababbba")) {
        Collective collective = sum(&data.emplace_back(kDeviceCount, 1.0f));
        auto steps = std::make_shared<dt::collective::StreamSteps>();
        steps->before = [&order, each, cuda = rank.cuda](dt::cuda::Stream) {
          order += dt::test::FakeCuda::selected() == cuda->device().index ? each : '?';
          return Status();
        };
        collective.steps = std::move(steps);
        auto& on = each == 'a' ? *rank.backend : *other.value().backend;
        rank.expect_ok(on.submit(collective, works.emplace_back(std::make_shared<Work>())),
                       "submit");
      }
      for (const auto& work : works) {
        rank.expect(rank.backend->wait(*work, {Deadline::after_ms(30'000)}), "wait");
        rank.expect_ok(work->status(), "work");
      }
      rank.expect(order == "aababbba", order);
      for (const auto& each : data) rank.expect(each[0] == 2, "sum");
    }));
  }
  require_no_misuse();
}

TEST_CASE("device: ranks of a group send before they receive, and reduce besides") {
  for (const char* backend : {"nccl", "staged"}) {
    fake().reset();
    require_none(run_ranks(over(backend, 2), [](Rank& rank) {
      for (int round = 1; round <= 3; ++round) {
        std::vector<float> mine(kDeviceCount, float(rank.rank + round));
        std::vector<float> theirs(kDeviceCount, 0);
        std::vector<float> data(kDeviceCount, 1);
        Collective send;
        send.kind = dt::backend::Kind::kSend;
        send.dtype = dt::Dtype::kF32;
        send.send = mine.data();
        send.count = kDeviceCount;
        send.root = 1 - rank.rank;
        send.deadline = Deadline::after_ms(30'000);
        Collective receive = send;
        receive.kind = dt::backend::Kind::kRecv;
        receive.recv = theirs.data();
        rank.expect_ok(rank.backend->begin_group(), "begin");
        std::vector<std::shared_ptr<Work>> works;
        for (const Collective& each : {send, receive, sum(&data)}) {
          rank.expect_ok(rank.backend->submit(each, works.emplace_back(std::make_shared<Work>())),
                         "submit");
        }
        rank.expect(!rank.backend->wait(*works[2], {Deadline::after_ms(1)}), "the group waits");
        rank.expect_ok(rank.backend->end_group(), "end");
        for (const auto& work : works) {
          rank.expect(rank.backend->wait(*work, {Deadline::after_ms(30'000)}), "wait");
          rank.expect_ok(work->status(), "work");
        }
        rank.expect(theirs[kDeviceCount - 1] == float(1 - rank.rank + round), "received");
        rank.expect(data[0] == 2, "sum");
      }
    }));
  }
  require_no_misuse();
}

TEST_CASE("device: what is under way when its communicator is dropped comes to its end") {
  for (const char* backend : {"nccl", "staged"}) {
    fake().reset();
    require_none(run_ranks(over(backend, 2), [](Rank& rank) {
      const auto stream = rank.cuda->create_stream(dt::cuda::StreamPriority::kNormal).value();
      auto part = rank.backend->split(0, 0, "part", Deadline::after_ms(30'000));
      rank.expect_ok(part.status(), "split");
      auto* const data =
          static_cast<float*>(part.value().backend->allocate(kDeviceCount * sizeof(float)).value());
      const auto gate = std::make_shared<dt::Event>();
      rank.expect_ok(rank.cuda->launch(stream,
                                       [gate, data] {
                                         (void)gate->wait({Deadline::after_ms(30'000)});
                                         std::fill(data, data + kDeviceCount, 3.0f);
                                       }),
                     "producer");
      std::vector<float> result(kDeviceCount, 0);
      Collective collective = allreduce_f32(data, result.data(), kDeviceCount);
      collective.stream = stream;
      collective.deadline = Deadline::after_ms(30'000);
      const auto work = std::make_shared<Work>();
      rank.expect_ok(part.value().backend->submit(collective, work), "submit");
      part.value().backend = nullptr;
      rank.expect(!rank.backend->drain({Deadline::after_ms(1)}), "it is under way");
      gate->set();
      rank.expect(rank.backend->drain({Deadline::after_ms(30'000)}), "it has ended");
      rank.expect(work->done(), "done");
      rank.expect_ok(work->status(), "work");
      rank.expect(result[kDeviceCount - 1] == 6, "sum");
      rank.expect_ok(rank.cuda->destroy_stream(stream), "destroy");
    }));
  }
  require_no_misuse();
}

TEST_CASE("device: many transfers of one group, all sends first") {
  constexpr int kMany = 70;  // more than a carrier has under way at once
  for (const char* backend : {"nccl", "staged"}) {
    fake().reset();
    require_none(run_ranks(over(backend, 2), [](Rank& rank) {
      std::vector<float> mine(kMany);
      std::vector<float> theirs(kMany, -1);
      for (int i = 0; i < kMany; ++i) mine[static_cast<size_t>(i)] = float(100 * rank.rank + i);
      std::vector<std::shared_ptr<Work>> works;
      rank.expect_ok(rank.backend->begin_group(), "begin");
      for (const auto kind : {dt::backend::Kind::kSend, dt::backend::Kind::kRecv}) {
        for (size_t i = 0; i < kMany; ++i) {
          Collective one;
          one.kind = kind;
          one.dtype = dt::Dtype::kF32;
          one.send = &mine[i];
          one.recv = &theirs[i];
          one.count = 1;
          one.root = 1 - rank.rank;
          one.deadline = Deadline::after_ms(30'000);
          rank.expect_ok(rank.backend->submit(one, works.emplace_back(std::make_shared<Work>())),
                         "submit");
        }
      }
      rank.expect_ok(rank.backend->end_group(), "end");
      for (const auto& work : works) {
        rank.expect(rank.backend->wait(*work, {Deadline::after_ms(30'000)}), "wait");
        rank.expect_ok(work->status(), "work");
      }
      for (int i = 0; i < kMany; ++i) {
        rank.expect(theirs[static_cast<size_t>(i)] == float(100 * (1 - rank.rank) + i), "in order");
      }
    }));
  }
  require_no_misuse();
}

TEST_CASE("device: memory may be NCCL's, registered for its communicator") {
  Setup setup = over_nccl(2);
  setup.registers = true;
  require_none(run_ranks(setup, [](Rank& rank) {
    const auto bytes = static_cast<int64_t>(kDeviceCount * sizeof(float));
    auto half = rank.backend->split(0, 0, "part", Deadline::after_ms(30'000));
    rank.expect_ok(half.status(), "split");
    auto* const kept = static_cast<float*>(half.value().backend->allocate(bytes).value());
    auto* const data = static_cast<float*>(rank.backend->allocate(bytes).value());
    rank.expect(data[kDeviceCount - 1] == 0 && kept[0] == 0, "zeroed");
    std::fill(data, data + kDeviceCount, 2.0f);
    rank.expect_ok(rank.run(allreduce_f32(data, data, kDeviceCount)), "allreduce");
    rank.expect(data[kDeviceCount - 1] == 4, "sum");
    rank.expect_ok(rank.backend->release(data), "release");
    rank.expect(rank.backend->release(data).code() == Code::kInvalidArgument, "only once");
    // Of a broken communicator, too.
    rank.expect_ok(rank.backend->allocate(bytes).status(), "allocate");
    rank.backend->interrupt(Status(Code::kPeerLost, "rank 1 died"));
    rank.expect(rank.backend->allocate(bytes).status().code() == Code::kPeerLost, "broken");
  }));
  CHECK(fake().calls("ncclMemAlloc") == 6);
  CHECK(fake().calls("ncclMemFree") == 6);
  CHECK(fake().calls("ncclCommRegister") == 6);
  CHECK(fake().calls("ncclCommDeregister") == 4);  // the others went with the abort
  require_no_misuse();
}

TEST_CASE("device: NCCL's memory is given back when no stream uses it any more") {
  Setup setup = over_nccl(2);
  setup.registers = true;
  require_none(run_ranks(setup, [](Rank& rank) {
    void* const data = rank.backend->allocate(4096).value();
    const auto stream = rank.cuda->create_stream(dt::cuda::StreamPriority::kNormal).value();
    const auto late = std::make_shared<std::atomic<bool>>(false);
    const auto kernel = [late] {
      dt::Event never;
      (void)never.wait({Deadline::after_ms(50)});
      late->store(true);
    };
    rank.expect_ok(rank.cuda->launch(stream, kernel), "launch");
    rank.expect_ok(rank.backend->release(data), "release");
    rank.expect(late->load(), "the kernel has ended");
    rank.expect_ok(rank.cuda->destroy_stream(stream), "destroy");
  }));
  CHECK(fake().calls("ncclMemFree") == 2);
  require_no_misuse();
}
