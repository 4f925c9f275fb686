// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "config/environment.h"
#include "config/keys.h"

namespace dt {

/// Where a value came from, weakest first.
enum class SourceKind {
  kDefault,
  kDiscovered,   ///< the launcher's variables
  kSystemFile,   ///< /etc/dt/dt.toml
  kUserFile,     ///< ~/.config/dt/dt.toml
  kProjectFile,  ///< ./dt.toml, or the file named by DT_CONFIG or by the call
  kEnvironment,
  kCall,
};

/// "default", "torchrun: RANK", "dt.toml:12", "environment DT_RANK", "call".
struct ConfigSource {
  SourceKind kind = SourceKind::kDefault;
  std::string where;
};

/// All settings of one job with the source of each. A value: copies share nothing.
/// Threads: as a std::vector; reads may be concurrent.
class Config {
 public:
  /// Where to look; injectable for tests.
  struct LoadOptions {
    std::string cwd = ".";  ///< ./dt.toml and relative names are looked up here
    std::string home;       ///< empty: the variable HOME
    std::string file;       ///< read instead of ./dt.toml and of the file DT_CONFIG names
    std::string system_directory = "/etc/dt";
    std::span<const config::Key> keys = config::keys();
  };
  struct Entry {
    const config::Key* key;
    std::string value;
    ConfigSource source;
  };

  /// Every key at its default; reads nothing.
  Config() : Config(config::keys()) {}
  explicit Config(std::span<const config::Key> table);

  /// Reads the files and the DT_* variables. CONFIG: one message with file:line:column or the
  /// variable, the key, what was expected and the nearest known key.
  static Result<Config> load(const Environment& environment) { return load(environment, {}); }
  static Result<Config> load(const Environment& environment, const LoadOptions& options);

  /// Sets one key from the program; wins over every other source except a lock.
  Status set(std::string_view key, std::string_view value);
  /// Fills a key that nobody has set. `where` says who knows: "torchrun: RANK". A bad value is the
  /// launcher's fault and an error that names `where`.
  Status set_discovered(std::string_view key, std::string_view value, const std::string& where);

  /// CONFIG: two keys contradict each other. When all are set, before they are used.
  Status check_together() const;

  // Typed reads. A name that is not in the table or has another type is a bug of ours: it asserts
  // in test builds and reads as zero, false or empty elsewhere.
  int64_t integer(std::string_view key) const;
  bool boolean(std::string_view key) const;
  const std::string& text(std::string_view key) const;  ///< strings and enums
  /// Names and values, sorted by name.
  std::vector<std::pair<std::string, std::string>> variables(std::string_view key) const;

  /// Any key as text, for names that come from outside. CONFIG: unknown key, with the nearest.
  Result<std::string> value_text(std::string_view key) const;
  /// Whether anybody set it: false for default and discovered values.
  bool given(std::string_view key) const;
  const ConfigSource& source_of(std::string_view key) const;

  std::vector<Entry> entries() const;
  /// Names and values that must be equal on all ranks, in table order.
  std::vector<std::pair<std::string, std::string>> equal_keys() const;
  /// A table with the columns key, value, source.
  std::string dump_text() const;
  /// {key: {"value":, "source":}}, indented.
  std::string dump_json() const;
  /// Things worth telling the user once: locked keys, empty variables, keys of a newer schema.
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  friend class ConfigLoader;
  struct Slot {
    std::string text;
    int64_t integer = 0;  ///< also of a bool
    ConfigSource source;
    std::string lock;  ///< "file:line" of the lock, empty unlocked
  };

  const Slot* find(std::string_view key) const;
  const Slot& slot_of(std::string_view key, config::Type type, config::Type other) const;
  /// Parses `value` and stores it unless a lock forbids; `what` leads the error: "DT_RANK".
  Status assign(size_t index, std::string_view value, ConfigSource source, const std::string& what);
  void warn(const std::string& text);

  std::span<const config::Key> table_;
  std::vector<Slot> slots_;
  std::vector<std::string> warnings_;
};

}  // namespace dt
