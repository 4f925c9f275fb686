// SPDX-License-Identifier: Apache-2.0
#include "fake_kernels.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "elements.h"
#include "kernels/cuda/chunks.h"
#include "kernels/host/cast.h"
#include "kernels/host/error_feedback.h"
#include "kernels/host/low_rank.h"
#include "kernels/host/optimize.h"
#include "kernels/host/quantize.h"
#include "training/batch_norm.h"

namespace dt::test {
namespace {

using kernels::LowRankMatrix;
using kernels::Tensor;
using kernels::TensorList;

class List final : public TensorList {
 public:
  explicit List(std::span<const Tensor> given) : tensors(given.begin(), given.end()) {}
  int64_t size() const override { return static_cast<int64_t>(tensors.size()); }

  const std::vector<Tensor> tensors;
};

class Updates final : public kernels::UpdateList {
 public:
  Updates(kernels::UpdatePlan made, Dtype dtype_of_params)
      : plan(std::move(made)), dtype(dtype_of_params) {}

  const kernels::UpdatePlan plan;
  const Dtype dtype;
};

class Quantized final : public kernels::QuantizedList {
 public:
  explicit Quantized(kernels::QuantizedPlan made) : plan(std::move(made)) {}

  const kernels::QuantizedPlan plan;
};

/// A pointer to a block behind `blocks`.
template <class T>
T* block_at(T* blocks, int64_t block) {
  return blocks + kernels::quantized_bytes(block, 8);
}

/// Calls function(T()) with the element type.
template <class F>
void with_floating(Dtype dtype, F&& function) {
  switch (dtype) {
    case Dtype::kF16: return function(F16());
    case Dtype::kBf16: return function(Bf16());
    case Dtype::kF32: return function(float());
    case Dtype::kF64: return function(double());
    default: return;
  }
}

template <class F>
void with_integer(Dtype dtype, F&& function) {
  switch (dtype) {
    case Dtype::kI8: return function(int8_t());
    case Dtype::kU8: return function(uint8_t());
    case Dtype::kI32: return function(int32_t());
    case Dtype::kU32: return function(uint32_t());
    case Dtype::kI64: return function(int64_t());
    case Dtype::kU64: return function(uint64_t());
    default: return;
  }
}

Status refuse(Dtype dtype) {
  return Status(Code::kInvalidArgument,
                std::string("tensors are f16, bf16, f32 or f64, not ") + dtype_name(dtype));
}

/// to[to_index + i] = from[from_index + i] * scale
void convert(const void* from, Dtype from_type, int64_t from_index, void* to, Dtype to_type,
             int64_t to_index, int64_t count, float scale) {
  with_floating(from_type, [&](auto source) {
    with_floating(to_type, [&](auto target) {
      using Source = decltype(source);
      using Target = decltype(target);
      using Wide = std::common_type_t<Arithmetic<Source>, Arithmetic<Target>>;
      for (int64_t i = 0; i < count; ++i) {
        const Wide product = Wide(load<Source>(from, from_index + i)) * Wide(scale);
        store<Target>(to, to_index + i, static_cast<Arithmetic<Target>>(product));
      }
    });
  });
}

bool has_master(Dtype dtype) { return dtype == Dtype::kF16 || dtype == Dtype::kBf16; }

/// Calls step(dtype, param, gradient) with arrays that the host's kernels know: f32 in place of 16
/// bits.
template <class F>
void update(const kernels::UpdatedTensor& tensor, Dtype dtype, F step) {
  if (!has_master(dtype)) return step(dtype, tensor.param, tensor.gradient);
  std::vector<float> gradient(static_cast<size_t>(tensor.count));
  kernels::cast(dtype, tensor.gradient, Dtype::kF32, gradient.data(), tensor.count);
  step(Dtype::kF32, tensor.master, static_cast<const void*>(gradient.data()));
  kernels::cast(Dtype::kF32, tensor.master, dtype, tensor.param, tensor.count);
}

void follow_param(const kernels::UpdatedTensor& tensor, Dtype dtype, bool all) {
  const auto* const param = static_cast<const uint16_t*>(tensor.param);
  auto* const master = static_cast<float*>(tensor.master);
  for (int64_t i = 0; i < tensor.count; ++i) {
    uint16_t rounded = 0;
    kernels::cast(Dtype::kF32, master + i, dtype, &rounded, 1);
    if (all || rounded != param[i]) kernels::cast(dtype, param + i, Dtype::kF32, master + i, 1);
  }
}

/// Calls function(x) with every element as a double.
template <class F>
void for_each_value(const std::vector<Tensor>& tensors, Dtype dtype, F function) {
  for (const Tensor& each : tensors) {
    with_floating(dtype, [&](auto element) {
      for (int64_t i = 0; i < each.count; ++i) {
        function(static_cast<double>(load<decltype(element)>(each.data, i)));
      }
    });
  }
}

training::BatchShape shape_of(const kernels::BatchView& view) {
  return {view.batch, view.channels, view.spatial, view.dtype};
}

/// As the kernels may, so that what is too small or still in use is found.
void use_scratch(const kernels::BatchView& view, double* scratch) {
  std::fill_n(scratch, kernels::batch_scratch(view.channels), NAN);
}

constexpr int kLowBits = 28;  // of the second number of a sum of squares

double norm_of_powers(const double* largest, const int64_t* sum, double type) {
  if (largest[2] > 0) return NAN;
  if (largest[1] > 0) return INFINITY;
  if (largest[0] <= 0) return 0;
  if (std::isinf(type)) return largest[0];
  int exponent = 0;
  static_cast<void>(std::frexp(largest[0], &exponent));
  constexpr int64_t kLow = int64_t{1} << kLowBits;
  const double total = std::ldexp(static_cast<double>(sum[0] + sum[1] / kLow), -kLowBits) +
                       std::ldexp(static_cast<double>(sum[1] % kLow), -2 * kLowBits);
  if (type != 2) return largest[0] * std::pow(total, 1 / type);
  return std::ldexp(std::sqrt(total), exponent);
}

/// The sum of a[i * a_step] * b[i * b_step], rounded once.
float product(const float* a, int64_t a_step, const float* b, int64_t b_step, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    sum += static_cast<double>(a[i * a_step]) * static_cast<double>(b[i * b_step]);
  }
  return static_cast<float>(sum);
}

class FakeTensorKernels final : public kernels::TensorKernels {
 public:
  explicit FakeTensorKernels(std::shared_ptr<FakeCuda> runtime) : runtime_(std::move(runtime)) {}

