// SPDX-License-Identifier: Apache-2.0
// The reducer on GPUs when a rank fails, lacks something, or goes away.
#include <doctest/doctest.h>

#include "device_trainer.h"

using namespace dt;
using namespace dt::test;

namespace {

std::vector<training::Param> some_floats(size_t count) {
  return params_of(std::vector<std::pair<Dtype, int64_t>>(count, {Dtype::kF32, 500}));
}

/// The error of a step that must fail; where finish() came before the news, of what follows.
Status failed_step(const GpuRank& rank, Trainer& trainer, cuda::Stream stream) {
  Status status = trainer.backward(1, {stream});
  if (status.ok()) status = trainer.reducer().finish(stream);
  return status.ok() ? rank.await_broken() : status;
}

}  // namespace

TEST_CASE("reducer on GPUs: a missing gradient breaks the communicator and is named on all ranks") {
  for (const char* backend : {"nccl", "staged"}) {
    for (const bool rebuild : {true, false}) {
      CAPTURE(backend);
      run_on_gpus({backend, 3}, [&](GpuRank& rank) {
        Trainer trainer(&rank, some_floats(6), small_buckets(/*sum=*/true, rebuild));
        const cuda::Stream stream = rank.new_stream();
        if (!rebuild) trainer.step(0, {stream});
        rank.meet();  // the end of one rank's communicator would reach into the step of another
        if (rank.rank == 1) trainer.order() = {5, 3, 1, 0};
        const Status status = failed_step(rank, trainer, stream);
        rank.expect(status.code() == Code::kInvalidState, status.message());
        rank.expect(contains(status, "reducer on comm \"world\": rank 1 (pid "), status.message());
        rank.expect(contains(status, "no gradient for #4 \"layer4\""), status.message());
        rank.expect(contains(status, "#2 \"layer2\""), status.message());
        rank.expect(!status.ok() && status.info().rank == 1, "the rank is data, too");
        rank.expect(trainer.reducer().finish(stream).message() == status.message(), "later calls");
        rank.meet();
      });
    }
  }
}

TEST_CASE("reducer on GPUs: a rank that cannot launch its bucket tells the others why") {
  run_on_gpus({"nccl", 2}, [](GpuRank& rank) {
    Trainer trainer(&rank, some_floats(4), small_buckets());
    const cuda::Stream stream = rank.new_stream();
    if (rank.rank == 1) rank.cuda->fail("cudaMalloc", 0, 1);
    const Status status = failed_step(rank, trainer, stream);
    rank.expect(contains(status, "cudaMalloc on device 1"), status.message());
    rank.meet();
  });
}

TEST_CASE(
    "reducer on GPUs: what fails on one rank at the end of a step is reported to the others") {
  run_on_gpus({"nccl", 2}, [](GpuRank& rank) {
    Trainer trainer(&rank, some_floats(4), small_buckets(true, false));
    const cuda::Stream stream = rank.new_stream();
    // Reduces nothing, so that the end of the step alone calls CUDA.
    rank.expect_ok(trainer.reducer().set_hook(
                       [](const training::HookBucket&, int32_t) -> Result<training::HookWork> {
                         return training::HookWork{};
                       }),
                   "set_hook");
    rank.expect_ok(trainer.backward(1, {stream}), "backward");
    rank.meet();
    if (rank.rank == 1) rank.cuda->fail("cudaEventRecord", 0, 1);
    Status status = trainer.reducer().finish(stream);
    if (status.ok()) status = rank.await_broken();
    rank.expect(contains(status, "cudaEventRecord on device 1"), status.message());
    rank.meet();
    trainer.drop_reducer();
  });
}

TEST_CASE("reducer on GPUs: a rank without memory for its buckets ends creation on all") {
  run_on_gpus({"nccl", 2}, [](GpuRank& rank) {
    if (rank.rank == 1) rank.cuda->fail("cudaMalloc", 0, 1);
    const auto made = training::Reducer::create(rank.comm, some_floats(4), small_buckets());
    rank.expect(!made.ok(), "not made");
    rank.expect(
        contains(made.status(), rank.rank == 1 ? "cudaMalloc" : "another rank has no memory"),
        made.status().message());
    Trainer trainer(&rank, some_floats(4), small_buckets());  // the communicator is whole
    trainer.step(0, {rank.new_stream()});
  });
}

TEST_CASE("reducer on GPUs: different models are told before any gradient moves") {
  run_on_gpus({"nccl", 2}, [](GpuRank& rank) {
    const auto made = training::Reducer::create(
        rank.comm, some_floats(4 + static_cast<size_t>(rank.rank)), small_buckets());
    rank.expect(made.status().code() == Code::kMismatch, made.status().message());
    Trainer trainer(&rank, some_floats(4), small_buckets());
    trainer.step(0, {rank.new_stream()});
  });
}

