// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "config/environment.h"

namespace dt::launch {

/// "kind: text", as every error and warning of this folder is written.
Status launch_error(const char* kind, const std::string& text);

/// The variables of one discovery. An empty one counts as not set and is warned about once.
class Variables {
 public:
  explicit Variables(const Environment& environment) : environment_(environment) {}

  /// Puts `value` in the place of a variable; messages call it `shown`: "job.rank (dt.toml:3)".
  void replace(const std::string& name, const std::string& value, const std::string& shown);
  void remove(const std::string& name) { environment_.erase(name); }

  /// nullptr: not set or empty.
  const std::string* get(const std::string& name);
  /// Whether a variable of such a name is set.
  bool any_begins(const std::string& prefix) const;
  /// How messages call the variable.
  std::string shown(const std::string& name) const;
  /// A decimal integer; zeros in front are fine, trailing text is not. Errors: not_a_number,
  /// out_of_range.
  Result<std::optional<int32_t>> integer(const std::string& name, int64_t minimum, int64_t maximum);
  /// The same for numbers of any length that an int64_t holds.
  Result<std::optional<int64_t>> wide_integer(const std::string& name, int64_t minimum,
                                              int64_t maximum);

  void warn(const std::string& text);
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  Environment environment_;
  std::map<std::string, std::string> shown_;
  std::vector<std::string> warnings_;
};

}  // namespace dt::launch