  Result<std::shared_ptr<TensorList>> prepare(std::span<const Tensor> tensors) override {
    return with_device_memory<TensorList>(tensors.size_bytes(), std::make_unique<List>(tensors));
  }

  Status gather(const TensorList& tensors, Dtype from, void* flat, Dtype to, float scale,
                cuda::Stream stream) override {
    return for_each(tensors, from, to, stream, [=](const Tensor& each) {
      convert(each.data, from, 0, flat, to, each.offset, each.count, scale);
    });
  }

  Status scatter(const TensorList& tensors, Dtype to, const void* flat, Dtype from, float scale,
                 cuda::Stream stream) override {
    return for_each(tensors, to, from, stream, [=](const Tensor& each) {
      convert(flat, from, each.offset, each.data, to, 0, each.count, scale);
    });
  }

  Status squared_norm(const TensorList& tensors, Dtype dtype, double* out, int32_t* found_inf,
                      cuda::Stream stream) override {
    if (!is_floating(dtype)) return refuse(dtype);
    const auto copy = static_cast<const List&>(tensors).tensors;
    return runtime_->launch(stream, [=] {
      double sum = 0;
      bool finite = true;
      for (const Tensor& each : copy) {
        with_floating(dtype, [&](auto element) {
          for (int64_t i = 0; i < each.count; ++i) {
            const double value = load<decltype(element)>(each.data, i);
            sum += value * value;
            finite = finite && std::isfinite(value);
          }
        });
      }
      *out = sum;
      if (!finite && found_inf != nullptr) *found_inf = 1;
    });
  }

  Status scale(const TensorList& tensors, Dtype dtype, float scale, const float* device_scale,
               cuda::Stream stream) override {
    return for_each(tensors, dtype, dtype, stream, [=](const Tensor& each) {
      // Read when the kernel runs: it may be the result of one before.
      const float factor = device_scale != nullptr ? scale * *device_scale : scale;
      convert(each.data, dtype, 0, each.data, dtype, 0, each.count, factor);
    });
  }

  Status clip_factor(const double* squares, int32_t count, float max_norm, float tiny, float* norm,
                     float* factor, cuda::Stream stream) override {
    return runtime_->launch(stream, [=] {
      double sum = 0;
      for (int32_t i = 0; i < count; ++i) sum += squares[i];
      *norm = static_cast<float>(std::sqrt(sum));
      const float wanted = max_norm / (*norm + tiny);
      *factor = std::isfinite(*norm) && wanted < 1 ? wanted : 1;
    });
  }

