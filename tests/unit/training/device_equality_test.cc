// SPDX-License-Identifier: Apache-2.0
// What ranks hold on GPUs, compared. The GPU and NCCL are made of threads.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>

#include "device_trainer.h"
#include "training/equality.h"

using namespace dt;
using namespace dt::test;

namespace {

constexpr int64_t kPieces = 3 * (4 << 20) + 12;  // bytes: more than both halves of the staging

/// GPU memory that a kernel of `stream` fills once the gate is open.
std::shared_ptr<std::vector<char>> filled_later(GpuRank& rank, cuda::Stream stream, int64_t bytes,
                                                char last) {
  auto data = std::make_shared<std::vector<char>>(static_cast<size_t>(bytes));
  rank.memory->push_back(data);
  rank.expect_ok(rank.cuda->launch(stream,
                                   [data, last] {
                                     // Its own pattern copied again and again: quick with a
                                     // sanitizer.
                                     const size_t size = data->size();
                                     size_t done = std::min<size_t>(size, 1000);
                                     for (size_t i = 0; i < done; ++i) {
                                       (*data)[i] = static_cast<char>(i * 31 >> 3);
                                     }
                                     while (done < size) {
                                       const size_t more = std::min(done, size - done);
                                       std::memcpy(data->data() + done, data->data(), more);
                                       done += more;
                                     }
                                     if (!data->empty()) data->back() = last;
                                   }),
                 "fill");
  return data;
}

}  // namespace

TEST_CASE("check_equal on GPUs: sees what the stream has made when it comes there") {
  for (const auto& ranks : {std::pair("nccl", 3), std::pair("staged", 2)}) {
    const char* const backend = ranks.first;
    CAPTURE(backend);
    run_on_gpus({backend, ranks.second}, [](GpuRank& rank) {
      const cuda::Stream stream = rank.new_stream();
      for (const int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{4 << 20}, kPieces}) {
        const auto data = filled_later(rank, stream, bytes, 'x');
        rank.expect_ok(training::check_equal(rank.comm, data->data(), bytes, "weights", stream),
                       "the same");
      }
      for (const int64_t bytes : {int64_t{1}, kPieces}) {
        const char last = rank.rank == 1 ? 'y' : 'x';
        const auto data = filled_later(rank, stream, bytes, last);
        const Status status =
            training::check_equal(rank.comm, data->data(), bytes, "weights", stream);
        rank.expect(status.code() == Code::kMismatch, "MISMATCH: " + status.message());
        rank.expect(contains(status, "rank 1 ("), status.message());
        rank.expect(contains(status, format("\"weights\", %lld bytes, hash ",
                                            static_cast<long long>(bytes))),
                    status.message());
      }
      rank.expect_ok(rank.comm->broken(), "the communicator is whole");
    });
  }
}

TEST_CASE("check_equal on GPUs: one that never gets its data says so, and the others hear of it") {
  run_on_gpus({"nccl", 2, 1'500}, [](GpuRank& rank) {
    Gate gate;
    const cuda::Stream stream = rank.new_stream();
    if (rank.rank == 1) rank.expect_ok(gate.hold(*rank.cuda, stream), "hold");
    const auto data = filled_later(rank, stream, 100, 'x');
    rank.comm->set_timeout_ms(rank.rank == 1 ? 200 : 20'000);
    const Status status = training::check_equal(rank.comm, data->data(), 100, "w", stream);
    if (rank.rank == 1) {
      rank.expect(status.code() == Code::kTimeout, "TIMEOUT: " + status.message());
      rank.expect(contains(status, "the GPU has not come to the data"), status.message());
    } else {
      rank.expect(status.code() == Code::kSystem, "SYSTEM: " + status.message());
      rank.expect(contains(status, "rank 1 ("), status.message());
      rank.expect(contains(status, "could not read what it holds"), status.message());
    }
    gate.open();
    rank.expect(rank.cuda->finish(stream), "the stream ends");
    rank.meet();
  });
}

TEST_CASE("reducer on GPUs: a watched parameter that diverged is named") {
  run_on_gpus({"nccl", 4}, [](GpuRank& rank) {
    training::Reducer::Options options = small_buckets();
    options.check_steps = 2;
    const auto params = params_of({{Dtype::kF32, 300}, {Dtype::kF32, 200}});
    Trainer trainer(&rank, params, options);
    const cuda::Stream stream = rank.new_stream();
    const auto weights = filled_later(rank, stream, 1200, 'x');
    trainer.reducer().watch(0, weights->data(), 1200);
    for (int64_t step = 0; step < 3; ++step) trainer.step(step, {stream});
    rank.expect_ok(
        rank.cuda->launch(stream, [weights, &rank] { (*weights)[77] = rank.rank == 2 ? 1 : 0; }),
        "diverge");
    rank.expect_ok(trainer.backward(3, {stream}), "backward");
    const Status status = trainer.reducer().finish(stream);
    rank.expect(status.code() == Code::kMismatch, "MISMATCH: " + status.message());
    rank.expect(contains(status, "step 4 on comm \"world\""), status.message());
    rank.expect(contains(status, "rank 2 ("), status.message());
    rank.expect(contains(status, "\"#0 layer0\", 1200 bytes"), status.message());
    trainer.step(4, {stream});
    rank.expect(rank.cuda->finish(stream), "the stream ends");
  });
}
