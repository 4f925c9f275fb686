// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/outputs.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "cli/bench/expectation.h"
#include "cli/bench/plot.h"

namespace dt::cli::bench {
namespace {

// Where a link leads to.
std::string real_path(const std::string& path) {
  char* const text = realpath(path.c_str(), nullptr);
  const std::string result = text != nullptr ? text : path;
  free(text);
  return result;
}

// How many times faster than the best rival; 0 where that is not asked.
double ratio_to_rivals(const Measured& measured, const Program& program, size_t row, int in_place) {
  const double us = spread(program.rows[row].places[in_place].us).median;
  return program.is_rival || us <= 0 ? 0 : best_rival_us(measured, row, in_place) / us;
}

std::string json_place(const Measured& measured, const Program& program, size_t row, int in_place) {
  const Series& series = program.rows[row].places[in_place];
  const Spread us = spread(series.us);
  const Bandwidth gbps =
      bandwidth(measured.options, measured.options.ranks, program.rows[row].bytes, us.median);
  std::string text = format(
      "{\"median_us\": %.4f, \"min_us\": %.4f, \"max_us\": %.4f, \"algbw_GBps\": %.6f, "
      "\"busbw_GBps\": %.6f, \"wrong\": %lld, \"rounds_us\": [",
      us.median, us.min, us.max, gbps.algorithm, gbps.bus, static_cast<long long>(series.wrong));
  for (size_t i = 0; i < series.us.size(); ++i) {
    text += format("%s%.4f", i == 0 ? "" : ", ", series.us[i]);
  }
  text += "]";
  if (!series.wall_us.empty()) {
    text += format(", \"median_wall_us\": %.4f", spread(series.wall_us).median);
  }
  const double ratio = ratio_to_rivals(measured, program, row, in_place);
  if (ratio > 0) text += format(", \"best_rival_ratio\": %.4f", ratio);
  return text + "}";
}

std::string json_of(const Measured& measured, const Machine& machine) {
  const Options& options = measured.options;
  std::string text = format(
      "{\"collective\": \"%s\", \"type\": \"%s\", \"redop\": \"%s\", \"ranks\": %d, "
      "\"rounds\": %d, \"binding\": %s,\n",
      collective_name(options), dtype_name(options), op_name(options), options.ranks,
      options.rounds, json_quoted(options.bound).c_str());
  text += " \"machine\": " + machine_json(machine) + ",\n \"programs\": [";
  for (size_t p = 0; p < measured.programs.size(); ++p) {
    const Program& program = measured.programs[p];
    text += (p == 0 ? "\n  {\"name\": " : ",\n  {\"name\": ") + json_quoted(program.name) +
            ", \"version\": " + json_quoted(program.version) + ", \"rows\": [";
    for (size_t i = 0; i < program.rows.size(); ++i) {
      const Row& row = program.rows[i];
      text += format("%s\n   {\"size_bytes\": %lld, \"count\": %lld,\n    \"out_of_place\": ",
                     i == 0 ? "" : ",", static_cast<long long>(row.bytes),
                     static_cast<long long>(row.count));
      text += json_place(measured, program, i, 0) +
              ",\n    \"in_place\": " + json_place(measured, program, i, 1) + "}";
    }
    text += "]}";
  }
  return text + "]}";
}

// One object, or a list of them where there were several dtypes or numbers of ranks.
std::string json(const Machine& machine, const std::vector<Measured>& all) {
  std::string text;
  for (const Measured& measured : all) {
    text += (text.empty() ? "" : ",\n") + json_of(measured, machine);
  }
  return all.size() == 1 ? text + "\n" : "[" + text + "]\n";
}

std::string csv(const std::vector<Measured>& all) {
  std::string text =
      "program,collective,type,redop,ranks,size_bytes,count,place,rounds,median_us,min_us,max_us,"
      "algbw_GBps,busbw_GBps,wrong,best_rival_ratio\n";
  for (const Measured& measured : all) {
    const Options& options = measured.options;
    for (const Program& program : measured.programs) {
      for (size_t i = 0; i < 2 * program.rows.size(); ++i) {
        const Row& row = program.rows[i / 2];
        const int in_place = static_cast<int>(i % 2);
        const Series& series = row.places[in_place];
        const Spread us = spread(series.us);
        const Bandwidth gbps = bandwidth(options, options.ranks, row.bytes, us.median);
        const double ratio = ratio_to_rivals(measured, program, i / 2, in_place);
        text += format("%s,%s,%s,%s,%d,%lld,%lld,%s,%zu,%.4f,%.4f,%.4f,%.6f,%.6f,%lld,%s\n",
                       program.name.c_str(), collective_name(options), dtype_name(options),
                       op_name(options), options.ranks, static_cast<long long>(row.bytes),
                       static_cast<long long>(row.count), in_place == 1 ? "in" : "out",
                       series.us.size(), us.median, us.min, us.max, gbps.algorithm, gbps.bus,
                       static_cast<long long>(series.wrong),
                       ratio > 0 ? format("%.4f", ratio).c_str() : "");
      }
    }
  }
  return text;
}

Status check_writable(const std::string& path) {
  if (path.empty()) return {};
  const bool is_there = access(path.c_str(), F_OK) == 0;
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0666);
  if (fd < 0) return Status(Code::kSystem, "cannot write " + path + ": " + errno_text(errno));
  close(fd);
  if (!is_there) unlink(path.c_str());  // what is never measured leaves no file
  return {};
}

}  // namespace

