// SPDX-License-Identifier: Apache-2.0
// dt beside the MPIs, in rounds: in each round every program does one short run over all sizes, so
// that the noise of the machine hits all alike. Ratios inside one comparison are what counts.
#include "cli/bench/compare.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "cli/bench/child.h"
#include "cli/bench/report.h"
#include "cli/bench/rivals.h"

namespace dt::cli::bench {
namespace {

constexpr int kCellWidth = 30;

/// A program to be measured, and what it measured so far.
struct Contender {
  ChildPlan plan;
  bool is_rival = false;
  Program program;
};

Contender own_contender(const Options& options, const Files& files, bool shared) {
  Options once = options;
  once.shared = shared;
  once.rounds = 1;
  once.raw = true;
  once.json.clear();
  once.csv.clear();
  Contender contender;
  contender.program.name = shared ? "dt-shared" : "dt-private";
  contender.plan.command = {files.dt,      "run", "-n",        std::to_string(options.ranks),
                            "--no-prefix", "--",  files.worker};
  const std::vector<std::string> arguments = worker_arguments(once);
  contender.plan.command.insert(contender.plan.command.end(), arguments.begin(), arguments.end());
  contender.plan.timeout_ms = options.timeout_s * int64_t{1000};
  return contender;
}

Contender rival_contender(const Options& options, const Rival& rival, bool tuned) {
  Contender contender;
  contender.is_rival = true;
  contender.program.name = rival.name + (tuned ? "-tuned" : "");
  contender.plan = rival_run(rival, options, tuned);
  return contender;
}

Result<std::vector<Contender>> contenders_of(const Options& options, const Files& files) {
  std::vector<Contender> contenders;
  contenders.push_back(own_contender(options, files, true));
  contenders.push_back(own_contender(options, files, false));
  for (const std::string& name : options.rivals) {
    DT_TRY_VALUE(const Rival rival, prepare_rival(name, files.source_directory));
    contenders.push_back(rival_contender(options, rival, false));
    if (name == "openmpi") contenders.push_back(rival_contender(options, rival, true));
  }
  return contenders;
}

// One line "dt-bench-row ..." of row `index`.
bool add_row(const char* line, size_t index, Program* program) {
  long long bytes = 0, count = 0, wrong[2] = {0, 0};
  double us[2] = {0, 0};
  if (sscanf(line, "dt-bench-row %lld %lld %lf %lf %lld %lld", &bytes, &count, &us[0], &us[1],
             &wrong[0], &wrong[1]) != 6) {
    return false;
  }
  if (program->rows.size() <= index) program->rows.resize(index + 1);
  Row& row = program->rows[index];
  row.bytes = bytes;
  row.count = count;
  for (int in_place = 0; in_place < 2; ++in_place) {
    row.places[in_place].us.push_back(us[in_place]);
    row.places[in_place].wrong += wrong[in_place];
  }
  return true;
}

// Other lines (warnings of a launcher) are passed over.
Status add_output(const std::string& output, const Options& options, Program* program) {
  constexpr char kLibrary[] = "dt-bench-library ";
  size_t rows = 0;
  for (size_t begin = 0; begin < output.size();) {
    const size_t end = std::min(output.find('\n', begin), output.size());
    std::string line = output.substr(begin, end - begin);
    begin = end + 1;
    if (line.compare(0, strlen(kLibrary), kLibrary) == 0) {
      std::replace(line.begin(), line.end(), '\t', ' ');
      program->version = line.substr(strlen(kLibrary));
    } else if (add_row(line.c_str(), rows, program)) {
      ++rows;
    }
  }
  if (rows == options.sizes_bytes.size()) return {};
  return Status(Code::kSystem, program->name + format(" measured %zu of %zu sizes", rows,
                                                      options.sizes_bytes.size()));
}

std::string cell(const Spread& us) {
  return format("%10.2f [%.2f-%.2f]", us.median, us.min, us.max);
}

// How many times faster dt is than the fastest rival.
std::string ratio(const std::vector<Contender>& contenders, const Contender& ours, size_t row,
                  int in_place) {
  double best = 0;
  for (const Contender& contender : contenders) {
    if (!contender.is_rival) continue;
    const double us = spread(contender.program.rows[row].places[in_place].us).median;
    if (best == 0 || us < best) best = us;
  }
  const double us = spread(ours.program.rows[row].places[in_place].us).median;
  return us > 0 ? format("%9.2fx", best / us) : format("%10s", "-");
}

void print_place(const Options& options, const std::vector<Contender>& contenders, int in_place) {
  printf("#\n# %s: us per operation, median [min-max] of %d rounds; ratio: best rival / dt\n",
         in_place == 1 ? "in place" : "out of place", options.rounds);
  printf("# %10s", "size");
  for (const Contender& contender : contenders) {
    printf("  %-*s", kCellWidth, ("  " + contender.program.name).c_str());
  }
  printf("  %10s  %10s\n", "/ shared", "/ private");
  for (size_t row = 0; row < options.sizes_bytes.size(); ++row) {
    printf("%12lld", static_cast<long long>(contenders.front().program.rows[row].bytes));
    for (const Contender& contender : contenders) {
      const Spread us = spread(contender.program.rows[row].places[in_place].us);
      printf("  %-*s", kCellWidth, cell(us).c_str());
    }
    printf("  %s  %s\n", ratio(contenders, contenders[0], row, in_place).c_str(),
           ratio(contenders, contenders[1], row, in_place).c_str());
  }
}

void print(const Options& options, const Machine& machine,
           const std::vector<Contender>& contenders) {
  printf("# dt bench %s: %s %s, %d ranks, %d rounds in turn\n", collective_name(options),
         dtype_name(options), op_name(options), options.ranks, options.rounds);
  fputs(machine_line(machine).c_str(), stdout);
  for (const Contender& contender : contenders) {
    printf("# %s: %s\n", contender.program.name.c_str(), contender.program.version.c_str());
  }
  for (int in_place = 0; in_place < 2; ++in_place) print_place(options, contenders, in_place);
}

}  // namespace

Result<int> compare(const Options& options, const Files& files) {
  DT_TRY_VALUE(std::vector<Contender> contenders, contenders_of(options, files));
  const Machine machine = read_machine();
  for (int round = 0; round < options.rounds; ++round) {
    for (Contender& contender : contenders) {
      const Result<std::string> output = run_child(contender.plan);
      if (!output.ok()) return output.status().within(contender.program.name);
      DT_TRY(add_output(output.value(), options, &contender.program));
    }
  }
  print(options, machine, contenders);
  int64_t wrong = 0;
  std::vector<Program> programs;
  for (const Contender& contender : contenders) {
    wrong += wrong_elements(contender.program.rows);
    if (wrong_elements(contender.program.rows) > 0) {
      printf("# %s: WRONG RESULTS\n", contender.program.name.c_str());
    }
    programs.push_back(contender.program);
  }
  printf("#\n# Out of bounds values : %lld %s\n", static_cast<long long>(wrong),
         wrong == 0 ? "OK" : "FAILED");
  DT_TRY(write_files(options, options.ranks, machine, programs));
  return wrong == 0 ? 0 : 1;
}

}  // namespace dt::cli::bench
