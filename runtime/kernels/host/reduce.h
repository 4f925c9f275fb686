// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace dt::kernels {

/// What is done with each element.
struct Reduction {
  Dtype dtype = Dtype::kF32;
  ReduceOp op = ReduceOp::kSum;
  /// For avg: each floating-point source is multiplied by 1/divisor before the sum (in f32 for f16
  /// and bf16); the wrapped integer sum is divided, truncating. Ignored by the other reductions.
  int32_t divisor = 1;
  Combine custom;  ///< with a function: it is this, and neither dtype nor op count
};

/// destination[i] = sources[0][i] op sources[1][i] op ... in this order, one rounding per step;
/// f16 and bf16 accumulate in f32 and round once at the end. Integers wrap; NaN propagates through
/// min and max; truth values are 0 or 1: sum and max are "or", prod and min are "and". The
/// destination may coincide with any source (same first byte), not overlap it otherwise. Any
/// alignment, any count >= 0, source_count >= 1, divisor >= 1; with other arguments, and where
/// can_reduce() says no, nothing is written.
///
/// Every instruction set gives the same bits, in the default floating-point environment: products
/// and sums are never fused, a NaN result is the positive quiet NaN (0x7fc00000 as f32) whichever
/// NaN went in, and of equal zeros min and max keep the earlier source's. A single source is copied
/// as it is, but for avg. Thread-safe, allocates nothing.
/// @cost one pass: reads source_count streams, writes one.
void reduce(const Reduction& reduction, void* destination, const void* const* sources,
            int32_t source_count, int64_t count);

/// How results are written. Streaming stores go past the caches: a line that is not there need not
/// be read first, and what is there stays. They pay for memory that nobody reads soon, written once
/// and larger than the caches. All stores are done, in the order that other threads and processes
/// see them, when the function returns. Without such instructions, and for destinations that do not
/// start at the same place of a line, both are the same.
enum class Stores : int32_t { kTemporal = 0, kStreaming = 1 };

/// Where the result goes.
struct Targets {
  void* const* destinations = nullptr;
  int32_t count = 0;
  Stores stores = Stores::kTemporal;
};

/// reduce() into all of the destinations in one pass over the sources. Each destination may
/// coincide with any source, none overlaps another one or a source otherwise.
/// @cost one pass: reads source_count streams, writes targets.count.
void reduce_to_all(const Reduction& reduction, const Targets& targets, const void* const* sources,
                   int32_t source_count, int64_t count);

/// The instruction sets this build and this processor can run, best first; each gives equal bits.
enum class Isa : int32_t { kPortable = 0, kAvx2 = 1, kAvx512 = 2 };
const char* isa_name(Isa isa);
/// The one that reduce() uses: chosen once from the processor.
Isa chosen_isa();
bool isa_available(Isa isa);
/// reduce_to_all() with a given instruction set, for tests and benchmarks; with the portable one
/// where `isa` is not available.
void reduce_with(Isa isa, const Reduction& reduction, const Targets& targets,
                 const void* const* sources, int32_t source_count, int64_t count);
void reduce_with(Isa isa, const Reduction& reduction, void* destination, const void* const* sources,
                 int32_t source_count, int64_t count);

/// Copies between memory that may be shared with other processes. Regions do not overlap.
void copy(void* destination, const void* source, int64_t bytes, Stores stores = Stores::kTemporal);
/// copy() with the streaming stores of a given instruction set, for tests and benchmarks.
void copy_streaming_with(Isa isa, void* destination, const void* source, int64_t bytes);

}  // namespace dt::kernels
