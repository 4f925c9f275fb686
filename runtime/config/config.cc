// SPDX-License-Identifier: Apache-2.0
#include "config/config.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>

#include "config/toml_file.h"

namespace dt::config {
namespace {

constexpr off_t kMaxFileBytes = 1 << 20;

Status file_error(const std::string& path, const std::string& why) {
  return Status(Code::kConfig, path + ": " + why);
}

/// ./dt.toml comes with the working directory, which somebody else may have prepared.
Status check_owner(const std::string& path, const struct stat& info) {
  if (info.st_uid != geteuid() && info.st_uid != 0) {
    return file_error(path, format("belongs to user %u; a dt.toml in the working directory must "
                                   "belong to you or to root (or name it with DT_CONFIG)",
                                   static_cast<unsigned>(info.st_uid)));
  }
  if ((info.st_mode & S_IWOTH) != 0) {
    return file_error(path, "is writable by everyone; run chmod o-w on it");
  }
  return {};
}

/// The file's bytes. Missing and not `must_exist`: *exists is false.
Status read_text(const std::string& path, bool must_exist, bool untrusted, bool* exists,
                 std::string* text) {
  *exists = false;
  // O_NONBLOCK: a FIFO of this name must not hang us.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    if ((errno == ENOENT || errno == ENOTDIR) && !must_exist) return {};
    return file_error(path, "cannot be read: " + errno_text(errno));
  }
  struct stat info = {};
  Status status;
  if (fstat(fd, &info) != 0) {
    status = file_error(path, "cannot be read: " + errno_text(errno));
  } else if (!S_ISREG(info.st_mode)) {
    status = file_error(path, "is not a regular file");
  } else if (info.st_size > kMaxFileBytes) {
    status = file_error(path, "is larger than 1 MiB");
  } else if (untrusted) {
    status = check_owner(path, info);
  }
  while (status.ok()) {
    char buffer[4096];
    const ssize_t got = read(fd, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) status = file_error(path, "cannot be read: " + errno_text(errno));
    if (got <= 0) break;
    text->append(buffer, static_cast<size_t>(got));
    if (text->size() > static_cast<size_t>(kMaxFileBytes)) {
      status = file_error(path, "is larger than 1 MiB");
    }
  }
  close(fd);
  *exists = status.ok();
  return status;
}

std::string variable(const Environment& environment, const char* name) {
  const auto found = environment.find(name);
  return found == environment.end() ? std::string() : found->second;
}

}  // namespace

Environment process_environment() {
  Environment environment;
  for (char** each = environ; each != nullptr && *each != nullptr; ++each) {
    const char* const equals = strchr(*each, '=');
    if (equals == nullptr) continue;
    environment.emplace(std::string(*each, static_cast<size_t>(equals - *each)), equals + 1);
  }
  return environment;
}

Config::Config(std::span<const Key> keys) : keys_(keys) {
  for (const Key& key : keys_) values_[key.name].text = key.fallback;
}

Result<Config> Config::load(const std::string& path) {
  Sources sources;
  sources.environment = process_environment();
  sources.path = path;
  const std::string xdg = variable(sources.environment, "XDG_CONFIG_HOME");
  const std::string home = variable(sources.environment, "HOME");
  if (!xdg.empty()) {
    sources.home_file = xdg + "/dt/dt.toml";
  } else if (!home.empty()) {
    sources.home_file = home + "/.config/dt/dt.toml";
  }
  return load(sources);
}

Result<Config> Config::load(const Sources& sources) {
  Config config(sources.keys);
  config.environment_ = sources.environment;
  if (!sources.etc_file.empty()) {
    DT_TRY(config.read_file(sources.etc_file, Origin::kEtc, /*must_exist=*/false));
  }
  if (!sources.home_file.empty()) {
    DT_TRY(config.read_file(sources.home_file, Origin::kHome, /*must_exist=*/false));
  }
  const std::string named =
      sources.path.empty() ? variable(sources.environment, "DT_CONFIG") : sources.path;
  if (!named.empty()) {
    DT_TRY(config.read_file(named, Origin::kLocal, /*must_exist=*/true));
  } else {
    const std::string local = sources.directory == "." ? "dt.toml" : sources.directory + "/dt.toml";
    DT_TRY(config.read_file(local, Origin::kLocal, /*must_exist=*/false));
  }
  DT_TRY(config.read_environment());
  return config;
}

