// SPDX-License-Identifier: Apache-2.0
// Changes single lines of a dt.toml. What TOML means by them is left to the parser: it reads the
// text before and after, and unless exactly the wanted settings changed the change is refused.
#include "cli/bench/tune_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <map>
#include <string_view>

#include "config/keys.h"
#include "config/read_file.h"
#include "config/toml_file.h"

namespace dt::cli::bench {
namespace {

constexpr char kSection[] = "host";
constexpr char kBlanks[] = " \t";
constexpr char kEnds[] = "\r\n";

using Values = std::map<std::string, std::string>;

struct Parsed {
  Values values;
  std::map<std::string, uint32_t> lines;  ///< counted from 1
};

Result<Parsed> parse_settings(const std::string& text, const std::string& shown) {
  DT_TRY_VALUE(const config::FileContent content,
               config::parse_toml(config::keys(), text, shown, {true, true}));
  Parsed parsed;
  for (const config::FileSetting& setting : content.settings) {
    const std::string name = config::keys()[setting.key].name;
    parsed.values[name] = setting.value.text;
    parsed.lines[name] = setting.line;
  }
  for (const config::FileSetting& lock : content.locks) {
    parsed.values[std::string("lock ") + config::keys()[lock.key].name] = "";
  }
  return parsed;
}

/// With their ends.
std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    const size_t after = end == std::string::npos ? text.size() : end + 1;
    lines.push_back(text.substr(begin, after - begin));
    begin = after;
  }
  return lines;
}

std::string text_of_lines(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line;
  return text;
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n") + 1 - begin);
}

/// "slot_bytes" of "host.slot_bytes".
std::string short_name(const std::string& key) { return key.substr(key.find('.') + 1); }

/// The line with another value; empty where it is not simply "key = integer".
std::string with_value(const std::string& line, const std::string& key, int64_t value) {
  const size_t equals = line.find('=');
  if (equals == std::string::npos) return {};
  const std::string_view name = trimmed(std::string_view(line).substr(0, equals));
  if (name != key && name != short_name(key)) return {};
  const size_t begin = line.find_first_not_of(kBlanks, equals + 1);
  const size_t end = line.find_first_of(std::string(kBlanks) + kEnds + "#", begin);
  if (begin == std::string::npos || begin == end) return {};
  return line.substr(0, begin) + std::to_string(value) +
         (end == std::string::npos ? "" : line.substr(end));
}

bool is_header(const std::string& line) {
  std::string_view text = line;
  text = trimmed(text.substr(0, text.find('#')));
  if (text.size() < 2 || text.front() != '[' || text.back() != ']') return false;
  return trimmed(text.substr(1, text.size() - 2)) == kSection;
}

std::string end_of(const std::vector<std::string>& lines) {
  const bool returns =
      !lines.empty() && lines.front().size() > 1 && lines.front()[lines.front().size() - 2] == '\r';
  return returns ? "\r\n" : "\n";
}

/// Where new lines go, and how their keys begin.
struct Place {
  size_t at = 0;
  std::string prefix;
};

Place place_for(const Parsed& parsed, std::vector<std::string>* lines) {
  for (size_t i = 0; i < lines->size(); ++i) {
    if (is_header((*lines)[i])) return {i + 1, ""};
  }
  // host.spin_us = 20 before all sections: then [host] may not follow.
  const std::string dotted = std::string(kSection) + ".";
  for (const auto& [name, line] : parsed.lines) {
    if (name.compare(0, dotted.size(), dotted) != 0 || line == 0 || line > lines->size()) continue;
    if (trimmed((*lines)[line - 1]).substr(0, dotted.size()) == dotted) return {line, dotted};
  }
  const std::string end = end_of(*lines);
  if (lines->empty()) {
    lines->push_back(format("schema = %lld", static_cast<long long>(config::kSchema)) + end);
  }
  if (lines->back().back() != '\n') lines->back() += end;
  lines->push_back(end);
  lines->push_back(std::string("[") + kSection + "]" + end);
  return {lines->size(), ""};
}

Status refused(const std::string& shown, const std::string& key, int64_t value) {
  return Status(Code::kConfig,
                format("%s: host.* cannot be changed there without touching more than lines of "
                       "\"key = value\"; write %s = %lld into it by hand, in a section [host]",
                       shown.c_str(), short_name(key).c_str(), static_cast<long long>(value)));
}

