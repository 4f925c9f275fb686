// SPDX-License-Identifier: Apache-2.0
#include "backend/nccl/conf.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace dt::nccl {
namespace {

constexpr int kMaxLines = 10'000;
constexpr size_t kMaxBuffer = 1 << 20;  // of the password file's answer

std::string home_of_user() {
  std::vector<char> buffer(1 << 12);
  passwd entry{};
  passwd* found = nullptr;
  int error = getpwuid_r(getuid(), &entry, buffer.data(), buffer.size(), &found);
  while (error == ERANGE && buffer.size() < kMaxBuffer) {
    buffer.resize(buffer.size() * 2);
    error = getpwuid_r(getuid(), &entry, buffer.data(), buffer.size(), &found);
  }
  return error == 0 && found != nullptr && found->pw_dir != nullptr ? found->pw_dir : "";
}

/// As NCCL reads it: a line is a comment when it begins with #, and no space is skipped anywhere.
void read_file(const std::string& path, std::vector<ConfLine>* lines) {
  std::ifstream file(path, std::ios::binary);
  std::string text;
  for (int number = 1; number <= kMaxLines && std::getline(file, text); ++number) {
    const size_t equals = text.find('=');
    if (text.empty() || text[0] == '#' || equals == std::string::npos) continue;
    ConfLine line{text.substr(0, equals), text.substr(equals + 1), path, number};
    const bool known = std::any_of(lines->begin(), lines->end(),
                                   [&](const ConfLine& each) { return each.name == line.name; });
    if (!known) lines->push_back(std::move(line));
  }
}

const std::string* value_in(const Environment& environment, const std::string& name) {
  const auto found = environment.find(name);
  return found == environment.end() ? nullptr : &found->second;
}

const Variable* setting_of(const Settings& settings, const std::string& name) {
  for (const Variable& each : settings.variables()) {
    if (each.name == name) return &each;
  }
  return nullptr;
}

std::string said(const ConfLine& line) { return where(line) + ": " + line.name + "=" + line.value; }

/// What is wrong with a line that NCCL takes; empty: nothing.
std::string against_settings(const Settings& settings, const ConfLine& line) {
  const Variable* const wanted = setting_of(settings, line.name);
  if (wanted == nullptr || wanted->value == line.value) return {};
  return said(line) + " goes before " + wanted->key + ", which wants " + wanted->value + " (" +
         wanted->source + "); remove one of the two";
}

}  // namespace

ConfPlaces conf_places() {
  ConfPlaces places;
  places.home = home_of_user();
  return places;
}

std::vector<ConfLine> read_conf(const Environment& environment, const ConfPlaces& places) {
  std::vector<ConfLine> lines;
  const std::string* const named = value_in(environment, "NCCL_CONF_FILE");
  if (named != nullptr && !named->empty()) {
    read_file(*named, &lines);
  } else if (!places.home.empty()) {
    read_file(places.home + "/.nccl.conf", &lines);
  }
  read_file(places.system, &lines);
  return lines;
}

bool counts(const ConfLine& line, const Environment& environment) {
  return value_in(environment, line.name) == nullptr;
}

std::string where(const ConfLine& line) { return line.file + ":" + std::to_string(line.number); }

std::vector<Obstacle> conf_obstacles(const Settings& settings, const Environment& environment,
                                     const std::vector<ConfLine>& lines) {
  std::vector<Obstacle> found;
  for (const ConfLine& line : lines) {
    if (!counts(line, environment)) {
      const std::string& value = *value_in(environment, line.name);
      if (value == line.value) continue;
      found.push_back({said(line) + " does not count, as the environment says " + value +
                           "; remove one of the two",
                       false});
      continue;
    }
    for (Obstacle& obstacle : obstacles({{line.name, line.value}})) {
      const size_t advice = obstacle.text.rfind("; ");
      found.push_back({where(line) + ": " + obstacle.text.substr(0, advice) + "; remove that line",
                       obstacle.fatal});
    }
    const std::string text = against_settings(settings, line);
    if (!text.empty()) found.push_back({text, false});
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Obstacle& a, const Obstacle& b) { return a.fatal && !b.fatal; });
  return found;
}

std::string conf_text(const Settings& settings, const Environment& environment,
                      const std::vector<ConfLine>& lines) {
  std::string text;
  for (const Obstacle& each : conf_obstacles(settings, environment, lines)) {
    text += (text.empty() ? "NCCL reads a file of its own: " : "; ") + each.text;
  }
  return text;
}

std::vector<Variable> ras_variables(const Settings& settings, const Environment& environment,
                                    const std::vector<ConfLine>& lines, int port) {
  for (const char* name : {"NCCL_RAS_ADDR", "NCCL_RAS_ENABLE"}) {
    const bool in_file = std::any_of(lines.begin(), lines.end(),
                                     [&](const ConfLine& each) { return each.name == name; });
    if (in_file || value_in(environment, name) != nullptr || setting_of(settings, name) != nullptr)
      return {};
  }
  // Not "localhost", which may be ::1: the port is reserved for IPv4.
  if (port > 0) return {{"NCCL_RAS_ADDR", "127.0.0.1:" + std::to_string(port), "", "dt run"}};
  return {{"NCCL_RAS_ENABLE", "0", "", "dt run"}};
}

}  // namespace dt::nccl
