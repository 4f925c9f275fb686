// SPDX-License-Identifier: Apache-2.0
#include "training/row_gradient.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "collective/blocks.h"
#include "kernels/host/reduce.h"

namespace dt::training {

void RowGradient::begin_step() {
  given_ = false;
  has_results_ = true;
}

void RowGradient::drop_results() {
  if (!std::exchange(has_results_, false)) return;
  rows_.indices.clear();
  rows_.values.clear();
}

void RowGradient::add(std::span<const int64_t> rows, const void* values) {
  drop_results();
  const auto bytes = static_cast<size_t>(row_bytes()) * rows.size();
  // Twice as much at least, so that many small calls do not copy all that is there each time.
  const auto reserve = [](auto& vector, size_t more) {
    const size_t wanted = vector.size() + more;
    if (wanted > vector.capacity()) vector.reserve(std::max(wanted, 2 * vector.capacity()));
  };
  reserve(rows_.indices, rows.size());
  reserve(rows_.values, bytes);
  rows_.indices.insert(rows_.indices.end(), rows.begin(), rows.end());
  const auto* const from = static_cast<const char*>(values);
  rows_.values.insert(rows_.values.end(), from, from + bytes);
  given_ = true;
}

void RowGradient::coalesce() {
  drop_results();
  reserve_sums(rows_.indices.size());
  std::swap(rows_, gathered_);
  sum_equal(gathered_, 0);
}

void RowGradient::reserve_sums(size_t rows) {
  sums_.indices.reserve(rows);
  sums_.values.resize(rows * static_cast<size_t>(row_bytes()));
  order_.reserve(rows);
  sources_.reserve(rows);
}

void RowGradient::sum_equal(const Rows& from, int32_t divisor) {
  order_.resize(from.indices.size());
  std::iota(order_.begin(), order_.end(), size_t{0});
  std::stable_sort(order_.begin(), order_.end(),
                   [&](size_t a, size_t b) { return from.indices[a] < from.indices[b]; });
  kernels::Reduction reduction;
  reduction.dtype = dtype_;
  if (divisor != 0) {
    reduction.op = ReduceOp::kAvg;
    reduction.divisor = divisor;
  }
  const auto bytes = static_cast<size_t>(row_bytes());
  sums_.indices.clear();
  for (size_t i = 0; i < order_.size();) {
    const int64_t row = from.indices[order_[i]];
    sources_.clear();
    for (; i < order_.size() && from.indices[order_[i]] == row; ++i) {
      sources_.push_back(from.values.data() + order_[i] * bytes);
    }
    kernels::reduce(reduction, sums_.values.data() + sums_.indices.size() * bytes, sources_.data(),
                    static_cast<int32_t>(sources_.size()), row_elements_);
    sums_.indices.push_back(row);
  }
  sums_.values.resize(sums_.indices.size() * bytes);
  std::swap(rows_, sums_);
}

namespace {

/// An allreduce of all rows moves about two matrices for each rank, a gather the rows of all ranks.
bool is_dense(std::span<const int64_t> counts, int64_t matrix_rows) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0}) > matrix_rows;
}

}  // namespace

void RowGradient::prepare(std::span<const int64_t> counts) {
  const auto bytes = static_cast<size_t>(row_bytes());
  if (is_dense(counts, matrix_rows_)) {
    gathered_.indices.resize(static_cast<size_t>(matrix_rows_));
    std::iota(gathered_.indices.begin(), gathered_.indices.end(), int64_t{0});
    gathered_.values.assign(static_cast<size_t>(matrix_rows_) * bytes, 0);
    for (size_t i = 0; i < rows_.indices.size(); ++i) {
      std::memcpy(gathered_.values.data() + static_cast<size_t>(rows_.indices[i]) * bytes,
                  rows_.values.data() + i * bytes, bytes);
    }
    return;
  }
  const auto total = static_cast<size_t>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  gathered_.indices.resize(total);
  gathered_.values.resize(total * bytes);
  reserve_sums(total);
}

Status RowGradient::reduce(comm::Communicator& comm, std::span<const int64_t> counts,
                           int32_t divisor, const std::shared_ptr<const std::string>& withheld,
                           const std::string& name) {
  backend::Collective collective;
  collective.withheld = withheld;
  if (is_dense(counts, matrix_rows_)) {
    collective.kind = backend::Kind::kAllreduce;
    collective.dtype = dtype_;
    collective.op = divisor != 0 ? ReduceOp::kAvg : ReduceOp::kSum;
    collective.divisor = divisor;
    collective.send = collective.recv = gathered_.values.data();
    collective.count = matrix_rows_ * row_elements_;
    collective.name = name + ", all rows";
    DT_TRY(comm.run_on_host(collective));
    std::swap(rows_, gathered_);
    return {};
  }
  collective.dtype = Dtype::kI64;
  collective.send = rows_.indices.data();
  collective.recv = gathered_.indices.data();
  collective.name = name + ", row indices";
  DT_TRY(gather(comm, counts, 1, collective));
  collective.dtype = dtype_;
  collective.send = rows_.values.data();
  collective.recv = gathered_.values.data();
  collective.name = name + ", rows";
  DT_TRY(gather(comm, counts, row_elements_, collective));
  sum_equal(gathered_, divisor);  // in the order of ranks, so that all have the same bits
  return {};
}

Status RowGradient::gather(comm::Communicator& comm, std::span<const int64_t> counts,
                           int64_t elements, backend::Collective collective) const {
  auto blocks = std::make_shared<collective::Blocks>();
  int64_t at = 0;
  for (const int64_t count : counts) {
    blocks->incoming.push_back({at, count * elements});
    at += count * elements;
  }
  collective.count = row_count() * elements;
  blocks->outgoing.assign(counts.size(), {0, collective.count});
  collective.kind = backend::Kind::kAllgatherv;
  collective.blocks = std::move(blocks);
  return comm.run_on_host(collective);
}

}  // namespace dt::training
