// SPDX-License-Identifier: Apache-2.0
// The reducer on GPUs: results, order and what a step costs. The GPU and NCCL are made of threads.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <random>

#include "device_trainer.h"

using namespace dt;
using namespace dt::test;

namespace {

const std::vector<std::pair<Dtype, int64_t>> kAllDtypes = {
    {Dtype::kF32, 1000}, {Dtype::kBf16, 777}, {Dtype::kF64, 333},  {Dtype::kI32, 500},
    {Dtype::kF16, 2049}, {Dtype::kF32, 1},    {Dtype::kF32, 0},    {Dtype::kBf16, 3},
    {Dtype::kF64, 1},    {Dtype::kI32, 7},    {Dtype::kF32, 3000}, {Dtype::kF16, 5},
};

std::vector<training::Param> floats(size_t count, int64_t elements = 500) {
  return params_of(std::vector<std::pair<Dtype, int64_t>>(count, {Dtype::kF32, elements}));
}

/// What a reducer on host memory makes of the same gradients.
Tensors on_host(const GpuRank& rank, const std::vector<training::Param>& params,
                const training::Reducer::Options& options, int64_t step) {
  Tensors memory;
  auto reducer = training::Reducer::create(host_comm(rank), params, options);
  rank.expect_ok(reducer.status(), "create on the host");
  if (!reducer.ok()) return memory;
  for (size_t p = 0; p < params.size(); ++p) {
    auto& own =
        memory.emplace_back(static_cast<size_t>(params[p].count * dtype_bytes(params[p].dtype)));
    fill(params[p].dtype, own.data(), params[p].count, step, rank.rank, p);
    rank.expect_ok(reducer.value()->ready(static_cast<int32_t>(p), own.data()), "ready");
  }
  rank.expect_ok(reducer.value()->finish(), "finish on the host");
  return memory;
}

}  // namespace

TEST_CASE("reducer on GPUs: the bits of a plain loop and of the reducer on host memory") {
  for (const auto& ranks :
       {std::pair("nccl", 1), std::pair("nccl", 2), std::pair("nccl", 4), std::pair("staged", 2)}) {
    const char* const backend = ranks.first;
    const int size = ranks.second;
    CAPTURE(backend);
    CAPTURE(size);
    run_on_gpus({backend, size}, [](GpuRank& rank) {
      const std::vector<cuda::Stream> streams = {rank.new_stream(), rank.new_stream()};
      for (const bool sum : {false, true}) {
        for (const Mode mode : {Mode::kInPlace, Mode::kPointers, Mode::kMixed}) {
          Trainer trainer(&rank, params_of(kAllDtypes), small_buckets(sum), mode);
          for (int64_t step = 0; step < 3; ++step) trainer.step(step, streams);
          const auto same = on_host(rank, params_of(kAllDtypes), small_buckets(sum), 2);
          rank.expect(trainer.results() == same, "the same bits as on the host");
        }
      }
    });
  }
}

TEST_CASE("reducer on GPUs: an average that is not exact has the bits of the host's") {
  run_on_gpus({"nccl", 3}, [](GpuRank& rank) {
    const auto params = params_of({{Dtype::kF64, 400}, {Dtype::kF32, 400}});
    for (const Mode mode : {Mode::kInPlace, Mode::kPointers}) {
      Trainer trainer(&rank, params, small_buckets(), mode);
      const cuda::Stream stream = rank.new_stream();
      rank.expect_ok(trainer.backward(1, {stream}), "backward");
      rank.expect_ok(trainer.reducer().finish(stream), "finish");
      trainer.use(stream);
      rank.expect(rank.cuda->finish(stream), "the stream ends");
      rank.expect(trainer.results() == on_host(rank, params, small_buckets(), 1), "the same bits");
    }
  });
}

