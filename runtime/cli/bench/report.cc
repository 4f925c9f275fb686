// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/report.h"

#include <limits.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <memory>

namespace dt::cli::bench {
namespace {

constexpr double kGigabyte = 1e9;

struct Bandwidth {
  double algorithm = 0;  // GB/s
  double bus = 0;
};

Bandwidth bandwidth(const Options& options, int ranks, int64_t bytes, double us) {
  Bandwidth result;
  if (us <= 0) return result;
  result.algorithm = static_cast<double>(bytes) / kGigabyte / (us * 1e-6);
  result.bus = result.algorithm * bus_factor(options, ranks);
  return result;
}

std::string cpu_model() {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(fopen("/proc/cpuinfo", "re"), fclose);
  char line[512];
  while (file != nullptr && fgets(line, sizeof line, file.get()) != nullptr) {
    if (strncmp(line, "model name", strlen("model name")) != 0) continue;
    const char* const colon = strchr(line, ':');
    if (colon == nullptr) continue;
    std::string text = colon + 1;
    text.erase(0, text.find_first_not_of(" \t"));
    text.erase(text.find_last_not_of(" \t\n") + 1);
    return text;
  }
  return "unknown";
}

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return result + "\"";
}

std::string json_place(const Options& options, int ranks, const Row& row, const Series& series) {
  const Spread us = spread(series.us);
  const Bandwidth gbps = bandwidth(options, ranks, row.bytes, us.median);
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
  return text + "}";
}

std::string json(const Options& options, int ranks, const Machine& machine,
                 const std::vector<Program>& programs) {
  std::string text = format(
      "{\"collective\": \"%s\", \"type\": \"%s\", \"redop\": \"%s\", \"ranks\": %d, "
      "\"rounds\": %d,\n",
      collective_name(options), dtype_name(options), op_name(options), ranks, options.rounds);
  text += " \"machine\": {\"host\": " + quoted(machine.host) + ", \"cpu\": " + quoted(machine.cpu) +
          format(", \"cores\": %d, \"date\": ", machine.cores) + quoted(machine.date) + "},\n";
  text += " \"programs\": [";
  for (size_t p = 0; p < programs.size(); ++p) {
    const Program& program = programs[p];
    text += (p == 0 ? "\n  {\"name\": " : ",\n  {\"name\": ") + quoted(program.name) +
            ", \"version\": " + quoted(program.version) + ", \"rows\": [";
    for (size_t i = 0; i < program.rows.size(); ++i) {
      const Row& row = program.rows[i];
      text += format("%s\n   {\"size_bytes\": %lld, \"count\": %lld,\n    \"out_of_place\": ",
                     i == 0 ? "" : ",", static_cast<long long>(row.bytes),
                     static_cast<long long>(row.count));
      text += json_place(options, ranks, row, row.places[0]) +
              ",\n    \"in_place\": " + json_place(options, ranks, row, row.places[1]) + "}";
    }
    text += "]}";
  }
  return text + "]}\n";
}

std::string csv(const Options& options, int ranks, const std::vector<Program>& programs) {
  std::string text =
      "program,collective,type,redop,ranks,size_bytes,count,place,rounds,median_us,min_us,max_us,"
      "algbw_GBps,busbw_GBps,wrong\n";
  for (const Program& program : programs) {
    for (const Row& row : program.rows) {
      for (int in_place = 0; in_place < 2; ++in_place) {
        const Series& series = row.places[in_place];
        const Spread us = spread(series.us);
        const Bandwidth gbps = bandwidth(options, ranks, row.bytes, us.median);
        text += format("%s,%s,%s,%s,%d,%lld,%lld,%s,%zu,%.4f,%.4f,%.4f,%.6f,%.6f,%lld\n",
                       program.name.c_str(), collective_name(options), dtype_name(options),
                       op_name(options), ranks, static_cast<long long>(row.bytes),
                       static_cast<long long>(row.count), in_place == 1 ? "in" : "out",
                       series.us.size(), us.median, us.min, us.max, gbps.algorithm, gbps.bus,
                       static_cast<long long>(series.wrong));
      }
    }
  }
  return text;
}

Status write_text(const std::string& path, const std::string& text) {
  FILE* const file = fopen(path.c_str(), "we");
  bool written = file != nullptr && fwrite(text.data(), 1, text.size(), file) == text.size();
  if (file != nullptr) written = fclose(file) == 0 && written;
  if (written) return {};
  return Status(Code::kSystem, "cannot write " + path + ": " + errno_text(errno));
}

// As nccl-tests: no more digits than the time deserves.
std::string time_text(double us) {
  return format(us >= 10'000 ? "%7.0f" : us >= 100 ? "%7.1f" : "%7.2f", us);
}

}  // namespace

Spread spread(std::vector<double> values) {
  Spread result;
  if (values.empty()) return result;
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  result.median =
      values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
  result.min = values.front();
  result.max = values.back();
  return result;
}

Machine read_machine() {
  Machine machine;
  char host[HOST_NAME_MAX + 1] = "";
  gethostname(host, sizeof host - 1);
  machine.host = host;
  machine.cpu = cpu_model();
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) machine.cores = CPU_COUNT(&set);
  char date[32] = "";
  const time_t now = time(nullptr);
  tm utc{};
  gmtime_r(&now, &utc);
  strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
  machine.date = date;
  return machine;
}

