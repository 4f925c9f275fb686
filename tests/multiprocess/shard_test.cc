// SPDX-License-Identifier: Apache-2.0
// Whole steps over shards: forward with gathered parameters, backward, clipping, each rank's own
// optimizer on its pieces. steps_test.cc has the gradients of random models.
#include <cmath>
#include <cstring>
#include <dt/dt.hpp>
#include <limits>

#include "../sanitizers.h"
#include "thread_ranks.h"

namespace dt_test::shard_test {

namespace {

using Bits = std::vector<uint32_t>;

/// A model of f32 parameters, in units of three, and how it is sharded.
struct Model {
  std::vector<dt_param> params;
  std::vector<int32_t> units;
  std::vector<int64_t> granules;
  int64_t bucket_bytes = 4000;
  int stage = 1;
  int prefetch = 1;
  int steps = 4;

  Model(unsigned seed, bool whole_rows) {
    std::mt19937 random(seed);
    const auto count = 1 + random() % 12;
    for (size_t p = 0; p < count; ++p) {
      params.push_back({static_cast<int64_t>(random() % 900), nullptr, DT_F32, 0});
      units.push_back(static_cast<int32_t>(p / 3));
      granules.push_back(whole_rows ? static_cast<int64_t>(random() % 70) : 0);
    }
  }
  int32_t size() const { return static_cast<int32_t>(params.size()); }
  int64_t count(int32_t param) const { return params[static_cast<size_t>(param)].count; }
};

/// An element of a gradient, the same in each run. Sums of such elements are rounded.
float draw(int step, int rank, int32_t param, int64_t i) {
  uint64_t x = static_cast<uint64_t>(step * 64 + rank) << 40 | static_cast<uint64_t>(param) << 20 |
               static_cast<uint64_t>(i);
  x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
  return static_cast<float>(x >> 40) / 16777216.0F - 0.5F;
}

/// SGD with momentum on the pieces of a shard, as a caller writes it.
class Trainer {
 public:
  Trainer(const Rank& rank, const Model& model) : rank_(rank), model_(model) {}
  ~Trainer() {
    dt_reducer_destroy(reducer_);
    dt_shard_destroy(shard_);
  }
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  dt_status create() {
    dt_reducer_options gradients;
    dt_reducer_options_init(&gradients);
    gradients.bucket_cap_bytes = model_.bucket_bytes;
    dt_shard_options options;
    dt_shard_options_init(&options);
    options.stage = model_.stage;
    options.prefetch = model_.prefetch;
    options.reducer = &gradients;
    options.granules = model_.granules.data();
    options.units = model_.units.data();
    RANK_TRY(dt_shard_create(rank_.world, model_.params.data(), model_.size(), &options, &shard_));
    RANK_TRY(dt_shard_reducer(shard_, &reducer_));
    for (int32_t p = 0; p < model_.size(); ++p) {
      std::vector<float> values;
      for (int64_t i = 0; i < model_.count(p); ++i) values.push_back(draw(0, 0, p, i));
      RANK_TRY(dt_shard_set(shard_, p, values.data(), nullptr));
      momentum_.emplace_back(values.size());
    }
    return DT_OK;
  }

  dt_status step(int number) {
    std::vector<std::vector<float>> gradients;
    for (int32_t p = 0; p < model_.size(); ++p) {
      RANK_TRY(dt_shard_gather(shard_, unit(p), nullptr));
      void* values = nullptr;
      RANK_TRY(dt_shard_param(shard_, p, &values));
      auto& gradient = gradients.emplace_back(static_cast<float*>(values),
                                              static_cast<float*>(values) + model_.count(p));
      for (int64_t i = 0; i < model_.count(p); ++i) {
        gradient[static_cast<size_t>(i)] += draw(number, rank_.rank, p, i);
      }
      if (p + 1 == model_.size() || unit(p + 1) != unit(p)) RANK_TRY(release(p));
    }
    for (int32_t p = model_.size(); p-- > 0;) {
      RANK_TRY(dt_shard_gather(shard_, unit(p), nullptr));
      RANK_TRY(dt_reducer_ready(reducer_, p, gradients[static_cast<size_t>(p)].data(), nullptr));
      if (p == 0 || unit(p - 1) != unit(p)) RANK_TRY(release(p));
    }
    RANK_TRY(dt_reducer_finish(reducer_, nullptr));
    RANK_TRY(dt_reducer_clip_norm(reducer_, 1.5, 2, nullptr, &norm_));
    RANK_TRY(collect_gradient(number));
    for (int32_t p = 0; p < model_.size(); ++p) {
      dt_piece piece;
      dt_piece_init(&piece);
      RANK_TRY(dt_shard_piece(shard_, p, nullptr, &piece));
      RANK_TRY(check_plan(p, piece));
      auto* const values = static_cast<float*>(piece.param);
      const auto* const grad = static_cast<const float*>(piece.grad);
      for (int64_t i = 0; i < piece.count; ++i) {
        float& momentum = momentum_[static_cast<size_t>(p)][static_cast<size_t>(piece.offset + i)];
        momentum = 0.9F * momentum + grad[i];
        values[i] -= 0.1F * momentum;
      }
      updated_ += piece.count;
    }
    return dt_shard_updated(shard_, nullptr);
  }

