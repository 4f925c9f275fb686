// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "comm/communicator.h"

namespace dt::training {

/// The gradient of a matrix of which a step uses some rows only, as of an embedding: a list of row
/// indices and the values of these rows, in host memory.
///
/// Threads: add() under the mutex of the caller, the others by one thread, behind all add() of the
/// step.
class RowGradient {
 public:
  RowGradient(Dtype dtype, int64_t matrix_rows, int64_t row_elements)
      : dtype_(dtype), matrix_rows_(matrix_rows), row_elements_(row_elements) {}

  void begin_step();
  bool given() const { return given_; }
  /// Copies rows, each of which is in the matrix; a row may come again.
  void add(std::span<const int64_t> rows, const void* values);
  /// Sums rows with equal indices. Behind it row_count() is what goes to other ranks.
  void coalesce();
  int64_t row_count() const { return static_cast<int64_t>(rows_.size()); }

  /// Collective: the sum over ranks, with equal bits on all, divided by `divisor` if that is not 0.
  /// `counts`: the row_count() of each rank. Where many rows have values, all rows are summed, and
  /// the result has all.
  Status reduce(comm::Communicator& comm, std::span<const int64_t> counts, int32_t divisor,
                const std::string& name);

  int64_t matrix_rows() const { return matrix_rows_; }
  const std::vector<int64_t>& rows() const { return rows_; }
  void* values() { return values_.data(); }
  int64_t elements() const { return row_count() * row_elements_; }

 private:
  int64_t row_bytes() const { return row_elements_ * dtype_bytes(dtype_); }
  /// Replaces the rows by their sums over equal indices, in the order in which they stand.
  void sum_equal(int32_t divisor);
  Status reduce_all_rows(comm::Communicator& comm, int32_t divisor, const std::string& name);
  Status gather(comm::Communicator& comm, std::span<const int64_t> counts, int64_t elements,
                Dtype dtype, const void* mine, void* all, const std::string& name) const;

  const Dtype dtype_;
  const int64_t matrix_rows_;
  const int64_t row_elements_;
  bool given_ = false;    ///< in this step
  bool results_ = false;  ///< rows_ and values_ are the last step's
  std::vector<int64_t> rows_;
  std::vector<char> values_;
};

}  // namespace dt::training
