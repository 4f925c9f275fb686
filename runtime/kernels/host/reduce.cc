// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/reduce.h"

#include <algorithm>
#include <cstring>

#include "kernels/host/isa.h"

namespace dt::kernels {
namespace {

/// A part of an integer mean that is still in the first-level cache when it is divided.
constexpr int64_t kMeanPartBytes = 8192;

/// What fills the registers that any instruction set uses at once.
constexpr int64_t kShortBytes = 256;

/// A caller's reduction combines so many bytes at once, in memory on the stack.
constexpr int64_t kCustomPartBytes = 8192;
static_assert(kCustomPartBytes > Combine::kMaxElementBytes);

/// Wide holds T and every divisor, so that nothing overflows.
template <class T, class Wide>
void divide(void* elements, int64_t count, int32_t divisor) {
  auto* bytes = static_cast<unsigned char*>(elements);
  for (int64_t i = 0; i < count; ++i, bytes += sizeof(T)) {
    T element;
    std::memcpy(&element, bytes, sizeof(T));
    element = static_cast<T>(static_cast<Wide>(element) / static_cast<Wide>(divisor));
    std::memcpy(bytes, &element, sizeof(T));
  }
}

void divide_integers(Dtype dtype, void* elements, int64_t count, int32_t divisor) {
  switch (dtype) {
    case Dtype::kI8: return divide<int8_t, int32_t>(elements, count, divisor);
    case Dtype::kU8: return divide<uint8_t, uint32_t>(elements, count, divisor);
    case Dtype::kI32: return divide<int32_t, int32_t>(elements, count, divisor);
    case Dtype::kU32: return divide<uint32_t, uint32_t>(elements, count, divisor);
    case Dtype::kI64: return divide<int64_t, int64_t>(elements, count, divisor);
    case Dtype::kU64: return divide<uint64_t, uint64_t>(elements, count, divisor);
    case Dtype::kI16: return divide<int16_t, int32_t>(elements, count, divisor);
    case Dtype::kU16: return divide<uint16_t, uint32_t>(elements, count, divisor);
    default: return;
  }
}

/// Of truth values, which are 0 and 1.
ReduceOp bits_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMax: return ReduceOp::kBor;
    case ReduceOp::kProd:
    case ReduceOp::kMin: return ReduceOp::kBand;
    default: return op;
  }
}

ReduceFunction function_of(Isa isa) {
  if (isa_available(isa)) {
    switch (isa) {
      case Isa::kPortable: return reduce_portable;
      case Isa::kAvx2: return reduce_avx2;
      case Isa::kAvx512: return reduce_avx512;
    }
  }
  return reduce_portable;  // the same bits
}

/// Part by part: the sum is divided in the first destination and copied on from there.
void mean_of_integers(ReduceFunction sum, const Reduction& reduction, const Targets& targets,
                      const void* const* sources, int32_t source_count, int64_t count) {
  const int64_t element_bytes = dtype_bytes(reduction.dtype);
  const int64_t part = kMeanPartBytes / element_bytes;
  for (int64_t first = 0; first < count; first += part) {
    const int64_t elements = std::min(part, count - first);
    const int64_t offset = first * element_bytes;
    sum(reduction, {targets.destinations, 1, Stores::kTemporal}, sources, source_count, offset,
        offset + elements * element_bytes);
    auto* mean = static_cast<unsigned char*>(targets.destinations[0]) + offset;
    if (reduction.divisor > 1) divide_integers(reduction.dtype, mean, elements, reduction.divisor);
    for (int32_t k = 1; k < targets.count; ++k) {
      copy(static_cast<unsigned char*>(targets.destinations[k]) + offset, mean,
           elements * element_bytes);
    }
  }
}

/// In memory of its own, because the destinations may be among the sources.
void reduce_custom(const Combine& custom, const Targets& targets, const void* const* sources,
                   int32_t source_count, int64_t count) {
  alignas(64) unsigned char part[kCustomPartBytes];
  const int64_t at_once = kCustomPartBytes / custom.element_bytes;
  for (int64_t first = 0; first < count; first += at_once) {
    const int64_t elements = std::min(at_once, count - first);
    const int64_t offset = first * custom.element_bytes;
    const int64_t bytes = elements * custom.element_bytes;
    const auto from = [&](int32_t k) {
      return static_cast<const unsigned char*>(sources[k]) + offset;
    };
    copy(part, from(0), bytes);
    for (int32_t k = 1; k < source_count; ++k) {
      custom.function(custom.user_data, from(k), part, elements);
    }
    for (int32_t k = 0; k < targets.count; ++k) {
      copy(static_cast<unsigned char*>(targets.destinations[k]) + offset, part, bytes);
    }
  }
}

}  // namespace

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kPortable: return "portable";
    case Isa::kAvx2: return "avx2";
    case Isa::kAvx512: return "avx512";
  }
  return "?";
}

