// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>

#include "capi/operation.h"
#include "training/batch_norm.h"
#include "training/device_batch_norm.h"

namespace dt::capi {
namespace {

Status check_batch_shape(const Call& call, const training::BatchShape& shape) {
  const auto number = [](int64_t value) { return static_cast<long long>(value); };
  if (shape.batch < 0) return call.invalid("batch is %lld; it must be >= 0", number(shape.batch));
  if (shape.channels < 1 || shape.channels > 1 << 24) {
    return call.invalid("channels is %lld; it must be in [1, %d]", number(shape.channels), 1 << 24);
  }
  if (shape.spatial < 1) {
    return call.invalid("spatial is %lld; it must be >= 1, and is 1 where channels are last",
                        number(shape.spatial));
  }
  if (!is_floating(shape.dtype)) {
    return call.invalid("dtype is %s; it must be f16, bf16, f32 or f64", dtype_name(shape.dtype));
  }
  const int64_t most = std::numeric_limits<int64_t>::max() / dtype_bytes(shape.dtype);
  if (shape.batch > most / shape.channels / shape.spatial) {
    return call.invalid(
        "batch %lld x %lld channels x spatial %lld of %s does not fit into 2^63 "
        "bytes",
        number(shape.batch), number(shape.channels), number(shape.spatial),
        dtype_name(shape.dtype));
  }
  return {};
}

/// That an array is not null, aligned, and in the memory of the communicator. `gpu`: null for the
/// host's.
Status check_array(const Call& call, cuda::Runtime* gpu, const char* name, const void* array,
                   int64_t count, int64_t element) {
  DT_TRY(call.not_null(array, name));
  DT_TRY(check_aligned(call, name, array, element));
  if (gpu == nullptr) return {};
  const auto* const first = static_cast<const char*>(array);
  return check_on_gpu(call, *gpu, name, first, first + count * element - 1);
}

Status check_elements(const Call& call, cuda::Runtime* gpu, const char* name, const void* elements,
                      const training::BatchShape& shape) {
  if (shape.batch == 0) return {};
  return check_array(call, gpu, name, elements, shape.count() * shape.channels,
                     dtype_bytes(shape.dtype));
}

Status check_doubles(const Call& call, cuda::Runtime* gpu, const char* name, const double* array,
                     int64_t channels) {
  return check_array(call, gpu, name, array, channels, sizeof(double));
}

kernels::BatchView view_of(const void* input, const void* gradient,
                           const training::BatchShape& shape) {
  const bool none = shape.batch == 0;
  return {none ? nullptr : input,
          none ? nullptr : gradient,
          shape.batch,
          shape.channels,
          shape.spatial,
          shape.dtype};
}

}  // namespace
}  // namespace dt::capi

using namespace dt;
using namespace dt::capi;

extern "C" {

dt_status dt_batch_moments(dt_comm* comm, const void* input, int64_t batch, int64_t channels,
                           int64_t spatial, dt_dtype dtype, double* out_mean, double* out_variance,
                           int64_t* out_count, dt_stream stream) {
  return on_comm("dt_batch_moments", comm, [&](const Call& call, const CommPtr& on) -> Status {
    const training::BatchShape shape{batch, channels, spatial, static_cast<Dtype>(dtype)};
    DT_TRY(check_batch_shape(call, shape));
    const auto gpu = on->comm->backend().device();
    DT_TRY(check_elements(call, gpu.get(), "input", input, shape));
    DT_TRY(check_doubles(call, gpu.get(), "out_mean", out_mean, channels));
    DT_TRY(check_doubles(call, gpu.get(), "out_variance", out_variance, channels));
    DT_TRY(check_array(call, gpu.get(), "out_count", out_count, 1, sizeof *out_count));
    if (gpu != nullptr) {
      const auto norm = training::DeviceBatchNorm::of(*on->comm);
      return norm->moments(view_of(input, nullptr, shape), out_mean, out_variance, out_count,
                           stream_of(stream));
    }
    const auto moments = training::batch_moments(*on->comm, input, shape);
    DT_TRY(moments.status());
    const training::Moments& all = moments.value();
    std::copy(all.mean.begin(), all.mean.end(), out_mean);
    for (size_t c = 0; c < all.deviation.size(); ++c) {
      out_variance[c] = all.deviation[c] / static_cast<double>(all.count);
    }
    *out_count = all.count;
    return {};
  });
}

dt_status dt_batch_gradient_sums(dt_comm* comm, const void* input, const void* gradient,
                                 int64_t batch, int64_t channels, int64_t spatial, dt_dtype dtype,
                                 const double* mean, const double* variance, double epsilon,
                                 double* out_sum, double* out_product, dt_stream stream) {
  return on_comm(
      "dt_batch_gradient_sums", comm, [&](const Call& call, const CommPtr& on) -> Status {
        const training::BatchShape shape{batch, channels, spatial, static_cast<Dtype>(dtype)};
        DT_TRY(check_batch_shape(call, shape));
        const auto gpu = on->comm->backend().device();
        DT_TRY(check_elements(call, gpu.get(), "input", input, shape));
        DT_TRY(check_elements(call, gpu.get(), "gradient", gradient, shape));
        DT_TRY(check_doubles(call, gpu.get(), "mean", mean, channels));
        DT_TRY(check_doubles(call, gpu.get(), "variance", variance, channels));
        if (!std::isfinite(epsilon) || epsilon < 0) {
          return call.invalid("epsilon is %g; it must be finite and >= 0", epsilon);
        }
        DT_TRY(check_doubles(call, gpu.get(), "out_sum", out_sum, channels));
        DT_TRY(check_doubles(call, gpu.get(), "out_product", out_product, channels));
        if (gpu != nullptr) {
          const auto norm = training::DeviceBatchNorm::of(*on->comm);
          return norm->gradient_sums(view_of(input, gradient, shape), {mean, variance, epsilon},
                                     out_sum, out_product, stream_of(stream));
        }
        const auto sums = training::batch_gradient_sums(*on->comm, input, gradient, shape,
                                                        {mean, variance, epsilon});
        DT_TRY(sums.status());
        std::copy(sums.value().sum.begin(), sums.value().sum.end(), out_sum);
        std::copy(sums.value().product.begin(), sums.value().product.end(), out_product);
        return {};
      });
}

}  // extern "C"
