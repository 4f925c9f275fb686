// SPDX-License-Identifier: Apache-2.0
// Shards of some ranks, of which others are replicas. steps_test.cc has the gradients of random
// models, checkpoint_test.cc what optimizers make of them.
#include "thread_ranks.h"

namespace dt_test::replicas_test {

namespace {

constexpr int64_t kCount = 70;
constexpr int32_t kParams = 12;

struct Setup {
  int32_t stage = 1;
  int32_t shard_ranks = 2;
  int64_t granule = 0;
};

/// A shard of small parameters, each in a bucket of its own.
class Small {
 public:
  Small() = default;
  ~Small() {
    dt_reducer_destroy(reducer);
    dt_shard_destroy(shard);
  }
  Small(const Small&) = delete;
  Small& operator=(const Small&) = delete;

  dt_status open(const Rank& rank, const Setup& setup) {
    std::vector<dt_param> params(kParams, {kCount, "weight", DT_F32, 0});
    const std::vector<int64_t> granules(kParams, setup.granule);
    std::vector<int32_t> units;
    for (int32_t p = 0; p < kParams; ++p) units.push_back(p / 2);
    dt_reducer_options gradients;
    dt_reducer_options_init(&gradients);
    gradients.bucket_cap_bytes = 1;
    dt_shard_options options;
    dt_shard_options_init(&options);
    options.stage = setup.stage;
    options.shard_ranks = setup.shard_ranks;
    options.reducer = &gradients;
    options.granules = granules.data();
    options.units = units.data();
    RANK_TRY(dt_shard_create(rank.world, params.data(), kParams, &options, &shard));
    return dt_shard_reducer(shard, &reducer);
  }
  dt_status ready(int32_t param, float value) {
    const std::vector<float> gradient(kCount, value);
    return dt_reducer_ready(reducer, param, const_cast<float*>(gradient.data()), nullptr);
  }
  /// Whether the pieces of all gradients are `value`.
  dt_status check(const Rank& rank, float value) {
    for (int32_t p = 0; p < kParams; ++p) {
      dt_piece piece;
      dt_piece_init(&piece);
      RANK_TRY(dt_shard_piece(shard, p, nullptr, &piece));
      std::vector<int64_t> offsets(static_cast<size_t>(rank.world_size));
      std::vector<int64_t> counts(offsets);
      RANK_TRY(dt_shard_plan(shard, p, offsets.data(), counts.data()));
      const auto own = static_cast<size_t>(rank.rank);
      if (offsets[own] != piece.offset || counts[own] != piece.count) return DT_ERR_INTERNAL;
      for (int64_t i = 0; i < piece.count; ++i) {
        if (static_cast<const float*>(piece.grad)[i] != value) return DT_ERR_INTERNAL;
      }
    }
    return DT_OK;
  }

