// SPDX-License-Identifier: Apache-2.0
// dt-bench-worker: one rank of `dt bench`. It sees dt.h and libdt.so only, like any outside
// program, so that what is measured is what users get; the command, which links the static core,
// starts it. Rank 0 prints the table, or with --raw the lines that compare.cc reads.
#include <dt/dt.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <utility>

#include "cli/bench/method.h"
#include "cli/bench/options.h"
#include "cli/bench/report.h"

namespace dt::cli::bench {
namespace {

static_assert(int{BENCH_I8} == int{DT_I8} && int{BENCH_F16} == int{DT_F16} &&
              int{BENCH_F64} == int{DT_F64});
static_assert(int{BENCH_SUM} == int{DT_SUM} && int{BENCH_AVG} == int{DT_AVG} &&
              int{BENCH_MAX} == int{DT_MAX});

constexpr int64_t kTailBytes = 64;  // areas are never empty

Status check(dt_status status) {
  if (status == DT_OK) return {};
  return Status(static_cast<Code>(status), dt_last_error());
}

struct JobDeleter {
  void operator()(dt_job* job) const { dt_job_destroy(job); }
};
struct CommDeleter {
  void operator()(dt_comm* comm) const { dt_comm_destroy(comm); }
};

/// Memory that a case sends from or receives into.
class Area {
 public:
  static Result<Area> create(dt_comm* comm, int64_t bytes, bool shared) {
    Area area;
    area.bytes_ = static_cast<size_t>(bytes + kTailBytes);
    if (shared) {
      DT_TRY(check(dt_mem_alloc(comm, bytes + kTailBytes, &area.memory_)));
      area.comm_ = comm;
      return area;
    }
    void* const memory =
        mmap(nullptr, area.bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      return Status(Code::kOutOfMemory, format("cannot get %zu bytes of memory: ", area.bytes_) +
                                            errno_text(errno) + "; choose a smaller -e");
    }
    area.memory_ = memory;
    return area;
  }
  Area(Area&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)), bytes_(other.bytes_), comm_(other.comm_) {}
  Area(const Area&) = delete;
  Area& operator=(const Area&) = delete;
  ~Area() {
    if (memory_ == nullptr) return;
    if (comm_ != nullptr) {
      dt_mem_free(comm_, memory_);
    } else {
      munmap(memory_, bytes_);
    }
  }

  char* data() const { return static_cast<char*>(memory_); }

 private:
  Area() = default;

