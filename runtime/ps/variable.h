// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "base/byte_codec.h"
#include "base/status.h"

namespace dt::ps {

inline constexpr int64_t kMostRows = int64_t{1} << 40;
inline constexpr int32_t kMostColumns = 1 << 20;
inline constexpr size_t kLongestName = 1000;

enum class Method : int32_t { kSgd = 0, kMomentum = 1, kAdagrad = 2, kAdam = 3 };
enum class Initial : int32_t { kConstant = 0, kUniform = 1, kNormal = 2 };

/// A matrix of f32 that servers keep, and how they update it. Equal on all workers.
struct Variable {
  std::string name;
  int64_t rows = 1;
  int32_t columns = 1;
  Method method = Method::kSgd;
  double rate = 0.01;
  double momentum = 0;  ///< of kMomentum
  bool nesterov = false;
  double beta1 = 0.9;  ///< of kAdam
  double beta2 = 0.999;
  double epsilon = 1e-8;  ///< of kAdam and kAdagrad
  Initial initial = Initial::kConstant;
  double initial_value = 0;  ///< the constant, the bound of kUniform, the deviation of kNormal
  uint64_t seed = 0;

  bool operator==(const Variable&) const = default;
  int64_t row_bytes() const { return int64_t{columns} * 4; }
  /// How many more arrays like the values its optimizer needs: 0 to 2.
  int moments() const;
};

/// INVALID_ARGUMENT says which field is wrong.
Status check(const Variable& variable);
void put(ByteWriter& out, const Variable& variable);
Variable get_variable(ByteReader& in);
/// "columns is 64 there and 32 here": the first field that differs. Empty: none.
std::string difference(const Variable& there, const Variable& here);

/// The value that an element begins with: it depends on nothing but these, so that it is the same
/// whichever server keeps it.
float initial_value(const Variable& variable, int64_t row, int32_t column);

/// Which server keeps which rows. Stripes of rows go round the servers, beginning with one that
/// follows from the name, so that rows that are used more than others, and small variables, are
/// spread. A stripe is a row, or as many short rows as make 4 KiB.
class Partition {
 public:
  Partition(const Variable& variable, int32_t servers);

  int64_t stripe() const { return stripe_; }
  int32_t server_of(int64_t row) const {
    return static_cast<int32_t>((row / stripe_ + first_) % servers_);
  }
  /// The place of `row` among those of its server.
  int64_t place_of(int64_t row) const { return row / stripe_ / servers_ * stripe_ + row % stripe_; }
  /// The reverse.
  int64_t row_at(int32_t server, int64_t place) const;
  /// How many rows a server keeps.
  int64_t count(int32_t server) const;

 private:
  /// Of the server, among those that follow one another.
  int64_t first_stripe(int32_t server) const { return (server - first_ + servers_) % servers_; }

  int64_t rows_;
  int64_t stripe_;
  int32_t servers_;
  int32_t first_;  ///< the server of row 0
};

}  // namespace dt::ps