TEST_CASE("reducer on GPUs: destroyed inside a step, its memory stays while the GPU may use it") {
  run_on_gpus({"nccl", 2}, [](GpuRank& rank) {
    Trainer trainer(&rank, some_floats(6), small_buckets(/*sum=*/true, false));
    const cuda::Stream stream = rank.new_stream();
    trainer.step(0, {stream});
    const int64_t live = rank.cuda->counters().live_allocations;
    Gate gate;
    rank.expect_ok(gate.hold(*rank.cuda, stream), "hold");
    for (const int32_t index : {5, 4, 3}) {  // some buckets, on all ranks the same
      trainer.compute(1, index, stream);
      rank.expect_ok(trainer.ready(index, stream), "ready");
    }
    const int64_t begin_ns = monotonic_ns();
    trainer.drop_reducer();
    rank.expect(monotonic_ns() - begin_ns < 10'000'000'000, "it does not wait for the GPU");
    rank.expect(rank.cuda->counters().live_allocations == live, "nothing was released");
    rank.meet();
    gate.open();
    rank.expect(rank.cuda->finish(stream), "the stream ends");
    Trainer next(&rank, some_floats(6), small_buckets());
    next.step(0, {stream});
  });
}

TEST_CASE("reducer on GPUs: destroyed between steps, it waits for what its caller's stream uses") {
  for (const bool clips : {true, false}) {
    CAPTURE(clips);
    run_on_gpus({"nccl", 2}, [clips](GpuRank& rank) {
      training::Reducer::Options options = small_buckets(false, false);
      options.find_unused = !clips;
      auto made = training::Reducer::create(rank.comm, params_of({{Dtype::kF32, 600}}), options);
      rank.expect_ok(made.status(), "create");
      if (!made.ok()) return;
      training::Reducer& reducer = *made.value();
      const auto grad = std::make_shared<std::vector<float>>(600, 1.0F);
      rank.memory->push_back(grad);
      const auto late = std::make_shared<std::atomic<bool>>(false);
      const cuda::Stream stream = rank.new_stream();
      const auto kernel = [late] {
        Event never;
        (void)never.wait({Deadline::after_ms(50)});
        late->store(true);
      };
      const auto ready = clips || rank.rank == 0 ? reducer.ready(0, grad->data(), stream)
                                                 : reducer.unused(0, grad->data(), stream);
      rank.expect_ok(ready, "ready");
      if (clips) rank.expect_ok(reducer.finish(stream), "finish");
      rank.expect_ok(rank.cuda->launch(stream, kernel), "launch");
      rank.expect_ok(clips ? reducer.clip_norm(0.5, 2, stream, nullptr) : reducer.finish(stream),
                     "behind it");
      made.value() = nullptr;
      rank.expect(late->load(), "the stream has come to what uses the reducer's memory");
      rank.expect(rank.cuda->finish(stream), "the stream ends");
      rank.meet();
    });
  }
}

TEST_CASE("reducer on GPUs: destroyed between steps, it leaves nothing") {
  run_on_gpus({"nccl", 2}, [](GpuRank& rank) {
    const int64_t live = rank.cuda->counters().live_allocations;
    {
      Trainer trainer(&rank, some_floats(6), small_buckets());
      const cuda::Stream stream = rank.new_stream();
      for (int64_t step = 0; step < 3; ++step) trainer.step(step, {stream});
    }
    rank.expect(rank.cuda->counters().live_allocations == live, "all was released");
  });
}

TEST_CASE("reducer on GPUs: a rank that dies inside a step is named to the others") {
  for (const char* backend : {"nccl", "staged"}) {
    CAPTURE(backend);
    run_on_gpus({backend, 3}, [](GpuRank& rank) {
      Trainer trainer(&rank, some_floats(6), small_buckets(/*sum=*/true, false));
      const cuda::Stream stream = rank.new_stream();
      trainer.step(0, {stream});
      rank.meet();
      if (rank.rank == 2) {  // goes without a word
        trainer.drop_reducer();
        rank.comm = nullptr;
        rank.job = nullptr;
        return;
      }
      const Status status = failed_step(rank, trainer, stream);
      rank.expect(status.code() == Code::kPeerLost, status.message());
      rank.expect(contains(status, "rank 2 ("), status.message());
    });
  }
}

TEST_CASE("reducer on GPUs: a rank that stands still is a time-out at the deadline") {
  run_on_gpus({"nccl", 2, 500}, [](GpuRank& rank) {
    Trainer trainer(&rank, some_floats(6), small_buckets(/*sum=*/true, false));
    const cuda::Stream stream = rank.new_stream();
    trainer.step(0, {stream});
    rank.meet();  // the other rank has ended its step, too
    const Status status = rank.rank == 0 ? failed_step(rank, trainer, stream) : rank.await_broken();
    rank.expect(status.code() == Code::kTimeout, status.message());
    rank.expect(contains(status, "allreduce \"bucket 0\""), status.message());
    rank.expect(contains(status, "rank 0 ("), status.message());
    rank.expect(contains(status, "it waits for the other ranks' part, in NCCL"), status.message());
    rank.meet();
  });
}
