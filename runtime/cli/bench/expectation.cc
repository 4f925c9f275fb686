// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/expectation.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/bench/outputs.h"

namespace dt::cli::bench {
namespace {

using Json = nlohmann::json;

constexpr int64_t kFormat = 1;  // "dt_bench_expectation"

Status no_expectation(const std::string& path, const std::string& why) {
  return Status(Code::kConfig, path + " is no expectation of dt bench: " + why +
                                   "; write a new one with --save-expectation");
}

bool same_row(const ExpectedRow& a, const ExpectedRow& b) { return a.name() == b.name(); }

const ExpectedRow* find_row(const Expectation& in, const ExpectedRow& row) {
  const auto found = std::find_if(in.rows.begin(), in.rows.end(),
                                  [&](const ExpectedRow& other) { return same_row(other, row); });
  return found == in.rows.end() ? nullptr : &*found;
}

// Throws what nlohmann throws where a field is missing or of another type.
ExpectedRow expected_row(const Json& json) {
  ExpectedRow row;
  row.program = json.at("program").get<std::string>();
  row.collective = json.at("collective").get<std::string>();
  row.type = json.at("type").get<std::string>();
  row.op = json.at("redop").get<std::string>();
  row.ranks = json.at("ranks").get<int>();
  row.bytes = json.at("size_bytes").get<int64_t>();
  row.in_place = json.at("place").get<std::string>() == "in";
  row.us = json.at("median_us").get<double>();
  return row;
}

}  // namespace

std::string ExpectedRow::name() const {
  return program + " " + collective + " " + type + " " + op +
         format(", %d rank%s, %lld B, ", ranks, ranks == 1 ? "" : "s",
                static_cast<long long>(bytes)) +
         (in_place ? "in place" : "out of place");
}

Expectation make_expectation(const Machine& machine, const std::vector<Measured>& measured) {
  Expectation expectation;
  expectation.cpu = machine.cpu;
  for (const Measured& one : measured) {
    for (const Program& program : one.programs) {
      if (program.is_rival) continue;
      expectation.version = program.version;
      for (size_t i = 0; i < 2 * program.rows.size(); ++i) {
        const Row& row = program.rows[i / 2];
        const bool in_place = i % 2 == 1;
        expectation.rows.push_back({program.name, collective_name(one.options),
                                    dtype_name(one.options), op_name(one.options),
                                    one.options.ranks, row.bytes, in_place,
                                    spread(row.places[in_place ? 1 : 0].us).median});
      }
    }
  }
  return expectation;
}

std::string expectation_text(const Machine& machine, const Expectation& expectation) {
  std::string text =
      format("{\"dt_bench_expectation\": %lld,\n \"machine\": ", static_cast<long long>(kFormat)) +
      machine_json(machine) + ",\n \"version\": " + json_quoted(expectation.version) +
      ",\n \"rows\": [";
  for (size_t i = 0; i < expectation.rows.size(); ++i) {
    const ExpectedRow& row = expectation.rows[i];
    text += format(
        "%s\n  {\"program\": \"%s\", \"collective\": \"%s\", \"type\": \"%s\", \"redop\": \"%s\", "
        "\"ranks\": %d, \"size_bytes\": %lld, \"place\": \"%s\", \"median_us\": %.4f}",
        i == 0 ? "" : ",", row.program.c_str(), row.collective.c_str(), row.type.c_str(),
        row.op.c_str(), row.ranks, static_cast<long long>(row.bytes), row.in_place ? "in" : "out",
        row.us);
  }
  return text + "]}\n";
}

Result<Expectation> parse_expectation(const std::string& text, const std::string& path) {
  try {
    const Json json = Json::parse(text);
    Expectation expectation;
    if (json.at("dt_bench_expectation").get<int64_t>() != kFormat) {
      return no_expectation(path, "its format is another one");
    }
    expectation.cpu = json.at("machine").at("cpu").get<std::string>();
    expectation.version = json.at("version").get<std::string>();
    for (const Json& row : json.at("rows")) expectation.rows.push_back(expected_row(row));
    return expectation;
  } catch (const Json::exception& error) {
    return no_expectation(path, error.what());
  }
}

Result<Expectation> read_expectation(const std::string& path) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(fopen(path.c_str(), "re"), fclose);
  if (file == nullptr) {
    return Status(Code::kSystem, "cannot read " + path + ": " + errno_text(errno) +
                                     "; write it with --save-expectation");
  }
  std::string text;
  char buffer[4096];
  size_t bytes = 0;
  while ((bytes = fread(buffer, 1, sizeof buffer, file.get())) > 0) text.append(buffer, bytes);
  return parse_expectation(text, path);
}

Verdict judge(const Expectation& expected, const Expectation& measured, double factor) {
  Verdict verdict;
  if (expected.cpu != measured.cpu) {
    verdict.text += "# expectation: it is of another machine, cpu " + expected.cpu + "\n";
  }
  for (const ExpectedRow& row : expected.rows) {
    const ExpectedRow* const got = find_row(measured, row);
    if (got != nullptr && got->us <= row.us * factor) continue;
    ++verdict.missed;
    verdict.text += "# expectation missed: " + row.name() + ": ";
    if (got == nullptr) {
      verdict.text += "not measured\n";
    } else {
      verdict.text += format("%.2f us, %.2f times the expected %.2f us (at most %.2f times)\n",
                             got->us, row.us > 0 ? got->us / row.us : 0.0, row.us, factor);
    }
  }
  const auto unexpected =
      std::count_if(measured.rows.begin(), measured.rows.end(),
                    [&](const ExpectedRow& row) { return find_row(expected, row) == nullptr; });
  if (unexpected > 0) {
    verdict.text += format("# expectation: it says nothing of %lld measured rows\n",
                           static_cast<long long>(unexpected));
  }
  verdict.text += format("# Expectation           : %d of %zu rows missed %s\n", verdict.missed,
                         expected.rows.size(), verdict.missed == 0 ? "OK" : "FAILED");
  return verdict;
}

}  // namespace dt::cli::bench
