// SPDX-License-Identifier: Apache-2.0
// Ranks with different numbers of batches, on GPUs that are made of threads.
#include <doctest/doctest.h>

#include "../../sanitizers.h"
#include "device_trainer.h"

using namespace dt;
using namespace dt::test;

namespace {

constexpr int kJoinRanks = 3;
constexpr int64_t kJoinLength = 500;
constexpr int64_t kJoinUntouched = -77;

struct JoinWay {
  const char* backend = "nccl";
  bool says = false;  // of each parameter that this rank has no gradient for it
  Mode mode = Mode::kPointers;
  int passes = 1;  // of a step, each with a batch
  std::optional<Dtype> wire = {};
};

std::vector<training::Param> join_model() {
  return params_of({{Dtype::kF32, kJoinLength},
                    {Dtype::kF32, kJoinLength},
                    {Dtype::kI32, kJoinLength},
                    {Dtype::kF32, 0},
                    {Dtype::kF32, kJoinLength},
                    {Dtype::kF64, kJoinLength}});
}

/// In another order in each epoch.
int64_t batches_of(int epoch, int rank) {
  const int64_t batches[kJoinRanks] = {6, 1, 3};
  return batches[(rank + epoch) % kJoinRanks];
}

/// The last step of a rank may have fewer passes than others.
int passes_of(const JoinWay& way, int epoch, int64_t step, int rank) {
  return static_cast<int>(
      std::clamp<int64_t>(batches_of(epoch, rank) - step * way.passes, 0, way.passes));
}

/// Nobody uses the first parameter, and only one rank the second.
bool takes_part(int rank, size_t param) { return param > 1 || (param == 1 && rank == 1); }

/// Sums and averages over 1, 2 and 3 ranks are exact in every dtype.
int64_t batch_part(int64_t step, int rank, size_t param, int64_t i) {
  return 6 * ((2 * step + 3 * rank + 5 * static_cast<int64_t>(param) + i) % 11);
}

class JoinLoop {
 public:
  JoinLoop(const GpuRank* rank, const JoinWay& way, bool by_users)
      : rank_(rank), way_(way), by_users_(by_users), stream_(rank->new_stream()) {
    rank->memory->push_back(memory_);
    for (const training::Param& param : params_) {
      memory_->own.emplace_back(static_cast<size_t>(param.count * dtype_bytes(param.dtype)));
    }
    memory_->seen = memory_->own;
    training::Reducer::Options options = small_buckets();
    options.find_unused = true;
    options.divide_by_users = by_users;
    options.wire = way.wire;
    auto made = training::Reducer::create(rank->comm, params_, options);
    rank->expect_ok(made.status(), "create");
    if (made.ok()) reducer_ = std::move(made).value();
    rank->meet();
  }

  bool made() const { return reducer_ != nullptr; }

  /// True: some rank had a batch.
  bool step(int epoch, int64_t number) {
    const int passes = passes_of(way_, epoch, number, rank_->rank);
    std::vector<bool> is_outside(params_.size());
    for (int pass = 0; pass < passes; ++pass) {
      const bool last = pass + 1 == way_.passes;
      reducer_->accumulate(!last);
      for (size_t p = 0; p < params_.size(); ++p) {
        if (!takes_part(rank_->rank, p)) continue;
        give(number, p, /*adds=*/pass > 0);
        is_outside[p] = last && !in_place(p);
      }
    }
    reducer_->accumulate(false);
    for (size_t p = 0; way_.says && p < params_.size(); ++p) {
      if (passes == way_.passes && takes_part(rank_->rank, p)) continue;
      is_outside[p] = !in_place(p);
      void* const grad = is_outside[p] ? memory_->own[p].data() : nullptr;
      if (is_outside[p]) write(p, grad, [](int64_t) { return kJoinUntouched; });
      rank_->expect_ok(reducer_->unused(static_cast<int32_t>(p), grad, stream_), "unused");
    }
    rank_->expect_ok(reducer_->finish(stream_), "finish");
    look(is_outside);
    for (size_t p = 0; p < params_.size(); ++p) check(epoch, number, p, is_outside[p]);
    int32_t wanted = 0;
    for (int other = 0; other < kJoinRanks; ++other) {
      wanted += passes_of(way_, epoch, number, other) > 0 ? 1 : 0;
    }
    const auto active = reducer_->active();
    rank_->expect(active.ok() && active.value() == wanted, "active");
    return active.ok() && active.value() > 0;
  }

