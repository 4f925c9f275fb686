// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "ps/variable.h"
#include "training/mapped_memory.h"

namespace dt::ps {

/// The rows of a variable that one server keeps, with what its optimizer needs. A row takes its
/// first values when it is first used: memory that nobody has used costs nothing. One thread.
///
/// Rows are updated by themselves ("lazily"): one that gets no gradient stays as it is, moments
/// and all, and Adam counts the updates of each row.
class Table {
 public:
  /// OUT_OF_MEMORY.
  static Result<std::unique_ptr<Table>> create(const Variable& variable, int32_t server,
                                               int32_t servers);

  const Variable& variable() const { return variable_; }
  int64_t rows() const { return rows_; }

  // `count` rows from `place` on, all in [0, rows()); values and gradients are one row behind the
  // other.
  const float* read(int64_t place, int64_t count);
  void set(int64_t place, int64_t count, const float* values);
  /// `rate` < 0: the variable's.
  void push(int64_t place, int64_t count, const float* gradients, double rate);

  /// What a file keeps: one value of 32 bits for each row, and then one for each element. Null:
  /// there is no such array.
  uint32_t* updates() { return updates_; }
  float* values() { return values_; }
  float* moment(int index) { return index < variable_.moments() ? moments_[index] : nullptr; }

 private:
  /// Of `updates_`, how often a row was updated; the highest bit says that it has values.
  static constexpr uint32_t kUsed = 0x8000'0000;

  Table(const Variable& variable, int32_t server, int32_t servers)
      : variable_(variable), partition_(variable, servers), server_(server) {}
  /// Gives the rows their first values, unless they have some.
  float* use(int64_t place, int64_t count);
  void update(int64_t place, int64_t elements, const float* gradients, double rate, double times);

  const Variable variable_;
  const Partition partition_;
  const int32_t server_;
  int64_t rows_ = 0;
  std::unique_ptr<training::MappedMemory> memory_;
  uint32_t* updates_ = nullptr;  // [rows_]
  float* values_ = nullptr;      // [rows_][columns]
  float* moments_[2] = {};       // likewise
};

}  // namespace dt::ps