Status Config::read_file(const std::string& path, Origin origin, bool must_exist) {
  // A file that the user named is as good as the user's word.
  const bool untrusted = origin == Origin::kLocal && !must_exist;
  bool exists = false;
  std::string text;
  DT_TRY(read_text(path, must_exist, untrusted, &exists, &text));
  if (!exists) return {};
  DT_TRY_VALUE(const TomlFile file, parse_toml(text, path, !untrusted, keys_));
  for (const auto& setting : file.settings) {
    apply(*setting.key, setting.text, origin, format("%s:%d", path.c_str(), setting.line));
  }
  if (!file.locks.empty() && origin != Origin::kEtc) {
    warnings_.push_back(format("%s:%d: lock has an effect in /etc/dt/dt.toml only", path.c_str(),
                               file.locks[0].line));
  } else {
    for (const auto& lock : file.locks) {
      locks_[lock.key->name] = format("%s:%d", path.c_str(), lock.line);
    }
  }
  warnings_.insert(warnings_.end(), file.warnings.begin(), file.warnings.end());
  return {};
}

Status Config::read_environment() {
  for (const Key& key : keys_) {
    const std::string name = variable_of(key);
    const std::string text = variable(environment_, name.c_str());
    if (text.empty()) continue;  // an empty variable counts as unset
    if (const std::string why = check_value(key, text); !why.empty()) {
      return Status(Code::kConfig,
                    format("environment variable %s (%s) %s", name.c_str(), key.name, why.c_str()));
    }
    apply(key, text, Origin::kEnvironment, name);
  }
  return {};
}

void Config::apply(const Key& key, const std::string& text, Origin origin,
                   const std::string& source) {
  Value& value = values_[key.name];
  if (const auto lock = locks_.find(key.name); lock != locks_.end()) {
    if (text != value.text) {
      warnings_.push_back(format("%s = %s from %s is ignored: %s locks the key at %s", key.name,
                                 text.c_str(), source.c_str(), lock->second.c_str(),
                                 value.text.c_str()));
    }
    return;
  }
  value = {text, origin, source};
}

Status Config::unknown(const std::string& where, const std::string& name) const {
  return Status(Code::kConfig, where + ": " + unknown_key_text(keys_, name));
}

Status Config::set(const std::string& name, const std::string& text) {
  const Key* const key = find_key(keys_, name);
  if (key == nullptr) return unknown("dt_config_set", name);
  if (const std::string why = check_value(*key, text); !why.empty()) {
    return Status(Code::kConfig, format("dt_config_set: %s %s", key->name, why.c_str()));
  }
  apply(*key, text, Origin::kCall, "call");
  return {};
}

void Config::set_discovered(const std::string& name, const std::string& text,
                            const std::string& where) {
  const auto found = values_.find(name);
  if (found == values_.end() || found->second.origin != Origin::kDefault) return;
  found->second = {text, Origin::kDiscovered, where};
}

const Config::Value& Config::value(const char* name) const { return values_.find(name)->second; }

int64_t Config::integer(const char* name) const {
  const std::string& digits = value(name).text;
  int64_t number = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), number);  // checked when it was set
  return number;
}

bool Config::boolean(const char* name) const { return value(name).text == "true"; }
const std::string& Config::text(const char* name) const { return value(name).text; }
bool Config::given(const char* name) const { return value(name).origin != Origin::kDefault; }
Origin Config::origin(const char* name) const { return value(name).origin; }
const std::string& Config::source(const char* name) const { return value(name).source; }

Result<std::string> Config::value_text(const std::string& name) const {
  const auto found = values_.find(name);
  if (found == values_.end()) return unknown("dt_config_get", name);
  return found->second.text;
}

std::vector<std::pair<std::string, std::string>> Config::equal_keys() const {
  std::vector<std::pair<std::string, std::string>> equal;
  for (const Key& key : keys_) {
    if (key.scope == Scope::kEqual) equal.emplace_back(key.name, value(key.name).text);
  }
  return equal;
}

std::string Config::dump_text() const {
  size_t name_width = 0;
  size_t value_width = 0;
  for (const auto& [name, each] : values_) {
    name_width = std::max(name_width, name.size());
    value_width = std::max(value_width, std::max<size_t>(each.text.size(), 2));
  }
  std::string table;
  for (const auto& [name, each] : values_) {
    const std::string shown = each.text.empty() ? "\"\"" : each.text;
    table += format("%-*s  %-*s  %s\n", static_cast<int>(name_width), name.c_str(),
                    static_cast<int>(value_width), shown.c_str(), each.source.c_str());
  }
  return table;
}

std::string Config::dump_json() const {
  nlohmann::json object = nlohmann::json::object();
  for (const Key& key : keys_) {
    const Value& each = value(key.name);
    nlohmann::json& entry = object[key.name];
    switch (key.type) {
      case Type::kInteger: entry["value"] = integer(key.name); break;
      case Type::kBool: entry["value"] = boolean(key.name); break;
      default: entry["value"] = each.text;
    }
    entry["source"] = each.source;
  }
  // Values may hold bytes of any environment: replaced, not thrown at.
  return object.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace dt::config