  Status multiply(void* data, Dtype dtype, int64_t count, double factor,
                  cuda::Stream stream) override {
    if (!is_floating(dtype)) return refuse(dtype);
    return runtime_->launch(stream, [=] {
      with_floating(dtype, [&](auto element) {
        using T = decltype(element);
        const auto scale = static_cast<Arithmetic<T>>(factor);
        for (int64_t i = 0; i < count; ++i) store<T>(data, i, load<T>(data, i) * scale);
      });
    });
  }

  Status add(void* data, const void* from, Dtype dtype, int64_t count,
             cuda::Stream stream) override {
    return runtime_->launch(stream, [=] {
      with_floating(dtype, [&](auto element) {
        using T = decltype(element);
        for (int64_t i = 0; i < count; ++i) {
          store<T>(data, i, load<T>(data, i) + load<T>(from, i));
        }
      });
      with_integer(dtype, [&](auto element) {
        using T = decltype(element);
        for (int64_t i = 0; i < count; ++i) {
          const auto sum =
              static_cast<uint64_t>(load<T>(data, i)) + static_cast<uint64_t>(load<T>(from, i));
          store<T>(data, i, static_cast<T>(sum));
        }
      });
    });
  }

  Status divide(void* data, Dtype dtype, int64_t count, int32_t divisor,
                cuda::Stream stream) override {
    if (divisor < 1) return Status(Code::kInvalidArgument, "the divisor is not positive");
    return runtime_->launch(stream, [=] {
      with_floating(dtype, [&](auto element) {
        using T = decltype(element);
        const Arithmetic<T> scale = Arithmetic<T>(1) / static_cast<Arithmetic<T>>(divisor);
        for (int64_t i = 0; i < count; ++i) store<T>(data, i, load<T>(data, i) * scale);
      });
      with_integer(dtype, [&](auto element) {
        using T = decltype(element);
        using Wide = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
        for (int64_t i = 0; i < count; ++i) {
          store<T>(data, i, static_cast<T>(Wide(load<T>(data, i)) / static_cast<Wide>(divisor)));
        }
      });
    });
  }

  Status batch_moments(const kernels::BatchView& view, double* scratch, double* row,
                       cuda::Stream stream) override {
    if (!is_floating(view.dtype)) return refuse(view.dtype);
    return runtime_->launch(stream, [=] {
      use_scratch(view, scratch);
      const training::Moments own = training::own_moments(view.input, shape_of(view));
      const auto channels = static_cast<size_t>(view.channels);
      row[0] = static_cast<double>(own.count);
      std::copy_n(own.mean.data(), channels, row + 1);
      std::copy_n(own.deviation.data(), channels, row + 1 + channels);
    });
  }

  Status batch_gradient_sums(const kernels::BatchView& view, const kernels::BatchScale& scale,
                             double* scratch, double* row, cuda::Stream stream) override {
    if (!is_floating(view.dtype)) return refuse(view.dtype);
    return runtime_->launch(stream, [=] {
      use_scratch(view, scratch);
      const training::GradientSums own = training::own_gradient_sums(
          view.input, view.gradient, shape_of(view), {scale.mean, scale.variance, scale.epsilon});
      const auto channels = static_cast<size_t>(view.channels);
      std::copy_n(own.sum.data(), channels, row);
      std::copy_n(own.product.data(), channels, row + channels);
    });
  }

  Status merge_moments(const double* rows, int32_t ranks, int64_t channels, double* mean,
                       double* variance, int64_t* count, cuda::Stream stream) override {
    return runtime_->launch(stream, [=] {
      training::Moments all;
      for (int32_t rank = 0; rank < ranks; ++rank) {
        const double* const row = rows + rank * kernels::moments_row(channels);
        const double* const means = row + 1;
        const double* const deviations = means + channels;
        all.merge({static_cast<int64_t>(row[0]),
                   {means, means + channels},
                   {deviations, deviations + channels}});
      }
      all.mean.resize(static_cast<size_t>(channels), NAN);
      all.deviation.resize(static_cast<size_t>(channels), NAN);
      for (size_t c = 0; c < all.mean.size(); ++c) {
        mean[c] = all.mean[c];
        variance[c] = all.deviation[c] / static_cast<double>(all.count);
      }
      *count = all.count;
    });
  }

