// SPDX-License-Identifier: Apache-2.0
#include "training/power_sgd.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

namespace dt::training {
namespace {

constexpr int64_t kLanes = 16;
constexpr float kTiny = 1e-8F;

float dot(const float* a, const float* b, int64_t count) {
  float sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t k = 0; k < kLanes; ++k) sums[k] += a[i + k] * b[i + k];
  }
  for (int64_t k = 0; i < count; ++i, ++k) sums[k] += a[i] * b[i];
  float total = 0;
  for (const float sum : sums) total += sum;
  return total;
}

/// to += factor * from
void add_scaled(float factor, const float* from, float* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] += factor * from[i];
}

/// Modified Gram-Schmidt over `columns` vectors of `length`, one behind the other. One that depends
/// on those before it becomes nearly zero, and adds nothing.
void orthonormalise(float* vectors, int64_t columns, int64_t length) {
  for (int64_t c = 0; c < columns; ++c) {
    float* const own = vectors + c * length;
    for (int64_t b = 0; b < c; ++b) {
      const float* const before = vectors + b * length;
      add_scaled(-dot(before, own, length), before, own, length);
    }
    const float norm = std::sqrt(dot(own, own, length));
    const float factor = 1 / (norm + kTiny);
    for (int64_t i = 0; i < length; ++i) own[i] *= factor;
  }
}

std::vector<int64_t> counts_of(const std::vector<PowerSgd::Matrix>& matrices) {
  std::vector<int64_t> counts;
  for (const auto& each : matrices) counts.push_back(each.rows * each.columns);
  return counts;
}

}  // namespace

PowerSgd::PowerSgd(std::shared_ptr<comm::Communicator> comm, std::vector<Matrix> matrices,
                   const Options& options)
    : comm_(std::move(comm)),
      matrices_(std::move(matrices)),
      counts_(counts_of(matrices_)),
      options_(options) {
  kept_.matrices.resize(matrices_.size());
}

bool PowerSgd::compresses(size_t param, Dtype dtype) const {
  const auto [n, m] = matrices_[param];
  if (dtype != Dtype::kF32 || n < 2 || m < 2) return false;
  const double sent = static_cast<double>(n + m) * options_.rank;
  return options_.rank <= std::min(n, m) &&
         static_cast<double>(n) * static_cast<double>(m) >= options_.min_compression * sent;
}

template <class Function>
void PowerSgd::for_each_param(const HookBucket& bucket, Function function) const {
  constexpr int64_t kAlignment = 256;  // bytes, as the reducer lays them out
  auto* at = static_cast<char*>(bucket.data);
  for (const int32_t index : bucket.params) {
    const auto param = static_cast<size_t>(index);
    function(param, reinterpret_cast<float*>(at));
    const int64_t bytes = counts_[param] * dtype_bytes(bucket.dtype);
    at += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
}

Result<HookWork> PowerSgd::run(const HookBucket& bucket, int32_t stage) {
  if (stage == 0 && bucket.index == 0) ++kept_.step;
  const auto index = static_cast<size_t>(bucket.index);
  if (steps_.size() <= index) steps_.resize(index + 1);
  Step& step = steps_[index];
  if (stage == 0) {
    step.plain = kept_.step < options_.start_step ||
                 std::none_of(bucket.params.begin(), bucket.params.end(), [&](int32_t param) {
                   return compresses(static_cast<size_t>(param), bucket.dtype);
                 });
    if (step.plain) return average(bucket.data, bucket.count, bucket.dtype, "bucket");
    return send_left(bucket, &step);
  }
  if (step.plain) return HookWork{};
  if (stage == 1) return send_right(bucket, &step);
  restore(bucket, &step);
  return HookWork{};
}

Result<HookWork> PowerSgd::average(void* data, int64_t count, Dtype dtype, const char* name) {
  backend::Collective collective;
  collective.kind = backend::Kind::kAllreduce;
  collective.dtype = dtype;
  collective.op = ReduceOp::kAvg;
  collective.send = data;
  collective.recv = data;
  collective.count = count;
  collective.name = name;
  HookWork started{comm_, comm_->new_work()};
  DT_TRY(comm_->submit(collective, started.work));
  return started;
}

Result<HookWork> PowerSgd::send_left(const HookBucket& bucket, Step* step) {
  step->first.clear();
  const int64_t r = options_.rank;
  for_each_param(bucket, [&](size_t param, const float* data) {
    if (compresses(param, bucket.dtype)) return;
    step->first.insert(step->first.end(), data, data + counts_[param]);
  });
  for_each_param(bucket, [&](size_t param, float* data) {
    if (!compresses(param, bucket.dtype)) return;
    const auto [n, m] = matrices_[param];
    Matrices& state = kept_.matrices[param];
    if (!state.error.empty()) add_scaled(1, state.error.data(), data, n * m);
    if (state.q.empty() || !options_.warm_start) {
      const int64_t drawn = options_.warm_start ? 0 : kept_.step;
      std::seed_seq seed{static_cast<uint32_t>(options_.seed),
                         static_cast<uint32_t>(options_.seed >> 32), static_cast<uint32_t>(param),
                         static_cast<uint32_t>(drawn)};
      std::mt19937 random(seed);
      state.q.resize(static_cast<size_t>(r * m));
      for (float& x : state.q) x = static_cast<float>(random()) / 2147483648.0F - 1;
    }
    orthonormalise(state.q.data(), r, m);
    const size_t begin = step->first.size();
    step->first.resize(begin + static_cast<size_t>(n * r));
    float* const p = step->first.data() + begin;  // r columns of n
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t k = 0; k < r; ++k) p[k * n + i] = dot(data + i * m, &state.q[k * m], m);
    }
  });
  return average(step->first.data(), static_cast<int64_t>(step->first.size()), Dtype::kF32,
                 "bucket, P");
}

