// SPDX-License-Identifier: Apache-2.0
// Which memory shards have, and what happens to those who use it beyond that.
#include <cstring>
#include <set>

#include "thread_ranks.h"

namespace dt_test::shard_memory_test {

namespace {

constexpr int32_t kParams = 12;
constexpr int64_t kCount = 1000;

/// Parameters of one size, each a unit and a bucket.
class Sharded {
 public:
  explicit Sharded(int32_t stage, int32_t prefetch = 1) : stage_(stage), prefetch_(prefetch) {}
  ~Sharded() {
    dt_reducer_destroy(reducer);
    dt_shard_destroy(shard);
  }
  Sharded(const Sharded&) = delete;
  Sharded& operator=(const Sharded&) = delete;

  dt_status create(dt_comm* comm, bool find_unused = false) {
    dt_reducer_options gradients;
    dt_reducer_options_init(&gradients);
    gradients.bucket_cap_bytes = 1;
    gradients.find_unused = find_unused ? 1 : 0;
    dt_shard_options options;
    dt_shard_options_init(&options);
    options.stage = stage_;
    options.prefetch = prefetch_;
    options.reducer = &gradients;
    std::vector<int32_t> units;
    for (int32_t p = 0; p < kParams; ++p) units.push_back(p);
    options.units = units.data();
    const std::vector<dt_param> params(kParams, {kCount, "weight", DT_F32, 0});
    RANK_TRY(dt_shard_create(comm, params.data(), kParams, &options, &shard));
    return dt_shard_reducer(shard, &reducer);
  }

  /// Adds `value` to the gradient in place; says where that is.
  dt_status write(int32_t index, float value, bool first, std::set<void*>* places) {
    void* place = nullptr;
    RANK_TRY(dt_reducer_grad(reducer, index, nullptr, &place));
    auto* const values = static_cast<float*>(place);
    for (int64_t i = 0; i < kCount; ++i) values[i] = first ? value : values[i] + value;
    places->insert(place);
    return dt_reducer_ready(reducer, index, nullptr, nullptr);
  }

  /// Whether this rank's pieces are all `wanted`.
  dt_status check(float wanted) {
    for (int32_t index = 0; index < kParams; ++index) {
      dt_piece piece;
      dt_piece_init(&piece);
      RANK_TRY(dt_shard_piece(shard, index, nullptr, &piece));
      const auto* const values = static_cast<const float*>(piece.grad);
      for (int64_t i = 0; i < piece.count; ++i) {
        if (values[i] < wanted || values[i] > wanted) return DT_ERR_INTERNAL;
      }
    }
    return DT_OK;
  }

  /// Gathers a parameter, which is all `wanted`, and releases it; says where it was.
  dt_status use(int32_t index, float wanted, std::set<void*>* places) {
    RANK_TRY(dt_shard_gather(shard, index, nullptr));
    void* place = nullptr;
    RANK_TRY(dt_shard_param(shard, index, &place));
    const auto* const values = static_cast<const float*>(place);
    for (int64_t i = 0; i < kCount; ++i) {
      if (values[i] < wanted || values[i] > wanted) return DT_ERR_INTERNAL;
    }
    places->insert(place);
    return dt_shard_release(shard, index, nullptr);
  }

  dt_shard* shard = nullptr;
  dt_reducer* reducer = nullptr;