  Status merge_gradient_sums(const double* rows, int32_t ranks, int64_t channels, double* sum,
                             double* product, cuda::Stream stream) override {
    return runtime_->launch(stream, [=] {
      std::fill_n(sum, channels, 0);
      std::fill_n(product, channels, 0);
      for (int32_t rank = 0; rank < ranks; ++rank) {
        const double* const row = rows + rank * kernels::gradient_row(channels);
        for (int64_t c = 0; c < channels; ++c) {
          sum[c] += row[c];
          product[c] += row[channels + c];
        }
      }
    });
  }

  Result<std::shared_ptr<kernels::UpdateList>> prepare_update(
      std::span<const kernels::UpdatedTensor> tensors, Dtype dtype) override {
    DT_TRY_VALUE(kernels::UpdatePlan plan, kernels::plan_updates(tensors, dtype));
    return with_device_memory<kernels::UpdateList>(
        tensors.size_bytes(), std::make_unique<Updates>(std::move(plan), dtype));
  }

  Status adamw(const kernels::UpdateList& list, std::span<const kernels::AdamWStep> steps,
               const kernels::StepGuard& guard, cuda::Stream stream) override {
    return for_each_update(
        "adamw", list, {true, true, true}, stream,
        [steps = copy_of(steps), guard](const kernels::UpdatedTensor& each, Dtype dtype) {
          const kernels::AdamWStep* const step = taken(steps, guard);
          if (step == nullptr) return;
          update(each, dtype, [&](Dtype type, void* param, const void* grad) {
            kernels::adamw(type, *step, {param, grad, each.first, each.second, each.count});
          });
        });
  }

  Status sgd(const kernels::UpdateList& list, std::span<const kernels::SgdStep> steps,
             const kernels::StepGuard& guard, cuda::Stream stream) override {
    return for_each_update(
        "sgd", list, {true, false, false}, stream,
        [steps = copy_of(steps), guard](const kernels::UpdatedTensor& each, Dtype dtype) {
          const kernels::SgdStep* const step = taken(steps, guard);
          if (step == nullptr) return;
          update(each, dtype, [&](Dtype type, void* param, const void* grad) {
            kernels::sgd(type, *step, {param, grad, each.first, each.count});
          });
        });
  }

  Status follow(const kernels::UpdateList& list, bool all, cuda::Stream stream) override {
    if (!has_master(static_cast<const Updates&>(list).dtype)) return {};
    return for_each_update(
        "follow", list, {}, stream,
        [all](const kernels::UpdatedTensor& each, Dtype dtype) { follow_param(each, dtype, all); });
  }

  Result<std::shared_ptr<kernels::QuantizedList>> prepare_quantized(
      std::span<const kernels::QuantizedTensor> tensors) override {
    DT_TRY_VALUE(kernels::QuantizedPlan plan, kernels::plan_quantized(tensors));
    return with_device_memory<kernels::QuantizedList>(tensors.size_bytes(),
                                                      std::make_unique<Quantized>(std::move(plan)));
  }

  Status quantize(const kernels::QuantizedList& list, float factor, void* blocks,
                  cuda::Stream stream) override {
    DT_TRY(kernels::check_blocks("quantize", blocks));
    return for_each_quantized(list, stream, [=](const kernels::QuantizedTensor& each) {
      void* const to = block_at(static_cast<char*>(blocks), each.block);
      if (each.errors != nullptr) {
        kernels::quantize_with_errors(each.data, each.count, factor, each.errors, to);
      } else {
        const std::vector<float> zeros(static_cast<size_t>(each.count));
        kernels::quantize(8, zeros.data(), each.count, to);
      }
    });
  }

  Status sum_parts(const kernels::QuantizedList& list, const kernels::QuantizedPart& part,
                   float factor, void* to, cuda::Stream stream) override {
    DT_TRY(kernels::check_part("sum_parts", part));
    DT_TRY(kernels::check_blocks("sum_parts", to));
    return for_each_quantized(list, stream, [=](const kernels::QuantizedTensor& each) {
      const int64_t blocks = (each.count - 1) / kernels::kQuantBlock + 1;
      const int64_t begin = std::max(part.first - each.block, int64_t{0});
      const int64_t end = std::min(part.first + part.count - each.block, blocks);
      if (begin >= end) return;
      const int64_t first = begin * kernels::kQuantBlock;
      const int64_t at = each.block + begin - part.first;
      kernels::sum_with_errors(block_at(static_cast<const char*>(part.blocks), at), part.stride,
                               part.ranks, std::min(end * kernels::kQuantBlock, each.count) - first,
                               factor, each.errors != nullptr ? each.errors + first : nullptr,
                               block_at(static_cast<char*>(to), at));
    });
  }