TEST_CASE("reducer on GPUs: finish() returns while the GPU stands, and the stream waits") {
  run_on_gpus({"nccl", 2}, [](GpuRank& rank) {
    Trainer trainer(&rank, floats(6), small_buckets(false, false));
    const cuda::Stream computes = rank.new_stream();
    const cuda::Stream uses = rank.new_stream();
    trainer.step(0, {computes});
    Gate gate;
    std::atomic<bool> used{false};
    rank.expect_ok(gate.hold(*rank.cuda, computes), "hold");
    rank.expect_ok(trainer.backward(1, {computes}), "backward");
    rank.expect_ok(trainer.reducer().finish(uses), "finish");
    trainer.use(uses);
    rank.expect_ok(rank.cuda->launch(uses, [&] { used = true; }), "use");
    rank.meet();
    rank.expect(!used, "the stream that uses the gradients waits for them");
    gate.open();
    rank.expect(rank.cuda->finish(uses), "the stream ends");
    trainer.check(1);
  });
}

TEST_CASE("reducer on GPUs: an operation waits for the gradients, not for what follows them") {
  run_on_gpus({"nccl", 2}, [](GpuRank& rank) {
    Trainer trainer(&rank, floats(6), small_buckets(false, false));
    const std::vector<cuda::Stream> computes = {rank.new_stream(), rank.new_stream()};
    const cuda::Stream uses = rank.new_stream();
    Gate gate;
    rank.expect_ok(trainer.backward(0, computes), "backward");
    for (const cuda::Stream stream : computes) {
      rank.expect_ok(gate.hold(*rank.cuda, stream), "later work of the caller");
    }
    rank.expect_ok(trainer.reducer().finish(uses), "finish");
    trainer.use(uses);
    rank.expect(rank.cuda->finish(uses), "the gradients come all the same");
    trainer.check(0);
    gate.open();
    for (const cuda::Stream stream : computes) rank.expect(rank.cuda->finish(stream), "ends");
  });
}

TEST_CASE("reducer on GPUs: threads say ready in any order, buckets go in one") {
  run_on_gpus({"nccl", 3}, [](GpuRank& rank) {
    std::vector<std::pair<Dtype, int64_t>> described;
    for (int64_t i = 0; i < 24; ++i) described.emplace_back(Dtype::kF32, 100 + 37 * i);
    for (const Mode mode : {Mode::kInPlace, Mode::kPointers}) {
      Trainer trainer(&rank, params_of(described), small_buckets(/*sum=*/true), mode);
      std::mt19937 random(static_cast<unsigned>(7 + rank.rank));
      const cuda::Stream uses = rank.new_stream();
      const std::vector<cuda::Stream> streams = {rank.new_stream(), rank.new_stream()};
      for (int64_t step = 0; step < 6; ++step) {
        std::shuffle(trainer.order().begin(), trainer.order().end(), random);
        // Two threads, each on both streams: they record the same events.
        on_ranks(2, [&](int half) {
          for (size_t i = static_cast<size_t>(half); i < described.size(); i += 2) {
            const int32_t index = trainer.order()[i];
            const cuda::Stream stream = streams[(i / 2) % 2];
            trainer.compute(step, index, stream);
            if (!trainer.ready(index, stream).ok()) abort();
          }
        });
        rank.expect_ok(trainer.reducer().finish(uses), "finish");
        trainer.use(uses);
        rank.expect(rank.cuda->finish(uses), "the stream ends");
        trainer.check(step);
      }
    }
  });
}