bool isa_available(Isa isa) {
  // Facts of the processor: they never change, and any thread may ask first.
  static const bool avx2 = can_run_avx2();
  static const bool avx512 = can_run_avx512();
  switch (isa) {
    case Isa::kPortable: return true;
    case Isa::kAvx2: return avx2;
    case Isa::kAvx512: return avx512;
  }
  return false;
}

Isa chosen_isa() {
  if (isa_available(Isa::kAvx512)) return Isa::kAvx512;
  return isa_available(Isa::kAvx2) ? Isa::kAvx2 : Isa::kPortable;
}

void reduce(const Reduction& reduction, void* destination, const void* const* sources,
            int32_t source_count, int64_t count) {
  reduce_with(chosen_isa(), reduction, destination, sources, source_count, count);
}

void reduce_to_all(const Reduction& reduction, const Targets& targets, const void* const* sources,
                   int32_t source_count, int64_t count) {
  reduce_with(chosen_isa(), reduction, targets, sources, source_count, count);
}

void reduce_with(Isa isa, const Reduction& reduction, void* destination, const void* const* sources,
                 int32_t source_count, int64_t count) {
  reduce_with(isa, reduction, Targets{&destination, 1, Stores::kTemporal}, sources, source_count,
              count);
}

void reduce_with(Isa isa, const Reduction& given, const Targets& targets,
                 const void* const* sources, int32_t source_count, int64_t count) {
  if (given.custom.function != nullptr) {
    return reduce_custom(given.custom, targets, sources, source_count, count);
  }
  const bool is_mean = given.op == ReduceOp::kAvg;
  if (!is_valid(given.dtype) || !is_valid(given.op) || !can_reduce(given.dtype, given.op) ||
      source_count < 1 || count <= 0 || targets.count < 1 || (is_mean && given.divisor < 1)) {
    return;
  }
  Reduction reduction = given;
  if (given.dtype == Dtype::kBool) reduction.op = bits_of(given.op);
  const int64_t element_bytes = dtype_bytes(reduction.dtype);
  if (source_count == 1 && !is_mean) {
    for (int32_t k = 0; k < targets.count; ++k) {
      if (targets.destinations[k] != sources[0]) {
        copy(targets.destinations[k], sources[0], count * element_bytes, targets.stores);
      }
    }
    return;
  }
  if (is_mean && !is_floating(reduction.dtype)) {
    mean_of_integers(function_of(isa), reduction, targets, sources, source_count, count);
    return;
  }
  // What does not fill wide registers goes through narrow ones: the same bits, and fewer pieces.
  const int64_t bytes = count * element_bytes;
  const int64_t few = targets.stores == Stores::kStreaming ? 0 : bytes % kShortBytes;
  if (few < bytes) function_of(isa)(reduction, targets, sources, source_count, 0, bytes - few);
  if (few > 0) reduce_portable(reduction, targets, sources, source_count, bytes - few, bytes);
}

void copy(void* destination, const void* source, int64_t bytes, Stores stores) {
  if (stores == Stores::kStreaming) {
    copy_streaming_with(chosen_isa(), destination, source, bytes);
  } else if (bytes > 0) {
    std::memcpy(destination, source, static_cast<size_t>(bytes));
  }
}

void copy_streaming_with(Isa isa, void* destination, const void* source, int64_t bytes) {
  if (bytes <= 0) return;
  if (isa == Isa::kAvx512 && isa_available(isa)) {
    copy_streaming_avx512(destination, source, bytes);
  } else if (isa == Isa::kAvx2 && isa_available(isa)) {
    copy_streaming_avx2(destination, source, bytes);
  } else {
    copy_streaming_portable(destination, source, bytes);
  }
}

}  // namespace dt::kernels