  Status dequantize(const kernels::QuantizedList& list, const void* blocks, float factor,
                    cuda::Stream stream) override {
    DT_TRY(kernels::check_blocks("dequantize", blocks));
    return for_each_quantized(list, stream, [=](const kernels::QuantizedTensor& each) {
      kernels::dequantize(8, block_at(static_cast<const char*>(blocks), each.block), each.count,
                          factor, false, each.data);
    });
  }

  Status largest(const TensorList& tensors, Dtype dtype, double* out,
                 cuda::Stream stream) override {
    if (!is_floating(dtype)) return refuse(dtype);
    const auto copy = static_cast<const List&>(tensors).tensors;
    return runtime_->launch(stream, [=] {
      for_each_value(copy, dtype, [&](double x) {
        if (std::isnan(x)) {
          out[2] = 1;
        } else if (std::isinf(x)) {
          out[1] = 1;
        } else {
          out[0] = std::max(out[0], std::fabs(x));
        }
      });
    });
  }

  Status powers(const TensorList& tensors, Dtype dtype, const double* largest, double type,
                int64_t* sum, cuda::Stream stream) override {
    if (!is_floating(dtype)) return refuse(dtype);
    const auto copy = static_cast<const List&>(tensors).tensors;
    return runtime_->launch(stream, [=] {
      if (largest[0] <= 0 || largest[1] > 0 || largest[2] > 0) return;
      int exponent = 0;
      static_cast<void>(std::frexp(largest[0], &exponent));
      for_each_value(copy, dtype, [&](double x) {
        const double ratio = std::ldexp(x, -exponent);
        const double power = type == 2 ? ratio * ratio : std::pow(std::fabs(x) / largest[0], type);
        const auto units = static_cast<int64_t>(std::ldexp(power, 2 * kLowBits) + 0.5);
        sum[0] += units >> kLowBits;
        sum[1] += units % (int64_t{1} << kLowBits);
      });
    });
  }

  Status clip_factor_of_powers(const double* largest, const int64_t* sum, double type,
                               double max_norm, double tiny, float* norm, float* factor,
                               cuda::Stream stream) override {
    return runtime_->launch(stream, [=] {
      const double found = norm_of_powers(largest, sum, type);
      const double wanted = max_norm / (found + tiny);
      const auto reported = static_cast<float>(found);
      if (norm != nullptr) *norm = reported;
      *factor = std::isfinite(reported) && wanted < 1 ? static_cast<float>(wanted) : 1;
    });
  }

  Status draw_q(std::span<const LowRankMatrix> matrices, int32_t rank,
                cuda::Stream stream) override {
    return for_each_matrix(matrices, stream, [rank](const LowRankMatrix& each) {
      (void)kernels::host_low_rank_kernels()->draw_q({&each, 1}, rank, nullptr);
    });
  }

  Status orthonormalise(std::span<const LowRankMatrix> matrices, kernels::LowRankFactor factor,
                        int32_t rank, cuda::Stream stream) override {
    return for_each_matrix(matrices, stream, [rank, factor](const LowRankMatrix& each) {
      (void)kernels::host_low_rank_kernels()->orthonormalise({&each, 1}, factor, rank, nullptr);
    });
  }

  Status find_p(std::span<const LowRankMatrix> matrices, int32_t rank,
                cuda::Stream stream) override {
    return for_each_matrix(matrices, stream, [rank](const LowRankMatrix& each) {
      for (int64_t i = 0; each.error != nullptr && i < each.rows * each.columns; ++i) {
        each.data[i] += each.error[i];
      }
      for (int64_t k = 0; k < rank; ++k) {
        for (int64_t i = 0; i < each.rows; ++i) {
          each.p[k * each.rows + i] =
              product(each.data + i * each.columns, 1, each.q + k * each.columns, 1, each.columns);
        }
      }
    });
  }

  Status find_q(std::span<const LowRankMatrix> matrices, int32_t rank,
                cuda::Stream stream) override {
    return for_each_matrix(matrices, stream, [rank](const LowRankMatrix& each) {
      for (int64_t k = 0; k < rank; ++k) {
        for (int64_t j = 0; j < each.columns; ++j) {
          each.q[k * each.columns + j] =
              product(each.data + j, each.columns, each.p + k * each.rows, 1, each.rows);
        }
      }
    });
  }

