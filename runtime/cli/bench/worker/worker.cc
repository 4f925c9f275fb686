// SPDX-License-Identifier: Apache-2.0
// dt-bench-worker: one rank of `dt bench`. It sees dt.h and libdt.so only, like any outside
// program, so that what is measured is what users get; the command, which links the static core,
// starts it. Rank 0 prints the table, or with --raw the lines that compare.cc reads.
#include <dt/dt.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>

#include "cli/bench/method.h"
#include "cli/bench/options.h"
#include "cli/bench/outputs.h"
#include "cli/bench/report.h"
#include "cli/bench/worker/buffers.h"
#include "cli/bench/worker/gpus.h"

namespace dt::cli::bench {
namespace {

static_assert(int{BENCH_I8} == int{DT_I8} && int{BENCH_F16} == int{DT_F16} &&
              int{BENCH_F64} == int{DT_F64});
static_assert(int{BENCH_SUM} == int{DT_SUM} && int{BENCH_AVG} == int{DT_AVG} &&
              int{BENCH_MAX} == int{DT_MAX});

struct JobDeleter {
  void operator()(dt_job* job) const { dt_job_destroy(job); }
};
struct CommDeleter {
  void operator()(dt_comm* comm) const { dt_comm_destroy(comm); }
};

/// What a rank needs for the whole run.
struct Run {
  const Options& options;
  Buffers* buffers;
  bench_case c;                 ///< of the size at hand
  std::vector<int64_t> counts;  ///< its `counts`
};

Result<Times> time_round(const Run& run, int64_t iterations, int64_t bytes) {
  DT_TRY_VALUE(Times times, run.buffers->time(run.c, iterations, bytes));
  for (double* us : {&times.us, &times.wall_us}) {
    DT_TRY(run.buffers->combine(us, DT_F64, DT_SUM));
    *us /= run.c.ranks;
  }
  return times;
}

Result<int64_t> verify(const Run& run) {
  DT_TRY(run.buffers->prepare(run.c));
  DT_TRY(run.buffers->barrier());
  DT_TRY(run.buffers->operate(run.c));
  DT_TRY_VALUE(int64_t wrong, run.buffers->wrong(run.c));
  DT_TRY(run.buffers->combine(&wrong, DT_I64, DT_SUM));
  return wrong;
}

// Verification and warm-up; gives the iterations of a round, equal on all ranks.
Result<int64_t> start_place(const Run& run, int64_t bytes, Series* series) {
  DT_TRY_VALUE(series->wrong, verify(run));
  DT_TRY(run.buffers->rewrite(run.c));
  DT_TRY_VALUE(Times times, run.buffers->time(run.c, run.options.warmup, bytes));
  DT_TRY(run.buffers->combine(&times.wall_us, DT_F64, DT_MAX));
  if (run.options.iterations > 0) return int64_t{run.options.iterations};
  return bench_iterations(times.wall_us, run.options.budget_ms * 1e3);
}

Result<Row> measure(Run* run, int64_t wanted_bytes) {
  const Options& options = run->options;
  bench_case& c = run->c;
  Row row;
  c.count = bench_count(c.collective, c.dtype, c.ranks, wanted_bytes);
  row.count = c.count;
  row.bytes = bench_bytes(c.collective, c.dtype, c.ranks, c.count);
  bench_set_counts(&c);
  int64_t iterations[2] = {1, 1};
  for (c.in_place = 0; c.in_place < 2; ++c.in_place) {
    DT_TRY_VALUE(iterations[c.in_place], start_place(*run, row.bytes, &row.places[c.in_place]));
  }
  for (int round = 0; round < options.rounds; ++round) {
    for (c.in_place = 0; c.in_place < 2; ++c.in_place) {
      DT_TRY(run->buffers->rewrite(c));
      DT_TRY_VALUE(const Times times, time_round(*run, iterations[c.in_place], row.bytes));
      row.places[c.in_place].us.push_back(times.us);
      row.places[c.in_place].wall_us.push_back(times.wall_us);
    }
  }
  return row;
}

void print_raw(const Row& row) {
  for (size_t round = 0; round < row.places[0].us.size(); ++round) {
    printf("dt-bench-row %lld %lld %.4f %.4f %lld %lld\n", static_cast<long long>(row.bytes),
           static_cast<long long>(row.count), row.places[0].us[round], row.places[1].us[round],
           static_cast<long long>(row.places[0].wrong),
           static_cast<long long>(row.places[1].wrong));
  }
}

// The value of one "name: value" line.
std::string build_info(const std::string& name) {
  const std::string text = std::string("\n") + dt_build_info();
  const size_t at = text.find("\n" + name + ": ");
  if (at == std::string::npos) return "unknown";
  const size_t begin = at + name.size() + 3;
  return text.substr(begin, text.find('\n', begin) - begin);
}

void print_header(const Options& options, const dt_place& place, const Machine& machine,
                  const Gpus& gpus) {
  const std::string backend = options.cuda ? gpus.backend : place.world_size == 1 ? "self" : "host";
  printf("# dt %s %s: %d rank%s on %d host%s, backend %s, %s memory, kernels %s\n", dt_version(),
         collective_name(options), place.world_size, place.world_size == 1 ? "" : "s",
         place.node_count, place.node_count == 1 ? "" : "s", backend.c_str(), memory_name(options),
         build_info("kernels").c_str());
  for (const std::string& line : gpus.lines) printf("# %s\n", line.c_str());
  fputs(machine_line(machine).c_str(), stdout);
  printf("# launcher: %s, %s, warmup: %d, rounds: %d, median of the rounds\n", place.launcher,
         bound_text(options), options.warmup, options.rounds);
  if (options.collective == BENCH_BROADCAST) {
    printf("# broadcast has one buffer: both halves measure it\n");
  }
  if (bench_is_never_in_place(options.collective)) {
    printf("# %s is never in place: both halves measure the same\n", collective_name(options));
  }
  if (options.collective == BENCH_PINGPONG) {
    printf("# one operation is one message: with two ranks half of the way there and back\n");
  }
  if (options.cuda) printf("# operations back to back on one stream, timed by CUDA's events\n");
  fputs(table_header().c_str(), stdout);
  fflush(stdout);
}

Result<std::vector<Row>> measure_all(Run* run, bool prints) {
  const Options& options = run->options;
  std::vector<Row> rows;
  for (const int64_t bytes : options.sizes_bytes) {
    DT_TRY_VALUE(Row row, measure(run, bytes));
    if (prints && options.raw) print_raw(row);
    if (prints && !options.raw) fputs(table_row(options, run->c.ranks, row).c_str(), stdout);
    if (prints) fflush(stdout);
    rows.push_back(std::move(row));
  }
  // Nobody's memory goes while a peer still reads it.
  DT_TRY(run->buffers->barrier());
  return rows;
}

struct ConfigDeleter {
  void operator()(dt_config* config) const { dt_config_destroy(config); }
};

// --device decides, whatever the configuration says.
Result<std::unique_ptr<dt_job, JobDeleter>> join(const Options& options) {
  dt_config* raw_config = nullptr;
  DT_TRY(check(dt_config_create(nullptr, &raw_config)));
  const std::unique_ptr<dt_config, ConfigDeleter> config(raw_config);
  const char* const backend = options.cuda ? "nccl" : "host";
  DT_TRY(check(dt_config_set(config.get(), "backend.name", backend)));
  dt_job* job = nullptr;
  DT_TRY(check(dt_init(config.get(), &job)));
  return std::unique_ptr<dt_job, JobDeleter>(job);
}

Result<std::unique_ptr<Buffers>> make_buffers(const Options& options, const Gpus& gpus,
                                              dt_comm* comm) {
  const int64_t largest = *std::max_element(options.sizes_bytes.begin(), options.sizes_bytes.end());
  if (!options.cuda) return make_host_buffers(comm, largest, options.shared);
  return make_device_buffers(comm, gpus.own, largest, options.shared,
                             Deadline::after_ms(options.timeout_s * int64_t{1000}));
}

// The exit code.
Result<int> work(const Options& options) {
  if (options.cuda) DT_TRY(cuda::explain(cuda::ask()));
  DT_TRY_VALUE(const auto job, join(options));
  dt_place place;
  dt_place_init(&place);
  DT_TRY(check(dt_rank_info(job.get(), &place)));
  dt_comm* raw_comm = nullptr;
  DT_TRY(check(dt_comm_world(job.get(), &raw_comm)));
  const std::unique_ptr<dt_comm, CommDeleter> comm(raw_comm);
  Gpus gpus;
  if (options.cuda) {
    DT_TRY_VALUE(gpus, look_at_gpus(job.get(), comm.get(), place));
  }

  Machine machine = read_machine();
  if (options.cores > 0) machine.cores = options.cores;  // this rank may be bound to some
  const bool prints = place.rank == 0;
  if (prints && options.raw) printf("dt-bench-library dt %s\n", dt_version());
  if (prints && !options.raw) print_header(options, place, machine, gpus);
  Program program;
  program.name = std::string("dt-") + (options.cuda ? "cuda" : memory_name(options));
  program.version = std::string("dt ") + dt_version();
  {
    DT_TRY_VALUE(const auto buffers, make_buffers(options, gpus, comm.get()));
    Run run{options, buffers.get(), {}, std::vector<int64_t>(place.world_size)};
    run.c.collective = options.collective;
    run.c.dtype = options.dtype;
    run.c.op = options.op;
    run.c.rank = place.rank;
    run.c.ranks = place.world_size;
    run.c.counts = run.counts.data();
    buffers->place(&run.c);
    DT_TRY_VALUE(program.rows, measure_all(&run, prints));
  }
  DT_TRY(check(dt_finalize(job.get(), -1)));
  if (!prints) return 0;
  bool good = wrong_elements(program.rows) == 0;
  if (!options.raw) {
    if (options.cuda) fputs(clock_line(program.rows).c_str(), stdout);
    fputs(table_footer(options, place.world_size, program.rows).c_str(), stdout);
    Measured measured{options, {program}, place.local_size};
    measured.options.ranks = place.world_size;
    DT_TRY_VALUE(const bool held, finish(options, machine, {measured}));
    good = good && held;
  }
  return good ? 0 : 1;
}

// The rank ends by itself, whatever becomes of the program that started it.
void on_alarm(int) {
  static constexpr char kText[] = "dt bench: not done after --timeout seconds; giving up\n";
  const ssize_t ignored = write(STDERR_FILENO, kText, sizeof kText - 1);
  _exit(ignored < 0 ? 2 : 1);
}

int main_of_worker(int argument_count, char** arguments) {
  const ParsedOptions parsed = parse_options(argument_count, arguments);
  if (parsed.exit_code) return *parsed.exit_code;
  signal(SIGALRM, on_alarm);
  alarm(static_cast<unsigned>(parsed.options.timeout_s));
  const Result<int> exit_code = work(parsed.options);
  if (exit_code.ok()) return exit_code.value();
  fprintf(stderr, "dt bench: %s\n", exit_code.status().message().c_str());
  return 1;
}

}  // namespace
}  // namespace dt::cli::bench

int main(int argument_count, char** arguments) {
  return dt::cli::bench::main_of_worker(argument_count, arguments);
}
