// SPDX-License-Identifier: Apache-2.0
// On processors other than x86-64: the x86 instruction sets are not available.
#include "kernels/host/isa.h"

namespace dt::kernels {

bool can_run_avx2() { return false; }
bool can_run_avx512() { return false; }

void reduce_avx2(const Reduction& reduction, const Targets& targets, const void* const* sources,
                 int32_t source_count, int64_t begin_bytes, int64_t end_bytes) {
  reduce_portable(reduction, targets, sources, source_count, begin_bytes, end_bytes);
}

void reduce_avx512(const Reduction& reduction, const Targets& targets, const void* const* sources,
                   int32_t source_count, int64_t begin_bytes, int64_t end_bytes) {
  reduce_portable(reduction, targets, sources, source_count, begin_bytes, end_bytes);
}

void copy_streaming_avx2(void* destination, const void* source, int64_t bytes) {
  copy_streaming_portable(destination, source, bytes);
}

void copy_streaming_avx512(void* destination, const void* source, int64_t bytes) {
  copy_streaming_portable(destination, source, bytes);
}

void cast_avx2(Dtype from_dtype, const void* from, Dtype to_dtype, void* to, int64_t count,
               double scale) {
  cast_portable(from_dtype, from, to_dtype, to, count, scale);
}

double squared_norm_avx2(Dtype dtype, const void* data, int64_t count) {
  return squared_norm_portable(dtype, data, count);
}

void cast_avx512(Dtype from_dtype, const void* from, Dtype to_dtype, void* to, int64_t count,
                 double scale) {
  cast_portable(from_dtype, from, to_dtype, to, count, scale);
}

double squared_norm_avx512(Dtype dtype, const void* data, int64_t count) {
  return squared_norm_portable(dtype, data, count);
}

float dot_avx2(const float* a, const float* b, int64_t count) { return dot_portable(a, b, count); }

float dot_avx512(const float* a, const float* b, int64_t count) {
  return dot_portable(a, b, count);
}

void add_scaled_avx2(float factor, const float* from, float* to, int64_t count) {
  add_scaled_portable(factor, from, to, count);
}

void add_scaled_avx512(float factor, const float* from, float* to, int64_t count) {
  add_scaled_portable(factor, from, to, count);
}

void adamw_avx2(Dtype dtype, const AdamWStep& step, const AdamWArrays& arrays) {
  adamw_portable(dtype, step, arrays);
}

void sgd_avx2(Dtype dtype, const SgdStep& step, const SgdArrays& arrays) {
  sgd_portable(dtype, step, arrays);
}

void adamw_avx512(Dtype dtype, const AdamWStep& step, const AdamWArrays& arrays) {
  adamw_portable(dtype, step, arrays);
}

void sgd_avx512(Dtype dtype, const SgdStep& step, const SgdArrays& arrays) {
  sgd_portable(dtype, step, arrays);
}

}  // namespace dt::kernels
