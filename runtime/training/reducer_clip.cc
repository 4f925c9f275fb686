// SPDX-License-Identifier: Apache-2.0
// The norm of all gradients of a step.
#include <cmath>
#include <limits>
#include <span>

#include "kernels/host/cast.h"
#include "training/reducer.h"

namespace dt::training {
namespace {

constexpr double kBesideNorm = 1e-6;  // beside the norm, as PyTorch has it
constexpr int64_t kBlock = 256;

/// function(span) for at most kBlock elements at a time, of double or of float.
template <class Function>
void for_each_block_of(Dtype dtype, const void* data, int64_t count, Function function) {
  float cast[kBlock];
  const auto* from = static_cast<const char*>(data);
  for (int64_t i = 0; i < count; i += kBlock, from += kBlock * dtype_bytes(dtype)) {
    const auto here = static_cast<size_t>(std::min(kBlock, count - i));
    if (dtype == Dtype::kF64) {
      function(std::span(reinterpret_cast<const double*>(from), here));
    } else if (dtype == Dtype::kF32) {
      function(std::span(reinterpret_cast<const float*>(from), here));
    } else {
      kernels::cast(dtype, from, Dtype::kF32, cast, static_cast<int64_t>(here));
      function(std::span(static_cast<const float*>(cast), here));
    }
  }
}

template <class Function>
void for_each_element(Dtype dtype, const void* data, int64_t count, Function function) {
  for_each_block_of(dtype, data, count, [&](auto block) {
    for (const auto x : block) function(static_cast<double>(x));
  });
}

/// Of memory that the communicator is over.
Status allreduce_in_place(comm::Communicator& comm, Dtype dtype, ReduceOp op, void* values,
                          int64_t count, std::string name, cuda::Stream stream = nullptr) {
  backend::Collective collective;
  collective.kind = backend::Kind::kAllreduce;
  collective.dtype = dtype;
  collective.op = op;
  collective.send = collective.recv = values;
  collective.count = count;
  collective.stream = stream;
  collective.name = std::move(name);
  return comm.run(collective);
}

/// The largest magnitude, and whether there were others than finite numbers.
struct Largest {
  double finite = 0;
  double infinite = 0;  ///< 1: there was one
  double nan = 0;       ///< likewise

  template <class Float>
  void add(std::span<const Float> block) {
    Float largest = 0;
    bool all_finite = true;
    for (const Float x : block) {
      const Float magnitude = std::fabs(x);
      all_finite = all_finite && magnitude <= std::numeric_limits<Float>::max();
      largest = magnitude > largest ? magnitude : largest;
    }
    if (all_finite) {
      finite = std::max(finite, static_cast<double>(largest));
      return;
    }
    for (const Float x : block) {
      if (std::isnan(x)) nan = 1;
      if (std::isinf(x)) infinite = 1;
    }
  }
};

/// Exact sums of rounded powers, in any order.
struct Powers {
  static constexpr int kLow = 28;  // bits of sum[1]
  static constexpr size_t kTogether = 64;
  static_assert(kBlock % kTogether == 0 && (kTogether << (2 * kLow)) < (uint64_t{1} << 63));

  /// In units of 2^-56: its multiples of 2^28, and the rest. Enough for 2^35 elements, of all
  /// ranks. Squares are those of a power of two just above the largest magnitude, other powers
  /// those of that magnitude itself, since high powers of a half are nothing.
  int64_t sum[2] = {0, 0};

  Powers(double largest, double type) : type_(type), largest_(largest) {
    (void)std::frexp(largest, &exponent_);
    // Two factors, since one alone may be more than a double can hold.
    const int half = -exponent_ / 2;
    scale_[0] = std::ldexp(1, half);
    scale_[1] = std::ldexp(1, -exponent_ - half);
  }
  template <class Float>
  void add(std::span<const Float> block) {
    for (size_t from = 0; from < block.size(); from += kTogether) {
      const auto together = block.subspan(from, std::min(kTogether, block.size() - from));
      int64_t units = 0;
      if (type_ == 2) {
        for (const Float x : together) {
          const double ratio = static_cast<double>(x) * scale_[0] * scale_[1];
          units += static_cast<int64_t>(ratio * ratio * 0x1p56 + 0.5);
        }
      } else {
        for (const Float x : together) {
          const double ratio = std::fabs(static_cast<double>(x)) / largest_;
          units += static_cast<int64_t>(std::pow(ratio, type_) * 0x1p56 + 0.5);
        }
      }
      sum[1] += units & ((int64_t{1} << kLow) - 1);
      sum[0] += (units >> kLow) + (sum[1] >> kLow);
      sum[1] &= (int64_t{1} << kLow) - 1;
    }
  }
  double norm() const {
    const double total = std::ldexp(static_cast<double>(sum[0]), -kLow) +
                         std::ldexp(static_cast<double>(sum[1]), -2 * kLow);
    if (type_ != 2) return largest_ * std::pow(total, 1 / type_);
    return std::ldexp(std::sqrt(total), exponent_);
  }

