// SPDX-License-Identifier: Apache-2.0
// The parser neither throws (allow_exceptions) nor recurses without a limit: the depth is looked at
// first. Values are read by get_ptr, which answers nullptr for another type.
#include "launch/json.h"

#include <charconv>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "config/value.h"
#include "launch/variables.h"

namespace dt::launch {
namespace {

using nlohmann::json;

constexpr size_t kLongestText = 1 << 20;  // the system allows a variable of 128 KiB
constexpr int kDeepest = 32;
constexpr size_t kMostTasks = 100000;

Status bad_json(const std::string& variable, const std::string& text, const std::string& why) {
  return launch_error("bad_json", variable + "=" + config::quoted(text) + ": " + why);
}

bool too_deep(const std::string& text) {
  int depth = 0;
  bool in_text = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_text) {
      if (c == '\\') ++i;
      if (c == '"') in_text = false;
    } else if (c == '"') {
      in_text = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kDeepest) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

Result<json> parse(const std::string& variable, const std::string& text) {
  if (text.size() > kLongestText) return bad_json(variable, text, "longer than 1 MiB");
  if (too_deep(text)) {
    return bad_json(variable, text, format("nested more than %d levels deep", kDeepest));
  }
  json value = json::parse(text, nullptr, false);
  if (value.is_discarded()) return bad_json(variable, text, "not JSON");
  return value;
}

const json* member(const json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

/// An array of texts.
std::optional<std::vector<std::string>> texts_of(const json& value) {
  if (!value.is_array() || value.size() > kMostTasks) return std::nullopt;
  std::vector<std::string> texts;
  for (const json& each : value) {
    const auto* text = each.get_ptr<const json::string_t*>();
    if (text == nullptr) return std::nullopt;
    texts.push_back(*text);
  }
  return texts;
}

/// 1 or "1".
std::optional<int32_t> index_of(const json& value) {
  int64_t index = -1;
  if (const auto* number = value.get_ptr<const json::number_unsigned_t*>()) {
    if (*number > INT32_MAX) return std::nullopt;
    index = static_cast<int64_t>(*number);
  } else if (const auto* text = value.get_ptr<const json::string_t*>()) {
    const char* end = text->data() + text->size();
    const auto parsed = std::from_chars(text->data(), end, index);
    if (parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;
  }
  if (index < 0 || index > INT32_MAX) return std::nullopt;
  return static_cast<int32_t>(index);
}

}  // namespace

Result<Cluster> parse_cluster(const std::string& variable, const std::string& text) {
  DT_TRY_VALUE(const json value, parse(variable, text));
  Cluster cluster;
  if (!value.is_object()) return bad_json(variable, text, "expected an object");
  if (const json* roles = member(value, "cluster")) {
    if (!roles->is_object()) return bad_json(variable, text, "cluster is not an object");
    for (const auto& [name, tasks] : roles->items()) {
      Cluster::Role role;
      if (tasks.is_object()) {
        role.sparse = true;
      } else if (auto addresses = texts_of(tasks)) {
        role.addresses = std::move(*addresses);
      } else {
        return bad_json(variable, text,
                        format("cluster.%s is not a list of up to %zu addresses",
                               name.substr(0, 40).c_str(), kMostTasks));
      }
      cluster.roles.emplace(name, std::move(role));
    }
  }
  if (const json* task = member(value, "task")) {
    const json* type = member(*task, "type");
    const json* index = member(*task, "index");
    if (type != nullptr) {
      const auto* name = type->get_ptr<const json::string_t*>();
      if (name == nullptr) return bad_json(variable, text, "task.type is not a text");
      cluster.task_type = *name;
    }
    if (index != nullptr) {
      cluster.task_index = index_of(*index);
      if (!cluster.task_index) {
        return bad_json(variable, text, "task.index is not a number from 0 to 2147483647");
      }
    }
  }
  return cluster;
}

Result<Resource> parse_resource(const std::string& variable, const std::string& text) {
  DT_TRY_VALUE(const json value, parse(variable, text));
  Resource resource;
  const json* current = member(value, "current_host");
  const json* hosts = member(value, "hosts");
  if (current != nullptr) {
    const auto* name = current->get_ptr<const json::string_t*>();
    if (name == nullptr) return bad_json(variable, text, "current_host is not a text");
    resource.current_host = *name;
  }
  if (hosts != nullptr) {
    auto names = texts_of(*hosts);
    if (!names) return bad_json(variable, text, "hosts is not a list of names");
    resource.hosts = std::move(*names);
  }
  return resource;
}

Result<std::vector<std::string>> parse_texts(const std::string& variable, const std::string& text) {
  DT_TRY_VALUE(const json value, parse(variable, text));
  auto texts = texts_of(value);
  if (!texts) return bad_json(variable, text, "expected a list of names");
  return std::move(*texts);
}

}  // namespace dt::launch
