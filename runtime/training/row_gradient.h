// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "comm/communicator.h"

namespace dt::training {

/// The gradient of a matrix of which a step uses some rows only, as of an embedding: a list of row
/// indices and the values of these rows, in host memory, and over it also between ranks on GPUs.
///
/// add(), coalesce() and prepare() throw std::bad_alloc and have then changed nothing that counts.
/// reduce() allocates nothing, so that a rank without memory says so before the others wait.
///
/// Threads: add() under the mutex of the caller; the others by one thread, after the last add() of
/// the step.
class RowGradient {
 public:
  RowGradient(Dtype dtype, int64_t matrix_rows, int64_t row_elements)
      : dtype_(dtype), matrix_rows_(matrix_rows), row_elements_(row_elements) {}

  void begin_step();
  bool given() const { return given_; }
  /// Copies rows, each of which is in the matrix; a row may come again.
  void add(std::span<const int64_t> rows, const void* values);
  /// Sums rows with equal indices. Afterwards row_count() is the number of rows that this rank
  /// sends.
  void coalesce();
  int64_t row_count() const { return static_cast<int64_t>(rows_.indices.size()); }

  /// Memory for reduce() of the same counts: the row_count() of each rank.
  void prepare(std::span<const int64_t> counts);
  /// Collective: the sum over ranks, with equal bits on all, divided by `divisor` if that is not 0.
  /// Where the ranks have more rows than the matrix, the whole matrix is summed, and the result has
  /// all rows.
  /// @param withheld not null: this rank could not prepare, and why
  Status reduce(comm::Communicator& comm, std::span<const int64_t> counts, int32_t divisor,
                const std::shared_ptr<const std::string>& withheld, const std::string& name);

  const std::vector<int64_t>& indices() const { return rows_.indices; }
  void* values() { return rows_.values.data(); }
  int64_t elements() const { return row_count() * row_elements_; }

 private:
  struct Rows {
    std::vector<int64_t> indices;
    std::vector<char> values;
  };

  int64_t row_bytes() const { return row_elements_ * dtype_bytes(dtype_); }
  /// The last step's rows are no longer wanted.
  void drop_results();
  void reserve_sums(size_t rows);
  /// Sums rows of `from` with equal indices, in the order in which they stand, into rows_.
  void sum_equal(const Rows& from, int32_t divisor);
  Status gather(comm::Communicator& comm, std::span<const int64_t> counts, int64_t elements,
                backend::Collective collective) const;

  const Dtype dtype_;
  const int64_t matrix_rows_;
  const int64_t row_elements_;
  bool given_ = false;        // in this step
  bool has_results_ = false;  // rows_ is of the last step
  Rows rows_;                 // what was added, what goes to other ranks, and then the result
  Rows gathered_;             // of all ranks, or all rows of the matrix
  Rows sums_;
  std::vector<size_t> order_;
  std::vector<const void*> sources_;
};

}  // namespace dt::training