 private:
  const int32_t stage_;
  const int32_t prefetch_;
};

bool refused(dt_status status, dt_status wanted, const char* text) {
  if (status == wanted && contains(dt_last_error(), text)) return true;
  fprintf(stderr, "%d, not %d: %s\n", status, wanted, dt_last_error());
  return false;
}

}  // namespace

TEST_CASE("shard memory: buckets that come one after the other use the memory of three") {
  require_all_ok(run_ranks(3, [](const Rank& rank) -> dt_status {
    Sharded model(2);
    RANK_TRY(model.create(rank.world));
    std::set<void*> places;
    for (int step = 1; step <= 3; ++step) {
      for (int32_t p = kParams; p-- > 0;) {
        RANK_TRY(model.write(p, static_cast<float>(step * rank.rank), true, &places));
      }
      RANK_TRY(dt_reducer_finish(model.reducer, nullptr));
      RANK_TRY(model.check(static_cast<float>(step)));
    }
    return places.size() <= 3 ? DT_OK : DT_ERR_INTERNAL;
  }));
}

TEST_CASE("shard memory: while gradients accumulate every bucket keeps its own") {
  require_all_ok(run_ranks(2, [](const Rank& rank) -> dt_status {
    Sharded model(2);
    RANK_TRY(model.create(rank.world));
    std::set<void*> places;
    for (const int32_t on : {1, 1, 0}) {
      const bool first = places.empty();
      RANK_TRY(dt_reducer_accumulate(model.reducer, on));
      for (int32_t p = 0; p < kParams; ++p) RANK_TRY(model.write(p, 1, first, &places));
    }
    RANK_TRY(dt_reducer_finish(model.reducer, nullptr));
    RANK_TRY(model.check(3));
    return places.size() == kParams ? DT_OK : DT_ERR_INTERNAL;
  }));
}

TEST_CASE("shard memory: places of an earlier step are refused, and the step goes on") {
  require_all_ok(run_ranks(2, [](const Rank& rank) -> dt_status {
    Sharded model(2);
    RANK_TRY(model.create(rank.world));
    std::vector<float> gradient(kCount, 2);
    if (!refused(dt_reducer_ready(model.reducer, 3, nullptr, nullptr), DT_ERR_INVALID_STATE,
                 "parameter #3 \"weight\": dt_reducer_grad gave no place for its gradient in this "
                 "step; with stage 2 call it in each step")) {
      return DT_ERR_INTERNAL;
    }
    void* place = nullptr;
    RANK_TRY(dt_reducer_grad(model.reducer, kParams - 1, nullptr, &place));
    if (!refused(dt_reducer_ready(model.reducer, 0, place, nullptr), DT_ERR_INVALID_ARGUMENT,
                 "parameter #0 \"weight\": its gradient lies where dt_reducer_grad gave a place in "
                 "an earlier step, or for another parameter")) {
      return DT_ERR_INTERNAL;
    }
    for (int32_t p = kParams; p-- > 0;) {
      RANK_TRY(dt_reducer_ready(model.reducer, p, gradient.data(), nullptr));
    }
    if (!refused(dt_reducer_grad(model.reducer, 0, nullptr, &place), DT_ERR_INVALID_STATE,
                 "parameter #0 \"weight\" became ready in this step, and with stage 2 its place is "
                 "used for others")) {
      return DT_ERR_INTERNAL;
    }
    RANK_TRY(dt_reducer_finish(model.reducer, nullptr));
    return model.check(2);
  }));
}

TEST_CASE(
    "shard memory: a step that lacks gradients fails with their names, and the next is right") {
  require_all_ok(run_ranks(3, [](const Rank& rank) -> dt_status {
    Sharded model(2);
    RANK_TRY(model.create(rank.world));
    std::vector<float> gradient(kCount, 4);
    for (int32_t p = kParams; p-- > 0;) {
      if (p == 5 && rank.rank == 1) continue;
      RANK_TRY(dt_reducer_ready(model.reducer, p, gradient.data(), nullptr));
    }
    if (!refused(dt_reducer_finish(model.reducer, nullptr), DT_ERR_INVALID_STATE,
                 "no gradient for #5 \"weight\"")) {
      return DT_ERR_INTERNAL;
    }
    for (int32_t p = kParams; p-- > 0;) {
      RANK_TRY(dt_reducer_ready(model.reducer, p, gradient.data(), nullptr));
    }
    RANK_TRY(dt_reducer_finish(model.reducer, nullptr));
    return model.check(4);
  }));
}

TEST_CASE("shard memory: ranks without a batch go straight to the end of the step") {
  require_all_ok(run_ranks(3, [](const Rank& rank) -> dt_status {
    Sharded model(2);
    RANK_TRY(model.create(rank.world, /*find_unused=*/true));
    std::set<void*> places;
    for (int32_t p = kParams; rank.rank == 2 && p-- > 0;) {
      RANK_TRY(model.write(p, 6, true, &places));
    }
    RANK_TRY(dt_reducer_finish(model.reducer, nullptr));
    return model.check(2);
  }));
}

TEST_CASE("shard memory: several threads bring gradients in any order") {
  require_all_ok(run_ranks(2, [](const Rank& rank) -> dt_status {
    Sharded model(2);
    RANK_TRY(model.create(rank.world));
    for (unsigned step = 1; step <= 20; ++step) {
      constexpr int kThreads = 3;
      dt_status statuses[kThreads] = {};
      std::vector<std::thread> threads;
      for (int thread = 0; thread < kThreads; ++thread) {
        threads.emplace_back([&, thread] {
          std::vector<int32_t> own;
          for (int32_t p = thread; p < kParams; p += kThreads) own.push_back(p);
          std::mt19937 random(step * 64 + static_cast<unsigned>(rank.rank * 8 + thread));
          std::shuffle(own.begin(), own.end(), random);
          std::vector<float> gradient(kCount, static_cast<float>(step));
          for (const int32_t p : own) {
            const dt_status status = dt_reducer_ready(model.reducer, p, gradient.data(), nullptr);
            if (status != DT_OK) statuses[thread] = status;
          }
        });
      }
      for (std::thread& each : threads) each.join();
      for (const dt_status each : statuses) RANK_TRY(each);
      RANK_TRY(dt_reducer_finish(model.reducer, nullptr));
      RANK_TRY(model.check(static_cast<float>(step)));
    }
    return DT_OK;
  }));
}

TEST_CASE("shard memory: a reducer that is destroyed within a step gives its memory back") {
  require_all_ok(run_ranks(2, [](const Rank& rank) -> dt_status {
    for (int i = 0; i < 3; ++i) {
      Sharded model(2);
      RANK_TRY(model.create(rank.world));
      std::set<void*> places;
      RANK_TRY(model.write(0, 1, true, &places));  // of the last bucket: none is launched
    }
    return DT_OK;
  }));
}

TEST_CASE("shard memory: parameters have that of the unit in use and of those ahead") {
  for (const int32_t prefetch : {0, 1, 2, 100}) {
    require_all_ok(run_ranks(3, [&](const Rank& rank) -> dt_status {
      Sharded model(3, prefetch);
      RANK_TRY(model.create(rank.world));
      std::set<void*> places;
      std::vector<float> gradient(kCount);
      for (int step = 0; step < 4; ++step) {
        const auto value = static_cast<float>(step);
        for (int32_t p = 0; p < kParams; ++p) {
          RANK_TRY(model.use(p, value, &places));
          void* place = nullptr;  // of one that may be under way
          const int32_t next = (p + 1) % kParams;
          if (dt_shard_param(model.shard, next, &place) == DT_OK) return DT_ERR_INTERNAL;
        }
        for (int32_t p = kParams; p-- > 0;) {
          RANK_TRY(model.use(p, value, &places));
          RANK_TRY(dt_reducer_ready(model.reducer, p, gradient.data(), nullptr));
        }
        RANK_TRY(dt_reducer_finish(model.reducer, nullptr));
        for (int32_t p = 0; p < kParams; ++p) {
          dt_piece piece;
          dt_piece_init(&piece);
          RANK_TRY(dt_shard_piece(model.shard, p, nullptr, &piece));
          for (int64_t i = 0; i < piece.count; ++i) static_cast<float*>(piece.param)[i] += 1;
        }
        RANK_TRY(dt_shard_updated(model.shard, nullptr));
      }
      const auto at_most = static_cast<size_t>(std::min(prefetch + 1, kParams));
      return places.size() <= at_most ? DT_OK : DT_ERR_INTERNAL;
    }));
  }
}

TEST_CASE("shard memory: it is that of the formula in every stage") {
  constexpr int32_t kRanks = 4;
  for (const int32_t stage : {0, 1, 2, 3}) {
    require_all_ok(run_ranks(kRanks, [&](const Rank& rank) -> dt_status {
      Sharded model(stage);
      RANK_TRY(model.create(rank.world));
      std::set<void*> places;
      for (int step = 0; step < 2; ++step) {
        for (int32_t p = 0; p < kParams; ++p) RANK_TRY(model.use(p, 0, &places));
        for (int32_t p = kParams; p-- > 0;) RANK_TRY(model.write(p, 1, true, &places));
        RANK_TRY(dt_reducer_finish(model.reducer, nullptr));
        RANK_TRY(dt_shard_updated(model.shard, nullptr));
      }
      dt_reducer_statistics statistics;
      dt_reducer_statistics_init(&statistics);
      RANK_TRY(dt_reducer_stats(model.reducer, &statistics));
      constexpr int64_t kParam = (kCount * 4 + 255) / 256 * 256;
      const int64_t whole = kParams * kParam;
      const int64_t parameters = stage < 3 ? whole : whole / kRanks + 2 * kParam;
      const int64_t gradients = stage < 2 ? whole : whole / kRanks + 3 * kParam;
      const int64_t most = parameters + gradients;
      const bool right = statistics.memory_bytes <= most && statistics.memory_bytes > most / 2;
      if (!right)
        fprintf(stderr, "%d: %lld\n", stage, static_cast<long long>(statistics.memory_bytes));
      return right && (stage == 0) == (statistics.total_gather_ns == 0) ? DT_OK : DT_ERR_INTERNAL;
    }));
  }
}

TEST_CASE("shard memory: parameters that are not gathered are refused, and set all the same") {
  require_all_ok(run_ranks(2, [](const Rank& rank) -> dt_status {
    Sharded model(3);
    RANK_TRY(model.create(rank.world));
    std::vector<float> values(kCount, 5);
    for (int32_t p = 0; p < kParams; ++p) {
      if (p == 3) RANK_TRY(dt_shard_gather(model.shard, p, nullptr));
      RANK_TRY(dt_shard_set(model.shard, p, values.data(), nullptr));
    }
    std::set<void*> places;
    RANK_TRY(model.use(3, 5, &places));
    void* place = nullptr;
    if (!refused(dt_shard_param(model.shard, 3, &place), DT_ERR_INVALID_STATE,
                 "dt_shard_param: parameter #3 \"weight\" is not gathered; with stage 3 call "
                 "dt_shard_gather of its unit 3 before its use")) {
      return DT_ERR_INTERNAL;
    }
    RANK_TRY(dt_shard_gather(model.shard, 4, nullptr));
    RANK_TRY(dt_shard_param(model.shard, 4, &place));
    RANK_TRY(dt_shard_updated(model.shard, nullptr));
    if (!refused(dt_shard_param(model.shard, 4, &place), DT_ERR_INVALID_STATE, "is not gathered")) {
      return DT_ERR_INTERNAL;
    }
    for (int32_t p = 0; p < kParams; ++p) RANK_TRY(model.use(p, 5, &places));
    return dt_shard_release(model.shard, 0, nullptr);  // not gathered
  }));
}

TEST_CASE("shard memory: steps that gather in another order than the last are right, too") {
  require_all_ok(run_ranks(3, [](const Rank& rank) -> dt_status {
    Sharded model(3, 2);
    RANK_TRY(model.create(rank.world));
    std::mt19937 random(1);  // the same on all ranks
    for (int step = 0; step < 30; ++step) {
      const auto value = static_cast<float>(step);
      std::vector<int32_t> order;
      for (unsigned i = random() % 40; i > 0; --i) {
        order.push_back(step % 3 == 0 ? static_cast<int32_t>(i % kParams)
                                      : static_cast<int32_t>(random() % kParams));
      }
      for (const int32_t p : order) {
        RANK_TRY(dt_shard_gather(model.shard, p, nullptr));
        void* place = nullptr;
        RANK_TRY(dt_shard_param(model.shard, p, &place));
        for (int64_t i = 0; i < kCount; ++i) {
          const float found = static_cast<const float*>(place)[i];
          if (found < value || found > value) return DT_ERR_INTERNAL;
        }
        if (random() % 2 == 0) RANK_TRY(dt_shard_release(model.shard, p, nullptr));
      }
      for (int32_t p = 0; p < kParams; ++p) {
        dt_piece piece;
        dt_piece_init(&piece);
        RANK_TRY(dt_shard_piece(model.shard, p, nullptr, &piece));
        for (int64_t i = 0; i < piece.count; ++i) static_cast<float*>(piece.param)[i] += 1;
      }
      RANK_TRY(dt_shard_updated(model.shard, nullptr));
    }
    return DT_OK;
  }));
}

TEST_CASE("shard memory: ranks that gather different units all hear of it") {
  require_all_ok(run_ranks(2, [](const Rank& rank) -> dt_status {
    Sharded model(3);
    RANK_TRY(model.create(rank.world));
    const dt_status status = dt_shard_gather(model.shard, rank.rank, nullptr);
    const bool named = contains(dt_last_error(),
                                "dt_shard_gather on comm \"world\": all ranks must "
                                "gather and release the same units") &&
                       contains(dt_last_error(), "parameters of bucket 10") &&
                       contains(dt_last_error(), "parameters of bucket 11");
    if (!refused(status, DT_ERR_MISMATCH, "") || !named) return DT_ERR_INTERNAL;
    return dt_shard_gather(model.shard, 5, nullptr) == DT_ERR_MISMATCH ? DT_OK : DT_ERR_INTERNAL;
  }));
}

TEST_CASE("shard memory: ranks that ask for different stages or prefetches are told of it") {
  require_all_ok(run_ranks(2, [](const Rank& rank) -> dt_status {
    Sharded model(2 + rank.rank);
    if (!refused(model.create(rank.world), DT_ERR_MISMATCH,
                 "first at options: rank 0 stage = 2, rank 1 stage = 3")) {
      return DT_ERR_INTERNAL;
    }
    Sharded ahead(3, rank.rank);
    const dt_status status = ahead.create(rank.world);
    return refused(status, DT_ERR_MISMATCH, "rank 0 prefetch = 0, rank 1 prefetch = 1")
               ? DT_OK
               : DT_ERR_INTERNAL;
  }));
}

}  // namespace dt_test::shard_memory_test
