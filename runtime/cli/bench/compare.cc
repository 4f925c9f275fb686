// SPDX-License-Identifier: Apache-2.0
// What takes several runs of ranks: dt beside rivals, several dtypes, several numbers of ranks. dt
// and its rivals are measured in rounds: in each round every program does one short run over all
// sizes, so that the noise of the machine hits all alike. Ratios inside one comparison are what
// counts.
#include "cli/bench/compare.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>

#include "cli/bench/child.h"
#include "cli/bench/outputs.h"
#include "cli/bench/placement.h"
#include "cli/bench/report.h"
#include "cli/bench/rival_facts.h"
#include "cli/bench/rivals.h"

namespace dt::cli::bench {
namespace {

constexpr int kCellWidth = 30;

/// A program to be measured, and what it measured so far.
struct Contender {
  ChildPlan plan;
  Program program;
};

/// An empty directory while it lives.
class Scratch {
 public:
  static Result<std::unique_ptr<Scratch>> create() {
    const char* const folder = getenv("TMPDIR");
    std::string path = std::string(folder != nullptr ? folder : "/tmp") + "/dt-bench-XXXXXX";
    if (mkdtemp(path.data()) == nullptr) {
      return Status(Code::kSystem, "cannot make " + path + ": " + errno_text(errno));
    }
    return std::unique_ptr<Scratch>(new Scratch(path));
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  const std::string& path() const { return path_; }

 private:
  explicit Scratch(std::string path) : path_(std::move(path)) {}

  const std::string path_;
};

Contender own_contender(const Options& options, const Files& files, bool shared, int rounds) {
  Contender contender;
  contender.program.name = options.cuda ? "dt-cuda" : shared ? "dt-shared" : "dt-private";
  contender.plan = own_run(options, files, shared, rounds);
  return contender;
}

Contender rival_contender(const Options& options, const Rival& rival, const Files& files,
                          bool tuned) {
  Contender contender;
  contender.program.is_rival = true;
  contender.program.name = rival.name + (tuned ? "-tuned" : "");
  contender.plan = rival_run(rival, options, files, tuned);
  return contender;
}

// The rivals that can be measured; with --compare all the others are named, else they are errors.
Result<std::vector<Rival>> find_rivals(const Options& options, const Files& files,
                                       const std::string& meeting) {
  std::vector<Rival> rivals;
  for (const std::string& name : options.rivals) {
    Result<Rival> rival = prepare_rival(name, files, meeting);
    if (rival.ok()) {
      rivals.push_back(std::move(rival.value()));
    } else if (options.all_rivals) {
      printf("# not measured: %s\n", rival.status().message().c_str());
    } else {
      return rival.status();
    }
  }
  return rivals;
}

std::vector<Contender> contenders_of(const Options& options, const Files& files,
                                     const std::vector<Rival>& rivals) {
  std::vector<Contender> contenders;
  if (options.rivals.empty()) {  // no turns to take: the rounds are the worker's own
    contenders.push_back(own_contender(options, files, options.shared, options.rounds));
    return contenders;
  }
  contenders.push_back(own_contender(options, files, true, 1));
  contenders.push_back(own_contender(options, files, false, 1));
  for (const Rival& rival : rivals) {
    if (const Status status = check_rival(rival.name, options); !status.ok()) {
      printf("# not measured: %s\n", status.message().c_str());
      continue;
    }
    contenders.push_back(rival_contender(options, rival, files, false));
    if (rival.has_tuned) contenders.push_back(rival_contender(options, rival, files, true));
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

std::string cell(const Spread& us) {
  return format("%10.2f [%.2f-%.2f]", us.median, us.min, us.max);
}

// How many times faster this program is than the fastest rival.
std::string ratio(const Measured& measured, const Program& program, size_t row, int in_place) {
  const double best = best_rival_us(measured, row, in_place);
  const double us = spread(program.rows[row].places[in_place].us).median;
  return us > 0 && best > 0 ? format("%9.2fx", best / us) : format("%10s", "-");
}

void print_place(const Measured& measured, int in_place) {
  const std::vector<Program>& programs = measured.programs;
  printf("#\n# %s: us per operation, median [min-max] of %d rounds; ratio: best rival / dt\n",
         in_place == 1 ? "in place" : "out of place", measured.options.rounds);
  printf("# %10s", "size");
  for (const Program& program : programs) {
    printf("  %-*s", kCellWidth, ("  " + program.name).c_str());
  }
  printf("  %10s  %10s\n", "/ shared", "/ private");
  for (size_t row = 0; row < measured.options.sizes_bytes.size(); ++row) {
    printf("%12lld", static_cast<long long>(programs.front().rows[row].bytes));
    for (const Program& program : programs) {
      const Spread us = spread(program.rows[row].places[in_place].us);
      printf("  %-*s", kCellWidth, cell(us).c_str());
    }
    printf("  %s  %s\n", ratio(measured, programs[0], row, in_place).c_str(),
           ratio(measured, programs[1], row, in_place).c_str());
  }
}

void print_comparison(const Measured& measured) {
  for (const Program& program : measured.programs) {
    printf("# %s: %s\n", program.name.c_str(), program.version.c_str());
  }
  for (int in_place = 0; in_place < 2; ++in_place) print_place(measured, in_place);
  printf("#\n");
}

void print_table(const Measured& measured) {
  fputs(table_header().c_str(), stdout);
  for (const Row& row : measured.programs.front().rows) {
    fputs(table_row(measured.options, measured.options.ranks, row).c_str(), stdout);
  }
}

Status run_once(const Options& options, int rounds, Contender* contender) {
  const Result<std::string> output = run_child(contender->plan);
  if (!output.ok()) return output.status().within(contender->program.name);
  return add_output(output.value(), options, rounds, &contender->program);
}

// All rounds of all contenders, printed. With --compare all a rival that fails is named and left
// out.
Result<Measured> measure(const Options& options, const Files& files,
                         const std::vector<Rival>& rivals) {
  std::vector<Contender> contenders = contenders_of(options, files, rivals);
  const bool in_turn = !options.rivals.empty();
  for (int round = 0; round < (in_turn ? options.rounds : 1); ++round) {
    for (size_t i = 0; i < contenders.size();) {
      const Status status = run_once(options, in_turn ? 1 : options.rounds, &contenders[i]);
      if (status.ok()) {
        ++i;
      } else if (options.all_rivals && contenders[i].program.is_rival &&
                 status.code() != Code::kAborted) {
        printf("# not measured: %s\n", status.message().c_str());
        contenders.erase(contenders.begin() + static_cast<std::ptrdiff_t>(i));
      } else {
        return status;
      }
    }
  }
  Measured measured{options, {}};
  for (Contender& contender : contenders) measured.programs.push_back(std::move(contender.program));
  printf("# dt bench %s: %s %s, %d ranks, %d rounds%s, %s\n", collective_name(options),
         dtype_name(options), op_name(options), options.ranks, options.rounds,
         in_turn ? " in turn" : "", bound_text(options));
  in_turn ? print_comparison(measured) : print_table(measured);
  fflush(stdout);
  return measured;
}

int64_t count_wrong(const Measured& measured) {
  int64_t wrong = 0;
  for (const Program& program : measured.programs) {
    const int64_t more = wrong_elements(program.rows);
    if (more > 0) printf("# %s: WRONG RESULTS\n", program.name.c_str());
    wrong += more;
  }
  return wrong;
}

}  // namespace

ChildPlan own_run(const Options& options, const Files& files, bool shared, int rounds) {
  Options once = options;
  once.shared = shared;
  once.rounds = rounds;
  once.raw = true;
  once.json.clear();
  once.csv.clear();
  once.plot.clear();
  once.expect.clear();
  once.save_expectation.clear();
  once.bound = binding_of(options);
  ChildPlan plan;
  plan.command = own_launcher(options, files);
  plan.command.push_back(files.worker);
  const std::vector<std::string> arguments = worker_arguments(once);
  plan.command.insert(plan.command.end(), arguments.begin(), arguments.end());
  plan.timeout_ms = options.timeout_s * int64_t{1000};
  return plan;
}

// Rows come round by round from rivals, size by size from dt's worker: in both cases those of one
// size follow each other or are all of them. Other lines (warnings of a launcher) are passed over.
Status add_output(const std::string& output, const Options& options, int rounds, Program* program) {
  constexpr char kLibrary[] = "dt-bench-library ";
  size_t rows = 0;
  for (size_t begin = 0; begin < output.size();) {
    const size_t end = std::min(output.find('\n', begin), output.size());
    std::string line = output.substr(begin, end - begin);
    begin = end + 1;
    if (line.compare(0, strlen(kLibrary), kLibrary) == 0) {
      std::replace(line.begin(), line.end(), '\t', ' ');
      program->version = line.substr(strlen(kLibrary));
    } else if (add_row(line.c_str(), rows / static_cast<size_t>(rounds), program)) {
      ++rows;
    }
  }
  rows /= static_cast<size_t>(rounds);
  if (rows == options.sizes_bytes.size()) return {};
  return Status(Code::kSystem, program->name + format(" measured %zu of %zu sizes", rows,
                                                      options.sizes_bytes.size()));
}

Result<int> compare(const Options& options, const Files& files) {
  const HeldSignals held_signals;  // let go when nothing is left behind
  DT_TRY_VALUE(const auto scratch, Scratch::create());
  const Machine machine = read_machine();
  DT_TRY_VALUE(const std::vector<Rival> rivals, find_rivals(options, files, scratch->path()));
  fputs(machine_line(machine).c_str(), stdout);
  int64_t wrong = 0;
  std::vector<Measured> all;
  for (const int ranks : options.ranks_list) {
    for (const int collective : options.collectives) {
      for (const int dtype : options.dtypes) {
        Options one = for_collective(options, collective);
        one.ranks = ranks;
        one.dtype = dtype;
        one.bound = binding_of(one);
        DT_TRY_VALUE(Measured measured, measure(one, files, rivals));
        wrong += count_wrong(measured);
        all.push_back(std::move(measured));
      }
    }
  }
  printf("# Out of bounds values : %lld %s\n", static_cast<long long>(wrong),
         wrong == 0 ? "OK" : "FAILED");
  DT_TRY_VALUE(const bool held, finish(options, machine, all));
  return wrong == 0 && held ? 0 : 1;
}

}  // namespace dt::cli::bench
