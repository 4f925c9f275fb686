// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace dt::config {

enum class Type { kBool, kInteger, kText, kChoice };

/// Whether ranks of one job may see different values.
enum class Scope { kEqual, kMayDiffer };

/// One key of dt.toml. The table of them is the only place where a key is described: parser,
/// checks, environment, join and docs/config.md all read it.
struct Key {
  const char* name;  ///< "section.key"
  Type type;
  const char* unit;  ///< "bytes", "ms", ...; empty: a plain number
  int64_t minimum;   ///< integers; for text the largest length stands in maximum
  int64_t maximum;
  const char* fallback;  ///< default, as text
  const char* choices;   ///< "auto|host"; empty unless kChoice
  Scope scope;
  bool trusted_only;     ///< ./dt.toml may not set it: it could make dt run foreign code
  const char* variable;  ///< environment variable; null: DT_SECTION_KEY
  const char* what;      ///< one line for the reference
};

/// The keys of this release, by name.
std::span<const Key> known_keys();

const Key* find_key(std::span<const Key> keys, const std::string& name);
/// The key that `name` was probably meant to be; null when none is near.
const Key* nearest_key(std::span<const Key> keys, const std::string& name);
std::string variable_of(const Key& key);
/// "an integer in [4096, 16777216] bytes": what a value must be.
std::string expectation(const Key& key);
/// Empty, or why `text` is no value of `key`: "is 17; it must be an integer in ...".
std::string check_value(const Key& key, const std::string& text);

}  // namespace dt::config
