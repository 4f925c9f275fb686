// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <nlohmann/json.hpp>

#include "config/config.h"
#include "config/value.h"

namespace dt {
namespace {

/// Strings are quoted, so that an empty one can be seen.
std::string shown_value(const Config::Entry& entry) {
  const config::Type type = entry.key->type;
  const bool free = type == config::Type::kString || type == config::Type::kVariables;
  return free ? config::quoted(entry.value) : entry.value;
}

}  // namespace

std::string Config::dump_text() const {
  const std::vector<Entry> all = entries();
  size_t key_width = 3;
  size_t value_width = 5;
  for (const Entry& entry : all) {
    key_width = std::max(key_width, std::string_view(entry.key->name).size());
    value_width = std::max(value_width, shown_value(entry).size());
  }
  value_width = std::min<size_t>(value_width, 40);  // one long name must not push all others away
  const auto line = [&](const std::string& key, const std::string& value, const std::string& from) {
    return format("%-*s  %-*s  %s\n", static_cast<int>(key_width), key.c_str(),
                  static_cast<int>(value_width), value.c_str(), from.c_str());
  };
  std::string text = line("key", "value", "source");
  for (const Entry& entry : all) {
    text += line(entry.key->name, shown_value(entry), entry.source.where);
  }
  return text;
}

std::string Config::dump_json() const {
  nlohmann::ordered_json all = nlohmann::ordered_json::object();
  for (size_t i = 0; i < table_.size(); ++i) {
    nlohmann::ordered_json value;
    switch (table_[i].type) {
      case config::Type::kBool: value = slots_[i].integer != 0; break;
      case config::Type::kInteger: value = slots_[i].integer; break;
      case config::Type::kString:
      case config::Type::kEnum: value = slots_[i].text; break;
      case config::Type::kVariables:
        value = nlohmann::ordered_json::object();
        for (const auto& [name, text] : config::split_variables(slots_[i].text)) value[name] = text;
        break;
    }
    all[table_[i].name] = {{"value", value}, {"source", slots_[i].source.where}};
  }
  // Names of files may hold any bytes.
  return all.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace dt