std::string machine_line(const Machine& machine) {
  return format("# host: %s, cpu: %s, %d cores, %s\n", machine.host.c_str(), machine.cpu.c_str(),
                machine.cores, machine.date.c_str());
}

std::string table_header() {
  std::string text = "#\n";
  text += format(
      "# %10s  %12s  %8s  %6s  %6s           out-of-place                       in-place"
      "          \n",
      "", "", "", "", "");
  text += format("# %10s  %12s  %8s  %6s  %6s  %7s  %6s  %6s %6s  %7s  %6s  %6s %6s\n", "size",
                 "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "time",
                 "algbw", "busbw", "#wrong");
  text += format("# %10s  %12s  %8s  %6s  %6s  %7s  %6s  %6s  %5s  %7s  %6s  %6s  %5s\n", "(B)",
                 "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)",
                 "(GB/s)", "");
  return text;
}

std::string table_row(const Options& options, int ranks, const Row& row) {
  std::string text = format("%12lld  %12lld  %8s  %6s  %6d", static_cast<long long>(row.bytes),
                            static_cast<long long>(row.count), dtype_name(options),
                            op_name(options), root_of(options));
  for (const Series& series : row.places) {
    const double us = spread(series.us).median;
    const Bandwidth gbps = bandwidth(options, ranks, row.bytes, us);
    text += format("  %s  %6.2f  %6.2f  %5lld", time_text(us).c_str(), gbps.algorithm, gbps.bus,
                   static_cast<long long>(series.wrong));
  }
  return text + "\n";
}

std::string table_footer(const Options& options, int ranks, const std::vector<Row>& rows) {
  double sum = 0;
  for (const Row& row : rows) {
    for (const Series& series : row.places) {
      sum += bandwidth(options, ranks, row.bytes, spread(series.us).median).bus;
    }
  }
  const int64_t wrong = wrong_elements(rows);
  const double average = rows.empty() ? 0 : sum / (2 * static_cast<double>(rows.size()));
  return format("# Out of bounds values : %lld %s\n# Avg bus bandwidth    : %g\n#\n",
                static_cast<long long>(wrong), wrong == 0 ? "OK" : "FAILED", average);
}

std::string clock_line(const std::vector<Row>& rows) {
  std::vector<double> more_us;
  for (const Row& row : rows) {
    for (const Series& series : row.places) {
      more_us.push_back(spread(series.wall_us).median - spread(series.us).median);
    }
  }
  const Spread more = spread(more_us);
  return format("# host's clock beyond the events, per operation: %.2f us [%.2f to %.2f]\n",
                more.median, more.min, more.max);
}

int64_t wrong_elements(const std::vector<Row>& rows) {
  int64_t wrong = 0;
  for (const Row& row : rows) wrong += row.places[0].wrong + row.places[1].wrong;
  return wrong;
}

Status write_files(const Options& options, int ranks, const Machine& machine,
                   const std::vector<Program>& programs) {
  if (!options.json.empty()) {
    DT_TRY(write_text(options.json, json(options, ranks, machine, programs)));
  }
  if (!options.csv.empty()) DT_TRY(write_text(options.csv, csv(options, ranks, programs)));
  return {};
}

}  // namespace dt::cli::bench