TEST_CASE("reducer on GPUs: a stream that records a graph is refused, and nothing happened") {
  run_on_gpus({"nccl", 2}, [](GpuRank& rank) {
    Trainer trainer(&rank, floats(3), small_buckets());
    const cuda::Stream stream = rank.new_stream();
    trainer.compute(0, 0, stream);
    rank.cuda->set_capturing(stream, true);
    const Status ready = trainer.ready(0, stream);
    rank.expect(ready.code() == Code::kInvalidArgument, "INVALID_ARGUMENT");
    rank.expect(contains(ready,
                         "dt_reducer_ready of #0 \"layer0\" on comm \"world\": the stream records "
                         "a CUDA graph, and dt cannot be part of one; end the capture before, or "
                         "give another stream"),
                ready.message());
    rank.cuda->set_capturing(stream, false);
    rank.expect_ok(trainer.backward(0, {stream}), "backward");
    rank.cuda->set_capturing(stream, true);
    const Status finish = trainer.reducer().finish(stream);
    rank.expect(finish.code() == Code::kInvalidArgument, "INVALID_ARGUMENT");
    rank.expect(contains(finish, "dt_reducer_finish on comm \"world\": the stream records a CUDA"),
                finish.message());
    rank.cuda->set_capturing(stream, false);
    rank.expect_ok(trainer.reducer().finish(stream), "finish");
    rank.cuda->set_capturing(stream, true);
    for (const double norm_type : {2.0, 1.0}) {
      const Status clip = trainer.reducer().clip_norm(1, norm_type, stream, nullptr);
      rank.expect(clip.code() == Code::kInvalidArgument, "INVALID_ARGUMENT");
      rank.expect(
          contains(clip, "dt_reducer_clip_norm on comm \"world\": the stream records a CUDA"),
          clip.message());
    }
    rank.cuda->set_capturing(stream, false);
    trainer.use(stream);
    rank.expect(rank.cuda->finish(stream), "the stream ends");
    trainer.check(0);
    char memory[8];
    const Status odd = trainer.reducer().ready(1, memory + 1, stream);
    rank.expect(odd.code() == Code::kInvalidArgument, "an address that is no f32's");
  });
}

TEST_CASE("reducer on GPUs: a step makes nothing while the pointers stay; others cost a list") {
  run_on_gpus({"nccl", 2}, [](GpuRank& rank) {
    for (const Mode mode : {Mode::kInPlace, Mode::kPointers}) {
      Trainer trainer(&rank, floats(6), small_buckets(), mode);
      const std::vector<cuda::Stream> streams = {rank.new_stream(), rank.new_stream()};
      for (int64_t step = 0; step < 2; ++step) trainer.step(step, streams);
      const auto before = rank.cuda->counters();
      for (int64_t step = 2; step < 20; ++step) trainer.step(step, streams);
      const auto after = rank.cuda->counters();
      rank.expect(after.allocations == before.allocations &&
                      after.pinned_allocations == before.pinned_allocations &&
                      after.events == before.events && after.streams == before.streams,
                  "nothing is made");
      if (mode == Mode::kInPlace) continue;
      for (int64_t step = 20; step < 30; ++step) {
        trainer.move_gradients();
        trainer.step(step, streams);
      }
      const auto moved = rank.cuda->counters();
      rank.expect(moved.allocations > after.allocations, "lists of the new pointers");
      rank.expect(moved.live_allocations <= 3 * after.live_allocations, "old lists go");
    }
  });
}

TEST_CASE("reducer on GPUs: in place and alone in a bucket, nothing is launched beside it") {
  run_on_gpus({"nccl", 1}, [](GpuRank& rank) {
    for (const Mode mode : {Mode::kInPlace, Mode::kPointers}) {
      Trainer trainer(&rank, floats(4), small_buckets(false, false), mode);
      const cuda::Stream stream = rank.new_stream();
      trainer.step(0, {stream});
      Gate gate;  // an operation that is done needs no waiting stream
      rank.expect_ok(gate.hold(*rank.cuda, stream), "hold");
      const int64_t before = rank.cuda->counters().operations;
      for (int32_t index = 0; index < 4; ++index) rank.expect_ok(trainer.ready(index, stream), "");
      rank.expect_ok(trainer.reducer().finish(stream), "finish");
      const int64_t buckets = trainer.reducer().statistics().bucket_count;
      // ready(): an event each; a bucket: its wait, `began`, `ended`, `done`; finish(): two.
      const int64_t copies = mode == Mode::kPointers ? 2 * buckets : 0;
      const int64_t launched = rank.cuda->counters().operations - before;
      rank.expect(launched == 4 + 4 * buckets + 2 + copies,
                  format("%lld operations", static_cast<long long>(launched)));
      gate.open();
      rank.expect(rank.cuda->finish(stream), "the stream ends");
    }
  });
}

