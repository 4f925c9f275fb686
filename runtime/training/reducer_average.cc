// SPDX-License-Identifier: Apache-2.0
// From sums to averages, and what travels as another dtype.
#include <cstring>

#include "kernels/host/cast.h"
#include "kernels/host/quantize.h"
#include "kernels/host/reduce.h"
#include "training/reducer.h"

namespace dt::training {

/// The average of a collective needs none.
double Reducer::factor_before(Dtype dtype) const {
  return options_.predivide > 0 && is_floating(dtype) ? 1 / options_.predivide : 1;
}

/// Of floating-point gradients that are summed; else 1.
double Reducer::factor_behind(size_t index) const {
  if (hook_) return 1;
  if (!is_floating(params_[index].dtype)) return 1;
  const double undone = options_.predivide > 0 ? options_.predivide : 1;
  if (options_.sum) return undone;
  if (options_.divide_by_users) return undone / std::max(users_[index], 1);
  return options_.predivide > 0 ? undone / comm_->size() : 1;
}

/// What no rank used stays as it is outside, and zeros inside the bucket.
void Reducer::give_results() {
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    const Param& param = params_[i];
    if (slot.rows != nullptr || (slot.unused && users_[i] == 0)) continue;
    void* const to = result_place(slot);
    const void* const from =
        options_.pooled() ? slot.own : slot.data + slot.offset * dtype_bytes(param.dtype);
    const double factor = factor_behind(i);
    if (slot.received != nullptr) {
      // Rounded twice, as on GPUs, which divide by users in a second pass: the bits are equal.
      const auto first = static_cast<float>(options_.divide_by_users ? 1 : factor);
      kernels::dequantize(8, slot.received, slot.count, first, false, static_cast<float*>(to));
      if (!options_.divide_by_users || factor == 1) continue;
      kernels::cast(param.dtype, to, param.dtype, to, slot.count, factor);
    } else if (slot.wire != nullptr && !options_.pooled()) {
      kernels::cast(*options_.wire, slot.wire + slot.offset * dtype_bytes(*options_.wire),
                    param.dtype, to, slot.count, factor);
    } else if (factor != 1) {
      kernels::cast(param.dtype, from, param.dtype, to, slot.count, factor);
    } else if (options_.divide_by_users && users_[i] > 1 && !is_floating(param.dtype)) {
      kernels::reduce({.dtype = param.dtype, .op = ReduceOp::kAvg, .divisor = users_[i]}, to, &from,
                      1, slot.count);
    } else if (to != from) {
      std::memcpy(to, from, static_cast<size_t>(slot.count * dtype_bytes(param.dtype)));
    }
  }
}

/// In `stream`, behind the buckets: how many ranks used a parameter is known now.
Status Reducer::share_by_users(cuda::Stream stream) {
  if (!options_.divide_by_users) return {};
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    const Param& param = params_[i];
    const int64_t count = options_.by_units() ? slot.count : param.count;
    if (count == 0 || users_[i] == 0) continue;
    void* const result = result_place(slot);
    if (!is_floating(param.dtype)) {
      DT_TRY(device_->divide(result, param.dtype, count, users_[i], stream));
    } else if (const double factor = factor_behind(i); factor != 1) {
      DT_TRY(device_->multiply(result, param.dtype, count, factor, stream));
    }
  }
  return {};
}

}  // namespace dt::training