  /// The plan has this rank's piece, and each element at one rank.
  dt_status check_plan(int32_t p, const dt_piece& piece) {
    std::vector<int64_t> offsets(static_cast<size_t>(rank_.world_size), -1);
    std::vector<int64_t> counts(offsets);
    RANK_TRY(dt_shard_plan(shard_, p, offsets.data(), counts.data()));
    const auto own = static_cast<size_t>(rank_.rank);
    bool good = offsets[own] == piece.offset && counts[own] == piece.count;
    int64_t end = 0;
    for (size_t rank = 0; model_.stage > 0 && rank < counts.size(); ++rank) {
      good = good && offsets[rank] == (counts[rank] > 0 ? end : 0);
      end += counts[rank];
    }
    return good && (model_.stage == 0 || end == model_.count(p)) ? DT_OK : DT_ERR_INTERNAL;
  }

  /// All parameters, and the last norm.
  dt_status result(Bits* out) {
    for (int32_t p = 0; p < model_.size(); ++p) {
      RANK_TRY(dt_shard_gather(shard_, unit(p), nullptr));
      void* values = nullptr;
      RANK_TRY(dt_shard_param(shard_, p, &values));
      const size_t before = out->size();
      out->resize(before + static_cast<size_t>(model_.count(p)));
      if (model_.count(p) > 0) {
        std::memcpy(&(*out)[before], values, static_cast<size_t>(model_.count(p)) * 4);
      }
      RANK_TRY(release(p));
    }
    out->push_back(0);
    std::memcpy(&out->back(), &norm_, sizeof norm_);
    for (const float each : collected_) {
      out->push_back(0);
      std::memcpy(&out->back(), &each, sizeof each);
    }
    return DT_OK;
  }
  int64_t updated() const { return updated_; }

 private:
  /// One whole gradient joins the results.
  dt_status collect_gradient(int number) {
    const int32_t index = number % model_.size();
    collected_.resize(static_cast<size_t>(model_.count(index)));
    return dt_shard_full_grad(shard_, index, nullptr, collected_.data());
  }
  int32_t unit(int32_t param) const { return model_.units[static_cast<size_t>(param)]; }
  dt_status release(int32_t param) { return dt_shard_release(shard_, unit(param), nullptr); }