  dt_shard* shard = nullptr;
  dt_reducer* reducer = nullptr;
};

std::function<Settings(int)> on_hosts(std::vector<int> hosts) {
  return [hosts = std::move(hosts)](int rank) -> Settings {
    return {{"job.host_id", "host" + std::to_string(hosts[static_cast<size_t>(rank)])}};
  };
}

/// Replicas on one host, each on a host of its own, and each spread over two hosts.
const std::vector<std::vector<int>> kLayouts = {{0, 0, 0, 0}, {0, 0, 1, 1}, {0, 1, 0, 1}};

}  // namespace

TEST_CASE("replicas: other communicators may wait for ranks that wait for a bucket's memory") {
  for (const auto& hosts : kLayouts) {
    for (const int32_t stage : {1, 2, 3}) {
      for (const int32_t shard_ranks : {1, 2}) {
        CAPTURE(hosts);
        CAPTURE(stage);
        CAPTURE(shard_ranks);
        require_all_ok(run_ranks(
            4,
            [&](const Rank& rank) -> dt_status {
              Small model;
              RANK_TRY(model.open(rank, {stage, shard_ranks, 0}));
              for (int step = 0; step < 3; ++step) {
                for (int32_t p = kParams; p-- > 0;) {
                  RANK_TRY(dt_shard_gather(model.shard, p / 2, nullptr));
                  RANK_TRY(model.ready(p, static_cast<float>(rank.rank + step)));
                  RANK_TRY(dt_shard_release(model.shard, p / 2, nullptr));
                  int32_t one = 1;
                  RANK_TRY(
                      dt_allreduce(rank.world, &one, &one, 1, DT_I32, DT_SUM, nullptr, nullptr));
                  if (one != 4) return DT_ERR_INTERNAL;
                }
                RANK_TRY(dt_reducer_finish(model.reducer, nullptr));
                RANK_TRY(model.check(rank, 1.5F + static_cast<float>(step)));
                RANK_TRY(dt_shard_updated(model.shard, nullptr));
              }
              return DT_OK;
            },
            {}, on_hosts(hosts)));
      }
    }
  }
}

TEST_CASE("replicas: where no thread makes progress, those who wait do") {
  require_all_ok(run_ranks(4,
                           [](const Rank& rank) -> dt_status {
                             Small model;
                             RANK_TRY(model.open(rank, {2, 2, 0}));
                             for (int step = 0; step < 3; ++step) {
                               for (int32_t p = kParams; p-- > 0;)
                                 RANK_TRY(model.ready(p, static_cast<float>(step)));
                               RANK_TRY(dt_reducer_finish(model.reducer, nullptr));
                               RANK_TRY(model.check(rank, static_cast<float>(step)));
                               RANK_TRY(dt_shard_updated(model.shard, nullptr));
                               for (int32_t p = 0; p < kParams; ++p)
                                 RANK_TRY(dt_shard_gather(model.shard, p / 2, nullptr));
                             }
                             return DT_OK;
                           },
                           {{"host.progress", "caller"}}));
}

TEST_CASE("replicas: a missing gradient is named in every replica, and the next step works") {
  for (const auto& hosts : kLayouts) {
    for (const int64_t granule : {0, 3}) {
      CAPTURE(hosts);
      CAPTURE(granule);
      std::vector<std::string> texts(4);
      require_all_ok(run_ranks(
          4,
          [&](const Rank& rank) -> dt_status {
            Small model;
            RANK_TRY(model.open(rank, {2, 2, granule}));
            for (int step = 0; step < 2; ++step) {
              for (int32_t p = kParams; p-- > 0;) {
                if (step == 0 && rank.rank == 2 && p == 5) continue;
                RANK_TRY(model.ready(p, 2));
              }
              const dt_status status = dt_reducer_finish(model.reducer, nullptr);
              if (step == 1) return status == DT_OK ? model.check(rank, 2) : status;
              texts[static_cast<size_t>(rank.rank)] = dt_last_error();
              if (status != DT_ERR_INVALID_STATE) return DT_ERR_INTERNAL;
            }
            return DT_OK;
          },
          {}, on_hosts(hosts)));
      for (const std::string& text : texts) {
        CHECK_MESSAGE(contains(text, "no gradient for #5 \"weight\""), text);
        CHECK_MESSAGE(contains(text, "rank 2"), text);
      }
    }
  }
}

TEST_CASE("replicas: a rank that leaves is named to its own replica and to the other") {
  for (const auto& hosts : kLayouts) {
    CAPTURE(hosts);
    const auto outcomes = run_ranks(
        4,
        [](const Rank& rank) -> dt_status {
          Small model;
          RANK_TRY(model.open(rank, {1, 2, 0}));
          for (int32_t p = kParams; p-- > 0;) {
            if (rank.rank == 1 && p == 5) return DT_OK;
            (void)model.ready(p, 2);  // finish() says it as well
          }
          return dt_reducer_finish(model.reducer, nullptr);
        },
        {}, on_hosts(hosts));
    for (const int rank : {0, 2, 3}) {
      const Outcome& each = outcomes[static_cast<size_t>(rank)];
      CAPTURE(rank);
      CHECK(each.status != DT_OK);
      CHECK(each.status != DT_ERR_TIMEOUT);
      CHECK_MESSAGE(
          (contains(each.message, "rank 1 (") || contains(each.message, "(world rank 1,")),
          each.message);
      const bool why = contains(each.message, "has left the job with dt_finalize") ||
                       contains(each.message, "has destroyed this communicator") ||
                       contains(each.message, "was destroyed while operations were queued");
      CHECK_MESSAGE(why, each.message);
      CHECK_MESSAGE(each.message.size() < 800, each.message);
    }
  }
}

TEST_CASE("replicas: a shard goes in the middle of a step, and nobody hangs") {
  for (const auto& hosts :
       std::vector<std::vector<int>>{{0, 0, 0, 0}, {0, 1, 0, 1}, {0, 1, 0, 1, 1, 0, 1, 0}}) {
    CAPTURE(hosts.size());
    for (int round = 0; round < 5; ++round) {
      require_all_ok(run_ranks(
          static_cast<int>(hosts.size()),
          [&](const Rank& rank) -> dt_status {
            Small model;
            RANK_TRY(model.open(rank, {1, 2, 0}));
            for (int32_t p = kParams; p-- > kParams / 2;) (void)model.ready(p, 2);
            return DT_OK;
          },
          {}, on_hosts(hosts)));
    }
  }
}

TEST_CASE("replicas: ranks that make different ones hear of it") {
  const auto outcomes = run_ranks(4, [](const Rank& rank) -> dt_status {
    Small model;
    return model.open(rank, {1, rank.rank == 3 ? 1 : 2, 0});
  });
  for (const Outcome& each : outcomes) {
    CHECK(each.status == DT_ERR_MISMATCH);
    CHECK_MESSAGE(contains(each.message, "rank 0 shard_ranks = 2, rank 3 shard_ranks = 1"),
                  each.message);
  }
}

}  // namespace dt_test::replicas_test
