// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/status.h"
#include "launch/discover.h"
#include "launch/variables.h"

namespace dt::launch {

enum class Field : size_t {
  kRank,
  kWorldSize,
  kLocalRank,
  kLocalSize,
  kNodeRank,
  kNodeCount,
  kMasterPort,
  kAttempt,
};
constexpr size_t kFieldCount = 8;

/// A number and who says it; messages show it as "RANK=3".
struct NumberFact {
  int32_t value = 0;
  std::string variable;

  std::string text() const { return variable + "=" + std::to_string(value); }
};

struct TextFact {
  std::string value;
  std::string variable;
};

/// What one family of variables says. Families are read apart and never mixed field by field: a
/// blank is filled from another family only when rank and size are equal in both.
struct Facts {
  std::array<std::optional<NumberFact>, kFieldCount> numbers;
  std::optional<TextFact> master_addr;
  std::optional<TextFact> job_id;
  bool port_taken = false;
  bool store_served = false;
  std::string launcher;
  /// Why this is a launch although it names neither rank nor size; empty: it is none.
  std::string intention;

  std::optional<NumberFact>& at(Field field) { return numbers[static_cast<size_t>(field)]; }
  const std::optional<NumberFact>& at(Field field) const {
    return numbers[static_cast<size_t>(field)];
  }
  int32_t value(Field field, int32_t otherwise) const {
    return at(field) ? at(field)->value : otherwise;
  }
  bool complete() const { return at(Field::kRank) && at(Field::kWorldSize); }
  bool partial() const {
    return !complete() && (at(Field::kRank) || at(Field::kWorldSize) || !intention.empty());
  }
  /// Both complete, with the same rank and size.
  bool same_launch(const Facts& other) const;
  /// Takes from `other` what is not known here.
  void fill_blanks(const Facts& other);
};

/// One variable that holds a number. Where several rows name one field, the first that is set wins.
struct NumberRow {
  Field field;
  const char* variable;
  int64_t minimum;
  int64_t maximum;
  int64_t unset;  ///< this value counts as not set; below `minimum` or equal to it
};
constexpr int64_t kNoUnset = INT64_MIN;

Status read_numbers(Variables& variables, std::span<const NumberRow> rows, Facts& facts);
/// A host name, an IPv4 or an IPv6 address (brackets are removed). Error: bad_address.
Status read_address(Variables& variables, const char* variable, Facts& facts);

/// Local rank, node rank and rank in range of their sizes. Error: out_of_range with both variables.
Status check_ranges(const Facts& facts);

/// A family: how one kind of launcher describes a process. New ones get a file and a row in
/// discover.cc.
struct Family {
  const char* name;           ///< for DT_LAUNCHER
  const char* other_name;     ///< likewise, nullptr none
  const char* rank_variable;  ///< for messages
  const char* size_variable;  ///< likewise
  const char* how_to_launch;  ///< what to do when it is partial
  Result<Facts> (*read)(Variables& variables);
};

/// The families that describe a process, the own one first and then the innermost launcher.
std::span<const Family> families();

/// What all variables say together: chosen, compared, with blanks filled and ranges checked. The
/// result has rank and world size, and an address and a port unless it is alone.
Result<Facts> discover_facts(Variables& variables);
Place make_place(const Facts& facts, const Variables& variables);

Result<Facts> read_own(Variables& variables);
Result<Facts> read_torch(Variables& variables);

}  // namespace dt::launch
