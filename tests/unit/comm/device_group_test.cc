// SPDX-License-Identifier: Apache-2.0
// One work for a group of operations over GPUs, which are made of threads here.
#include "training/device_ranks.h"

using namespace dt;
using namespace dt::test;

namespace {

constexpr int64_t kGroupCount = 5000;
constexpr const char* kDeviceBackends[] = {"nccl", "staged"};

backend::Collective operation(backend::Kind kind, std::vector<float>* data, cuda::Stream stream,
                              int32_t peer = 0) {
  backend::Collective one;
  one.kind = kind;
  one.dtype = Dtype::kF32;
  one.send = one.recv = data->data();
  one.count = static_cast<int64_t>(data->size());
  one.root = peer;
  one.stream = stream;
  return one;
}

bool wait_for(const GpuRank& rank, backend::Work& work) {
  return rank.comm->backend().wait(work, Wait{Deadline::after_ms(30'000), nullptr});
}

}  // namespace

TEST_CASE("group work: a stream that waits for it waits for all operations, with NCCL and staged") {
  for (const char* backend : kDeviceBackends) {
    CAPTURE(backend);
    run_on_gpus({backend, 2}, [](GpuRank& rank) {
      const cuda::Stream produces = rank.new_stream();
      const cuda::Stream consumes = rank.new_stream();
      const int peer = 1 - rank.rank;
      for (int round = 1; round <= 3; ++round) {
        std::vector<float> mine(kGroupCount, 0);
        std::vector<float> theirs(kGroupCount, 0);
        std::vector<float> sum(kGroupCount, 1);
        Gate gate;
        rank.expect_ok(gate.hold(*rank.cuda, produces), "hold");
        rank.expect_ok(rank.cuda->launch(
                           produces, [&] { mine.assign(kGroupCount, float(rank.rank + round)); }),
                       "produce");
        auto send = operation(backend::Kind::kSend, &mine, produces, peer);
        auto receive = operation(backend::Kind::kRecv, &theirs, produces, peer);
        auto reduce = operation(backend::Kind::kAllreduce, &sum, produces);
        const auto own = rank.comm->new_work();
        const auto whole = rank.comm->new_work();
        rank.expect_ok(rank.comm->begin_group(), "begin");
        rank.expect_ok(rank.comm->run_or_group(send), "send");
        rank.expect_ok(rank.comm->submit_or_group(receive, own), "receive");
        rank.expect_ok(rank.comm->run_or_group(reduce), "reduce");
        rank.expect_ok(rank.comm->end_group(whole), "end");
        rank.expect(whole->parts().size() == 3, "three operations");
        rank.expect(!whole->done(), "it is under way");
        gate.open();
        rank.expect_ok(rank.comm->backend().wait_stream(*whole, consumes), "wait_stream");
        float received = -1;
        float reduced = -1;
        rank.expect_ok(rank.cuda->launch(consumes,
                                         [&] {
                                           received = theirs[kGroupCount - 1];
                                           reduced = sum[kGroupCount - 1];
                                         }),
                       "consume");
        rank.expect(rank.cuda->finish(consumes), "finish");
        rank.expect(received == float(peer + round), format("received %g", received));
        rank.expect(reduced == 2, format("the sum is %g", reduced));
        rank.expect(wait_for(rank, *whole), "wait");
        rank.expect_ok(whole->status(), "work");
        rank.expect(own->done(), "the receive is done with it");
        rank.expect_ok(rank.comm->backend().wait_stream(*whole, consumes), "once more");
      }
      rank.expect_ok(rank.cuda->destroy_stream(produces), "destroy");
      rank.expect_ok(rank.cuda->destroy_stream(consumes), "destroy");
    });
  }
}

TEST_CASE("group work: without operations it is done at once, also over GPUs") {
  run_on_gpus({"nccl", 2}, [](GpuRank& rank) {
    const auto whole = rank.comm->new_work();
    rank.expect_ok(rank.comm->begin_group(), "begin");
    rank.expect_ok(rank.comm->end_group(whole), "end");
    rank.expect(whole->done(), "done");
    rank.expect_ok(rank.comm->backend().wait_stream(*whole, nullptr), "wait_stream");
  });
}

TEST_CASE("group work: a time-out of one operation is its error, with NCCL and staged") {
  for (const char* backend : kDeviceBackends) {
    CAPTURE(backend);
    run_on_gpus({backend, 2}, [](GpuRank& rank) {
      if (rank.rank == 1) {
        rank.expect(!rank.await_broken().ok(), "broken");
        return;
      }
      std::vector<float> data(kGroupCount, 0);
      auto receive = operation(backend::Kind::kRecv, &data, nullptr, 1);
      receive.timeout_ms = 100;
      const auto whole = rank.comm->new_work();
      rank.expect_ok(rank.comm->begin_group(), "begin");
      rank.expect_ok(rank.comm->run_or_group(receive), "receive");
      rank.expect_ok(rank.comm->end_group(whole), "end");
      rank.expect(wait_for(rank, *whole), "wait");
      rank.expect(whole->status().code() == Code::kTimeout, whole->status().message());
      rank.expect(rank.comm->backend().wait_stream(*whole, nullptr).code() == Code::kTimeout,
                  "wait_stream");
    });
  }
}

TEST_CASE("group work: a communicator that broke inside the group refuses its end") {
  for (const char* backend : kDeviceBackends) {
    CAPTURE(backend);
    run_on_gpus({backend, 2}, [](GpuRank& rank) {
      std::vector<float> data(kGroupCount, 1);
      auto reduce = operation(backend::Kind::kAllreduce, &data, nullptr);
      const auto own = rank.comm->new_work();
      const auto whole = rank.comm->new_work();
      rank.expect_ok(rank.comm->begin_group(), "begin");
      rank.expect_ok(rank.comm->run_or_group(reduce), "reduce");
      rank.expect_ok(rank.comm->submit_or_group(reduce, own), "reduce");
      rank.meet();
      rank.comm->interrupt(Status(Code::kAborted, "no more"));
      rank.expect(rank.comm->end_group(whole).code() == Code::kAborted, "end");
      rank.expect(whole->parts().empty() && !whole->done(), "it stands for nothing");
      rank.expect(own->status().code() == Code::kAborted, "the operation failed, too");
      rank.expect(!rank.comm->grouping(), "the group has ended");
      rank.meet();
    });
  }
}

TEST_CASE("group work: dropped with its communicator, it ends with the operations") {
  for (const char* backend : kDeviceBackends) {
    CAPTURE(backend);
    run_on_gpus({backend, 2}, [](GpuRank& rank) {
      const cuda::Stream stream = rank.new_stream();
      auto part = rank.comm->split(0, 0);
      rank.expect_ok(part.status(), "split");
      std::vector<float> sum(kGroupCount, 1);
      auto reduce = operation(backend::Kind::kAllreduce, &sum, stream);
      Gate gate;
      rank.expect_ok(gate.hold(*rank.cuda, stream), "hold");
      auto whole = part.value()->new_work();
      const std::weak_ptr<backend::Work> held = whole;
      rank.expect_ok(part.value()->begin_group(), "begin");
      rank.expect_ok(part.value()->run_or_group(reduce), "reduce");
      rank.expect_ok(part.value()->end_group(whole), "end");
      whole.reset();
      part.value() = nullptr;
      rank.expect(!held.expired(), "it is under way");
      gate.open();
      rank.expect(rank.comm->backend().drain(Wait{Deadline::after_ms(30'000), nullptr}), "drain");
      rank.expect(held.expired(), "it has ended");
      rank.expect(sum[kGroupCount - 1] == 2, "sum");
      rank.expect_ok(rank.cuda->destroy_stream(stream), "destroy");
    });
  }
}
