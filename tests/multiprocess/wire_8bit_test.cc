// SPDX-License-Identifier: Apache-2.0
// Gradients in 8 bits: the same rounding as a plain loop, errors that come back, what is not
// finite.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>

#include "thread_ranks.h"

namespace dt_test::wire_8bit_test {

namespace {

using Floats = std::vector<float>;

constexpr size_t kBlock = 64;
constexpr int64_t kCounts[] = {1, 200, 64, 0, 1000, 129};
constexpr int32_t kParams = 6;
constexpr int32_t kF64 = kParams;  // one more, which travels as it is

float given(int rank, int step, int32_t param, size_t i) {
  const double x = static_cast<double>(i) + 1000.0 * param + 37.0 * rank + 11.0 * step;
  return static_cast<float>(std::sin(x) * (1 + static_cast<double>(i % 7)));
}

/// As it is read again, times `factor`.
Floats rounded(const Floats& values, float factor = 1) {
  Floats result(values.size());
  for (size_t begin = 0; begin < values.size(); begin += kBlock) {
    const size_t end = std::min(begin + kBlock, values.size());
    float largest = 0;
    for (size_t i = begin; i < end; ++i) largest = std::max(largest, std::fabs(values[i]));
    const float scale = largest / 127;
    const float inverse = scale > 0 ? 1 / scale : 0;
    for (size_t i = begin; i < end; ++i)
      result[i] = std::nearbyint(values[i] * inverse) * (scale * factor);
  }
  return result;
}

/// The sum of what all ranks send in their first step, times `share`, as it is sent back.
Floats reduced(const std::vector<Floats>& gradients, float share) {
  Floats sums(gradients[0].size());
  for (const Floats& each : gradients) {
    const Floats sent = rounded(each, share);
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += sent[i];
  }
  return rounded(sums);
}

struct Reducer {
  ~Reducer() { dt_reducer_destroy(handle); }
  dt_reducer* handle = nullptr;
  double other[5] = {};  // the gradient of f64
};

std::vector<dt_param> params_of_test() {
  std::vector<dt_param> params;
  for (const int64_t count : kCounts) params.push_back({count, "param", DT_F32, 0});
  params.push_back({5, "other", DT_F64, 0});
  return params;
}

dt_status make(const Rank& rank, dt_reducer_options options, Reducer* out) {
  const auto params = params_of_test();
  options.wire = DT_WIRE_8BIT;
  options.first_bucket_bytes = 600;  // several buckets
  options.bucket_cap_bytes = 5000;
  return dt_reducer_create(rank.world, params.data(), kParams + 1, &options, &out->handle);
}

dt_reducer_options defaults() {
  dt_reducer_options options;
  dt_reducer_options_init(&options);
  return options;
}

std::vector<Floats> gradients_of(int rank, int step) {
  std::vector<Floats> all;
  for (int32_t p = 0; p < kParams; ++p) {
    Floats& each = all.emplace_back(static_cast<size_t>(kCounts[p]));
    for (size_t i = 0; i < each.size(); ++i) each[i] = given(rank, step, p, i);
  }
  return all;
}

/// Results take the gradients' place.
dt_status reduce(const Rank& rank, Reducer& reducer, std::vector<Floats>* gradients) {
  RANK_TRY(dt_reducer_ready(reducer.handle, kF64, reducer.other, nullptr));
  for (int32_t p = kParams; p-- > 0;) {
    RANK_TRY(
        dt_reducer_ready(reducer.handle, p, (*gradients)[static_cast<size_t>(p)].data(), nullptr));
  }
  RANK_TRY(dt_reducer_finish(reducer.handle, nullptr));
  for (const Floats& each : *gradients) {
    RANK_TRY(dt_check_equal(rank.world, each.data(), static_cast<int64_t>(each.size()) * 4,
                            "gradient", nullptr));
  }
  return DT_OK;
}

void run_on(const std::vector<int>& hosts, const std::function<dt_status(const Rank&)>& body) {
  require_all_ok(run_ranks(static_cast<int>(hosts.size()), body, {}, [&](int rank) -> Settings {
    return {{"job.host_id", "host" + std::to_string(hosts[static_cast<size_t>(rank)])}};
  }));
}

const std::vector<std::vector<int>> kHosts = {{0}, {0, 0}, {0, 1}, {0, 0, 0}, {0, 1, 1}};

dt_status wrong(const char* what) {
  std::fprintf(stderr, "%s\n", what);  // from a thread
  return DT_ERR_INTERNAL;
}

}  // namespace

TEST_CASE("8 bits: the first step's results, as a plain loop rounds them") {
  for (const auto& hosts : kHosts) {
    for (const int sum : {0, 1}) {
      CAPTURE(hosts.size());
      CAPTURE(sum);
      run_on(hosts, [&](const Rank& rank) -> dt_status {
        dt_reducer_options options = defaults();
        options.sum = sum;
        Reducer reducer;
        RANK_TRY(make(rank, options, &reducer));
        std::vector<std::vector<Floats>> of_ranks;
        for (int r = 0; r < rank.world_size; ++r) of_ranks.push_back(gradients_of(r, 1));
        std::vector<Floats> own = gradients_of(rank.rank, 1);
        RANK_TRY(reduce(rank, reducer, &own));
        for (size_t p = 0; p < own.size(); ++p) {
          std::vector<Floats> given_by_rank;
          for (const auto& each : of_ranks) given_by_rank.push_back(each[p]);
          const float share = sum == 1 ? 1.0F : 1.0F / static_cast<float>(rank.world_size);
          const Floats wanted = reduced(given_by_rank, share);
          if (own[p] != wanted) return wrong("a result is not the reference's");
        }
        return DT_OK;
      });
    }
  }
}

TEST_CASE("8 bits: what rounding left out comes back, so that the mean of many steps is right") {
  for (const auto& hosts : kHosts) {
    CAPTURE(hosts.size());
    run_on(hosts, [&](const Rank& rank) -> dt_status {
      constexpr int kSteps = 50;
      Reducer reducer;
      RANK_TRY(make(rank, defaults(), &reducer));
      std::vector<std::vector<double>> sums;
      for (const int64_t count : kCounts) sums.emplace_back(static_cast<size_t>(count));
      double first = 0;
      double last = 0;
      for (int step = 0; step < kSteps; ++step) {
        std::vector<Floats> own = gradients_of(rank.rank, 1);
        RANK_TRY(reduce(rank, reducer, &own));
        last = 0;
        for (int32_t p = 0; p < kParams; ++p) {
          auto& sum = sums[static_cast<size_t>(p)];
          for (size_t i = 0; i < sum.size(); ++i) {
            sum[i] += static_cast<double>(own[static_cast<size_t>(p)][i]);
            double mean = 0;
            for (int r = 0; r < rank.world_size; ++r) {
              mean += static_cast<double>(given(r, 1, p, i)) / rank.world_size;
            }
            last = std::max(last, std::fabs(sum[i] / (step + 1) - mean));
          }
        }
        if (step == 0) first = last;
      }
      if (first < 0.01) return wrong("nothing was rounded");
      return last < 0.06 * first ? DT_OK : wrong("errors are lost");
    });
  }
}

TEST_CASE(
    "8 bits: an infinity or a NaN shows in its block on all ranks, and is gone in the next step") {
  for (const auto& hosts : kHosts) {
    CAPTURE(hosts.size());
    run_on(hosts, [&](const Rank& rank) -> dt_status {
      Reducer reducer;
      RANK_TRY(make(rank, defaults(), &reducer));
      std::vector<Floats> own = gradients_of(rank.rank, 1);
      if (rank.rank == rank.world_size - 1) {
        own[4][70] = std::numeric_limits<float>::infinity();
        own[1][0] = std::nanf("");
      }
      RANK_TRY(reduce(rank, reducer, &own));
      for (size_t p = 0; p < own.size(); ++p) {
        for (size_t i = 0; i < own[p].size(); ++i) {
          const bool hit = (p == 4 && i / kBlock == 1) || (p == 1 && i / kBlock == 0);
          if (std::isnan(own[p][i]) != hit) return wrong("NaN in a wrong place");
        }
      }
      float norm = 0;
      RANK_TRY(dt_reducer_clip_norm(reducer.handle, 1, 2, nullptr, &norm));
      if (std::isfinite(norm)) return wrong("the norm hides it");
      own = gradients_of(rank.rank, 2);
      RANK_TRY(reduce(rank, reducer, &own));
      for (const Floats& each : own) {
        for (const float x : each) {
          if (!std::isfinite(x)) return wrong("not finite in the next step");
        }
      }
      RANK_TRY(dt_reducer_clip_norm(reducer.handle, 1, 2, nullptr, &norm));
      return std::isfinite(norm) && norm > 1 ? DT_OK : wrong("a norm that is not clipped");
    });
  }
}

TEST_CASE("8 bits: parts that accumulate, parameters that ranks do not use, averages over users") {
  for (const auto& hosts : kHosts) {
    CAPTURE(hosts.size());
    run_on(hosts, [&](const Rank& rank) -> dt_status {
      dt_reducer_options options = defaults();
      options.find_unused = options.divide_by_users = 1;
      options.predivide = 4;
      Reducer reducer;
      RANK_TRY(make(rank, options, &reducer));
      for (int step = 0; step < 3; ++step) {
        // Parameter 1 is rank 0's alone, 4 all ranks', and nobody has the others.
        Floats one(200, 3.0F);
        Floats four(1000, static_cast<float>(rank.rank + 1));
        Floats nobody(129, 7.0F);
        RANK_TRY(dt_reducer_accumulate(reducer.handle, 1));
        RANK_TRY(dt_reducer_ready(reducer.handle, 4, four.data(), nullptr));
        RANK_TRY(dt_reducer_accumulate(reducer.handle, 0));
        RANK_TRY(dt_reducer_ready(reducer.handle, 4, four.data(), nullptr));
        RANK_TRY(rank.rank == 0 ? dt_reducer_ready(reducer.handle, 1, one.data(), nullptr)
                                : dt_reducer_unused(reducer.handle, 1, one.data(), nullptr));
        RANK_TRY(dt_reducer_unused(reducer.handle, 5, nobody.data(), nullptr));
        RANK_TRY(dt_reducer_finish(reducer.handle, nullptr));
        const float mean = static_cast<float>(rank.world_size + 1);  // twice that of 1 to N
        if (std::fabs(one[199] - 3) > 0.05F || std::fabs(four[999] - mean) > 0.1F) {
          return wrong("a wrong average");
        }
        if (nobody[0] != 7.0F) return wrong("written where nobody had a gradient");
      }
      return DT_OK;
    });
  }
}

TEST_CASE("8 bits: a gradient that is missing is named on all ranks, and the next step goes on") {
  run_on({0, 0, 1}, [&](const Rank& rank) -> dt_status {
    Reducer reducer;
    RANK_TRY(make(rank, defaults(), &reducer));
    Floats own(1000, 1.0F);
    for (int32_t p = 0; p < kParams; ++p) {
      if (p == 4 && rank.rank == 1) continue;
      RANK_TRY(dt_reducer_ready(reducer.handle, p, own.data(), nullptr));
    }

    RANK_TRY(dt_reducer_ready(reducer.handle, kF64, reducer.other, nullptr));
    const dt_status status = dt_reducer_finish(reducer.handle, nullptr);
    if (status != DT_ERR_INVALID_STATE ||
        !contains(dt_last_error(), "no gradient for #4 \"param\"")) {
      return wrong(dt_last_error());
    }
    std::vector<Floats> next = gradients_of(rank.rank, 1);
    return reduce(rank, reducer, &next);
  });
}

TEST_CASE("8 bits: a rank that aborts within a step ends the others' step, too") {
  for (const std::vector<int>& hosts : std::vector<std::vector<int>>{{0, 0, 0}, {0, 1, 1}}) {
    CAPTURE(hosts.back());
    const auto outcomes = run_ranks(
        3,
        [&](const Rank& rank) -> dt_status {
          Reducer reducer;
          RANK_TRY(make(rank, defaults(), &reducer));
          std::vector<Floats> own = gradients_of(rank.rank, 1);
          RANK_TRY(reduce(rank, reducer, &own));
          if (rank.rank < 2) return reduce(rank, reducer, &own);
          RANK_TRY(dt_reducer_ready(reducer.handle, kParams - 1, own.back().data(), nullptr));
          return dt_abort(rank.job, "as a test does");
        },
        {},
        [&](int rank) -> Settings {
          return {{"job.host_id", "host" + std::to_string(hosts[static_cast<size_t>(rank)])}};
        });
    for (size_t rank = 0; rank < 2; ++rank) {
      INFO(outcomes[rank].message);
      CHECK(outcomes[rank].status == DT_ERR_ABORTED);
      CHECK(contains(outcomes[rank].message, "as a test does"));
    }
  }
}

TEST_CASE("8 bits: a hook, PowerSGD and a shard are refused") {
  run_on({0}, [&](const Rank& rank) -> dt_status {
    Reducer reducer;
    RANK_TRY(make(rank, defaults(), &reducer));
    const int64_t rows[kParams + 1] = {};
    if (dt_reducer_power_sgd(reducer.handle, rows, nullptr) != DT_ERR_INVALID_STATE ||
        !contains(dt_last_error(), "made with wire")) {
      return wrong("PowerSGD");
    }
    dt_shard_options options;
    dt_shard_options_init(&options);
    dt_reducer_options wire = defaults();
    wire.wire = DT_WIRE_8BIT;
    options.reducer = &wire;
    const auto params = params_of_test();
    dt_shard* shard = nullptr;
    if (dt_shard_create(rank.world, params.data(), kParams + 1, &options, &shard) !=
            DT_ERR_INVALID_ARGUMENT ||
        !contains(dt_last_error(), "DT_WIRE_8BIT, which does not go with a shard")) {
      return wrong("a shard");
    }
    return DT_OK;
  });
}

}  // namespace dt_test::wire_8bit_test