 private:
  const double type_;
  const double largest_;
  int exponent_ = 0;
  double scale_[2];
};

}  // namespace

bool Reducer::counts_as_result(size_t index) const {
  return slots_[index].count > 0 && (!has_users() || users_[index] > 0);
}

bool Reducer::counts_in_norm(size_t index) const {
  return is_floating(params_[index].dtype) && slots_[index].result != nullptr &&
         (!has_users() || users_[index] > 0);
}

/// Where every rank has all results: each adds them in the same order, and so finds the same bits.
double Reducer::norm_of_results(double norm_type) const {
  double total = 0;
  for (size_t i = 0; i < slots_.size(); ++i) {
    const auto& [result, count, param] = std::tie(slots_[i].result, slots_[i].count, params_[i]);
    if (!counts_in_norm(i)) continue;
    if (norm_type == 2) {
      total += kernels::squared_norm(param.dtype, result, count);
    } else if (std::isinf(norm_type)) {
      for_each_element(param.dtype, result, count, [&](double x) {
        if (!(std::fabs(x) <= total)) total = std::fabs(x);  // a NaN stays
      });
    } else {
      for_each_element(param.dtype, result, count,
                       [&](double x) { total += std::pow(std::fabs(x), norm_type); });
    }
  }
  if (norm_type == 2) return std::sqrt(total);
  return std::isinf(norm_type) ? total : std::pow(total, 1 / norm_type);
}

/// The same bits whoever has which part of the results: what is summed are integers, the powers of
/// the elements in units of 2^-56 of a power of the largest one (Powers).
Result<double> Reducer::norm_of_parts(double max_norm, double norm_type) {
  const auto over_all = [&](const auto& comm, Dtype dtype, ReduceOp op, int64_t count,
                            void* values) -> Status {
    if (!options_.scatter()) return {};  // this rank has all of them
    return allreduce_in_place(*comm, dtype, op, values, count, "norm of gradients");
  };
  auto for_each_block = [&](auto function) {
    for (size_t i = 0; i < slots_.size(); ++i) {
      if (!counts_in_norm(i)) continue;
      for_each_block_of(params_[i].dtype, slots_[i].result, slots_[i].count, function);
    }
  };
  Largest largest;
  for_each_block([&](auto block) { largest.add(block); });
  // With what must be the same on all ranks, and its negative: the largest and the smallest.
  double all[] = {largest.finite, largest.infinite, largest.nan, max_norm,
                  -max_norm,      norm_type,        -norm_type};
  DT_TRY(over_all(comm_, Dtype::kF64, ReduceOp::kMax, 7, all));
  if (all[3] != -all[4] || all[5] != -all[6]) {
    return Status(
        Code::kMismatch,
        format("dt_reducer_clip_norm on comm \"%s\": max_norm is between %g and %g, norm_type "
               "between %g and %g; give the same on all ranks (here %g and %g)",
               comm_->name().c_str(), -all[4], all[3], -all[6], all[5], max_norm, norm_type));
  }
  if (all[2] > 0) return std::numeric_limits<double>::quiet_NaN();
  if (all[1] > 0) return std::numeric_limits<double>::infinity();
  if (std::isinf(norm_type) || all[0] <= 0) return all[0];
  Powers powers(all[0], norm_type);
  for_each_block([&](auto block) { powers.add(block); });
  DT_TRY(over_all(within_, Dtype::kI64, ReduceOp::kSum, 2, powers.sum));
  return powers.norm();
}

Status Reducer::clip_norm(double max_norm, double norm_type, cuda::Stream stream, float* norm) {
  if (options_.scatter()) DT_TRY(comm_->check_ungrouped("dt_reducer_clip_norm"));
  if (!has_results() || lost_results_) {
    return Status(Code::kInvalidState,
                  "dt_reducer_clip_norm on comm \"" + comm_->name() +
                      "\": there are no results; call it after dt_reducer_finish, and before "
                      "dt_reducer_rebuild and the next step's first dt_reducer_ready");
  }
  if (device_ != nullptr) {
    const Result<bool> capturing = device_->is_capturing(stream);
    if (capturing.ok() && capturing.value()) {
      return DeviceStep::capture_refused("dt_reducer_clip_norm on comm \"" + comm_->name() + "\"");
    }
    if (dense_ != param_count()) {
      return Status(Code::kUnsupported,
                    "dt_reducer_clip_norm on comm \"" + comm_->name() +
                        "\": some gradients come as rows, which are in host memory, the others are "
                        "on a GPU; clip them apart, the rows by a reducer on dt_comm_host()");
    }
    Status clipped = capturing.status();
    if (clipped.ok()) {
      clipped = options_.by_units() || norm_type != 2
                    ? clip_parts_on_device(max_norm, norm_type, stream, norm)
                    : clip_on_device(max_norm, stream, norm);
    }
    if (!clipped.ok() && options_.scatter()) {  // the other ranks wait in an allreduce
      (void)fail_everywhere(clipped.within("dt_reducer_clip_norm"));
    }
    DT_TRY(clipped);
    has_norm_ = true;
    return {};
  }
  double total = 0;
  if (options_.by_units()) {
    DT_TRY_VALUE(total, norm_of_parts(max_norm, norm_type));
  } else {
    total = norm_of_results(norm_type);
  }
  norm_ = static_cast<float>(total);
  has_norm_ = true;
  if (norm != nullptr) *norm = norm_;
  const double factor = max_norm / (total + kBesideNorm);
  if (!std::isfinite(norm_) || !(factor < 1)) return {};  // as the caller sees it
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Param& param = params_[i];
    if (!counts_in_norm(i)) continue;
    kernels::cast(param.dtype, slots_[i].result, param.dtype, slots_[i].result, slots_[i].count,
                  factor);
  }
  return {};
}

