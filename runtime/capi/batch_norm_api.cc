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
  if (shape.dtype != Dtype::kF32 && shape.dtype != Dtype::kF64) {
    return call.invalid("dtype is %s; it must be f32 or f64", dtype_name(shape.dtype));
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

Status check_on_host(const Call& call, const CommObject& on) {
  if (on.comm->backend().device() == nullptr) return {};
  return Status(Code::kUnsupported,
                format("%s: comm \"%s\" is one over GPUs, and batch statistics are made in host "
                       "memory; sum on the GPU and give [count, sums] to dt_allreduce(), or use a "
                       "host communicator (backend.name = host)",
                       call.function(), on.comm->name().c_str()));
}

}  // namespace
}  // namespace dt::capi

using namespace dt;
using namespace dt::capi;

extern "C" {

dt_status dt_batch_moments(dt_comm* comm, const void* input, int64_t batch, int64_t channels,
                           int64_t spatial, dt_dtype dtype, double* out_mean, double* out_variance,
                           int64_t* out_count) {
  return on_comm("dt_batch_moments", comm, [&](const Call& call, const CommPtr& on) -> Status {
    const training::BatchShape shape{batch, channels, spatial, static_cast<Dtype>(dtype)};
    DT_TRY(check_batch_shape(call, shape));
    if (batch > 0) DT_TRY(call.not_null(input, "input"));
    DT_TRY(call.not_null(out_mean, "out_mean"));
    DT_TRY(call.not_null(out_variance, "out_variance"));
    DT_TRY(call.not_null(out_count, "out_count"));
    DT_TRY(check_on_host(call, *on));
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
                                 double* out_sum, double* out_product) {
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
        DT_TRY(check_on_host(call, *on));
        const auto sums = training::batch_gradient_sums(*on->comm, input, gradient, shape,
                                                        {mean, variance, epsilon});
        DT_TRY(on->job->seen(sums.status()));
        std::copy(sums.value().sum.begin(), sums.value().sum.end(), out_sum);
        std::copy(sums.value().product.begin(), sums.value().product.end(), out_product);
        return {};
      });
}

}  // extern "C"