 private:
  bool in_place(size_t p) const {
    return way_.mode == Mode::kInPlace ||
           (way_.mode == Mode::kMixed && (p + static_cast<size_t>(rank_->rank)) % 2 == 0);
  }
  template <class F>
  void write(size_t p, void* to, F&& value) {
    const auto kernel = [=, param = params_[p]] {
      with_dtype(param.dtype, [&](auto element) {
        using T = decltype(element);
        for (int64_t i = 0; i < param.count; ++i) {
          test::store<T>(to, i, static_cast<Arithmetic<T>>(value(i)));
        }
      });
    };
    rank_->expect_ok(rank_->cuda->launch(stream_, kernel), "compute");
  }
  /// A gradient in its bucket is added to by the backward pass itself.
  void give(int64_t step, size_t p, bool adds) {
    const auto index = static_cast<int32_t>(p);
    const bool inside = in_place(p);
    void* const grad = inside ? reducer_->grad(index, stream_).value() : memory_->own[p].data();
    write(p, grad, [=, parts = inside && adds ? 2 : 1, rank = rank_->rank](int64_t i) {
      return parts * batch_part(step, rank, p, i);
    });
    rank_->expect_ok(reducer_->ready(index, inside ? nullptr : grad, stream_), "ready");
  }
  void look(const std::vector<bool>& is_outside) {
    std::vector<const void*> from;
    for (size_t p = 0; p < params_.size(); ++p) {
      from.push_back(is_outside[p] ? memory_->own[p].data()
                                   : reducer_->grad(static_cast<int32_t>(p), stream_).value());
    }
    const auto kernel = [from, memory = memory_] {
      for (size_t p = 0; p < from.size(); ++p) {
        auto& to = memory->seen[p];
        if (!to.empty()) memcpy(to.data(), from[p], to.size());
      }
    };
    rank_->expect_ok(rank_->cuda->launch(stream_, kernel), "use");
    rank_->expect(rank_->cuda->finish(stream_), "the stream ends");
  }
  void check(int epoch, int64_t step, size_t p, bool is_outside) const {
    int users = 0;
    for (int other = 0; other < kJoinRanks; ++other) {
      users += takes_part(other, p) && passes_of(way_, epoch, step, other) > 0 ? 1 : 0;
    }
    const auto used = reducer_->used(static_cast<int32_t>(p));
    rank_->expect(used.ok() && used.value() == (users > 0),
                  format("step %lld, #%zu: used", static_cast<long long>(step), p));
    with_dtype(params_[p].dtype, [&](auto element) {
      for (int64_t i = 0; i < params_[p].count; ++i) {
        int64_t sum = 0;
        for (int other = 0; other < kJoinRanks; ++other) {
          if (takes_part(other, p))
            sum += passes_of(way_, epoch, step, other) * batch_part(step, other, p, i);
        }
        const int64_t right = users > 0    ? sum / (by_users_ ? users : kJoinRanks)
                              : is_outside ? kJoinUntouched
                                           : 0;
        const auto found =
            static_cast<double>(test::load<decltype(element)>(memory_->seen[p].data(), i));
        if (found == static_cast<double>(right)) continue;
        return rank_->expect(
            false, format("epoch %d, step %lld, #%zu: %g, not %lld", epoch,
                          static_cast<long long>(step), p, found, static_cast<long long>(right)));
      }
    });
  }

  // Kernels may still be in it when this is gone.
  struct Memory {
    Tensors own;
    Tensors seen;
  };
  const GpuRank* const rank_;
  const JoinWay way_;
  const bool by_users_;
  const cuda::Stream stream_;
  const std::vector<training::Param> params_ = join_model();
  const std::shared_ptr<Memory> memory_ = std::make_shared<Memory>();
  std::unique_ptr<training::Reducer> reducer_;
};

}  // namespace

TEST_CASE("join on GPUs: all ranks get the results of those that have batches, and stop together") {
  std::vector<JoinWay> ways = {{"nccl", true, Mode::kMixed, 2, Dtype::kBf16},
                               {"staged", false, Mode::kMixed, 2}};
  // Half of the 32 combinations: any four of the five settings occur in all of theirs.
  for (int each = 0; each < 16 && !kThreadSanitizer; ++each) {
    const bool staged = (each & 1) != 0;
    const bool says = (each & 2) != 0;
    const bool twice = (each & 4) != 0;
    const bool narrow = (each & 8) != 0;
    const bool in_place = staged ^ says ^ twice ^ narrow;
    ways.push_back({staged ? "staged" : "nccl", says, in_place ? Mode::kInPlace : Mode::kPointers,
                    twice ? 2 : 1, narrow ? std::optional(Dtype::kF16) : std::nullopt});
  }
  for (const JoinWay& way : ways) {
    CAPTURE(way.backend);
    CAPTURE(way.says);
    CAPTURE(static_cast<int>(way.mode));
    CAPTURE(way.passes);
    CAPTURE(way.wire.has_value());
    run_on_gpus({way.backend, kJoinRanks}, [&way](GpuRank& rank) {
      for (const bool by_users : {false, true}) {
        JoinLoop loop(&rank, way, by_users);
        if (!loop.made()) return;
        for (int epoch = 0; epoch < kJoinRanks; ++epoch) {
          int64_t steps = 0;
          while (steps < 10 && loop.step(epoch, steps)) ++steps;
          rank.expect(steps == 6 / way.passes, "the steps of the rank with the most batches");
        }
        rank.meet();
      }
    });
  }
}

