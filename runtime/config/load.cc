// SPDX-License-Identifier: Apache-2.0
#include <optional>

#include "config/config.h"
#include "config/read_file.h"
#include "config/toml_file.h"

namespace dt {
namespace {

std::string variable(const Environment& environment, const char* name) {
  const auto found = environment.find(name);
  return found == environment.end() ? std::string() : found->second;
}

std::string resolve(const std::string& directory, const std::string& name) {
  return name.front() == '/' || directory.empty() ? name : directory + "/" + name;
}

}  // namespace

/// Fills a Config source by source, weakest first, so that each value is simply overwritten.
class ConfigLoader {
 public:
  ConfigLoader(const Environment& environment, const Config::LoadOptions& options)
      : environment_(environment), options_(options), config_(options.keys) {}

  Result<Config> load() {
    DT_TRY(read_files());
    DT_TRY(read_variables());
    return std::move(config_);
  }

 private:
  struct File {
    SourceKind kind;
    std::string path;
    std::string shown;
    config::FilePolicy policy;
    config::FileRights rights;
    const char* named_by = "";  ///< the variable that names it
  };

  Status read_files() {
    if (!options_.system_directory.empty()) {
      const std::string path = options_.system_directory + "/dt.toml";
      DT_TRY(apply({SourceKind::kSystemFile, path, path, {}, {true, true}}));
    }
    const std::string user = user_directory();
    if (!user.empty()) {
      const std::string path = user + "/dt/dt.toml";
      if (config::is_out_of_reach(path)) {  // HOME is often another user's: sudo, containers
        config_.warn(path +
                     ", and a token next to it, are not looked for: this user may not "
                     "search their folder; set HOME or XDG_CONFIG_HOME to one of its own");
      } else {
        DT_TRY(apply({SourceKind::kUserFile, path, path, {}, {false, true}}));
      }
    }
    // A file that was asked for by name is trusted; one that merely lies here is not.
    const std::string named =
        options_.file.empty() ? variable(environment_, "DT_CONFIG") : options_.file;
    if (!named.empty()) {
      return apply({SourceKind::kProjectFile,
                    resolve(options_.cwd, named),
                    named,
                    {true, false},
                    {false, true},
                    options_.file.empty() ? "DT_CONFIG" : ""});
    }
    const std::string path = resolve(options_.cwd, "dt.toml");
    if (config::is_out_of_reach(path)) {
      config_.warn(
          "dt.toml is not looked for in the working directory, which this user may not "
          "search");
      return {};
    }
    return apply({SourceKind::kProjectFile, path, "dt.toml", {false, true}, {false, false}});
  }

  /// The folder that holds dt/dt.toml: XDG_CONFIG_HOME, which must be absolute to count, else
  /// ~/.config.
  std::string user_directory() const {
    const std::string xdg = variable(environment_, "XDG_CONFIG_HOME");
    if (!xdg.empty() && xdg.front() == '/') return xdg;
    const std::string home = options_.home.empty() ? variable(environment_, "HOME") : options_.home;
    return home.empty() ? std::string() : home + "/.config";
  }

  Status apply(const File& file) {
    const auto read = config::read_file(file.path, file.shown, file.policy);
    if (!read.ok()) return *file.named_by ? read.status().within(file.named_by) : read.status();
    if (!read.value().warning.empty()) config_.warn(read.value().warning);
    const std::optional<std::string>& text = read.value().text;
    if (!text) return {};
    DT_TRY_VALUE(const config::FileContent content,
                 config::parse_toml(options_.keys, *text, file.shown, file.rights));
    for (const std::string& warning : content.warnings) config_.warn(warning);
    for (const config::FileSetting& setting : content.settings) {
      const std::string where = format("%s:%u", file.shown.c_str(), setting.line);
      DT_TRY(config_.assign(setting.key, setting.value.text, {file.kind, where}, where));
    }
    for (const config::FileSetting& lock : content.locks) {
      config_.slots_[lock.key].lock = format("%s:%u", file.shown.c_str(), lock.line);
    }
    return {};
  }

  Status read_variables() {
    for (size_t i = 0; i < options_.keys.size(); ++i) {
      const char* name = options_.keys[i].environment;
      const auto found = environment_.find(name);
      if (found == environment_.end()) continue;
      if (found->second.empty()) {
        config_.warn(format("empty_variable: %s is set but empty and counts as not set", name));
        continue;
      }
      DT_TRY(config_.assign(i, found->second,
                            {SourceKind::kEnvironment, std::string("environment ") + name},
                            format("%s (%s)", name, options_.keys[i].name)));
    }
    return {};
  }

  const Environment& environment_;
  const Config::LoadOptions& options_;
  Config config_;
};

Result<Config> Config::load(const Environment& environment, const LoadOptions& options) {
  return ConfigLoader(environment, options).load();
}

}  // namespace dt
