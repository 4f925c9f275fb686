// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace dt {

/// Values equal dt_dtype (asserted in runtime/capi).
enum class Dtype : int32_t {
  kI8 = 0,
  kU8 = 1,
  kI32 = 2,
  kU32 = 3,
  kI64 = 4,
  kU64 = 5,
  kF16 = 6,
  kBf16 = 7,
  kF32 = 8,
  kF64 = 9,
  kBool = 10,
  kI16 = 11,
  kU16 = 12,
  kF8E4M3 = 13,
  kF8E5M2 = 14,
};
inline constexpr int kDtypeCount = 15;

/// Values equal dt_reduce_op (asserted in runtime/capi).
enum class ReduceOp : int32_t {
  kSum = 0,
  kAvg = 1,
  kProd = 2,
  kMin = 3,
  kMax = 4,
  kBand = 5,
  kBor = 6,
  kBxor = 7,
  kCustom = 255,  ///< the caller's own; no dt_reduce_op
};
inline constexpr int kReduceOpCount = 8;

constexpr bool is_valid(Dtype dtype) {
  return static_cast<uint32_t>(dtype) < static_cast<uint32_t>(kDtypeCount);
}
constexpr bool is_valid(ReduceOp op) {
  return static_cast<uint32_t>(op) < static_cast<uint32_t>(kReduceOpCount);
}
constexpr bool is_bitwise(ReduceOp op) { return op >= ReduceOp::kBand && op <= ReduceOp::kBxor; }

constexpr bool is_integer(Dtype dtype) {
  return dtype <= Dtype::kU64 || dtype == Dtype::kI16 || dtype == Dtype::kU16;
}
/// Those of 8 bits are only moved.
constexpr bool is_floating(Dtype dtype) { return dtype >= Dtype::kF16 && dtype <= Dtype::kF64; }

/// A reduction of the caller's. `function` combines so many elements: inout[i] = inout[i] op in[i].
struct Combine {
  static constexpr int64_t kMaxElementBytes = 4095;  // a signature has no room for more

  void (*function)(void* user_data, const void* in, void* inout, int64_t count) = nullptr;
  void* user_data = nullptr;
  int64_t element_bytes = 0;
};

constexpr bool can_reduce(Dtype dtype, ReduceOp op) {
  if (dtype == Dtype::kBool) return op != ReduceOp::kAvg;
  return is_integer(dtype) || (is_floating(dtype) && !is_bitwise(op));
}

constexpr int64_t dtype_bytes(Dtype dtype) {
  switch (dtype) {
    case Dtype::kI8:
    case Dtype::kU8:
    case Dtype::kBool:
    case Dtype::kF8E4M3:
    case Dtype::kF8E5M2: return 1;
    case Dtype::kF16:
    case Dtype::kBf16:
    case Dtype::kI16:
    case Dtype::kU16: return 2;
    case Dtype::kI32:
    case Dtype::kU32:
    case Dtype::kF32: return 4;
    case Dtype::kI64:
    case Dtype::kU64:
    case Dtype::kF64: return 8;
  }
  return 0;
}

constexpr const char* dtype_name(Dtype dtype) {
  constexpr const char* names[] = {"i8",  "u8",  "i32",  "u32", "i64", "u64",    "f16",   "bf16",
                                   "f32", "f64", "bool", "i16", "u16", "f8e4m3", "f8e5m2"};
  return is_valid(dtype) ? names[static_cast<int>(dtype)] : "?";
}

constexpr const char* reduce_op_name(ReduceOp op) {
  constexpr const char* names[] = {"sum", "avg", "prod", "min", "max", "band", "bor", "bxor"};
  if (op == ReduceOp::kCustom) return "custom";
  return is_valid(op) ? names[static_cast<int>(op)] : "?";
}

}  // namespace dt