  void* memory_ = nullptr;
  size_t bytes_ = 0;
  dt_comm* comm_ = nullptr;  // borrowed; NULL: private memory
};

dt_status operate(dt_comm* comm, const bench_case& c) {
  const auto dtype = static_cast<dt_dtype>(c.dtype);
  const auto op = static_cast<dt_reduce_op>(c.op);
  char* const send = bench_send(&c);
  char* const recv = bench_recv(&c);
  switch (c.collective) {
    case BENCH_ALLREDUCE:
      return dt_allreduce(comm, send, recv, c.count, dtype, op, nullptr, nullptr);
    case BENCH_ALLGATHER:  // recv is the whole result in place as well
      return dt_allgather(comm, send, c.b, c.count, dtype, nullptr, nullptr);
    case BENCH_REDUCE_SCATTER:
      return dt_reduce_scatter(comm, send, recv, c.count, dtype, op, nullptr, nullptr);
    case BENCH_BROADCAST: return dt_broadcast(comm, recv, c.count, dtype, 0, nullptr, nullptr);
    default: return dt_reduce(comm, send, recv, c.count, dtype, op, 0, nullptr, nullptr);
  }
}

template <class T>
Status combine(dt_comm* comm, T* value, dt_dtype dtype, dt_reduce_op op) {
  return check(dt_allreduce(comm, value, value, 1, dtype, op, nullptr, nullptr));
}

Result<int64_t> verify(dt_comm* comm, const bench_case& c) {
  bench_prepare(&c);
  DT_TRY(check(dt_barrier(comm, nullptr, nullptr)));
  DT_TRY(check(operate(comm, c)));
  int64_t wrong = bench_wrong(&c);
  DT_TRY(combine(comm, &wrong, DT_I64, DT_SUM));
  return wrong;
}

/// Microseconds per operation on this rank.
Result<double> time_operations(dt_comm* comm, const bench_case& c, int64_t iterations,
                               int64_t bytes) {
  double total = 0;
  dt_status status = DT_OK;
  if (bytes < BENCH_FRESH_BYTES) {
    DT_TRY(check(dt_barrier(comm, nullptr, nullptr)));
    const double start = bench_now_us();
    for (int64_t i = 0; i < iterations && status == DT_OK; ++i) status = operate(comm, c);
    total = bench_now_us() - start;
  } else {
    for (int64_t i = 0; i < iterations && status == DT_OK; ++i) {
      bench_rewrite(&c);
      DT_TRY(check(dt_barrier(comm, nullptr, nullptr)));
      const double start = bench_now_us();
      status = operate(comm, c);
      total += bench_now_us() - start;
    }
  }
  DT_TRY(check(status));
  return total / static_cast<double>(iterations);
}

/// What a rank needs for the whole run.
struct Run {
  const Options& options;
  dt_comm* comm;
  bench_case c;  ///< of the size at hand
};

Result<double> time_round(const Run& run, int64_t iterations, int64_t bytes) {
  DT_TRY_VALUE(double us, time_operations(run.comm, run.c, iterations, bytes));
  DT_TRY(combine(run.comm, &us, DT_F64, DT_SUM));
  return us / run.c.ranks;
}

// Verification and warm-up; gives the iterations of a round, equal on all ranks.
Result<int64_t> start_place(const Run& run, int64_t bytes, Series* series) {
  DT_TRY_VALUE(series->wrong, verify(run.comm, run.c));
  bench_rewrite(&run.c);
  DT_TRY_VALUE(double us, time_operations(run.comm, run.c, run.options.warmup, bytes));
  DT_TRY(combine(run.comm, &us, DT_F64, DT_MAX));
  if (run.options.iterations > 0) return int64_t{run.options.iterations};
  return bench_iterations(us, run.options.budget_ms * 1e3);
}

Result<Row> measure(Run* run, int64_t wanted_bytes) {
  const Options& options = run->options;
  bench_case& c = run->c;
  Row row;
  c.count = bench_count(c.collective, c.dtype, c.ranks, wanted_bytes);
  row.count = c.count;
  row.bytes = bench_bytes(c.collective, c.dtype, c.ranks, c.count);
  int64_t iterations[2] = {1, 1};
  for (c.in_place = 0; c.in_place < 2; ++c.in_place) {
    DT_TRY_VALUE(iterations[c.in_place], start_place(*run, row.bytes, &row.places[c.in_place]));
  }
  for (int round = 0; round < options.rounds; ++round) {
    for (c.in_place = 0; c.in_place < 2; ++c.in_place) {
      bench_rewrite(&c);
      DT_TRY_VALUE(const double us, time_round(*run, iterations[c.in_place], row.bytes));
      row.places[c.in_place].us.push_back(us);
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

void print_header(const Options& options, const dt_place& place, const Machine& machine) {
  printf("# dt %s %s: %d rank%s on %d host%s, backend %s, %s memory, kernels %s\n", dt_version(),
         collective_name(options), place.world_size, place.world_size == 1 ? "" : "s",
         place.node_count, place.node_count == 1 ? "" : "s",
         place.world_size == 1 ? "self" : "host", options.shared ? "shared" : "private",
         build_info("kernels").c_str());
  fputs(machine_line(machine).c_str(), stdout);
  printf("# launcher: %s, warmup: %d, rounds: %d, median of the rounds\n", place.launcher,
         options.warmup, options.rounds);
  if (options.collective == BENCH_BROADCAST) {
    printf("# broadcast has one buffer: both halves measure it\n");
  }
  fputs(table_header().c_str(), stdout);
  fflush(stdout);
}

Result<std::vector<Row>> measure_all(Run* run, bool prints) {
  const Options& options = run->options;
  const int64_t largest = *std::max_element(options.sizes_bytes.begin(), options.sizes_bytes.end());
  DT_TRY_VALUE(const Area a, Area::create(run->comm, largest, options.shared));
  DT_TRY_VALUE(const Area b, Area::create(run->comm, largest, options.shared));
  run->c.a = a.data();
  run->c.b = b.data();
  std::vector<Row> rows;
  for (const int64_t bytes : options.sizes_bytes) {
    DT_TRY_VALUE(Row row, measure(run, bytes));
    if (prints && options.raw) print_raw(row);
    if (prints && !options.raw) fputs(table_row(options, run->c.ranks, row).c_str(), stdout);
    if (prints) fflush(stdout);
    rows.push_back(std::move(row));
  }
  // Nobody's memory goes while a peer still reads it.
  DT_TRY(check(dt_barrier(run->comm, nullptr, nullptr)));
  return rows;
}

// The exit code.
Result<int> work(const Options& options) {
  dt_job* raw_job = nullptr;
  DT_TRY(check(dt_init(nullptr, &raw_job)));
  const std::unique_ptr<dt_job, JobDeleter> job(raw_job);
  dt_place place;
  dt_place_init(&place);
  DT_TRY(check(dt_rank_info(job.get(), &place)));
  dt_comm* raw_comm = nullptr;
  DT_TRY(check(dt_comm_world(job.get(), &raw_comm)));
  const std::unique_ptr<dt_comm, CommDeleter> comm(raw_comm);

  Run run{options, comm.get(), {}};
  run.c.collective = options.collective;
  run.c.dtype = options.dtype;
  run.c.op = options.op;
  run.c.rank = place.rank;
  run.c.ranks = place.world_size;

  const Machine machine = read_machine();
  const bool prints = place.rank == 0;
  if (prints && options.raw) printf("dt-bench-library dt %s\n", dt_version());
  if (prints && !options.raw) print_header(options, place, machine);
  Program program;
  program.name = options.shared ? "dt-shared" : "dt-private";
  program.version = std::string("dt ") + dt_version();
  DT_TRY_VALUE(program.rows, measure_all(&run, prints));
  DT_TRY(check(dt_finalize(job.get(), -1)));
  if (!prints) return 0;
  const bool right = wrong_elements(program.rows) == 0;
  if (!options.raw) {
    fputs(table_footer(options, place.world_size, program.rows).c_str(), stdout);
    DT_TRY(write_files(options, place.world_size, machine, {program}));
  }
  return right ? 0 : 1;
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
