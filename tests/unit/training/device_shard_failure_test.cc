// SPDX-License-Identifier: Apache-2.0
// Shards on GPUs that are made of threads, where ranks are lost or late.
#include <doctest/doctest.h>

#include <filesystem>

#include "device_shards.h"

using namespace dt;
using namespace dt::test;

namespace {

ShardTrainer::Options standard(int32_t stage, int32_t shard_ranks = 0) {
  ShardTrainer::Options options;
  options.shard = ShardTrainer::options(stage);
  options.shard.shard_ranks = shard_ranks;
  return options;
}

/// In `call` the CUDA function fails on rank 1 alone: all ranks hear of it before the time-out.
void check_all_fail(GpuRank& rank, ShardTrainer* trainer, cuda::Stream stream,
                    const std::string& cuda_function, const std::function<Status()>& call) {
  rank.meet();  // none is in an earlier call
  if (rank.rank == 1) rank.cuda->fail(cuda_function);
  const Status status = call();
  if (rank.rank == 1) {
    rank.expect(contains(status, cuda_function + " on device 1"), status.message());
    rank.cuda->fail(cuda_function, 0, 0);
  }
  const Status broken = rank.await_broken();
  rank.expect(!broken.ok() && broken.code() != Code::kTimeout, broken.message());
  rank.expect(rank.cuda->finish(stream), "the stream ends");
  trainer->drop();
  rank.meet();
}

}  // namespace

TEST_CASE("shard on GPUs: a rank whose CUDA has failed fails all") {
  enum class Way { kStep, kUpdated, kGather };
  for (const Way way : {Way::kStep, Way::kUpdated, Way::kGather}) {
    CAPTURE(static_cast<int>(way));
    run_on_gpus({"nccl", 2}, [way](GpuRank& rank) {
      ShardTrainer trainer(&rank, ShardTrainer::model(), standard(way == Way::kGather ? 3 : 1));
      const cuda::Stream stream = rank.new_stream();
      if (!trainer.created().ok()) return rank.expect_ok(trainer.created(), "create");
      rank.expect_ok(trainer.set_all(stream), "set");
      rank.expect_ok(trainer.gradients(0, stream), "gradients");
      check_all_fail(rank, &trainer, stream, "cudaStreamIsCapturing", [&] {
        if (way == Way::kStep) return trainer.optimizer()->step(0.125, stream);
        return way == Way::kUpdated ? trainer.shard().updated(stream)
                                    : trainer.shard().gather(0, stream);
      });
    });
  }
}

TEST_CASE("shard on GPUs: a rank that cannot find the norm fails all, also with replicas") {
  for (const std::string cuda_function :
       {"cudaMalloc", "cudaStreamIsCapturing", "cudaMemsetAsync"}) {
    for (const int32_t shard_ranks : {0, 2}) {
      CAPTURE(cuda_function);
      CAPTURE(shard_ranks);
      run_on_gpus({"nccl", shard_ranks == 0 ? 2 : 4}, [&](GpuRank& rank) {
        ShardTrainer trainer(&rank, ShardTrainer::model(), standard(1, shard_ranks));
        const cuda::Stream stream = rank.new_stream();
        if (!trainer.created().ok()) return rank.expect_ok(trainer.created(), "create");
        rank.expect_ok(trainer.set_all(stream), "set");
        rank.expect_ok(trainer.gradients(0, stream), "gradients");
        check_all_fail(rank, &trainer, stream, cuda_function,
                       [&] { return trainer.reducer().clip_norm(1, 2, stream, nullptr); });
      });
    }
  }
}

TEST_CASE("shard on GPUs: a lost rank is named to all, also of other replicas") {
  for (const int32_t shard_ranks : {0, 2}) {
    CAPTURE(shard_ranks);
    run_on_gpus({"nccl", 4}, [&](GpuRank& rank) {
      ShardTrainer trainer(&rank, ShardTrainer::model(), standard(2, shard_ranks));
      const cuda::Stream stream = rank.new_stream();
      if (!trainer.created().ok()) return rank.expect_ok(trainer.created(), "create");
      rank.expect_ok(trainer.set_all(stream), "set");
      rank.expect_ok(trainer.step(0, stream), "step");
      rank.expect(rank.cuda->finish(stream), "the stream ends");
      rank.meet();
      if (rank.rank == 3) {  // goes without a word
        trainer.drop();
        rank.comm = nullptr;
        rank.job = nullptr;
        return;
      }
      Status status;
      const Deadline deadline = Deadline::after_ms(20'000);
      for (int64_t step = 1; status.ok() && !deadline.passed(); ++step) {
        status = trainer.step(step, stream);
      }
      rank.expect(status.code() == Code::kPeerLost, status.message());
      rank.expect(contains(status, "rank 3 ("), status.message());
      rank.expect(rank.await_broken().code() == Code::kPeerLost, rank.comm->broken().message());
      rank.expect(rank.cuda->finish(stream), "the stream ends");
      trainer.drop();
    });
  }
}

TEST_CASE("shard on GPUs: a gather that times out later spoils no checkpoint") {
  const auto folder = std::filesystem::temp_directory_path() / format("dt-late-%d", getpid());
  std::filesystem::create_directory(folder);
  for (const char* const offload : {"", "/dev/shm"}) {
    CAPTURE(offload);
    run_on_gpus({"nccl", 2, 1'000}, [&](GpuRank& rank) {
      ShardTrainer::Options options = standard(3);
      options.shard.offload = offload;
      ShardTrainer trainer(&rank, ShardTrainer::model(), options);
      const cuda::Stream stream = rank.new_stream();
      if (!trainer.created().ok()) return rank.expect_ok(trainer.created(), "create");
      rank.expect_ok(trainer.set_all(stream), "set");
      if (rank.rank == 0) {  // the other one does not
        rank.expect_ok(trainer.shard().gather(0, stream), "returns when it is enqueued");
        rank.expect_ok(trainer.shard().release(0, stream), "release");
      }
      const Status broken = rank.await_broken();
      rank.expect(broken.code() == Code::kTimeout, broken.message());
      rank.expect(contains(broken, "allgather"), broken.message());
      const Status saved =
          training::save_shard(trainer.shard(), trainer.optimizer(), folder / "model");
      rank.expect(!saved.ok(), "nothing is saved");
      rank.expect(!std::filesystem::exists(folder / "model"), "there is no file");
      rank.expect(rank.cuda->finish(stream), "the stream ends");
      trainer.drop();
      rank.meet();
    });
  }
  std::filesystem::remove_all(folder);
}
