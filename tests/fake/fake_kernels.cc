// SPDX-License-Identifier: Apache-2.0
#include "fake_kernels.h"

#include <vector>

#include "elements.h"

namespace dt::test {
namespace {

using kernels::Tensor;
using kernels::TensorList;

class List final : public TensorList {
 public:
  explicit List(std::span<const Tensor> given) : tensors(given.begin(), given.end()) {}
  int64_t size() const override { return static_cast<int64_t>(tensors.size()); }

  const std::vector<Tensor> tensors;
};

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
void cast(const void* from, Dtype from_type, int64_t from_index, void* to, Dtype to_type,
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

class FakeTensorKernels final : public kernels::TensorKernels {
 public:
  explicit FakeTensorKernels(std::shared_ptr<FakeCuda> runtime) : runtime_(std::move(runtime)) {}

  Result<std::shared_ptr<TensorList>> prepare(std::span<const Tensor> tensors) override {
    // What the real ones put on the device.
    const auto bytes = static_cast<int64_t>(tensors.size_bytes());
    DT_TRY_VALUE(void* const memory, runtime_->allocate(bytes));
    const auto free = [runtime = runtime_, memory](TensorList* list) {
      [[maybe_unused]] const Status freed = runtime->release(memory);
      delete list;
    };
    return std::shared_ptr<TensorList>(new List(tensors), free);
  }

  Status gather(const TensorList& tensors, Dtype from, void* flat, Dtype to, float scale,
                cuda::Stream stream) override {
    return for_each(tensors, from, to, stream, [=](const Tensor& each) {
      cast(each.data, from, 0, flat, to, each.offset, each.count, scale);
    });
  }

  Status scatter(const TensorList& tensors, Dtype to, const void* flat, Dtype from, float scale,
                 cuda::Stream stream) override {
    return for_each(tensors, to, from, stream, [=](const Tensor& each) {
      cast(flat, from, each.offset, each.data, to, 0, each.count, scale);
    });
  }

  Status squared_norm(const TensorList& tensors, Dtype dtype, float* out, int32_t* found_inf,
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
      *out = static_cast<float>(sum);
      if (!finite && found_inf != nullptr) *found_inf = 1;
    });
  }

  Status scale(const TensorList& tensors, Dtype dtype, float scale, const float* device_scale,
               cuda::Stream stream) override {
    return for_each(tensors, dtype, dtype, stream, [=](const Tensor& each) {
      // Read when the kernel runs: it may be the result of one before.
      const float factor = device_scale != nullptr ? scale * *device_scale : scale;
      cast(each.data, dtype, 0, each.data, dtype, 0, each.count, factor);
    });
  }

  Status clip_factor(const float* squares, int32_t count, float max_norm, float tiny, float* norm,
                     float* factor, cuda::Stream stream) override {
    return runtime_->launch(stream, [=] {
      double sum = 0;
      for (int32_t i = 0; i < count; ++i) sum += static_cast<double>(squares[i]);
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

 private:
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