Status check_outputs(const Options& options) {
  for (const std::string& path :
       {options.json, options.csv, options.plot, options.save_expectation}) {
    DT_TRY(check_writable(path));
  }
  if (!options.expect.empty()) {
    DT_TRY_VALUE([[maybe_unused]] const Expectation expected, read_expectation(options.expect));
  }
  return {};
}

Result<bool> finish(const Options& options, const Machine& machine,
                    const std::vector<Measured>& measured) {
  if (!options.json.empty()) DT_TRY(write_text(options.json, json(machine, measured)));
  if (!options.csv.empty()) DT_TRY(write_text(options.csv, csv(measured)));
  const Expectation got = make_expectation(machine, measured);
  Verdict verdict;
  if (!options.expect.empty()) {
    DT_TRY_VALUE(const Expectation expected, read_expectation(options.expect));
    verdict = judge(expected, got, options.expect_factor);
    fputs(verdict.text.c_str(), stdout);
  }
  if (!options.save_expectation.empty()) {
    DT_TRY(write_text(options.save_expectation, expectation_text(machine, got)));
  }
  // Last: it measures once more.
  if (!options.plot.empty()) {
    std::vector<Plot> plots;
    for (const Measured& one : measured) {
      const int here = one.local_ranks > 0 ? one.local_ranks : one.options.ranks;
      std::vector<CopyLimit> copies;  // those of the host's memory say nothing of a GPU's
      if (!one.options.cuda) copies = measure_copies(here, one.options.sizes_bytes);
      plots.push_back({&one, std::move(copies), options.wire_gbps});
    }
    DT_TRY(write_text(options.plot, svg_of(plots, machine)));
  }
  return verdict.missed == 0;
}

std::string json_quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return result + "\"";
}

std::string machine_json(const Machine& machine) {
  return "{\"host\": " + json_quoted(machine.host) + ", \"cpu\": " + json_quoted(machine.cpu) +
         format(", \"cores\": %d, \"date\": ", machine.cores) + json_quoted(machine.date) + "}";
}

Status write_text(const std::string& path, const std::string& text) {
  struct stat now = {};
  const bool is_there = stat(path.c_str(), &now) == 0;
  const bool replaces = !is_there || S_ISREG(now.st_mode);  // else a pipe or a device
  const std::string target = is_there && replaces ? real_path(path) : path;
  const std::string fresh = replaces ? target + format(".%d", getpid()) : path;
  FILE* const file = fopen(fresh.c_str(), replaces ? "wxe" : "we");
  bool written = file != nullptr && fwrite(text.data(), 1, text.size(), file) == text.size();
  if (written && is_there && replaces) written = fchmod(fileno(file), now.st_mode & 07777) == 0;
  if (file != nullptr) written = fclose(file) == 0 && written;
  if (written && replaces) written = rename(fresh.c_str(), target.c_str()) == 0;
  if (written) return {};
  const int error = errno;
  if (file != nullptr && replaces) unlink(fresh.c_str());
  return Status(Code::kSystem, "cannot write " + path + ": " + errno_text(error));
}

}  // namespace dt::cli::bench
