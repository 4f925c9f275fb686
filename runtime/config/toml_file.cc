// SPDX-License-Identifier: Apache-2.0
#include "config/toml_file.h"

#include "config/toml_scan.h"

#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_FORMATTERS 0
// toml++ 3.3 asserts (and, with NDEBUG, lets the compiler assume) that a digit follows the T of a
// date: "a = 1979-05-27T[" would abort the program. The check after that assertion is right.
#undef NDEBUG
#define TOML_ASSERT(expr) static_assert(true)
#include <toml++/toml.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace dt::config {
namespace {

constexpr uint32_t kMostWarnings = 20;

std::string type_text(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::table: return "a table";
    case toml::node_type::array: return "an array";
    case toml::node_type::string: return quoted(**node.as_string());
    case toml::node_type::integer: return std::to_string(**node.as_integer());
    case toml::node_type::floating_point: return format("%g", **node.as_floating_point());
    case toml::node_type::boolean: return **node.as_boolean() ? "true" : "false";
    case toml::node_type::date: return "a date";
    case toml::node_type::time: return "a time";
    case toml::node_type::date_time: return "a date";
    case toml::node_type::none: break;
  }
  return "nothing";
}

std::optional<Value> value_of(const Key& key, const toml::node& node) {
  if (const auto* boolean = node.as_boolean()) return make_bool(key, **boolean);
  if (const auto* integer = node.as_integer()) return make_integer(key, **integer);
  if (const auto* real = node.as_floating_point()) return make_real(key, **real);
  if (const auto* string = node.as_string()) return make_string(key, **string);
  return std::nullopt;
}

/// One pass over a parsed file. toml++ walks tables in the order of their names, so faults are
/// collected and the one that stands first in the text is reported.
class Reader {
 public:
  Reader(std::span<const Key> table, const std::string& shown, FileRights rights)
      : table_(table), shown_(shown), rights_(rights) {}

  Result<FileContent> read(const toml::table& root) {
    read_schema(root);
    for (auto&& [key, node] : root) {
      if (key == "schema" || key == "lock") continue;
      read_entry("", key, node);
    }
    read_locks(root);
    if (!faults_.empty()) return first_fault();
    std::stable_sort(content_.settings.begin(), content_.settings.end(),
                     [](const auto& a, const auto& b) { return a.line < b.line; });
    return std::move(content_);
  }

 private:
  struct Fault {
    toml::source_position at;
    std::string text;
  };

  std::string where(toml::source_position at) const {
    return format("%s:%u:%u: ", shown_.c_str(), at.line, at.column);
  }

  void fault(toml::source_position at, std::string text) {
    faults_.push_back({at, std::move(text)});
  }

  Status first_fault() const {
    const auto first = std::min_element(faults_.begin(), faults_.end(),
                                        [](const Fault& a, const Fault& b) { return a.at < b.at; });
    std::string text = where(first->at) + first->text;
    if (faults_.size() > 1) {
      text += format(" (and %zu more in this file)", faults_.size() - 1);
    }
    return Status(Code::kConfig, text);
  }

  void read_schema(const toml::table& root) {
    const toml::node* node = root.get("schema");
    if (node == nullptr) return;
    const auto* integer = node->as_integer();
    if (integer == nullptr || **integer < 1) {
      fault(node->source().begin,
            format("schema is %s; expected an integer of at least 1 (this release writes %lld)",
                   type_text(*node).c_str(), static_cast<long long>(kSchema)));
      return;
    }
    newer_ = **integer > kSchema;
  }

  void read_entry(const std::string& prefix, const toml::key& key, const toml::node& node) {
    // A dot inside a quoted name is no separator.
    const bool plain = key.str().find('.') == std::string_view::npos;
    const std::string name = prefix + std::string(key.str());
    const auto known = std::find_if(table_.begin(), table_.end(),
                                    [&](const Key& each) { return name == each.name; });
    if (plain && known != table_.end()) {
      read_value(*known, key, node);
      return;
    }
    if (plain && is_section(name)) {
      if (const auto* section = node.as_table()) {
        for (auto&& [inner, child] : *section) read_entry(name + ".", inner, child);
        return;
      }
      fault(node.source().begin, format("%s is %s; expected a section: [%s]", name.c_str(),
                                        type_text(node).c_str(), name.c_str()));
      return;
    }
    unknown(name, plain, key, node);
  }

