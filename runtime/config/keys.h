// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace dt::config {

enum class Type {
  kBool,
  kInteger,
  kString,
  kEnum,       ///< one with the choices true and false takes booleans, too
  kVariables,  ///< names and values; as text "NAME=value NAME=value", sorted by name
};

/// What the ranks of a job must agree on.
enum class Agreement {
  kMayDiffer,
  kEqual,       ///< compared in the join: part of Config::equal_keys()
  kEqualIfSet,  ///< the same, but its default means "not set" and is left out there
  kJoined,      ///< must be equal too, but is a field of the join itself and refused there by name
};

/// One setting. The table of keys is the only place where a setting is described.
struct Key {
  const char* name;         ///< "reducer.bucket_cap_bytes"
  const char* environment;  ///< "DT_REDUCER_BUCKET_CAP_BYTES"
  Type type;
  const char* unit;      ///< "bytes", "ms", empty none
  int64_t minimum;       ///< of an integer
  int64_t maximum;       ///< likewise; of a string or of variables: the longest text in bytes
  const char* fallback;  ///< the default, as it would be written in an environment variable
  const char* choices;   ///< of an enum: "auto, host"
  Agreement agreement;
  bool guarded;             ///< may not be set by ./dt.toml: somebody else may have put it there
  const char* description;  ///< one line
};

/// Every key, grouped by section.
std::span<const Key> keys();

/// The key of that name, or nullptr.
const Key* find_key(std::span<const Key> table, std::string_view name);

/// The name of the key (or, without a dot, of the section) that `name` was probably meant to be;
/// empty when nothing is near.
std::string nearest_name(std::span<const Key> table, std::string_view name);

/// What the key takes: "an integer in bytes from 1024 to 4294967296".
std::string expectation(const Key& key);

/// docs/config.md.
std::string reference_page(std::span<const Key> table);

}  // namespace dt::config