/// As root one could replace /dev/null.
Status check_regular(const std::string& path) {
  struct stat there {};
  if (stat(path.c_str(), &there) != 0 || S_ISREG(there.st_mode)) return {};
  return Status(Code::kSystem, "--tune-write " + path + ": it is no regular file");
}

Result<std::string> text_of_file(const std::string& path) {
  DT_TRY(check_regular(path));
  DT_TRY_VALUE(const auto file, config::read_file(path, path, {}));
  return file.text.value_or("");
}

/// What a link leads to, so that the link stays; the path itself where nothing is.
std::string target_of(const std::string& path) {
  char* const real = realpath(path.c_str(), nullptr);
  if (real == nullptr) return path;
  const std::string target = real;
  free(real);
  return target;
}

Status cannot_write(const std::string& path) {
  return Status(Code::kSystem, "--tune-write " + path + ": " + errno_text(errno));
}

bool write_all_of(int fd, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t bytes = write(fd, text.data() + done, text.size() - done);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) return false;
    done += static_cast<size_t>(bytes);
  }
  return fsync(fd) == 0;
}

/// With the permissions of the file that it replaces.
Status replace_file(const std::string& path, const std::string& text) {
  struct stat there {};
  const bool exists = stat(path.c_str(), &there) == 0;
  std::string fresh = path + ".XXXXXX";
  const int fd = mkostemp(fresh.data(), O_CLOEXEC);
  if (fd < 0) return cannot_write(path);
  const mode_t mode = exists ? there.st_mode & 07777 : 0644;
  const bool written = fchmod(fd, mode) == 0 && write_all_of(fd, text);
  Status status = written ? Status() : cannot_write(path);
  close(fd);
  if (status.ok() && rename(fresh.c_str(), path.c_str()) != 0) status = cannot_write(path);
  if (!status.ok()) unlink(fresh.c_str());
  return status;
}

}  // namespace

Result<std::string> with_settings(const std::string& text, const Settings& settings,
                                  const std::string& shown) {
  DT_TRY_VALUE(const Parsed before, parse_settings(text, shown));
  std::vector<std::string> lines = split_lines(text);
  Values wanted = before.values;
  Settings added;
  for (const auto& [key, value] : settings) {
    wanted[key] = std::to_string(value);
    const auto found = before.lines.find(key);
    if (found == before.lines.end()) {
      added.emplace_back(key, value);
      continue;
    }
    if (found->second == 0 || found->second > lines.size()) return refused(shown, key, value);
    std::string& line = lines[found->second - 1];
    std::string changed = with_value(line, key, value);
    if (changed.empty()) return refused(shown, key, value);
    line = std::move(changed);
  }
  if (!added.empty()) {
    const Place place = place_for(before, &lines);
    const std::string end = end_of(lines);
    std::string block;
    for (const auto& [key, value] : added) {
      block += place.prefix + short_name(key) + " = " + std::to_string(value) + end;
    }
    if (place.at > 0 && lines[place.at - 1].back() != '\n') lines[place.at - 1] += end;
    lines.insert(lines.begin() + static_cast<std::ptrdiff_t>(place.at), block);
  }
  std::string result = text_of_lines(lines);
  const Result<Parsed> after = parse_settings(result, shown);
  if (!after.ok() || after.value().values != wanted) {
    return refused(shown, settings.front().first, settings.front().second);
  }
  return result;
}

Status check_settings_file(const std::string& path, const Settings& settings) {
  DT_TRY_VALUE(const std::string text, text_of_file(path));
  const Result<std::string> changed = with_settings(text, settings, path);
  if (!changed.ok()) return changed.status();
  const std::string target = target_of(path);
  const size_t slash = target.rfind('/');
  const std::string folder =
      slash == std::string::npos ? "." : target.substr(0, slash == 0 ? 1 : slash);
  return access(folder.c_str(), W_OK) == 0 ? Status() : cannot_write(path);
}

Status write_settings(const std::string& path, const Settings& settings) {
  DT_TRY_VALUE(const std::string text, text_of_file(path));
  DT_TRY_VALUE(const std::string changed, with_settings(text, settings, path));
  return replace_file(target_of(path), changed);
}

}  // namespace dt::cli::bench
