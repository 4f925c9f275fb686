// SPDX-License-Identifier: Apache-2.0
// `dt config`: every setting with its source, and where this process stands.
#include "config/config.h"

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "job/settings.h"
#include "launch/credentials.h"
#include "launch/discover.h"

namespace dt::cli {
namespace {

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      result += {'\\', c};
    } else if (static_cast<unsigned char>(c) < 0x20) {
      result += format("\\u%04x", c);
    } else {
      result += c;
    }
  }
  return result + "\"";
}

std::string number(int32_t value, int32_t unknown) {
  return value == unknown ? "null" : std::to_string(value);
}

// Name and JSON value; null means "unknown", so that the keys never vary.
std::vector<std::pair<std::string, std::string>> fields_of(const launch::Place& place) {
  return {{"rank", number(place.rank, -1)},
          {"world_size", std::to_string(place.world_size)},
          {"local_rank", number(place.local_rank, -1)},
          {"local_size", number(place.local_size, -1)},
          {"node_rank", number(place.node_rank, -1)},
          {"node_count", number(place.node_count, -1)},
          {"master_addr", place.master_addr.empty() ? "null" : quoted(place.master_addr)},
          {"master_port", number(place.master_port, 0)},
          {"master_port_taken_by_launcher", place.port_taken ? "true" : "false"},
          {"store_served", place.store_served ? "true" : "false"},
          {"exchange", quoted(launch::exchange_name(place.exchange))},
          {"job_id", place.job_id.empty() ? "null" : quoted(place.job_id)},
          {"attempt", std::to_string(place.attempt)},
          {"launcher", quoted(place.launcher)}};
}

void print_json(const launch::Place& place, const Config& config) {
  std::string text = "{\"place\": {";
  const char* separator = "";
  for (const auto& field : fields_of(place)) {
    text += separator + quoted(field.first) + ": " + field.second;
    separator = ", ";
  }
  printf("%s},\n \"config\": %s}\n", text.c_str(), config.dump_json().c_str());
}

/// Never the token itself.
std::string token_text(const Config& config) {
  const auto found = launch::find_credentials(config, process_environment(), true);
  if (!found.ok()) return "(unusable: " + found.status().message() + ")";
  if (!found.value().has_token()) return "none";
  return format("(set), from %s; connections are guarded by mode %s", found.value().source.c_str(),
                net::mode_name(found.value().security.mode));
}

void print_table(const launch::Place& place, const Config& config) {
  const std::string rank = place.rank < 0 ? "(known after the join)" : std::to_string(place.rank);
  printf("rank %s of %d (launcher: %s)\ntoken: %s\n\n%s", rank.c_str(), place.world_size,
         place.launcher.c_str(), token_text(config).c_str(), config.dump_text().c_str());
}

Status print_config(bool json) {
  DT_TRY_VALUE(Config config, Config::load(process_environment()));
  warn("config", config.warnings());
  DT_TRY_VALUE(const launch::Place place, launch::resolve_place(config, process_environment()));
  warn("config", place.warnings);
  json ? print_json(place, config) : print_table(place, config);
  return job::check_settings(config);
}

}  // namespace

int config_command(int argument_count, char** arguments) {
  CLI::App app("Prints every setting with its source, as a job started here would see it.",
               "dt config");
  bool json = false;
  app.add_flag("--json", json, "print {\"place\": ..., \"config\": ...}");
  if (const auto over = parse(&app, argument_count, arguments)) return *over;
  const Status printed = print_config(json);
  return printed.ok() ? 0 : fail("config", printed);
}

}  // namespace dt::cli
