// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "config/keys.h"

namespace dt::config {

using Environment = std::map<std::string, std::string>;

/// Variables of this process now. The caller makes sure that nobody calls setenv meanwhile.
Environment process_environment();

/// Where a value came from, weakest first.
enum class Origin { kDefault, kDiscovered, kEtc, kHome, kLocal, kEnvironment, kCall };

/// Merged settings of one job: call > DT_* environment > ./dt.toml > ~/.config/dt/dt.toml >
/// /etc/dt/dt.toml > discovered > default. A value type: copies are independent.
class Config {
 public:
  /// What load() reads; injectable, so that tests touch no machine-wide state.
  struct Sources {
    Environment environment;
    std::string directory = ".";  ///< holds dt.toml
    std::string home_file;        ///< ~/.config/dt/dt.toml; empty: none
    std::string etc_file = "/etc/dt/dt.toml";
    std::string path;  ///< a file to read instead of ./dt.toml and DT_CONFIG; empty: none
    std::span<const Key> keys = known_keys();
  };

  /// From the process's environment and directories. `path` as in Sources.
  static Result<Config> load(const std::string& path = {});
  static Result<Config> load(const Sources& sources);

  /// Sets a key at call level.
  Status set(const std::string& name, const std::string& text);
  /// What the launcher's environment says: stronger than the default only.
  void set_discovered(const std::string& name, const std::string& text, const std::string& where);

  // Getters for keys of the table; any other name is a bug of ours.
  int64_t integer(const char* name) const;
  bool boolean(const char* name) const;
  const std::string& text(const char* name) const;
  /// More than the default is known.
  bool given(const char* name) const;
  Origin origin(const char* name) const;
  /// "dt.toml:12", "DT_RANK", "call", "default".
  const std::string& source(const char* name) const;

  /// Any name; unknown ones are an error with the nearest known key.
  Result<std::string> value_text(const std::string& name) const;
  /// Keys whose values must be equal on all ranks, with their values.
  std::vector<std::pair<std::string, std::string>> equal_keys() const;
  /// A table: key, value, source.
  std::string dump_text() const;
  /// {key: {"value":, "source":}}.
  std::string dump_json() const;

  const std::vector<std::string>& warnings() const { return warnings_; }
  const Environment& environment() const { return environment_; }

 private:
  struct Value {
    std::string text;
    Origin origin = Origin::kDefault;
    std::string source = "default";
  };

  explicit Config(std::span<const Key> keys);
  Status read_file(const std::string& path, Origin origin, bool must_exist);
  Status read_environment();
  /// Applies one checked value; a lock of /etc/dt/dt.toml wins with a warning.
  void apply(const Key& key, const std::string& text, Origin origin, const std::string& source);
  Status unknown(const std::string& where, const std::string& name) const;
  const Value& value(const char* name) const;

  std::span<const Key> keys_;
  Environment environment_;
  std::map<std::string, Value> values_;       // every key of keys_
  std::map<std::string, std::string> locks_;  // key -> "file:line"
  std::vector<std::string> warnings_;
};

}  // namespace dt::config