  void read_value(const Key& key, const toml::key& written, const toml::node& node) {
    if (key.guarded && !rights_.guarded) {
      fault(written.source().begin,
            format("%s cannot be set in this file, which may come with a download; set it in "
                   "~/.config/dt/dt.toml, in /etc/dt/dt.toml or as %s",
                   key.name, key.environment));
      return;
    }
    auto value = value_of(key, node);
    if (!value) {
      fault(node.source().begin, format("%s is %s; expected %s", key.name, type_text(node).c_str(),
                                        expectation(key).c_str()));
      return;
    }
    content_.settings.push_back({static_cast<size_t>(&key - table_.data()), std::move(*value),
                                 written.source().begin.line});
  }

  bool is_section(const std::string& name) const {
    const std::string prefix = name + ".";
    return std::any_of(table_.begin(), table_.end(), [&](const Key& key) {
      return std::string_view(key.name).substr(0, prefix.size()) == prefix;
    });
  }

  void unknown(const std::string& name, bool plain, const toml::key& key, const toml::node& node) {
    const char* kind = node.is_table() && plain ? "section" : "key";
    const std::string nearest = nearest_name(table_, name);
    std::string text = format("unknown %s %s", kind, quoted(name).c_str());
    if (!plain && nearest == name) {
      text += "; write the name without quotes";
    } else if (!nearest.empty()) {
      const bool section = nearest.find('.') == std::string::npos;
      text += format("; the nearest known %s is %s", section ? "section" : "key", nearest.c_str());
    } else {
      text += "; dt config lists all keys";
    }
    if (!newer_) {
      fault(key.source().begin, std::move(text));
    } else if (content_.warnings.size() < kMostWarnings) {
      content_.warnings.push_back(where(key.source().begin) + text +
                                  "; ignored, as the file's schema is newer than this release");
    }
  }

  void read_locks(const toml::table& root) {
    const toml::node* node = root.get("lock");
    if (node == nullptr) return;
    if (!rights_.lock) {
      fault(node->source().begin, "only /etc/dt/dt.toml may lock keys; remove this line");
      return;
    }
    const auto* names = node->as_array();
    if (names == nullptr) {
      fault(node->source().begin,
            format("lock is %s; expected an array of names of keys", type_text(*node).c_str()));
      return;
    }
    for (const toml::node& each : *names) read_lock(each);
  }

  void read_lock(const toml::node& node) {
    const toml::source_position at = node.source().begin;
    const auto* string = node.as_string();
    if (string == nullptr) {
      fault(at, format("lock holds %s; expected names of keys", type_text(node).c_str()));
      return;
    }
    const std::string& name = **string;
    const Key* key = find_key(table_, name);
    if (key == nullptr) {
      const std::string nearest = nearest_name(table_, name);
      std::string text = format("lock holds the unknown key %s", quoted(name).c_str());
      if (!nearest.empty()) text += format("; the nearest known key is %s", nearest.c_str());
      if (!newer_) {
        fault(at, text);
      } else if (content_.warnings.size() < kMostWarnings) {
        content_.warnings.push_back(where(at) + text + "; ignored");
      }
      return;
    }
    const auto index = static_cast<size_t>(key - table_.data());
    for (const FileSetting& setting : content_.settings) {
      if (setting.key != index) continue;
      content_.locks.push_back({index, setting.value, at.line});
      return;
    }
    fault(at, format("%s is locked, but this file does not set it; set it here too", key->name));
  }

  const std::span<const Key> table_;
  const std::string& shown_;
  const FileRights rights_;
  bool newer_ = false;  ///< the file's schema is newer than ours
  FileContent content_;
  std::vector<Fault> faults_;
};

}  // namespace

Result<FileContent> parse_toml(std::span<const Key> table, std::string_view text,
                               const std::string& shown, FileRights rights) {
  if (const auto bad = find_bad_utf8(text)) {
    return Status(Code::kConfig, format("%s:%u:%u: not UTF-8; save the file as UTF-8 text",
                                        shown.c_str(), bad->line, bad->column));
  }
  if (const auto bare = find_bare_non_ascii(text)) {
    return Status(
        Code::kConfig,
        format("%s:%u:%u: not valid TOML: a character that is not ASCII may only stand in "
               "a string or a comment",
               shown.c_str(), bare->line, bare->column));
  }
  const toml::parse_result parsed = toml::parse(text);
  if (!parsed) {
    const toml::source_position at = parsed.error().source().begin;
    return Status(Code::kConfig,
                  format("%s:%u:%u: not valid TOML: %s", shown.c_str(), at.line, at.column,
                         std::string(parsed.error().description()).c_str()));
  }
  return Reader(table, shown, rights).read(parsed.table());
}

}  // namespace dt::config
