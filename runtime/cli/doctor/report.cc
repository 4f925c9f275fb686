// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor/report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "store/protocol.h"
#include "store/text.h"

namespace dt::cli::doctor {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kColumns = 80;
constexpr size_t kMaxFindingBytes = 64 << 10;
constexpr size_t kFindingBytes = 1 + 3 * 4;

/// Breaks at blanks so that each line has at most `width` characters; longer words stay whole.
std::vector<std::string> wrap(const std::string& text, size_t width) {
  std::vector<std::string> lines;
  std::string line;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    if (!line.empty() && line.size() + 1 + word.size() > width) {
      lines.push_back(std::move(line));
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
    begin = end + 1;
  }
  lines.push_back(std::move(line));
  return lines;
}

/// `text` at `indent`, after what stands before it on the first line.
std::string block(const std::string& before, const std::string& text) {
  std::string all;
  for (const std::string& line : wrap(text, kColumns - before.size())) {
    all += (all.empty() ? before : std::string(before.size(), ' ')) + line + "\n";
  }
  return all;
}

size_t name_width() {
  size_t width = 0;
  for (const Check& check : checks()) width = std::max(width, std::string(check.name).size());
  return width;
}

std::string row(const Finding& finding, const std::string& name, size_t width) {
  const std::string before =
      format("%-7s  %-*s  ", grade_name(finding.grade), static_cast<int>(width), name.c_str());
  std::string text = block(before, finding.text);
  if (finding.advice.empty()) return text;
  return text + block(std::string(before.size(), ' ') + "-> ", finding.advice);
}

std::string counted(size_t count, const char* what) { return format("%zu %s", count, what); }

std::string dumped(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Json json_of_finding(const Finding& finding) {
  Json json;
  json["grade"] = grade_name(finding.grade);
  json["finding"] = finding.text;
  json["advice"] = finding.advice;
  return json;
}

/// Ranks that found the same, in the order of their first.
struct Group {
  Finding finding;  // of the first of them
  std::vector<int32_t> ranks;
};

std::string label(const Group& group) { return store::ranks_text(group.ranks) + ":"; }

struct Comparison {
  std::vector<int32_t> missing;
  std::vector<std::vector<Group>> groups;  // by check
};

bool alike(const Finding& a, const Finding& b) {
  if (a.grade != b.grade) return false;
  const std::string& one = a.compared.empty() ? a.text : a.compared;
  const std::string& other = b.compared.empty() ? b.text : b.compared;
  return one == other;
}

Comparison compare(const std::vector<Report>& reports) {
  Comparison comparison;
  comparison.groups.resize(checks().size());
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    if (reports[rank].findings.size() != checks().size()) {
      comparison.missing.push_back(static_cast<int32_t>(rank));
      continue;
    }
    for (size_t i = 0; i < checks().size(); ++i) {
      const Finding& finding = reports[rank].findings[i];
      std::vector<Group>& groups = comparison.groups[i];
      auto group = std::find_if(groups.begin(), groups.end(),
                                [&](const Group& each) { return alike(each.finding, finding); });
      if (group == groups.end()) group = groups.insert(groups.end(), {finding, {}});
      group->ranks.push_back(static_cast<int32_t>(rank));
    }
  }
  return comparison;
}

}  // namespace

Report examine(const Machine& machine, const std::string& host) {
  Report report;
  report.rank = machine.place ? machine.place->rank : 0;
  report.host = host;
  for (const Check& check : checks()) report.findings.push_back(check.look(machine));
  return report;
}

Grade worst(const Report& report) {
  Grade grade = Grade::kGood;
  for (const Finding& finding : report.findings) grade = std::max(grade, finding.grade);
  return grade;
}

Grade worst(const std::vector<Report>& reports) {
  Grade grade = Grade::kGood;
  for (const Report& report : reports) {
    grade =
        std::max(grade, report.findings.size() == checks().size() ? worst(report) : Grade::kBad);
  }
  return grade;
}

