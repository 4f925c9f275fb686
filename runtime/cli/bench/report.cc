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
#include <set>

#include "base/numa.h"

namespace dt::cli::bench {
namespace {

constexpr double kGigabyte = 1e9;

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

// As nccl-tests: no more digits than the time deserves.
std::string time_text(double us) {
  return format(us >= 10'000 ? "%7.0f" : us >= 100 ? "%7.1f" : "%7.2f", us);
}

}  // namespace

Bandwidth bandwidth(const Options& options, int ranks, int64_t bytes, double us) {
  Bandwidth result;
  if (us <= 0) return result;
  result.algorithm = static_cast<double>(bytes) / kGigabyte / (us * 1e-6);
  result.bus = result.algorithm * bus_factor(options, ranks);
  return result;
}

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
  std::set<int> nodes;
  for (const Cpu& cpu : read_topology("/sys", allowed_cpus())) nodes.insert(cpu.node);
  machine.nodes = std::max(static_cast<int>(nodes.size()), 1);
  char date[32] = "";
  const time_t now = time(nullptr);
  tm utc{};
  gmtime_r(&now, &utc);
  strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
  machine.date = date;
  return machine;
}

std::string machine_line(const Machine& machine) {
  return format("# host: %s, cpu: %s, %d cores%s, %s\n", machine.host.c_str(), machine.cpu.c_str(),
                machine.cores,
                machine.nodes > 1 ? format(" on %d NUMA nodes", machine.nodes).c_str() : "",
                machine.date.c_str());
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

double best_rival_us(const Measured& measured, size_t row, int in_place) {
  double best = 0;
  for (const Program& program : measured.programs) {
    if (!program.is_rival || row >= program.rows.size()) continue;
    const double us = spread(program.rows[row].places[in_place].us).median;
    if (us > 0 && (best == 0 || us < best)) best = us;
  }
  return best;
}

int64_t wrong_elements(const std::vector<Row>& rows) {
  int64_t wrong = 0;
  for (const Row& row : rows) wrong += row.places[0].wrong + row.places[1].wrong;
  return wrong;
}

}  // namespace dt::cli::bench
