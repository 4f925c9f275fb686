// SPDX-License-Identifier: Apache-2.0
#include "config/config.h"

#include <algorithm>
#include <cassert>

#include "config/value.h"

namespace dt {
namespace {

Status unknown_key(std::span<const config::Key> table, std::string_view name) {
  std::string text = "unknown key " + config::quoted(name);
  const std::string nearest = config::nearest_name(table, name);
  text += nearest.empty() ? "; dt config lists all keys" : "; the nearest known is " + nearest;
  return Status(Code::kConfig, text);
}

}  // namespace

Config::Config(std::span<const config::Key> table) : table_(table), slots_(table.size()) {
  for (size_t i = 0; i < table.size(); ++i) {
    const auto value = config::parse_value(table[i], table[i].fallback);
    assert(value.has_value());
    if (!value) continue;  // a test compares every default with its range
    slots_[i].text = value->text;
    slots_[i].integer = value->integer;
    slots_[i].source.where = "default";
  }
}

const Config::Slot* Config::find(std::string_view key) const {
  const config::Key* found = config::find_key(table_, key);
  return found == nullptr ? nullptr : &slots_[static_cast<size_t>(found - table_.data())];
}

const Config::Slot& Config::slot_of(std::string_view key, config::Type type,
                                    config::Type other) const {
  static const Slot none;
  const config::Key* found = config::find_key(table_, key);
  const bool right = found != nullptr && (found->type == type || found->type == other);
  assert(right && "no such key of this type");
  return right ? slots_[static_cast<size_t>(found - table_.data())] : none;
}

int64_t Config::integer(std::string_view key) const {
  return slot_of(key, config::Type::kInteger, config::Type::kInteger).integer;
}

bool Config::boolean(std::string_view key) const {
  return slot_of(key, config::Type::kBool, config::Type::kBool).integer != 0;
}

const std::string& Config::text(std::string_view key) const {
  return slot_of(key, config::Type::kString, config::Type::kEnum).text;
}

std::vector<std::pair<std::string, std::string>> Config::variables(std::string_view key) const {
  return config::split_variables(
      slot_of(key, config::Type::kVariables, config::Type::kVariables).text);
}

Result<std::string> Config::value_text(std::string_view key) const {
  const Slot* slot = find(key);
  if (slot == nullptr) return unknown_key(table_, key);
  return slot->text;
}

const ConfigSource& Config::source_of(std::string_view key) const {
  static const ConfigSource none{SourceKind::kDefault, "default"};
  const Slot* slot = find(key);
  assert(slot != nullptr);
  return slot == nullptr ? none : slot->source;
}

bool Config::given(std::string_view key) const {
  return source_of(key).kind > SourceKind::kDiscovered;
}

Status Config::check_together() const {
  const auto told = [&](const char* key) {
    return format("%s is %lld (%s)", key, static_cast<long long>(integer(key)),
                  source_of(key).where.c_str());
  };
  const int64_t interval_ms = integer("heartbeat.interval_ms");
  const int64_t timeout_ms = integer("heartbeat.timeout_ms");
  if (interval_ms == 0 || timeout_ms == 0 || timeout_ms / 2 >= interval_ms) return {};
  return Status(Code::kConfig, told("heartbeat.timeout_ms") + " and " +
                                   told("heartbeat.interval_ms") +
                                   ": ranks that live would count as lost between two signs of "
                                   "life; give a time-out of at least twice the interval");
}

void Config::warn(const std::string& text) {
  if (std::find(warnings_.begin(), warnings_.end(), text) == warnings_.end()) {
    warnings_.push_back(text);
  }
}

Status Config::assign(size_t index, std::string_view value, ConfigSource source,
                      const std::string& what) {
  const config::Key& key = table_[index];
  auto parsed = config::parse_value(key, value);
  if (!parsed) {
    return Status(Code::kConfig,
                  what + " is " + config::quoted(value) + "; expected " + config::expectation(key));
  }
  Slot& slot = slots_[index];
  if (!slot.lock.empty()) {
    if (parsed->text != slot.text) {
      warn(format("%s stays %s: %s locks it, so %s from %s is ignored", key.name,
                  config::quoted(slot.text).c_str(), slot.lock.c_str(),
                  config::quoted(parsed->text).c_str(), source.where.c_str()));
    }
    return {};
  }
  slot.text = std::move(parsed->text);
  slot.integer = parsed->integer;
  slot.source = std::move(source);
  return {};
}

Status Config::set(std::string_view key, std::string_view value) {
  const config::Key* found = config::find_key(table_, key);
  if (found == nullptr) return unknown_key(table_, key);
  return assign(static_cast<size_t>(found - table_.data()), value, {SourceKind::kCall, "call"},
                found->name);
}

Status Config::set_discovered(std::string_view key, std::string_view value,
                              const std::string& where) {
  const config::Key* found = config::find_key(table_, key);
  if (found == nullptr) return unknown_key(table_, key);
  if (given(key)) return {};
  return assign(static_cast<size_t>(found - table_.data()), value, {SourceKind::kDiscovered, where},
                where + ": " + found->name);
}

std::vector<Config::Entry> Config::entries() const {
  std::vector<Entry> all;
  for (size_t i = 0; i < table_.size(); ++i) {
    all.push_back({&table_[i], slots_[i].text, slots_[i].source});
  }
  return all;
}

std::vector<std::pair<std::string, std::string>> Config::equal_keys() const {
  std::vector<std::pair<std::string, std::string>> equal;
  for (size_t i = 0; i < table_.size(); ++i) {
    const config::Agreement agreement = table_[i].agreement;
    const bool set = slots_[i].text != table_[i].fallback;
    if (agreement == config::Agreement::kEqual ||
        (agreement == config::Agreement::kEqualIfSet && set)) {
      equal.emplace_back(table_[i].name, slots_[i].text);
    }
  }
  return equal;
}

}  // namespace dt