Result<HookWork> PowerSgd::send_right(const HookBucket& bucket, Step* step) {
  const int64_t r = options_.rank;
  step->second.clear();
  float* first = step->first.data();
  for_each_param(bucket, [&](size_t param, float* data) {
    if (compresses(param, bucket.dtype)) return;
    std::memcpy(data, first, static_cast<size_t>(counts_[param]) * sizeof(float));
    first += counts_[param];
  });
  for_each_param(bucket, [&](size_t param, const float* data) {
    if (!compresses(param, bucket.dtype)) return;
    const auto [n, m] = matrices_[param];
    orthonormalise(first, r, n);
    const size_t begin = step->second.size();
    step->second.resize(begin + static_cast<size_t>(r * m));  // zeros
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t k = 0; k < r; ++k) {
        add_scaled(first[k * n + i], data + i * m,
                   &step->second[begin + static_cast<size_t>(k * m)], m);
      }
    }
    first += n * r;
  });
  return average(step->second.data(), static_cast<int64_t>(step->second.size()), Dtype::kF32,
                 "bucket, Q");
}

void PowerSgd::restore(const HookBucket& bucket, Step* step) {
  const int64_t r = options_.rank;
  const float* p = step->first.data();
  for_each_param(bucket, [&](size_t param, const float*) {
    if (!compresses(param, bucket.dtype)) p += counts_[param];
  });
  const float* q = step->second.data();
  std::vector<float> row;
  for_each_param(bucket, [&](size_t param, float* data) {
    if (!compresses(param, bucket.dtype)) return;
    const auto [n, m] = matrices_[param];
    Matrices& state = kept_.matrices[param];
    std::copy(q, q + r * m, state.q.begin());
    if (options_.error_feedback) state.error.resize(static_cast<size_t>(n * m));
    row.resize(static_cast<size_t>(m));
    for (int64_t i = 0; i < n; ++i) {
      std::fill(row.begin(), row.end(), 0.0F);
      for (int64_t k = 0; k < r; ++k) add_scaled(p[k * n + i], q + k * m, row.data(), m);
      float* const own = data + i * m;
      if (options_.error_feedback) {
        for (int64_t j = 0; j < m; ++j) state.error[i * m + j] = own[j] - row[j];
      }
      std::copy(row.begin(), row.end(), own);
    }
    p += n * r;
    q += r * m;
  });
}

}  // namespace dt::training