  const Rank& rank_;
  const Model& model_;
  dt_shard* shard_ = nullptr;
  dt_reducer* reducer_ = nullptr;
  float norm_ = 0;
  std::vector<float> collected_;
  int64_t updated_ = 0;  // elements, in all steps
  std::vector<std::vector<float>> momentum_;
};

/// What the ranks of one host have after some steps: all of them the same bits.
Bits train(int world_size, const Model& model) {
  std::vector<Bits> results(static_cast<size_t>(world_size));
  std::vector<int64_t> updated(results.size());
  require_all_ok(run_ranks(world_size, [&](const Rank& rank) -> dt_status {
    Trainer trainer(rank, model);
    RANK_TRY(trainer.create());
    for (int step = 1; step <= model.steps; ++step) RANK_TRY(trainer.step(step));
    updated[static_cast<size_t>(rank.rank)] = trainer.updated();
    return trainer.result(&results[static_cast<size_t>(rank.rank)]);
  }));
  int64_t elements = 0;
  for (int32_t p = 0; p < model.size(); ++p) elements += model.count(p);
  int64_t all_updates = 0;
  for (const int64_t each : updated) all_updates += each;
  CHECK(all_updates == elements * model.steps * (model.stage == 0 ? world_size : 1));
  for (const Bits& each : results) CHECK(each == results[0]);
  return results[0];
}

}  // namespace

TEST_CASE("shard: stages and bucket sizes end with the same bits, clipped by the same norm") {
  const unsigned seeds = dt::test::kThreadSanitizer ? 2 : 4;
  for (const int world_size :
       dt::test::kThreadSanitizer ? std::vector{2, 3, 8} : std::vector{1, 2, 3, 4, 8}) {
    for (unsigned seed = 0; seed < seeds; ++seed) {
      CAPTURE(world_size);
      CAPTURE(seed);
      Model model(seed, seed % 2 == 1);
      model.stage = 0;
      const Bits plain = train(world_size, model);
      for (const int64_t bucket_bytes : {1, 4000, 1 << 20}) {
        CAPTURE(bucket_bytes);
        model.bucket_bytes = bucket_bytes;
        model.prefetch = static_cast<int>(seed);
        for (model.stage = 0; model.stage <= 3; ++model.stage) {
          CHECK(train(world_size, model) == plain);
        }
      }
    }
  }
}

TEST_CASE("shard: large parameters, too, end with the same bits") {
  for (const int world_size : dt::test::kThreadSanitizer ? std::vector{2} : std::vector{2, 4}) {
    Model model(0, false);
    model.params = {
        {1 << 20, nullptr, DT_F32, 0}, {300'001, nullptr, DT_F32, 0}, {5, nullptr, DT_F32, 0}};
    model.units = {0, 0, 1};
    model.granules = {0, 0, 0};
    model.bucket_bytes = 1 << 30;
    model.steps = 2;  // the second sees what the first has made
    model.stage = 0;
    const Bits plain = train(world_size, model);
    for (model.stage = 1; model.stage <= 3; ++model.stage) {
      model.granules[1] = 0;
      CHECK(train(world_size, model) == plain);
      model.granules[1] = 7'000;
      CHECK(train(world_size, model) == plain);
    }
  }
}

TEST_CASE("shard: over hosts the stages agree but for rounding") {
  Model model(5, true);
  const auto on_hosts = [](int rank) -> Settings {
    return {{"job.host_id", rank < 1 ? "one" : "two"}};
  };
  std::map<int, std::vector<Bits>> results;
  for (model.stage = 0; model.stage <= 3; ++model.stage) {
    results[model.stage].resize(3);
    require_all_ok(run_ranks(
        3,
        [&](const Rank& rank) -> dt_status {
          Trainer trainer(rank, model);
          RANK_TRY(trainer.create());
          for (int step = 1; step <= model.steps; ++step) RANK_TRY(trainer.step(step));
          return trainer.result(&results[model.stage][static_cast<size_t>(rank.rank)]);
        },
        {}, on_hosts));
  }
  for (size_t i = 0; i < results[0][0].size(); ++i) {
    for (const int stage : {1, 2, 3}) {
      float values[2];
      std::memcpy(&values[0], &results[0][0][i], sizeof(float));
      std::memcpy(&values[1], &results[stage][0][i], sizeof(float));
      CHECK(std::abs(values[0] - values[1]) <= 1e-6F * std::max(1.0F, std::abs(values[0])));
      for (const Bits& each : results[stage]) CHECK(each[i] == results[stage][0][i]);
    }
  }
}

TEST_CASE("shard: norms are those of all gradients, and what is not finite scales nothing") {
  constexpr int kRanks = 3;
  constexpr int64_t kCount = 1000;
  require_all_ok(run_ranks(kRanks, [](const Rank& rank) -> dt_status {
    const dt_param param = {kCount, "weight", DT_F32, 0};
    dt_shard_options options;
    dt_shard_options_init(&options);
    options.stage = 1;
    dt_shard* shard = nullptr;
    dt_reducer* reducer = nullptr;
    RANK_TRY(dt_shard_create(rank.world, &param, 1, &options, &shard));
    RANK_TRY(dt_shard_reducer(shard, &reducer));
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const double nan = std::nan("");
    for (const double last : {1e-3, -1e3, 0.0, kInfinity, -kInfinity, nan}) {
      for (const double norm_type : {1.0, 2.0, 3.5, kInfinity}) {
        std::vector<float> gradient(kCount);
        double wanted = 0;
        for (int64_t i = 0; i < kCount; ++i) {
          const double x = i + 1 == kCount ? last : static_cast<double>(i % 17) - 8.0;
          gradient[static_cast<size_t>(i)] = static_cast<float>(x);
          wanted = std::isinf(norm_type) ? std::max(wanted, std::abs(x))
                                         : wanted + std::pow(std::abs(x), norm_type);
        }
        if (!std::isinf(norm_type)) wanted = std::pow(wanted, 1 / norm_type);
        RANK_TRY(dt_reducer_ready(reducer, 0, gradient.data(), nullptr));
        RANK_TRY(dt_reducer_finish(reducer, nullptr));
        float norm = -1;
        RANK_TRY(dt_reducer_clip_norm(reducer, 10, norm_type, nullptr, &norm));
        const bool same = std::isnan(last)   ? std::isnan(norm)
                          : std::isinf(last) ? std::isinf(norm)
                                             : std::abs(norm - wanted) <= 1e-5 * wanted;
        dt_piece piece;
        dt_piece_init(&piece);
        RANK_TRY(dt_shard_piece(shard, 0, nullptr, &piece));
        const double scale = std::isfinite(norm) ? std::min(1.0, 10 / (wanted + 1e-6)) : 1.0;
        const double first = static_cast<double>(gradient[static_cast<size_t>(piece.offset)]);
        const double found = static_cast<double>(static_cast<float*>(piece.grad)[0]);
        if (!same || std::abs(found - first * scale) > 1e-5) {
          MESSAGE("norm ", norm_type, " with ", last, " is ", norm, ", not ", wanted, "; ", first,
                  " became ", found);
          return DT_ERR_INTERNAL;
        }
      }
    }
    dt_shard_destroy(shard);  // any order
    dt_reducer_destroy(reducer);
    return DT_OK;
  }));
}

TEST_CASE("shard: norms of numbers that f32 has no room for, of integers and of empty pieces") {
  require_all_ok(run_ranks(4, [](const Rank& rank) -> dt_status {
    const dt_param params[] = {
        {1, "f64", DT_F64, 0}, {3, "i32", DT_I32, 0}, {0, "none", DT_F32, 0}};
    dt_shard* shard = nullptr;
    dt_reducer* reducer = nullptr;
    RANK_TRY(dt_shard_create(rank.world, params, 3, nullptr, &shard));
    RANK_TRY(dt_shard_reducer(shard, &reducer));
    int32_t integers[] = {1000, 2000, 3000};
    for (const double value : {1e20, 1e200, 3e-310, 4e-323, 4e307}) {
      double given = value;
      RANK_TRY(dt_reducer_ready(reducer, 2, nullptr, nullptr));
      RANK_TRY(dt_reducer_ready(reducer, 1, integers, nullptr));
      RANK_TRY(dt_reducer_ready(reducer, 0, &given, nullptr));
      RANK_TRY(dt_reducer_finish(reducer, nullptr));
      RANK_TRY(dt_reducer_clip_norm(reducer, 1, 2, nullptr, nullptr));
      dt_piece piece;
      dt_piece_init(&piece);
      RANK_TRY(dt_shard_piece(shard, 0, nullptr, &piece));
      const double wanted = value < 1 || value > 1e38 ? value : 1;  // no f32 holds the norm: kept
      if (piece.count == 1 &&
          std::abs(*static_cast<double*>(piece.grad) - wanted) > 1e-6 * wanted) {
        return DT_ERR_INTERNAL;
      }
      RANK_TRY(dt_shard_piece(shard, 1, nullptr, &piece));
      for (int64_t i = 0; i < piece.count; ++i) {  // not scaled
        if (static_cast<int32_t*>(piece.grad)[i] != integers[piece.offset + i]) {
          return DT_ERR_INTERNAL;
        }
      }
    }
    dt_reducer_destroy(reducer);
    dt_shard_destroy(shard);
    return DT_OK;
  }));
}

TEST_CASE("shard: ranks that clip differently all hear of it, and nothing is broken") {
  require_all_ok(run_ranks(2, [](const Rank& rank) -> dt_status {
    const dt_param param = {100, "weight", DT_F32, 0};
    dt_shard* shard = nullptr;
    dt_reducer* reducer = nullptr;
    RANK_TRY(dt_shard_create(rank.world, &param, 1, nullptr, &shard));
    RANK_TRY(dt_shard_reducer(shard, &reducer));
    std::vector<float> gradient(100, 1);
    RANK_TRY(dt_reducer_ready(reducer, 0, gradient.data(), nullptr));
    RANK_TRY(dt_reducer_finish(reducer, nullptr));
    const double infinity = std::numeric_limits<double>::infinity();
    const double max_norms[][2] = {{1, 2}, {1, 1}, {1, infinity}};
    const double types[][2] = {{2, 2}, {2, 3}, {infinity, 2}};
    for (int i = 0; i < 3; ++i) {
      const dt_status status = dt_reducer_clip_norm(reducer, max_norms[i][rank.rank],
                                                    types[i][rank.rank], nullptr, nullptr);
      if (status != DT_ERR_MISMATCH ||
          !contains(dt_last_error(), "dt_reducer_clip_norm on comm ") ||
          !contains(dt_last_error(), "give the same on all ranks")) {
        return DT_ERR_INTERNAL;
      }
    }
    float norm = 0;
    RANK_TRY(dt_reducer_clip_norm(reducer, 1, 2, nullptr, &norm));
    dt_reducer_destroy(reducer);
    dt_shard_destroy(shard);
    return norm == 10 ? DT_OK : DT_ERR_INTERNAL;
  }));
}

TEST_CASE("shard: what a failed gather has left is never given out as whole") {
  const auto outcomes =
      run_ranks(2,
                [](const Rank& rank) -> dt_status {
                  const dt_param params[] = {{100, "weight", DT_F32, 0}, {100, "bias", DT_F32, 0}};
                  const int32_t units[] = {0, 1};
                  dt_shard_options options;
                  dt_shard_options_init(&options);
                  options.units = units;
                  dt_shard* shard = nullptr;
                  RANK_TRY(dt_shard_create(rank.world, params, 2, &options, &shard));
                  if (rank.rank == 1) {
                    RANK_TRY(dt_store_barrier(rank.job, "done", 2,
                                              -1));  // and no dt_shard_updated(, nullptr)
                    return DT_OK;
                  }
                  RANK_TRY(dt_shard_updated(shard, nullptr));
                  dt_piece piece;
                  dt_piece_init(&piece);
                  int failures = 0;
                  for (int i = 0; i < 2; ++i) {
                    for (const int32_t unit : {0, 1}) {
                      failures += dt_shard_gather(shard, unit, nullptr) == DT_ERR_TIMEOUT ? 1 : 0;
                    }
                  }
                  failures += dt_shard_piece(shard, 0, nullptr, &piece) == DT_ERR_TIMEOUT ? 1 : 0;
                  failures += dt_shard_updated(shard, nullptr) == DT_ERR_TIMEOUT ? 1 : 0;
                  RANK_TRY(dt_store_barrier(rank.job, "done", 2, -1));
                  dt_shard_destroy(shard);
                  return failures == 6 ? DT_OK : DT_ERR_INTERNAL;
                },
                {{"collective.timeout_ms", "300"}});
  for (const Outcome& each : outcomes) CHECK(each.status != DT_ERR_INTERNAL);
}

TEST_CASE("shard: ranks that cut differently hear where, and that it was a shard") {
  struct Case {
    int64_t granule;
    int32_t unit;
    int32_t stage;
    int32_t dims;  // of "bias"
    const char* text;
  };
  for (const Case& other : {Case{4, 0, 1, 0,
                                 "parameter #1: rank 0 \"bias\" f32 x 8, rank 1 \"bias\" "
                                 "f32 x 8, granule 4"},
                            Case{0, 1, 1, 0, "rank 1 \"bias\" f32 x 8, unit 1"},
                            Case{0, 0, 1, 2,
                                 "parameter #1: rank 0 \"bias\" f32 x 8, rank 1 \"bias\" "
                                 "f32 x 8, shape (2, 4)"},
                            Case{0, 0, 0, 0, "options: rank 0 stage = 1, rank 1 stage = 0"}}) {
    const auto outcomes = run_ranks(2, [&](const Rank& rank) -> dt_status {
      const dt_param params[] = {{8, "weight", DT_F32, 0}, {8, "bias", DT_F32, 0}};
      const int64_t granules[] = {0, other.granule};
      const int32_t units[] = {0, other.unit};
      const int32_t dims[] = {0, other.dims};
      const int64_t shapes[] = {2, 4};
      dt_shard_options options;
      dt_shard_options_init(&options);
      options.stage = 1;
      if (rank.rank == 1) {
        options.granules = granules;
        options.units = units;
        options.stage = other.stage;
        options.dims = dims;
        options.shapes = shapes;
      }
      dt_shard* shard = nullptr;
      return dt_shard_create(rank.world, params, 2, &options, &shard);
    });
    for (const Outcome& each : outcomes) {
      CHECK(each.status == DT_ERR_MISMATCH);
      CHECK_MESSAGE(contains(each.message, std::string("dt_shard_create on comm \"world\": the "
                                                       "model differs between ranks, first at ")),
                    each.message);
      CHECK_MESSAGE(contains(each.message, other.text), each.message);
    }
  }
}

TEST_CASE(
    "shard: a gradient that is missing on one rank is named on all, and the next step works") {
  for (const int64_t granule : {0, 3}) {
    CAPTURE(granule);
    require_all_ok(run_ranks(3, [&](const Rank& rank) -> dt_status {
      const dt_param params[] = {{10, "weight", DT_F32, 0}, {70, "bias", DT_F32, 0}};
      const int64_t granules[] = {granule, granule};
      dt_shard_options options;
      dt_shard_options_init(&options);
      options.stage = 1;
      options.granules = granules;
      dt_shard* shard = nullptr;
      dt_reducer* reducer = nullptr;
      RANK_TRY(dt_shard_create(rank.world, params, 2, &options, &shard));
      RANK_TRY(dt_shard_reducer(shard, &reducer));
      std::vector<float> gradient(70, 2);
      for (int step = 0; step < 2; ++step) {
        RANK_TRY(dt_reducer_ready(reducer, 1, gradient.data(), nullptr));
        if (step == 1 || rank.rank != 2) {
          RANK_TRY(dt_reducer_ready(reducer, 0, gradient.data(), nullptr));
        }
        const dt_status status = dt_reducer_finish(reducer, nullptr);
        if (step == 0 && (status != DT_ERR_INVALID_STATE ||
                          !contains(dt_last_error(), "no gradient for #0 \"weight\"") ||
                          !contains(dt_last_error(), "rank 2"))) {
          return DT_ERR_INTERNAL;
        }
      }
      dt_piece piece;
      dt_piece_init(&piece);
      RANK_TRY(dt_shard_piece(shard, 1, nullptr, &piece));
      for (int64_t i = 0; i < piece.count; ++i) {
        if (static_cast<const float*>(piece.grad)[i] != 2) return DT_ERR_INTERNAL;
      }
      dt_shard_destroy(shard);
      RANK_TRY(dt_reducer_ready(reducer, 1, gradient.data(), nullptr));
      RANK_TRY(dt_reducer_ready(reducer, 0, gradient.data(), nullptr));
      RANK_TRY(dt_reducer_finish(reducer, nullptr));  // it goes on without the shard
      dt_reducer_destroy(reducer);
      return DT_OK;
    }));
  }
}

TEST_CASE("shard: in C++") {
  require_all_ok(run_ranks(2, [](const Rank& rank) -> dt_status {
    dt_comm* handle = nullptr;
    RANK_TRY(dt_comm_world(rank.job, &handle));
    const dt::Comm world(handle);
    dt::ShardOptions options;
    options.stage = 1;
    options.units = {0, 1};
    dt::Shard shard(world, {{4, DT_F64, "weight", 1}, {2, DT_F64, "bias", 1}}, options);
    dt::Reducer& reducer = shard.reducer();
    const double values[] = {1, 2, 3, 4};
    shard.set(0, values);
    shard.set(1, values);
    double gradient[] = {1, 1, 1, 1};
    reducer.ready(1, gradient);
    reducer.ready(0, gradient);
    reducer.finish();
    if (reducer.order() != std::vector<int32_t>{1, 0}) return DT_ERR_INTERNAL;
    for (const int32_t index : {0, 1}) {
      const dt_piece piece = shard.piece(index);
      const std::pair<int64_t, int64_t> own(piece.offset, piece.count);
      if (shard.plan(index).at(static_cast<size_t>(rank.rank)) != own) return DT_ERR_INTERNAL;
      for (int64_t i = 0; i < piece.count; ++i) {
        static_cast<double*>(piece.param)[i] += static_cast<double*>(piece.grad)[i];
      }
    }
    shard.updated();
    shard.gather(0);
    shard.gather(1);
    const auto* weight = shard.param_as<double>(0);
    const auto* bias = shard.param_as<double>(1);
    return weight[3] == 5 && weight[0] == 2 && bias[1] == 3 ? DT_OK : DT_ERR_INTERNAL;
  }));
}

}  // namespace dt_test::shard_test