TEST_CASE("join on GPUs: an average that has no other place stays in its bucket when others move") {
  for (const bool is_static : {false, true}) {
    CAPTURE(is_static);
    run_on_gpus({"nccl", 2}, [is_static](GpuRank& rank) {
      const auto params =
          params_of(std::vector<std::pair<Dtype, int64_t>>(16, {Dtype::kF32, kJoinLength}));
      training::Reducer::Options options = small_buckets(/*sum=*/true);
      options.find_unused = !is_static;
      options.static_graph = is_static;  // rebuilt behind step 1, and not tuned here
      if (!is_static) options.tune_steps = 3;
      const int64_t steps = is_static ? 1 : 3;
      const auto host = host_comm(rank);
      for (const auto& comm : {rank.comm, host}) {
        auto made = training::Reducer::create(comm, params, options);
        rank.expect_ok(made.status(), "create");
        if (!made.ok()) return;
        training::Reducer& reducer = *made.value();
        const auto own =
            std::make_shared<Tensors>(params.size(), std::vector<char>(kJoinLength * 4));
        rank.memory->push_back(own);
        const cuda::Stream stream = comm == host ? nullptr : rank.new_stream();
        for (int64_t step = 0; step < steps; ++step) {
          if (rank.rank == 1 && step + 1 == steps) continue;  // it has run out
          for (size_t p = 0; p < params.size(); ++p) {
            fill(Dtype::kF32, (*own)[p].data(), kJoinLength, step, rank.rank, p);
            rank.expect_ok(reducer.ready(static_cast<int32_t>(p), (*own)[p].data(), stream),
                           "ready");
          }
          rank.expect_ok(reducer.finish(stream), "finish");
          if (comm != host) rank.expect(rank.cuda->finish(stream), "the stream ends");
        }
        if (rank.rank == 1) rank.expect_ok(reducer.finish(stream), "finish");
        const int64_t last = steps - 1;
        for (size_t p = 0; rank.rank == 1 && p < params.size(); ++p) {
          const void* const found = reducer.grad(static_cast<int32_t>(p), stream).value();
          if (comm != host) rank.expect(rank.cuda->finish(stream), "the stream ends");
          const float is = test::load<float>(found, 7);
          const auto right = static_cast<float>(given(last, 0, p, 7));
          rank.expect(is == right, format("#%zu: %g", p, static_cast<double>(is)));
        }
        rank.meet();
      }
    });
  }
}

TEST_CASE("join on GPUs: a rank that leaves the loop before the others is named to them") {
  for (const char* const backend : {"nccl", "staged"}) {
    CAPTURE(std::string(backend));
    run_on_gpus({backend, kJoinRanks}, [](GpuRank& rank) {
      training::Reducer::Options options = small_buckets(/*sum=*/true);
      options.find_unused = true;
      Trainer trainer(&rank, join_model(), options);
      const cuda::Stream stream = rank.new_stream();
      trainer.step(0, {stream});
      rank.meet();
      if (rank.rank == 2) {  // without finish(), and with dt_finalize
        trainer.drop_reducer();
        rank.comm = nullptr;
        (void)rank.job->finalize(20'000);
        rank.job = nullptr;
        return;
      }
      Status status = trainer.backward(1, {stream});
      if (status.ok()) status = trainer.reducer().finish(stream);
      rank.expect(status.code() == Code::kPeerLost, status.message());
      rank.expect(contains(status, "rank 2 ("), status.message());
      rank.expect(contains(status, "has left the job"), status.message());
    });
  }
}

TEST_CASE("join on GPUs: a rank that stays out of the loop is a time-out of the others") {
  for (const char* const backend : {"nccl", "staged"}) {
    CAPTURE(backend);
    run_on_gpus({backend, kJoinRanks, 500}, [](GpuRank& rank) {
      training::Reducer::Options options = small_buckets(/*sum=*/true);
      options.find_unused = true;
      Trainer trainer(&rank, join_model(), options);
      const cuda::Stream stream = rank.new_stream();
      trainer.step(0, {stream});
      rank.meet();
      Status status;
      if (rank.rank != 2) status = trainer.backward(1, {stream});
      if (rank.rank != 2 && status.ok()) status = trainer.reducer().finish(stream);
      if (rank.rank == 2) status = rank.await_broken();
      rank.expect(status.code() == Code::kTimeout, status.message());
      rank.meet();
    });
  }
}
