// SPDX-License-Identifier: Apache-2.0
// The norm of all gradients of a step.
#include <cmath>

#include "kernels/host/cast.h"
#include "training/reducer.h"

namespace dt::training {
namespace {

constexpr double kBesideNorm = 1e-6;  // beside the norm, as PyTorch has it
constexpr int64_t kBlock = 256;

/// function(x) for each element, as doubles.
template <class Function>
void for_each_element(Dtype dtype, const void* data, int64_t count, Function function) {
  if (dtype == Dtype::kF64) {
    for (int64_t i = 0; i < count; ++i) function(static_cast<const double*>(data)[i]);
    return;
  }
  float block[kBlock];
  const auto* from = static_cast<const char*>(data);
  for (int64_t i = 0; i < count; i += kBlock) {
    const int64_t here = std::min(kBlock, count - i);
    kernels::cast(dtype, from + i * dtype_bytes(dtype), Dtype::kF32, block, here);
    for (int64_t k = 0; k < here; ++k) function(static_cast<double>(block[k]));
  }
}

}  // namespace

bool Reducer::counts_in_norm(size_t index) const {
  return is_floating(params_[index].dtype) && slots_[index].result != nullptr &&
         (!options_.find_unused || users_[index] > 0);
}

/// Every rank has the same results, adds in the same order, and so finds the same bits.
Status Reducer::clip_norm(double max_norm, double norm_type, cuda::Stream stream, float* norm) {
  if (begun_.load(std::memory_order_acquire) || !has_results_) {
    return Status(Code::kInvalidState,
                  "dt_reducer_clip_norm on comm \"" + comm_->name() +
                      "\": there are no results; call it between dt_reducer_finish and the next "
                      "step's first dt_reducer_ready");
  }
  if (device_ != nullptr) {
    if (norm_type != 2) {
      return Status(Code::kUnsupported,
                    format("dt_reducer_clip_norm: norm_type is %g; on GPUs it is 2", norm_type));
    }
    return clip_on_device(static_cast<float>(max_norm), stream, norm);
  }
  double total = 0;
  for (size_t i = 0; i < slots_.size(); ++i) {
    const auto& [result, param] = std::tie(slots_[i].result, params_[i]);
    if (!counts_in_norm(i)) continue;
    if (norm_type == 2) {
      total += kernels::squared_norm(param.dtype, result, param.count);
    } else if (std::isinf(norm_type)) {
      for_each_element(param.dtype, result, param.count, [&](double x) {
        if (!(std::fabs(x) <= total)) total = std::fabs(x);  // a NaN stays
      });
    } else {
      for_each_element(param.dtype, result, param.count,
                       [&](double x) { total += std::pow(std::fabs(x), norm_type); });
    }
  }
  if (norm_type == 2) {
    total = std::sqrt(total);
  } else if (!std::isinf(norm_type)) {
    total = std::pow(total, 1 / norm_type);
  }
  if (norm != nullptr) *norm = static_cast<float>(total);
  const double factor = max_norm / (total + kBesideNorm);
  if (!std::isfinite(total) || !(factor < 1)) return {};
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Param& param = params_[i];
    if (!counts_in_norm(i)) continue;
    kernels::cast(param.dtype, slots_[i].result, param.dtype, slots_[i].result, param.count,
                  factor);
  }
  return {};
}

Status Reducer::clip_on_device(float max_norm, cuda::Stream stream, float* norm) {
  std::vector<DeviceStep::Results> results;
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Param& param = params_[i];
    if (!counts_in_norm(i) || param.count == 0) continue;
    auto same = std::find_if(results.begin(), results.end(),
                             [&](const auto& each) { return each.dtype == param.dtype; });
    if (same == results.end()) same = results.insert(same, {param.dtype, {}});
    same->tensors.push_back({slots_[i].result, param.count, 0});
  }
  return device_->clip(std::move(results), max_norm, static_cast<float>(kBesideNorm), norm, stream);
}

}  // namespace dt::training
