// SPDX-License-Identifier: Apache-2.0
#define DT_VECTOR_BYTES 16
#if defined(__aarch64__)
#define DT_HARDWARE_F16 1
#else
#define DT_HARDWARE_F16 0
#endif
#include "kernels/host/cast_impl.h"
#include "kernels/host/low_rank_impl.h"
#include "kernels/host/optimize_impl.h"
#include "kernels/host/reduce_impl.h"

namespace dt::kernels {

void reduce_portable(const Reduction& reduction, const Targets& targets, const void* const* sources,
                     int32_t source_count, int64_t begin_bytes, int64_t end_bytes) {
  reduce_here(reduction, targets, sources, source_count, begin_bytes, end_bytes);
}

void copy_streaming_portable(void* destination, const void* source, int64_t bytes) {
  copy_here(destination, source, bytes);
}

void cast_portable(Dtype from_dtype, const void* from, Dtype to_dtype, void* to, int64_t count,
                   double scale) {
  cast_here(from_dtype, from, to_dtype, to, count, scale);
}

double squared_norm_portable(Dtype dtype, const void* data, int64_t count) {
  return squared_norm_here(dtype, data, count);
}

float dot_portable(const float* a, const float* b, int64_t count) { return dot_here(a, b, count); }

void add_scaled_portable(float factor, const float* from, float* to, int64_t count) {
  add_scaled_here(factor, from, to, count);
}

void adamw_portable(Dtype dtype, const AdamWStep& step, const AdamWArrays& arrays) {
  adamw_here(dtype, step, arrays);
}

void sgd_portable(Dtype dtype, const SgdStep& step, const SgdArrays& arrays) {
  sgd_here(dtype, step, arrays);
}

}  // namespace dt::kernels
