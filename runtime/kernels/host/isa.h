// SPDX-License-Identifier: Apache-2.0
// Between reduce.cc, cast.cc, low_rank.cc, optimize.cc and the files that are compiled once per
// instruction set. Those files are built with wider flags than the rest, so nothing that they
// include may define inline functions with external linkage: the linker could pick the wide copy
// for everybody.
#pragma once

#include <stdint.h>

#include "kernels/host/optimize.h"
#include "kernels/host/reduce.h"

namespace dt::kernels {

/// reduce_to_all() for the whole elements that are these bytes of each buffer. Integer avg is not
/// known here: reduce.cc sums and divides. The arguments are valid.
using ReduceFunction = void (*)(const Reduction& reduction, const Targets& targets,
                                const void* const* sources, int32_t source_count,
                                int64_t begin_bytes, int64_t end_bytes);
/// copy() with streaming stores; bytes > 0.
using CopyFunction = void (*)(void* destination, const void* source, int64_t bytes);

void reduce_portable(const Reduction& reduction, const Targets& targets, const void* const* sources,
                     int32_t source_count, int64_t begin_bytes, int64_t end_bytes);
void reduce_avx2(const Reduction& reduction, const Targets& targets, const void* const* sources,
                 int32_t source_count, int64_t begin_bytes, int64_t end_bytes);
void reduce_avx512(const Reduction& reduction, const Targets& targets, const void* const* sources,
                   int32_t source_count, int64_t begin_bytes, int64_t end_bytes);

void copy_streaming_portable(void* destination, const void* source, int64_t bytes);
void copy_streaming_avx2(void* destination, const void* source, int64_t bytes);
void copy_streaming_avx512(void* destination, const void* source, int64_t bytes);

/// cast() and squared_norm().
using CastFunction = void (*)(Dtype from_dtype, const void* from, Dtype to_dtype, void* to,
                              int64_t count, double scale);
using NormFunction = double (*)(Dtype dtype, const void* data, int64_t count);

void cast_portable(Dtype from_dtype, const void* from, Dtype to_dtype, void* to, int64_t count,
                   double scale);
void cast_avx2(Dtype from_dtype, const void* from, Dtype to_dtype, void* to, int64_t count,
               double scale);
void cast_avx512(Dtype from_dtype, const void* from, Dtype to_dtype, void* to, int64_t count,
                 double scale);

double squared_norm_portable(Dtype dtype, const void* data, int64_t count);
double squared_norm_avx2(Dtype dtype, const void* data, int64_t count);
double squared_norm_avx512(Dtype dtype, const void* data, int64_t count);

/// The sum of a[i] * b[i], element i in lane i % 16; the lanes are added in their order.
using DotFunction = float (*)(const float* a, const float* b, int64_t count);
/// to[i] += factor * from[i]; the two do not overlap.
using AddScaledFunction = void (*)(float factor, const float* from, float* to, int64_t count);

float dot_portable(const float* a, const float* b, int64_t count);
float dot_avx2(const float* a, const float* b, int64_t count);
float dot_avx512(const float* a, const float* b, int64_t count);

void add_scaled_portable(float factor, const float* from, float* to, int64_t count);
void add_scaled_avx2(float factor, const float* from, float* to, int64_t count);
void add_scaled_avx512(float factor, const float* from, float* to, int64_t count);

using AdamWFunction = void (*)(Dtype dtype, const AdamWStep& step, const AdamWArrays& arrays);
using SgdFunction = void (*)(Dtype dtype, const SgdStep& step, const SgdArrays& arrays);

void adamw_portable(Dtype dtype, const AdamWStep& step, const AdamWArrays& arrays);
void adamw_avx2(Dtype dtype, const AdamWStep& step, const AdamWArrays& arrays);
void adamw_avx512(Dtype dtype, const AdamWStep& step, const AdamWArrays& arrays);

void sgd_portable(Dtype dtype, const SgdStep& step, const SgdArrays& arrays);
void sgd_avx2(Dtype dtype, const SgdStep& step, const SgdArrays& arrays);
void sgd_avx512(Dtype dtype, const SgdStep& step, const SgdArrays& arrays);

/// Whether this build has the file, and both processor and operating system can run it.
bool can_run_avx2();
bool can_run_avx512();

}  // namespace dt::kernels