TEST_CASE("reducer on GPUs: buckets are rebuilt by the arrival order of rank 0") {
  for (const char* backend : {"nccl", "staged"}) {
    run_on_gpus({backend, 2}, [](GpuRank& rank) {
      const cuda::Stream stream = rank.new_stream();
      Trainer trainer(&rank, floats(4), small_buckets());
      rank.expect(trainer.reducer().bucket_of(3) == 0, "reverse order of registration");
      if (rank.rank == 0) trainer.order() = {2, 0, 3, 1};
      for (int64_t step = 0; step < 3; ++step) trainer.step(step, {stream});
      rank.expect(trainer.reducer().bucket_of(2) == 0, "first on rank 0");
      rank.expect(trainer.reducer().statistics().rebuilt, "it says so");

      Trainer in_place(&rank, floats(4), small_buckets(), Mode::kInPlace);
      if (rank.rank == 0) in_place.order() = {1, 0, 3, 2};
      in_place.step(0, {stream});
      const void* const before = in_place.reducer().grad(0).value();
      in_place.step(1, {stream});
      rank.expect(in_place.reducer().grad(0).value() == before, "memory that was handed out stays");
      const auto changed = in_place.reducer().rebuild();
      rank.expect(changed.ok() && changed.value(), "rebuilt on demand");
      rank.expect(in_place.reducer().bucket_of(1) == 0, "first on rank 0");
      for (int64_t step = 2; step < 4; ++step) in_place.step(step, {stream});
    });
  }
}

TEST_CASE("reducer on GPUs: the size of buckets is tuned") {
  for (const char* backend : {"nccl", "staged"}) {
    run_on_gpus({backend, 2}, [](GpuRank& rank) {
      training::Reducer::Options options = small_buckets();
      options.tune_steps = 3;
      Trainer trainer(&rank, floats(16), options);
      const int32_t buckets = trainer.reducer().statistics().bucket_count;
      const cuda::Stream stream = rank.new_stream();
      for (int64_t step = 0; step < 3; ++step) trainer.step(step, {stream});
      rank.expect(trainer.reducer().statistics().bucket_count != buckets, "another size");
      for (int64_t step = 3; step < 12; ++step) trainer.step(step, {stream});
      rank.expect(trainer.reducer().statistics().tuned, "it was found");
    });
  }
}

TEST_CASE("reducer on GPUs: the times that sizes are chosen by are those of a hook's steps, too") {
  run_on_gpus({"nccl", 2}, [](GpuRank& rank) {
    training::Reducer::Options options = small_buckets(true, false);
    options.tune_steps = 3;
    Trainer trainer(&rank, floats(4), options);
    const cuda::Stream stream = rank.new_stream();
    const auto passed = std::make_shared<std::atomic<int>>(0);
    int enqueued = 0;
    const auto hook = [&](const training::HookBucket& bucket,
                          int32_t) -> Result<training::HookWork> {
      ++enqueued;
      DT_TRY(rank.cuda->launch(bucket.stream, [passed] {
        Event never;
        (void)never.wait({Deadline::after_ms(20)});  // slower than the host
        ++*passed;
      }));
      return training::HookWork{};
    };
    rank.expect_ok(trainer.reducer().set_hook(hook), "set_hook");
    for (int64_t step = 0; step < options.tune_steps; ++step) {
      rank.expect_ok(trainer.backward(step, {stream}), "backward");
      rank.expect_ok(trainer.reducer().finish(stream), "finish");
      rank.expect(step == 0 || *passed == enqueued, "the GPU has ended the step");
    }
    rank.expect(rank.cuda->finish(stream), "the stream ends");
    rank.meet();
    trainer.drop_reducer();
  });
}

