// SPDX-License-Identifier: Apache-2.0
#include "launch/variables.h"

#include <algorithm>
#include <charconv>

#include "config/value.h"

namespace dt::launch {

Status launch_error(const char* kind, const std::string& text) {
  return Status(Code::kConfig, std::string(kind) + ": " + text);
}

void Variables::replace(const std::string& name, const std::string& value,
                        const std::string& shown) {
  environment_[name] = value;
  shown_[name] = shown;
}

const std::string* Variables::get(const std::string& name) {
  const auto found = environment_.find(name);
  if (found == environment_.end()) return nullptr;
  if (!found->second.empty()) return &found->second;
  warn("empty_variable: " + shown(name) + " is set but empty and counts as not set");
  return nullptr;
}

bool Variables::any_begins(const std::string& prefix) const {
  const auto first = environment_.lower_bound(prefix);
  return first != environment_.end() && first->first.starts_with(prefix);
}

std::string Variables::shown(const std::string& name) const {
  const auto found = shown_.find(name);
  return found == shown_.end() ? name : found->second;
}

Result<std::optional<int32_t>> Variables::integer(const std::string& name, int64_t minimum,
                                                  int64_t maximum) {
  DT_TRY_VALUE(const std::optional<int64_t> wide, wide_integer(name, minimum, maximum));
  if (!wide) return std::optional<int32_t>();
  return std::optional<int32_t>(static_cast<int32_t>(*wide));
}

Result<std::optional<int64_t>> Variables::wide_integer(const std::string& name, int64_t minimum,
                                                       int64_t maximum) {
  const std::string* text = get(name);
  if (text == nullptr) return std::optional<int64_t>();
  int64_t number = 0;
  const char* end = text->data() + text->size();
  const auto parsed = std::from_chars(text->data(), end, number);
  const std::string expected =
      format("expected a decimal integer from %lld to %lld", static_cast<long long>(minimum),
             static_cast<long long>(maximum));
  if (parsed.ptr != end || parsed.ec == std::errc::invalid_argument) {
    return launch_error("not_a_number",
                        shown(name) + "=" + config::quoted(*text) + "; " + expected);
  }
  if (parsed.ec == std::errc::result_out_of_range || number < minimum || number > maximum) {
    return launch_error("out_of_range",
                        shown(name) + "=" + config::quoted(*text) + "; " + expected);
  }
  return std::optional<int64_t>(number);
}

void Variables::warn(const std::string& text) {
  if (std::find(warnings_.begin(), warnings_.end(), text) == warnings_.end()) {
    warnings_.push_back(text);
  }
}

}  // namespace dt::launch