std::string text_of(const Report& report) {
  std::string text;
  size_t counts[3] = {};
  for (size_t i = 0; i < report.findings.size(); ++i) {
    const Finding& finding = report.findings[i];
    text += row(finding, checks()[i].name, name_width());
    ++counts[static_cast<size_t>(finding.grade)];
  }
  text += "\n" + counted(counts[0], "good");
  if (counts[1] > 0) text += ", " + counted(counts[1], counts[1] == 1 ? "warning" : "warnings");
  if (counts[2] > 0) text += ", " + counted(counts[2], "bad");
  return text + " on " + report.host + "\n";
}

std::string json_of(const Report& report) {
  Json json;
  json["grade"] = grade_name(worst(report));
  json["host"] = report.host;
  json["rank"] = report.rank;
  json["checks"] = Json::array();
  for (size_t i = 0; i < report.findings.size(); ++i) {
    Json check;
    check["name"] = checks()[i].name;
    check.update(json_of_finding(report.findings[i]));
    json["checks"].push_back(std::move(check));
  }
  return dumped(json);
}

std::string differences_text(const std::vector<Report>& reports) {
  const Comparison comparison = compare(reports);
  std::string text;
  size_t alike_count = 0;
  std::vector<std::string> troubles;
  for (size_t i = 0; i < comparison.groups.size(); ++i) {
    const std::vector<Group>& groups = comparison.groups[i];
    const char* name = checks()[i].name;
    if (groups.size() < 2) {
      ++alike_count;
      if (!groups.empty() && groups[0].finding.grade != Grade::kGood) {
        troubles.push_back(format("%s (%s)", name, grade_name(groups[0].finding.grade)));
      }
      continue;
    }
    text += std::string(name) + "\n";
    size_t width = 0;
    for (const Group& group : groups) width = std::max(width, label(group).size());
    for (const Group& group : groups) text += row(group.finding, label(group), width);
  }
  if (!comparison.missing.empty()) {
    text += "no report of " + store::ranks_text(comparison.missing) + "\n";
  }
  if (!text.empty()) text += "\n";
  text +=
      block("", format("%zu of %zu checks are alike on the %zu ranks that reported", alike_count,
                       checks().size(), reports.size() - comparison.missing.size()));
  if (!troubles.empty()) {
    text += block("", "not good on all of them, see dt doctor: " + store::item_list(troubles));
  }
  return text;
}

std::string differences_json(const std::vector<Report>& reports) {
  const Comparison comparison = compare(reports);
  Json json;
  json["grade"] = grade_name(worst(reports));
  json["ranks"] = reports.size();
  json["missing"] = comparison.missing;
  json["alike"] = Json::array();
  json["differences"] = Json::array();
  for (size_t i = 0; i < comparison.groups.size(); ++i) {
    if (comparison.groups[i].size() < 2) {
      json["alike"].push_back(checks()[i].name);
      continue;
    }
    Json difference;
    difference["name"] = checks()[i].name;
    difference["groups"] = Json::array();
    for (const Group& group : comparison.groups[i]) {
      Json entry;
      entry["ranks"] = group.ranks;
      entry.update(json_of_finding(group.finding));
      difference["groups"].push_back(std::move(entry));
    }
    json["differences"].push_back(std::move(difference));
  }
  return dumped(json);
}

std::string encode(const Report& report) {
  store::Writer writer;
  writer.i32(report.rank).text(report.host).u32(static_cast<uint32_t>(report.findings.size()));
  for (const Finding& finding : report.findings) {
    writer.u8(static_cast<uint8_t>(finding.grade)).text(finding.text).text(finding.advice);
    writer.text(finding.compared);
  }
  return writer.take();
}

bool decode(std::string_view bytes, Report* out) {
  store::Reader reader(bytes);
  out->rank = reader.i32();
  out->host = reader.text(kMaxFindingBytes);
  out->findings.resize(reader.count(kFindingBytes));
  for (Finding& finding : out->findings) {
    const uint8_t grade = reader.u8();
    if (grade > static_cast<uint8_t>(Grade::kBad)) return false;
    finding.grade = static_cast<Grade>(grade);
    finding.text = reader.text(kMaxFindingBytes);
    finding.advice = reader.text(kMaxFindingBytes);
    finding.compared = reader.text(kMaxFindingBytes);
  }
  return reader.done();
}

}  // namespace dt::cli::doctor
