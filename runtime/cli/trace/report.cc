// SPDX-License-Identifier: Apache-2.0
#include "cli/trace/report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/trace/words.h"

namespace dt::cli::trace {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kRowsShown = 24;  // a screen

/// Those that caused it first, then by rank.
std::vector<const Row*> shown(const Verdict& verdict) {
  std::vector<const Row*> rows;
  const auto caused = [&](const Row& row) {
    return std::find(verdict.ranks.begin(), verdict.ranks.end(), row.rank) != verdict.ranks.end();
  };
  for (const bool wanted : {true, false}) {
    for (const Row& row : verdict.rows) {
      if (caused(row) == wanted && rows.size() < kRowsShown) rows.push_back(&row);
    }
  }
  std::sort(rows.begin(), rows.end(), [](const Row* a, const Row* b) { return a->rank < b->rank; });
  return rows;
}

std::string current_cell(const Row& row) {
  if (row.current.empty()) return "-";
  return row.current + " (" + row.outcome + ", " + duration_text(row.current_for_ns) + ")";
}

std::string last_cell(const Row& row) {
  if (row.last.empty()) return "-";
  return row.last + ", " + duration_text(row.last_ago_ns) + " ago";
}

}  // namespace

std::string report_text(const Verdict& verdict) {
  std::string text = format("%s: %s\n", case_name(verdict.found), verdict.sentence.c_str());
  if (!verdict.failure.empty() && verdict.found != Case::kFailure) text += verdict.failure + "\n";
  text += "\n";
  std::vector<std::vector<std::string>> table = {
      {"rank", "host", "pid", "last completed", "current"}};
  const std::vector<const Row*> rows = shown(verdict);
  for (const Row* row : rows) {
    if (!row->traced) {
      table.push_back({std::to_string(row->rank), "-", "-", "no trace", "-"});
      continue;
    }
    table.push_back({std::to_string(row->rank), row->host, std::to_string(row->pid),
                     last_cell(*row), current_cell(*row)});
  }
  std::vector<size_t> widths(table[0].size());
  for (const auto& row : table) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : table) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      if (i + 1 < row.size()) line.append(widths[i] - row[i].size() + 2, ' ');
    }
    text += line + "\n";
  }
  if (rows.size() < verdict.rows.size()) {
    text += format("and %zu more ranks\n", verdict.rows.size() - rows.size());
  }
  return text;
}

std::string report_json(const Verdict& verdict, const Loaded& loaded) {
  Json json;
  json["case"] = case_name(verdict.found);
  json["sentence"] = verdict.sentence;
  json["ranks"] = verdict.ranks;
  json["communicator"] = verdict.communicator;
  json["position"] = verdict.position;
  json["failure"] = verdict.failure;
  json["attempt"] = loaded.traces.empty() ? 0 : loaded.traces.front().identity.attempt;
  json["other_attempts"] = loaded.other_attempts;
  json["table"] = Json::array();
  for (const Row& row : verdict.rows) {
    json["table"].push_back({{"rank", row.rank},
                             {"traced", row.traced},
                             {"host", row.host},
                             {"pid", row.pid},
                             {"last", row.last},
                             {"last_ago_ns", row.last_ago_ns},
                             {"current", row.current},
                             {"current_for_ns", row.current_for_ns},
                             {"outcome", row.outcome}});
  }
  json["problems"] = loaded.problems;
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace dt::cli::trace