TEST_CASE("reducer on GPUs: a step that is not timed in time is no failure") {
  run_on_gpus({"nccl", 2, 500}, [](GpuRank& rank) {
    training::Reducer::Options options = small_buckets(true, false);
    options.tune_steps = 3;
    Trainer trainer(&rank, floats(4), options);
    const cuda::Stream stream = rank.new_stream();
    Gate gate;
    const auto passed = std::make_shared<std::atomic<bool>>(false);
    bool held = false;
    const auto hook = [&](const training::HookBucket& bucket,
                          int32_t) -> Result<training::HookWork> {
      if (std::exchange(held, true)) return training::HookWork{};
      DT_TRY(gate.hold(*rank.cuda, bucket.stream));
      DT_TRY(rank.cuda->launch(bucket.stream, [passed] { passed->store(true); }));
      return training::HookWork{};
    };
    rank.expect_ok(trainer.reducer().set_hook(hook), "set_hook");
    for (int64_t step = 0; step < 2; ++step) {  // timing begins with the second
      rank.expect_ok(trainer.backward(step, {stream}), "backward");
      rank.expect_ok(trainer.reducer().finish(stream), "finish");
    }
    rank.expect(!passed->load(), "it waits no longer than the communicator's time-out");
    rank.expect_ok(rank.comm->broken(), "the communicator is whole");
    gate.open();
    rank.expect(rank.cuda->finish(stream), "the stream ends");
    rank.meet();
    trainer.drop_reducer();
  });
}

TEST_CASE("reducer on GPUs: other buckets take the memory of the last ones, or more if there is") {
  run_on_gpus({"nccl", 2}, [](GpuRank& rank) {
    training::Reducer::Options options = small_buckets();
    options.bucket_cap_bytes = 7000;  // 4 parameters
    options.first_bucket_bytes = 1000;
    options.wire = Dtype::kBf16;  // of which one alone takes more memory than in a row
    options.tune_steps = 3;
    Trainer trainer(
        &rank, params_of(std::vector<std::pair<Dtype, int64_t>>(16, {Dtype::kF32, 448})), options);
    const cuda::Stream stream = rank.new_stream();
    rank.expect_ok(trainer.backward(0, {stream}), "backward");
    const auto allocations = rank.cuda->counters().allocations;
    rank.expect_ok(trainer.reducer().finish(stream), "finish");
    rank.expect(trainer.reducer().statistics().rebuilt, "by the order of arrival");
    rank.expect(rank.cuda->counters().allocations == allocations, "in the same memory");
    rank.expect(rank.cuda->finish(stream), "the stream ends");
    trainer.step(1, {stream});
    rank.expect(trainer.reducer().statistics().bucket_count == 5, "4 parameters in a bucket");
    rank.expect_ok(trainer.backward(2, {stream}), "backward");
    if (rank.rank == 1) rank.cuda->fail("cudaMalloc", 0, 1);
    rank.expect_ok(trainer.reducer().finish(stream), "a quarter of the cap needs more memory");
    rank.expect(trainer.reducer().statistics().bucket_count == 2, "four times of it does not");
    rank.expect(rank.cuda->finish(stream), "the stream ends");
    for (int64_t step = 3; step < 7; ++step) trainer.step(step, {stream});
    rank.expect(trainer.reducer().statistics().tuned, "it was found");
  });
}

TEST_CASE("reducer on GPUs: without memory for the order of arrival it keeps its buckets") {
  run_on_gpus({"nccl", 2}, [](GpuRank& rank) {
    training::Reducer::Options options = small_buckets();
    options.wire_8bit = true;  // new buckets take new memory
    Trainer trainer(&rank, floats(4), options);
    const cuda::Stream stream = rank.new_stream();
    for (int64_t step = 0; step < 3; ++step) {
      rank.expect_ok(trainer.backward(step, {stream}), "backward");
      if (rank.rank == 1 && step == 0) rank.cuda->fail("cudaMalloc", 0, 1);
      rank.expect_ok(trainer.reducer().finish(stream), "finish");
      rank.expect(!trainer.reducer().statistics().rebuilt, "the old buckets");
      rank.expect(trainer.reducer().bucket_of(3) == 0, "the old order");
    }
    const auto changed = trainer.reducer().rebuild();
    rank.expect(changed.ok() && changed.value(), "later there is memory");
    rank.expect(rank.cuda->finish(stream), "the stream ends");
    rank.meet();
    trainer.drop_reducer();
  });
}

