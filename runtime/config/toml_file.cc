// SPDX-License-Identifier: Apache-2.0
#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
#include "config/toml_file.h"

#include <toml++/toml.h>

namespace dt::config {
namespace {

/// One file being read.
class Reader {
 public:
  Reader(const std::string& name, bool trusted, std::span<const Key> keys)
      : name_(name), trusted_(trusted), keys_(keys) {}

  Result<TomlFile> read(const toml::table& root) {
    DT_TRY(read_schema(root));
    for (const auto& [key, node] : root) {
      const std::string section(key.str());
      if (section == "schema") continue;
      if (section == "lock") {
        DT_TRY(read_locks(node));
      } else if (const toml::table* table = node.as_table()) {
        DT_TRY(read_section(section, *table));
      } else {
        DT_TRY(unknown(key.source().begin, section));
      }
    }
    return std::move(file_);
  }

 private:
  Status error(const toml::source_position& at, const std::string& text) const {
    return Status(Code::kConfig,
                  format("%s:%u:%u: %s", name_.c_str(), at.line, at.column, text.c_str()));
  }

  Status read_schema(const toml::table& root) {
    const toml::node* node = root.get("schema");
    if (node == nullptr) return {};
    const auto value = node->value_exact<int64_t>();
    if (!value.has_value() || *value < 1) {
      return error(node->source().begin, "schema must be an integer >= 1");
    }
    newer_ = *value > kSchema;
    return {};
  }

  /// A file of a newer release may hold keys that this one does not know: a warning then.
  Status unknown(const toml::source_position& at, const std::string& key) {
    const Status failure = error(at, unknown_key_text(keys_, key));
    if (!newer_) return failure;
    file_.warnings.push_back(failure.message() + " (ignored: the file's schema is newer)");
    return {};
  }

  Status read_locks(const toml::node& node) {
    const toml::array* list = node.as_array();
    if (list == nullptr) return error(node.source().begin, "lock must be an array of key names");
    for (const toml::node& each : *list) {
      const auto key_name = each.value_exact<std::string>();
      if (!key_name.has_value()) {
        return error(each.source().begin, "lock must be an array of key names");
      }
      if (const Key* key = find_key(keys_, *key_name)) {
        file_.locks.push_back({key, static_cast<int>(each.source().begin.line)});
      } else {
        DT_TRY(unknown(each.source().begin, *key_name));
      }
    }
    return {};
  }

  Status read_section(const std::string& section, const toml::table& table) {
    for (const auto& [key, node] : table) {
      const std::string full = section + "." + std::string(key.str());
      const Key* const known = find_key(keys_, full);
      if (known == nullptr) {
        DT_TRY(unknown(key.source().begin, full));
        continue;
      }
      DT_TRY(read_value(*known, node));
    }
    return {};
  }

  Status read_value(const Key& key, const toml::node& node) {
    const toml::source_position at = node.source().begin;
    std::string text;
    bool typed = false;
    if (const auto number = node.value_exact<int64_t>()) {
      text = std::to_string(*number);
      typed = key.type == Type::kInteger;
    } else if (const auto flag = node.value_exact<bool>()) {
      text = *flag ? "true" : "false";
      typed = key.type == Type::kBool;
    } else if (const auto string = node.value_exact<std::string>()) {
      text = *string;
      typed = key.type == Type::kText || key.type == Type::kChoice;
    }
    if (!typed) {
      return error(at, format("%s is a TOML %s; it must be %s", key.name, type_name(node.type()),
                              expectation(key).c_str()));
    }
    if (const std::string why = check_value(key, text); !why.empty()) {
      return error(at, format("%s %s", key.name, why.c_str()));
    }
    if (key.trusted_only && !trusted_) {
      return error(at, format("%s may not be set by ./dt.toml; set it in ~/.config/dt/dt.toml, "
                              "/etc/dt/dt.toml or as %s",
                              key.name, variable_of(key).c_str()));
    }
    file_.settings.push_back({&key, text, static_cast<int>(at.line)});
    return {};
  }

  static const char* type_name(toml::node_type type) {
    switch (type) {
      case toml::node_type::table: return "table";
      case toml::node_type::array: return "array";
      case toml::node_type::string: return "string";
      case toml::node_type::integer: return "integer";
      case toml::node_type::floating_point: return "float";
      case toml::node_type::boolean: return "boolean";
      default: return "date or time";
    }
  }

  const std::string& name_;
  const bool trusted_;
  const std::span<const Key> keys_;
  bool newer_ = false;
  TomlFile file_;
};

}  // namespace

std::string unknown_key_text(std::span<const Key> keys, const std::string& name) {
  std::string text = format("unknown key \"%.128s\"", name.c_str());
  if (const Key* nearest = nearest_key(keys, name)) {
    text += format("; did you mean \"%s\"?", nearest->name);
  } else {
    text += "; docs/config.md lists the keys";
  }
  return text;
}

Result<TomlFile> parse_toml(const std::string& text, const std::string& name, bool trusted,
                            std::span<const Key> keys) {
  const toml::parse_result parsed = toml::parse(text, name);
  if (!parsed) {
    const toml::parse_error& error = parsed.error();
    return Status(Code::kConfig,
                  format("%s:%u:%u: not valid TOML: %.*s", name.c_str(), error.source().begin.line,
                         error.source().begin.column, static_cast<int>(error.description().size()),
                         error.description().data()));
  }
  return Reader(name, trusted, keys).read(parsed.table());
}

}  // namespace dt::config
