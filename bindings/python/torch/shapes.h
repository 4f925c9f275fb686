// SPDX-License-Identifier: Apache-2.0
#pragma once
/**
 * @file
 * Whether the tensors of a call fit a group of `size` ranks.
 */
#include "tensors.h"

namespace dt::torch {

inline void check_one(const char* title, bool one) {
  if (!one) throw_error(DT_ERR_INVALID_ARGUMENT, std::string(title) + ": needs one tensor");
}
[[noreturn]] inline void bad_types(const Call& call) {
  throw_error(DT_ERR_INVALID_ARGUMENT, std::string(call.title) + ": tensors of different types");
}
/** `all` has the elements of a `part` of each rank. */
inline void check_sizes(const Call& call, int size, const at::Tensor& all, const at::Tensor& part) {
  if (all.scalar_type() != part.scalar_type()) bad_types(call);
  if (all.numel() != part.numel() * size) {
    throw_error(DT_ERR_INVALID_ARGUMENT, std::string(call.title) + ": " +
                                             std::to_string(all.numel()) + " elements, but the " +
                                             std::to_string(size) + " ranks have " +
                                             std::to_string(part.numel()) + " each");
  }
}
/** `list` has a tensor for each rank, of the type of `part`. */
inline void check_list(const Call& call, int size, const std::vector<at::Tensor>& list,
                       const at::Tensor& part, bool equal) {
  if (static_cast<int>(list.size()) != size) {
    throw_error(DT_ERR_INVALID_ARGUMENT, std::string(call.title) + ": " +
                                             std::to_string(list.size()) + " tensors for " +
                                             std::to_string(size) + " ranks");
  }
  for (const at::Tensor& each : list) {
    if (each.scalar_type() != part.scalar_type()) bad_types(call);
    if (equal && each.numel() != part.numel()) {
      throw_error(DT_ERR_INVALID_ARGUMENT,
                  std::string(call.title) + ": tensors of different sizes");
    }
  }
}
/** This rank's own tensor of a list has the elements of `part`. */
inline void check_own(const Call& call, int rank, const std::vector<at::Tensor>& list,
                      const at::Tensor& part) {
  const int64_t listed = list[static_cast<size_t>(rank)].numel();
  if (listed == part.numel()) return;
  throw_error(DT_ERR_INVALID_ARGUMENT,
              std::string(call.title) + " on rank " + std::to_string(rank) + ": tensor " +
                  std::to_string(rank) + " of the list has " + std::to_string(listed) +
                  " elements, but this rank's single tensor has " + std::to_string(part.numel()) +
                  "; make them equal");
}
/** Elements that each rank gets of the rows of a tensor; without splits equally many. */
inline const int64_t* rows(Call& call, int size, const at::Tensor& tensor,
                           std::vector<int64_t> splits, const Elements& elements) {
  const int64_t count = tensor.dim() == 0 ? 1 : tensor.size(0);
  if (splits.empty() && count % size == 0) splits.assign(size, count / size);
  int64_t total = 0;
  for (const int64_t each : splits) total += each;
  if (static_cast<int>(splits.size()) != size || total != count) {
    throw_error(DT_ERR_INVALID_ARGUMENT, std::string(call.title) + ": the first dimension, " +
                                             std::to_string(count) +
                                             ", is not the sum of a split for each rank");
  }
  for (int64_t& each : splits) {
    each *= count == 0 ? 0 : tensor.numel() / count * elements.factor;
  }
  return call.tables.emplace_back(std::move(splits)).data();
}

}  // namespace dt::torch