Status Reducer::find_norm(cuda::Stream stream) {
  return has_norm_ ? Status()
                   : clip_norm(std::numeric_limits<double>::infinity(), 2, stream, nullptr);
}

std::vector<DeviceStep::Results> Reducer::results_on_device() const {
  std::vector<DeviceStep::Results> results;
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Param& param = params_[i];
    const int64_t count = options_.by_units() ? slots_[i].count : param.count;
    if (!counts_in_norm(i) || count == 0) continue;
    auto same = std::find_if(results.begin(), results.end(),
                             [&](const auto& each) { return each.dtype == param.dtype; });
    if (same == results.end()) same = results.insert(same, {param.dtype, {}});
    same->tensors.push_back({slots_[i].result, count, 0});
  }
  return results;
}

Status Reducer::clip_on_device(double max_norm, cuda::Stream stream, float* norm) {
  return device_->clip(results_on_device(), static_cast<float>(max_norm),
                       static_cast<float>(kBesideNorm), norm, stream);
}

/// As norm_of_parts(), all of it on the GPU. The name of each operation contains the arguments, so
/// that an error that names operations shows ranks which give different values.
Status Reducer::clip_parts_on_device(double max_norm, double norm_type, cuda::Stream stream,
                                     float* norm) {
  const auto over_all = [&](const auto& comm, Dtype dtype, ReduceOp op, int64_t count,
                            void* values) -> Status {
    if (!options_.scatter()) return {};  // this rank has all of them
    return allreduce_in_place(*comm, dtype, op, values, count,
                              format("norm %.17g to %.17g", norm_type, max_norm), stream);
  };
  DT_TRY_VALUE(double* const largest, device_->largest(results_on_device(), stream));
  DT_TRY(over_all(comm_, Dtype::kF64, ReduceOp::kMax, 3, largest));
  if (!std::isinf(norm_type)) {
    DT_TRY_VALUE(int64_t* const powers, device_->powers(norm_type, stream));
    DT_TRY(over_all(within_, Dtype::kI64, ReduceOp::kSum, 2, powers));
  }
  return device_->scale(norm_type, max_norm, kBesideNorm, norm, stream);
}

}  // namespace dt::training
