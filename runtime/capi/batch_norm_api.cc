// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>

#include "capi/operation.h"
#include "training/batch_norm.h"

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

/// [channels] doubles, or what else is named, on the rank's GPU.
template <class T>
Status check_array(const Call& call, cuda::Runtime& gpu, const char* name, const T* array,
                   int64_t count) {
  const auto* const bytes = reinterpret_cast<const char*>(array);
  return check_on_gpu(call, gpu, name, bytes, bytes + count * static_cast<int64_t>(sizeof(T)) - 1);
}

Status check_elements_on_gpu(const Call& call, cuda::Runtime& gpu, const char* name,
                             const void* elements, const training::BatchShape& shape) {
  if (shape.batch == 0) return {};
  const int64_t bytes = shape.count() * shape.channels * dtype_bytes(shape.dtype);
  return check_array(call, gpu, name, static_cast<const char*>(elements), bytes);
}

kernels::BatchView view_of(const void* input, const void* gradient,
                           const training::BatchShape& shape) {
  return {input, gradient, shape.batch, shape.channels, shape.spatial, shape.dtype};
}

/// Of a communicator over GPUs; made by the first call.
std::shared_ptr<training::DeviceBatchNorm> batch_norm_of(CommObject& on) {
  return on.batch_norm.with([&](auto& made) {
    if (made == nullptr) made = std::make_shared<training::DeviceBatchNorm>(on.comm);
    return made;
  });
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
    if (batch > 0) DT_TRY(call.not_null(input, "input"));
    DT_TRY(call.not_null(out_mean, "out_mean"));
    DT_TRY(call.not_null(out_variance, "out_variance"));
    DT_TRY(call.not_null(out_count, "out_count"));
    if (const auto gpu = on->comm->backend().device(); gpu != nullptr) {
      DT_TRY(check_elements_on_gpu(call, *gpu, "input", input, shape));
      DT_TRY(check_array(call, *gpu, "out_mean", out_mean, channels));
      DT_TRY(check_array(call, *gpu, "out_variance", out_variance, channels));
      DT_TRY(check_array(call, *gpu, "out_count", out_count, 1));
      return on->job->seen(batch_norm_of(*on)->moments(view_of(input, nullptr, shape), out_mean,
                                                       out_variance, out_count, stream_of(stream)));
    }
    const auto moments = training::batch_moments(*on->comm, input, shape);
    DT_TRY(on->job->seen(moments.status()));
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
        if (batch > 0) {
          DT_TRY(call.not_null(input, "input"));
          DT_TRY(call.not_null(gradient, "gradient"));
        }
        DT_TRY(call.not_null(mean, "mean"));
        DT_TRY(call.not_null(variance, "variance"));
        if (!std::isfinite(epsilon) || epsilon < 0) {
          return call.invalid("epsilon is %g; it must be finite and >= 0", epsilon);
        }
        DT_TRY(call.not_null(out_sum, "out_sum"));
        DT_TRY(call.not_null(out_product, "out_product"));
        if (const auto gpu = on->comm->backend().device(); gpu != nullptr) {
          DT_TRY(check_elements_on_gpu(call, *gpu, "input", input, shape));
          DT_TRY(check_elements_on_gpu(call, *gpu, "gradient", gradient, shape));
          DT_TRY(check_array(call, *gpu, "mean", mean, channels));
          DT_TRY(check_array(call, *gpu, "variance", variance, channels));
          DT_TRY(check_array(call, *gpu, "out_sum", out_sum, channels));
          DT_TRY(check_array(call, *gpu, "out_product", out_product, channels));
          return on->job->seen(batch_norm_of(*on)->gradient_sums(view_of(input, gradient, shape),
                                                                 {mean, variance, epsilon}, out_sum,
                                                                 out_product, stream_of(stream)));
        }
        const auto sums = training::batch_gradient_sums(*on->comm, input, gradient, shape,
                                                        {mean, variance, epsilon});
        DT_TRY(on->job->seen(sums.status()));
        std::copy(sums.value().sum.begin(), sums.value().sum.end(), out_sum);
        std::copy(sums.value().product.begin(), sums.value().product.end(), out_product);
        return {};
      });
}

}  // extern "C"
