// SPDX-License-Identifier: Apache-2.0
// AdamW and SGD over shards, beside a loop over whole parameters in f64.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "drawn.h"
#include "thread_ranks.h"

namespace dt_test::optimizer_test {

namespace {

using Bits = std::vector<uint32_t>;

constexpr int kSteps = 5;
constexpr double kRate = 0.01;

double element(dt_dtype dtype, const void* data, int64_t i) {
  if (dtype == DT_F64) return static_cast<const double*>(data)[i];
  if (dtype == DT_F32) return static_cast<double>(static_cast<const float*>(data)[i]);
  const uint16_t half = static_cast<const uint16_t*>(data)[i];
  if (dtype == DT_F16) {
    const int exponent = half >> 10 & 31;
    const int mantissa = (half & 0x3ff) + (exponent > 0 ? 1024 : 0);
    return std::ldexp(half >> 15 != 0 ? -mantissa : mantissa, std::max(exponent, 1) - 25);
  }
  const uint32_t bits = uint32_t{half} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return static_cast<double>(value);
}

const std::vector<dt_param> kParams = {{700, "embedding", DT_F32, 0},
                                       {9, nullptr, DT_F64, 0},
                                       {0, nullptr, DT_F32, 0},
                                       {300, "projection", DT_F16, 0},
                                       {5'000, "large", DT_BF16, 0}};
constexpr double kDecays[] = {0.1, 0, 0, 0.05, 0.1};

/// How parameters are updated.
struct Way {
  bool adamw = true;
  double momentum = 0;
  double dampening = 0;
  int32_t nesterov = 0;
  bool skips = false;  ///< before each step there is one that is not finite
};
constexpr Way kWays[] = {{true, 0, 0, 0, false},     {true, 0, 0, 0, true},
                         {false, 0, 0, 0, false},    {false, 0.9, 0.3, 0, false},
                         {false, 0.9, 0.3, 0, true}, {false, 0.9, 0, 1, false}};

dt_status make(dt_shard* shard, const Way& way, dt_optimizer** out) {
  if (way.adamw) {
    dt_adamw_options options;
    dt_adamw_options_init(&options);
    options.weight_decays = kDecays;
    options.skip_non_finite = way.skips ? 1 : 0;
    return dt_optimizer_adamw(shard, &options, out);
  }
  dt_sgd_options options;
  dt_sgd_options_init(&options);
  options.momentum = way.momentum;
  options.dampening = way.dampening;
  options.nesterov = way.nesterov;
  options.skip_non_finite = way.skips ? 1 : 0;
  options.weight_decays = kDecays;
  return dt_optimizer_sgd(shard, &options, out);
}

/// PyTorch's formulas, of one element whose gradients are those of draw().
double by_hand(const Way& way, int32_t param, int64_t i) {
  auto value = static_cast<double>(draw(0, param, i));
  double first = 0;
  double second = 0;
  for (int step = 1; step <= kSteps; ++step) {
    auto gradient = static_cast<double>(draw(step, param, i));
    const double decay = kDecays[param];
    if (way.adamw) {
      value -= kRate * decay * value;
      first = 0.9 * first + 0.1 * gradient;
      second = 0.999 * second + 0.001 * gradient * gradient;
      const double unbiased = first / (1 - std::pow(0.9, step));
      value -= kRate * unbiased / (std::sqrt(second / (1 - std::pow(0.999, step))) + 1e-8);
      continue;
    }
    gradient += decay * value;
    if (way.momentum != 0) {
      first = step == 1 ? gradient : way.momentum * first + (1 - way.dampening) * gradient;
      gradient = way.nesterov != 0 ? gradient + way.momentum * first : first;
    }
    value -= kRate * gradient;
  }
  return value;
}

constexpr int32_t kBadParams[] = {1, 4};  // of f64 and bf16

void spoil(dt_dtype dtype, std::string* array, int step) {
  if (dtype == DT_F64) {
    const double infinity = -HUGE_VAL;
    std::memcpy(array->data() + 8, &infinity, sizeof infinity);
  } else {
    const uint16_t bad = step % 4 < 2 ? 0x7fc1 : 0xff80;  // a NaN, and an infinity
    std::memcpy(array->data() + array->size() - sizeof bad, &bad, sizeof bad);
  }
}

/// The bits of all parameters after some steps, the same on all ranks.
dt_status train(const Rank& rank, const Way& way, int32_t stage, int64_t bucket_bytes,
                Bits* result) {
  const auto count = static_cast<int32_t>(kParams.size());
  dt_reducer_options gradients;
  dt_reducer_options_init(&gradients);
  gradients.bucket_cap_bytes = bucket_bytes;
  dt_shard_options options;
  dt_shard_options_init(&options);
  options.stage = stage;
  options.reducer = &gradients;
  dt_shard* shard = nullptr;
  dt_reducer* reducer = nullptr;
  dt_optimizer* optimizer = nullptr;
  RANK_TRY(dt_shard_create(rank.world, kParams.data(), count, &options, &shard));
  RANK_TRY(dt_shard_reducer(shard, &reducer));
  RANK_TRY(make(shard, way, &optimizer));
  for (int32_t p = 0; p < count; ++p) {
    const dt_param& param = kParams[static_cast<size_t>(p)];
    RANK_TRY(dt_shard_set(shard, p, array_of(param, 0, p).data(), nullptr));
  }
  const auto take_step = [&](int step, bool is_bad) -> dt_status {
    const bool spoils = is_bad && rank.rank == step % rank.world_size;
    RANK_TRY(dt_shard_gather(shard, 0, nullptr));
    std::vector<std::string> arrays(kParams.size());
    for (int32_t p = count; p-- > 0;) {
      const dt_param& param = kParams[static_cast<size_t>(p)];
      auto& array = arrays[static_cast<size_t>(p)];
      array = array_of(param, step, p);
      if (spoils && p == kBadParams[step % 2]) spoil(param.dtype, &array, step);
      RANK_TRY(dt_reducer_ready(reducer, p, array.data(), nullptr));
    }
    RANK_TRY(dt_reducer_finish(reducer, nullptr));
    float norm = 1;  // some steps find it themselves
    if (step > 2) RANK_TRY(dt_reducer_clip_norm(reducer, HUGE_VAL, 2, nullptr, &norm));
    RANK_TRY(dt_optimizer_step(optimizer, kRate, nullptr));
    return step > 2 && is_bad == std::isfinite(norm) ? DT_ERR_INTERNAL : DT_OK;
  };
  for (int step = 1; step <= kSteps; ++step) {
    int64_t skipped = -1;
    if (way.skips) RANK_TRY(take_step(step, true));
    RANK_TRY(dt_optimizer_skipped(optimizer, 0, &skipped));
    if (skipped != (way.skips ? step : 0)) return DT_ERR_INTERNAL;
    RANK_TRY(take_step(step, false));
    RANK_TRY(dt_optimizer_skipped(optimizer, 2, &skipped));
    if (skipped != (way.skips ? step - 1 : 0)) return DT_ERR_INTERNAL;
  }
  RANK_TRY(dt_shard_gather(shard, 0, nullptr));
  for (int32_t p = 0; p < count; ++p) {
    const dt_param& param = kParams[static_cast<size_t>(p)];
    void* values = nullptr;
    RANK_TRY(dt_shard_param(shard, p, &values));
    for (int64_t i = 0; i < param.count; ++i) {
      const double found = element(param.dtype, values, i);
      const double wanted = by_hand(way, p, i);
      const double error = param.dtype == DT_BF16  ? 0.005
                           : param.dtype == DT_F16 ? 0.0006
                           : param.dtype == DT_F32 ? 2e-6
                                                   : 1e-12;
      if (std::abs(found - wanted) > error * std::max(1.0, std::abs(wanted))) {
        fprintf(stderr, "#%d: element %lld is %.9g, not %.9g\n", p, static_cast<long long>(i),
                found, wanted);
        return DT_ERR_INTERNAL;
      }
      const auto single = static_cast<float>(found);
      result->push_back(0);
      std::memcpy(&result->back(), &single, sizeof single);
    }
  }
  dt_reducer_destroy(reducer);
  dt_shard_destroy(shard);  // the optimizer holds what it needs
  dt_optimizer_destroy(optimizer);
  return DT_OK;
}

}  // namespace

TEST_CASE("optimizer: PyTorch's formulas, and the same bits in every stage and cut") {
  Bits wanted;
  for (const Way& way : kWays) {
    CAPTURE(way.skips);
    if (!way.skips) wanted.clear();  // else those of the way before
    for (const int world_size : {1, 2, 4}) {
      for (const int32_t stage : {0, 1, 2, 3}) {
        for (const int64_t bucket_bytes : {1, 3'000, 1 << 20}) {
          CAPTURE(world_size);
          CAPTURE(stage);
          CAPTURE(bucket_bytes);
          std::vector<Bits> results(static_cast<size_t>(world_size));
          require_all_ok(run_ranks(world_size, [&](const Rank& rank) {
            return train(rank, way, stage, bucket_bytes, &results[static_cast<size_t>(rank.rank)]);
          }));
          if (wanted.empty()) wanted = results[0];
          for (const Bits& each : results) CHECK(each == wanted);
        }
      }
    }
  }
}

TEST_CASE("optimizer: steps smaller than a bf16 can show add up in its f32 value") {
  require_all_ok(run_ranks(2, [](const Rank& rank) -> dt_status {
    const dt_param param = {64, "weight", DT_BF16, 0};
    dt_shard* shard = nullptr;
    dt_reducer* reducer = nullptr;
    dt_optimizer* optimizer = nullptr;
    RANK_TRY(dt_shard_create(rank.world, &param, 1, nullptr, &shard));
    RANK_TRY(dt_shard_reducer(shard, &reducer));
    RANK_TRY(dt_optimizer_sgd(shard, nullptr, &optimizer));
    const std::vector<uint16_t> ones(64, 0x3f80);
    RANK_TRY(dt_shard_set(shard, 0, ones.data(), nullptr));
    std::vector<uint16_t> gradient(64, 0x3f80);
    for (int step = 0; step < 100; ++step) {
      RANK_TRY(dt_reducer_ready(reducer, 0, gradient.data(), nullptr));
      RANK_TRY(dt_reducer_finish(reducer, nullptr));
      RANK_TRY(
          dt_optimizer_step(optimizer, 1.0 / 1024, nullptr));  // a bf16 below 1 has steps of 1/256
    }
    RANK_TRY(dt_shard_gather(shard, 0, nullptr));
    void* values = nullptr;
    RANK_TRY(dt_shard_param(shard, 0, &values));
    const double found = element(DT_BF16, values, 63);
    // A parameter that is set anew takes its f32 value along.
    RANK_TRY(dt_shard_set(shard, 0, ones.data(), nullptr));
    RANK_TRY(dt_reducer_ready(reducer, 0, gradient.data(), nullptr));
    RANK_TRY(dt_reducer_finish(reducer, nullptr));
    RANK_TRY(dt_optimizer_step(optimizer, 0.5, nullptr));
    RANK_TRY(dt_shard_gather(shard, 0, nullptr));
    const double again = element(DT_BF16, values, 0);
    dt_optimizer_destroy(optimizer);
    dt_reducer_destroy(reducer);
    dt_shard_destroy(shard);
    return std::abs(found - (1 - 100.0 / 1024)) < 0.004 && again == 0.5 ? DT_OK : DT_ERR_INTERNAL;
  }));
}

TEST_CASE("optimizer: what no rank used stays, and without gradients there is no step") {
  require_all_ok(run_ranks(2, [](const Rank& rank) -> dt_status {
    const dt_param params[] = {{8, "used", DT_F32, 0}, {8, "unused", DT_F32, 0}};
    dt_reducer_options gradients;
    dt_reducer_options_init(&gradients);
    gradients.find_unused = 1;
    dt_shard_options options;
    dt_shard_options_init(&options);
    options.reducer = &gradients;
    dt_shard* shard = nullptr;
    dt_reducer* reducer = nullptr;
    dt_optimizer* optimizer = nullptr;
    RANK_TRY(dt_shard_create(rank.world, params, 2, &options, &shard));
    RANK_TRY(dt_shard_reducer(shard, &reducer));
    RANK_TRY(dt_optimizer_adamw(shard, nullptr, &optimizer));
    const std::vector<float> ones(8, 1);
    RANK_TRY(dt_shard_set(shard, 0, ones.data(), nullptr));
    RANK_TRY(dt_shard_set(shard, 1, ones.data(), nullptr));
    if (dt_optimizer_step(optimizer, 0.1, nullptr) != DT_ERR_INVALID_STATE ||
        !contains(dt_last_error(), "dt_optimizer_step on comm \"world\": there are no gradients")) {
      return DT_ERR_INTERNAL;
    }
    RANK_TRY(dt_reducer_ready(reducer, 0, const_cast<float*>(ones.data()), nullptr));
    RANK_TRY(dt_reducer_finish(reducer, nullptr));
    RANK_TRY(dt_optimizer_step(optimizer, 0.1, nullptr));
    RANK_TRY(dt_shard_gather(shard, 0, nullptr));
    void* used = nullptr;
    void* unused = nullptr;
    RANK_TRY(dt_shard_param(shard, 0, &used));
    RANK_TRY(dt_shard_param(shard, 1, &unused));
    const bool right = static_cast<float*>(used)[0] < 1 && static_cast<float*>(unused)[7] == 1;
    dt_optimizer_destroy(optimizer);
    dt_reducer_destroy(reducer);
    dt_shard_destroy(shard);
    return right ? DT_OK : DT_ERR_INTERNAL;
  }));
}

}  // namespace dt_test::optimizer_test