TEST_CASE("reducer on GPUs: statistics follow the GPU, and leave out what overtook it") {
  run_on_gpus({"nccl", 2}, [](GpuRank& rank) {
    constexpr int64_t kAhead = 2;
    constexpr auto kSets = static_cast<int64_t>(training::StepTimes::kSteps);
    Trainer trainer(&rank, floats(4), small_buckets(false, false), Mode::kInPlace);
    const cuda::Stream stream = rank.new_stream();
    rank.cuda->set_delay_us(300);
    Gate gate;
    rank.expect_ok(gate.hold(*rank.cuda, stream), "hold");
    for (int64_t step = 0; step < kSets + kAhead; ++step) {
      rank.expect_ok(trainer.backward(step, {stream}), "backward");
      rank.expect_ok(trainer.reducer().finish(stream), "finish");
    }
    auto seen = trainer.reducer().statistics();
    rank.expect(seen.steps == kAhead, "only steps without times are counted at once");
    rank.expect(seen.total_communication_ns == 0, "no times yet");
    gate.open();
    rank.expect(rank.cuda->finish(stream), "the stream ends");
    seen = trainer.reducer().statistics();
    rank.expect(seen.steps == kSets + kAhead, "all steps");
    rank.expect(seen.bytes == 4 * 500 * 4 && seen.total_bytes == seen.steps * seen.bytes, "bytes");
    // Each bucket has at least one operation between its two events.
    rank.expect(seen.communication_ns >= 300'000 * seen.bucket_count,
                format("%lld ns", static_cast<long long>(seen.communication_ns)));
    rank.expect(seen.total_communication_ns >= kSets * 300'000 * seen.bucket_count, "all of them");
    rank.expect(seen.exposed_ns >= 0 && seen.exposed_ns <= seen.communication_ns, "exposed");
    rank.expect(seen.total_exposed_ns <= seen.total_communication_ns, "exposed in all");
  });
}

TEST_CASE("reducer on GPUs: with a hook, steps add no times of steps before it") {
  run_on_gpus({"nccl", 2}, [](GpuRank& rank) {
    Trainer trainer(&rank, floats(4), small_buckets(true, false));
    const cuda::Stream stream = rank.new_stream();
    rank.cuda->set_delay_us(300);
    for (int64_t step = 0; step < 3; ++step) trainer.step(step, {stream});
    rank.cuda->set_delay_us(0);
    const auto before = trainer.reducer().statistics();
    rank.expect(before.steps == 3 && before.total_communication_ns > 0, "times without a hook");
    const auto hook = [&rank](const training::HookBucket& bucket,
                              int32_t stage) -> Result<training::HookWork> {
      if (stage == 1) return training::HookWork{};
      backend::Collective collective;
      collective.kind = backend::Kind::kAllreduce;
      collective.dtype = bucket.dtype;
      collective.op = ReduceOp::kSum;
      collective.send = collective.recv = bucket.data;
      collective.count = bucket.count;
      collective.stream = bucket.stream;
      training::HookWork started{rank.comm, rank.comm->new_work()};
      DT_TRY(rank.comm->submit(collective, started.work));
      return started;
    };
    rank.expect_ok(trainer.reducer().set_hook(hook), "set_hook");
    for (int64_t step = 3; step < 11; ++step) trainer.step(step, {stream});
    const auto after = trainer.reducer().statistics();
    rank.expect(after.steps == 11 && after.total_bytes == 11 * after.bytes, "all are counted");
    rank.expect(after.total_communication_ns == before.total_communication_ns &&
                    after.total_exposed_ns == before.total_exposed_ns,
                "the times are those without a hook");
    rank.meet();
    trainer.drop_reducer();
  });
}
