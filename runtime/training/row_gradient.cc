// SPDX-License-Identifier: Apache-2.0
#include "training/row_gradient.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "collective/blocks.h"
#include "kernels/host/reduce.h"

namespace dt::training {

void RowGradient::begin_step() {
  given_ = false;
  results_ = true;
}

void RowGradient::add(std::span<const int64_t> rows, const void* values) {
  if (std::exchange(results_, false)) {
    rows_.clear();
    values_.clear();
  }
  given_ = true;
  rows_.insert(rows_.end(), rows.begin(), rows.end());
  const auto* const from = static_cast<const char*>(values);
  values_.insert(values_.end(), from, from + static_cast<int64_t>(rows.size()) * row_bytes());
}

void RowGradient::coalesce() {
  if (std::exchange(results_, false)) {  // this rank has none
    rows_.clear();
    values_.clear();
  }
  sum_equal(0);
}

void RowGradient::sum_equal(int32_t divisor) {
  std::vector<size_t> order(rows_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [this](size_t a, size_t b) { return rows_[a] < rows_[b]; });
  kernels::Reduction reduction;
  reduction.dtype = dtype_;
  if (divisor != 0) {
    reduction.op = ReduceOp::kAvg;
    reduction.divisor = divisor;
  }
  std::vector<int64_t> rows;
  std::vector<char> values(values_.size());  // at most
  std::vector<const void*> sources;
  const auto bytes = static_cast<size_t>(row_bytes());
  for (size_t i = 0; i < order.size();) {
    const int64_t row = rows_[order[i]];
    sources.clear();
    for (; i < order.size() && rows_[order[i]] == row; ++i) {
      sources.push_back(values_.data() + order[i] * bytes);
    }
    kernels::reduce(reduction, values.data() + rows.size() * bytes, sources.data(),
                    static_cast<int32_t>(sources.size()), row_elements_);
    rows.push_back(row);
  }
  values.resize(rows.size() * bytes);
  rows_ = std::move(rows);
  values_ = std::move(values);
}

Status RowGradient::reduce(comm::Communicator& comm, std::span<const int64_t> counts,
                           int32_t divisor, const std::string& name) {
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  // An allreduce of all rows moves about two matrices for each rank, a gather `total` rows.
  if (total > matrix_rows_) return reduce_all_rows(comm, divisor, name);
  std::vector<int64_t> rows(static_cast<size_t>(total));
  std::vector<char> values(static_cast<size_t>(total * row_bytes()));
  DT_TRY(gather(comm, counts, 1, Dtype::kI64, rows_.data(), rows.data(), name + ", row indices"));
  DT_TRY(
      gather(comm, counts, row_elements_, dtype_, values_.data(), values.data(), name + ", rows"));
  rows_ = std::move(rows);
  values_ = std::move(values);
  sum_equal(divisor);  // in the order of ranks, so that all have the same bits
  return {};
}

Status RowGradient::gather(comm::Communicator& comm, std::span<const int64_t> counts,
                           int64_t elements, Dtype dtype, const void* mine, void* all,
                           const std::string& name) const {
  auto blocks = std::make_shared<collective::Blocks>();
  int64_t at = 0;
  for (const int64_t count : counts) {
    blocks->incoming.push_back({at, count * elements});
    at += count * elements;
  }
  const int64_t own = row_count() * elements;
  blocks->outgoing.assign(counts.size(), {0, own});
  backend::Collective collective;
  collective.kind = backend::Kind::kAllgatherv;
  collective.dtype = dtype;
  collective.send = mine;
  collective.recv = all;
  collective.count = own;
  collective.blocks = std::move(blocks);
  collective.name = name;
  return comm.run(collective);
}

Status RowGradient::reduce_all_rows(comm::Communicator& comm, int32_t divisor,
                                    const std::string& name) {
  const auto bytes = static_cast<size_t>(row_bytes());
  std::vector<char> whole(static_cast<size_t>(matrix_rows_) * bytes);
  for (size_t i = 0; i < rows_.size(); ++i) {
    std::memcpy(whole.data() + static_cast<size_t>(rows_[i]) * bytes, values_.data() + i * bytes,
                bytes);
  }
  backend::Collective collective;
  collective.kind = backend::Kind::kAllreduce;
  collective.dtype = dtype_;
  collective.op = divisor != 0 ? ReduceOp::kAvg : ReduceOp::kSum;
  collective.divisor = divisor;
  collective.send = collective.recv = whole.data();
  collective.count = matrix_rows_ * row_elements_;
  collective.name = name + ", all rows";
  DT_TRY(comm.run(collective));
  rows_.resize(static_cast<size_t>(matrix_rows_));
  std::iota(rows_.begin(), rows_.end(), int64_t{0});
  values_ = std::move(whole);
  return {};
}

}  // namespace dt::training
