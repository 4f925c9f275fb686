// SPDX-License-Identifier: Apache-2.0
#pragma once
/**
 * @file
 * Tensors as operations of dt: element types, and memory in the order that dt wants.
 */
#include <ATen/MemoryOverlap.h>

#include <deque>
#include <optional>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "work.h"

namespace dt::torch {

/** How dt moves or reduces the elements of a tensor. */
struct Elements {
  at::ScalarType type;  ///< what the tensor is converted to, where that is another one
  dt_dtype dtype;
  int64_t factor;  ///< elements of dt in one of `type`
  dt_reduce_op op = DT_SUM;
  const c10d::NCCLPreMulSumSupplement* scale = nullptr;  ///< of a premultiplied sum

  /** What dt reduces. */
  at::Tensor scaled(const at::Tensor& tensor) const {
    if (scale == nullptr) return tensor;
    const at::AutoDispatchBelowADInplaceOrView plain;
    const at::Tensor plain_type = tensor.to(type);
    return scale->tensor_factor.defined() ? plain_type.mul(scale->tensor_factor)
                                          : plain_type.mul(scale->double_factor);
  }
};

inline std::optional<dt_dtype> dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kChar: return DT_I8;
    case at::kByte: return DT_U8;
    case at::kBool: return DT_BOOL;
    case at::kShort: return DT_I16;
    case at::kInt: return DT_I32;
    case at::kLong: return DT_I64;
    case at::kHalf: return DT_F16;
    case at::kBFloat16: return DT_BF16;
    case at::kFloat: return DT_F32;
    case at::kDouble: return DT_F64;
    default: break;
  }
  const std::string_view name = c10::toString(type);  // older releases lack the constants
  if (name == "UInt16") return DT_U16;
  if (name == "UInt32") return DT_U32;
  if (name == "UInt64") return DT_U64;
  if (name.starts_with("Float8_e5m2")) return DT_F8E5M2;
  if (name.starts_with("Float8")) return DT_F8E4M3;  // dt moves every variant alike
  return std::nullopt;
}

/** How an operation that copies moves a tensor. */
inline Elements moved(const at::Tensor& tensor) {
  const at::ScalarType type = tensor.scalar_type();
  const auto dtype = dtype_of(type);
  return {type, dtype.value_or(DT_U8), dtype ? 1 : static_cast<int64_t>(tensor.element_size())};
}

/** How an operation that reduces combines a tensor. */
inline Elements reduced(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  using c10d::ReduceOp;
  const at::ScalarType type = tensor.scalar_type();
  const auto refuse = [&](const char* what) {
    throw_error(DT_ERR_UNSUPPORTED,
                std::string("dt has no ") + what + " of " + c10::toString(type));
  };
  Elements found{type, DT_U8, 1};
  switch (op.op_) {
    case ReduceOp::SUM: found.op = DT_SUM; break;
    case ReduceOp::AVG: found.op = DT_AVG; break;
    case ReduceOp::PRODUCT: found.op = DT_PROD; break;
    case ReduceOp::MIN: found.op = DT_MIN; break;
    case ReduceOp::MAX: found.op = DT_MAX; break;
    case ReduceOp::BAND: found.op = DT_BAND; break;
    case ReduceOp::BOR: found.op = DT_BOR; break;
    case ReduceOp::BXOR: found.op = DT_BXOR; break;
    default:
      found.scale = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
      if (found.scale == nullptr || c10::isIntegralType(type, true)) refuse("premultiplied sum");
  }
  if (found.op >= DT_BAND && !c10::isIntegralType(type, true)) refuse("bitwise reduction");
  if (type == at::kBool && op.op_ == ReduceOp::AVG) refuse("average");
  if (c10::isComplexType(type)) {  // as pairs
    if (found.op != DT_SUM && found.op != DT_AVG) refuse("such reduction");
    found.dtype = *dtype_of(c10::toRealValueType(type));
    found.factor = 2;
  } else if (const auto dtype = dtype_of(type)) {
    found.dtype = *dtype;
    if (*dtype == DT_F8E4M3 || *dtype == DT_F8E5M2) {  // dt moves them, and reduces none
      found.type = at::kFloat;
      found.dtype = DT_F32;
    }
  } else {
    refuse("reduction");
  }
  return found;
}

/** One call of torch.distributed: the operations of dt it consists of, and their memory. */
class Call {
 public:
  Call(c10d::OpType type, const char* title) : type(type), title(title) {}

