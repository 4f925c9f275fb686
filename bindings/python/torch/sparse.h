// SPDX-License-Identifier: Apache-2.0
#pragma once
/**
 * @file
 * The sum of sparse tensors: every rank gets the indices and values of all, and adds them up.
 */
#include <algorithm>
#include <array>

#include "tensors.h"

namespace dt::torch {

/** What ranks must know of a sparse tensor before its elements can move. */
struct SparseLayout {
  static constexpr int64_t kMaxDims = 16;

  int64_t type = 0;
  int64_t sparse_dims = 0;
  int64_t dims = 0;
  std::array<int64_t, kMaxDims> sizes = {};
  int64_t elements = 0;  ///< last, because it alone may differ

  std::string text() const {
    std::string all;
    for (int64_t i = 0; i < dims; ++i) {
      all += (i == 0 ? "" : ", ") + std::to_string(sizes[static_cast<size_t>(i)]);
    }
    return c10::toString(static_cast<at::ScalarType>(type)) + std::string(" of [") + all +
           "] with " + std::to_string(sparse_dims) + " sparse dimensions";
  }
};
static_assert(sizeof(SparseLayout) % sizeof(int64_t) == 0);

/**
 * Adds the operations for one sparse tensor to a call. It waits for the other ranks, because nobody
 * knows before how many elements they have; the elements themselves move with the call.
 */
inline void add_sparse(Call& call, dt_comm* comm, int rank, int size, const at::Tensor& tensor,
                       const c10d::ReduceOp& op, int64_t timeout_ms) {
  const bool averages = op.op_ == c10d::ReduceOp::AVG;
  if (op.op_ != c10d::ReduceOp::SUM && !averages) {
    throw_error(DT_ERR_UNSUPPORTED,
                "dt has no such reduction of sparse tensors, but sum and average");
  }
  if (averages && tensor.scalar_type() == at::kBool) {
    throw_error(DT_ERR_UNSUPPORTED, "dt has no average of Bool");
  }
  if (!tensor.is_cpu() || tensor.dim() > SparseLayout::kMaxDims) {
    throw_error(DT_ERR_UNSUPPORTED,
                std::string(call.title) + ": backend dt takes sparse tensors in host memory, of " +
                    std::to_string(SparseLayout::kMaxDims) + " dimensions at most");
  }
  const at::AutoDispatchBelowADInplaceOrView plain;
  const at::Tensor mine = tensor.coalesce();
  SparseLayout layout;
  layout.type = static_cast<int64_t>(tensor.scalar_type());
  layout.sparse_dims = mine.sparse_dim();
  layout.dims = mine.dim();
  std::copy(mine.sizes().begin(), mine.sizes().end(), layout.sizes.begin());
  layout.elements = mine._nnz();

  std::vector<SparseLayout> all(static_cast<size_t>(size));
  dt_collective one;
  dt_collective_init(&one);
  one.kind = DT_KIND_ALLGATHER;
  one.dtype = DT_I64;
  one.count = sizeof(SparseLayout) / sizeof(int64_t);
  one.name = "layout of a sparse tensor";
  one.timeout_ms = timeout_ms;
  one.send = &layout;
  one.recv = all.data();
  check(dt_collective_launch(comm, &one, nullptr));

  const at::Tensor values = mine.values().contiguous();
  const Elements elements = moved(values);
  int64_t dense = elements.factor;  // of dt's elements at one index
  for (int64_t i = layout.sparse_dims; i < layout.dims; ++i) {
    dense *= layout.sizes[static_cast<size_t>(i)];
  }
  auto& index_counts = call.tables.emplace_back();
  auto& value_counts = call.tables.emplace_back();
  int64_t total = 0;
  for (int peer = 0; peer < size; ++peer) {
    const SparseLayout& theirs = all[static_cast<size_t>(peer)];
    if (std::memcmp(&theirs, all.data(), offsetof(SparseLayout, elements)) != 0) {
      throw_error(DT_ERR_MISMATCH, std::string(call.title) + ": ranks disagree: rank 0 has " +
                                       all[0].text() + ", rank " + std::to_string(peer) + " " +
                                       theirs.text() + " (this is rank " + std::to_string(rank) +
                                       ")");
    }
    index_counts.push_back(theirs.elements * layout.sparse_dims);
    value_counts.push_back(theirs.elements * dense);
    total += theirs.elements;
  }
  // By element, so that the parts of the ranks stand one behind the other.
  const at::Tensor indices = mine.indices().t().contiguous();
  const at::Tensor all_indices = at::empty({total, layout.sparse_dims}, indices.options());
  auto shape = values.sizes().vec();
  shape[0] = total;
  const at::Tensor all_values = at::empty(shape, values.options());
  auto& moving_indices = call.add(DT_KIND_ALLGATHERV, {at::kLong, DT_I64, 1});
  moving_indices.recv_counts = index_counts.data();
  moving_indices.send = call.memory(indices, at::kLong, true, false);
  moving_indices.recv = call.memory(all_indices, at::kLong, false, true);
  auto& moving_values = call.add(DT_KIND_ALLGATHERV, elements);
  moving_values.recv_counts = value_counts.data();
  moving_values.send = call.memory(values, elements.type, true, false);
  moving_values.recv = call.memory(all_values, elements.type, false, true);
  call.tensors.combine = [before = std::move(call.tensors.combine), all_indices, all_values, tensor,
                          size, averages] {
    if (before) before();
    at::Tensor sum = at::sparse_coo_tensor(all_indices.t(), all_values, tensor.sizes()).coalesce();
    // As dt divides integers.
    if (averages && c10::isIntegralType(sum.scalar_type(), false)) {
      sum.values().div_(size, "trunc");
    } else if (averages) {
      sum.values().div_(size);
    }
    tensor.copy_(sum);
  };
}

}  // namespace dt::torch