  Status restore(std::span<const LowRankMatrix> matrices, int32_t rank,
                 cuda::Stream stream) override {
    return for_each_matrix(matrices, stream, [rank](const LowRankMatrix& each) {
      for (int64_t i = 0; i < each.rows; ++i) {
        for (int64_t j = 0; j < each.columns; ++j) {
          float* const own = each.data + i * each.columns + j;
          const float restored = product(each.p + i, each.rows, each.q + j, each.columns, rank);
          if (each.error != nullptr && std::isfinite(*own - restored)) {
            each.error[own - each.data] = *own - restored;
          }
          *own = restored;
        }
      }
      kernels::keep_columns(each, rank);
    });
  }

  Status cast(const void* from, Dtype from_dtype, void* to, Dtype to_dtype, int64_t count,
              cuda::Stream stream) override {
    return runtime_->launch(stream, [=] { kernels::cast(from_dtype, from, to_dtype, to, count); });
  }

 private:
  template <class F>
  Status for_each_matrix(std::span<const LowRankMatrix> matrices, cuda::Stream stream, F work) {
    if (matrices.empty()) return {};
    return runtime_->launch(stream, [all = std::vector(matrices.begin(), matrices.end()), work] {
      for (const LowRankMatrix& each : all) work(each);
    });
  }

  /// `list` as a shared one that holds as much device memory as the real one would.
  template <class Base, class Derived>
  Result<std::shared_ptr<Base>> with_device_memory(size_t bytes, std::unique_ptr<Derived> list) {
    DT_TRY_VALUE(void* const memory, runtime_->allocate(static_cast<int64_t>(bytes)));
    const auto free = [runtime = runtime_, memory](Base* held) {
      [[maybe_unused]] const Status freed = runtime->release(memory);
      delete held;
    };
    return std::shared_ptr<Base>(list.release(), free);
  }

  template <class Step>
  static std::vector<Step> copy_of(std::span<const Step> steps) {
    return std::vector<Step>(steps.begin(), steps.end());
  }
  /// Null: none.
  template <class Step>
  static const Step* taken(const std::vector<Step>& steps, const kernels::StepGuard& guard) {
    if (guard.norms == nullptr) return &steps.at(0);
    if (!std::isfinite(guard.norms[guard.own])) return nullptr;
    size_t missed = 0;
    for (int slot = 0; slot < kernels::StepGuard::kSlots; ++slot) {
      if ((guard.earlier >> slot & 1) != 0 && !std::isfinite(guard.norms[slot])) ++missed;
    }
    return &steps.at(missed);
  }

  template <class F>
  Status for_each_update(const char* call, const kernels::UpdateList& list,
                         kernels::UpdateArrays needed, cuda::Stream stream, F work) {
    const auto& updates = static_cast<const Updates&>(list);
    if (updates.plan.tensors.empty()) return {};
    DT_TRY(kernels::check_arrays(call, updates.plan.arrays, needed));
    return runtime_->launch(stream, [records = updates.plan.tensors, dtype = updates.dtype, work] {
      for (const kernels::UpdateRecord& each : records) work(each.arrays, dtype);
    });
  }

  template <class F>
  Status for_each_quantized(const kernels::QuantizedList& list, cuda::Stream stream, F work) {
    const auto& records = static_cast<const Quantized&>(list).plan.tensors;
    if (records.empty()) return {};
    return runtime_->launch(stream, [records, work] {
      for (const kernels::QuantizedRecord& each : records) work(each.tensor);
    });
  }

  template <class F>
  Status for_each(const TensorList& tensors, Dtype one, Dtype other, cuda::Stream stream, F work) {
    for (const Dtype dtype : {one, other}) {
      if (!is_floating(dtype)) return refuse(dtype);
    }
    const auto copy = static_cast<const List&>(tensors).tensors;
    return runtime_->launch(stream, [copy, work] {
      for (const Tensor& each : copy) work(each);
    });
  }

  const std::shared_ptr<FakeCuda> runtime_;
};

}  // namespace

std::shared_ptr<kernels::TensorKernels> fake_tensor_kernels(std::shared_ptr<FakeCuda> runtime) {
  return std::make_shared<FakeTensorKernels>(std::move(runtime));
}

}  // namespace dt::test