  /** The next operation, without its buffers. */
  dt_collective& add(dt_kind kind, const Elements& elements, int64_t count = 0, int64_t peer = 0) {
    dt_collective& one = operations.emplace_back();
    dt_collective_init(&one);
    one.kind = kind;
    one.dtype = elements.dtype;
    one.op = elements.op;
    one.peer = static_cast<int32_t>(peer);
    one.count = count * elements.factor;
    return one;
  }

  /** Memory of a tensor in its logical order: its own, or a copy. @param type to convert to.
   * @param reads dt reads it. @param writes dt writes it. */
  void* memory(const at::Tensor& tensor, at::ScalarType type, bool reads, bool writes) {
    return memory(std::vector<at::Tensor>{tensor}, type, reads, writes);
  }
  /** The same of several tensors, one behind the other. */
  void* memory(const std::vector<at::Tensor>& given, at::ScalarType type, bool reads, bool writes) {
    if (given.empty()) return nullptr;
    int64_t total = 0;
    bool whole = true;
    const char* first = nullptr;
    for (const at::Tensor& each : given) {
      check_place(each);
      if (writes && at::has_internal_overlap(each) == at::MemOverlap::Yes) {
        throw_error(DT_ERR_INVALID_ARGUMENT,
                    std::string(title) + ": a tensor that takes the result has several elements " +
                        "at one place, as expand() makes it; give tensor.contiguous()");
      }
      if (total == 0) first = static_cast<const char*>(each.data_ptr());
      whole = whole && each.scalar_type() == type && each.is_contiguous() && !each.is_conj() &&
              !each.is_neg() &&
              (each.numel() == 0 ||
               each.data_ptr() == first + total * static_cast<int64_t>(each.element_size()));
      total += each.numel();
    }
    if (whole) {
      tensors.used.insert(tensors.used.end(), given.begin(), given.end());
      return const_cast<char*>(first);
    }
    const at::AutoDispatchBelowADInplaceOrView plain;
    const at::Tensor all = at::empty({total}, given.front().options().dtype(type));
    int64_t offset = 0;
    for (const at::Tensor& each : given) {
      const at::Tensor part = all.narrow(0, offset, each.numel()).view(each.sizes());
      offset += each.numel();
      if (reads) part.copy_(each);
      if (writes) tensors.copies.emplace_back(each, part);
    }
    tensors.used.push_back(all);
    return all.data_ptr();
  }

  /** Buffers of a reduction whose result replaces the tensor. @param gets this rank has a result.
   */
  void in_place(dt_collective& one, const at::Tensor& tensor, const Elements& elements, bool gets) {
    const bool itself = elements.scale == nullptr;
    void* const result = itself || gets ? memory(tensor, elements.type, itself, gets) : nullptr;
    one.send = itself ? result : memory(elements.scaled(tensor), elements.type, true, false);
    if (gets) one.recv = result;
  }

  /** How many elements of dt each tensor has. The table lives as long as the call. */
  const int64_t* counts(const std::vector<at::Tensor>& given, const Elements& elements) {
    auto& table = tables.emplace_back();
    for (const at::Tensor& each : given) table.push_back(each.numel() * elements.factor);
    return table.data();
  }

  /** A GPU's, where the tensors are there. */
  bool on_gpu() const { return device && device->is_cuda(); }

  const c10d::OpType type;
  const char* const title;
  std::optional<c10::Device> device;  ///< of the tensors; none: there is no tensor
  std::vector<at::Tensor> inputs;     ///< for profilers
  std::vector<dt_collective> operations;
  std::deque<std::vector<int64_t>> tables;
  Tensors tensors;

 private:
  /** All tensors of a call are in host memory, or on one GPU. */
  void check_place(const at::Tensor& tensor) {
    if ((!tensor.is_cpu() && !tensor.is_cuda()) || tensor.layout() != at::kStrided) {
      throw_error(DT_ERR_UNSUPPORTED, std::string(title) +
                                          ": backend dt takes dense tensors in host memory or on " +
                                          "a GPU; this one is " + c10::str(tensor.layout()) +
                                          " on " + tensor.device().str());
    }
    if (device && *device != tensor.device()) {
      throw_error(DT_ERR_INVALID_ARGUMENT,
                  std::string(title) + ": one tensor is on " + device->str() + " and another on " +
                      tensor.device().str() + "; give tensors of one device");
    }
    device = tensor.device();
  }
};

}  // namespace dt::torch
