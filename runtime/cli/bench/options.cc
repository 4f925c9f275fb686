// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/options.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <utility>

#include "cli/bench/help.h"
#include "cli/bench/method.h"
#include "cli/bench/plot.h"
#include "cli/bench/rival_facts.h"
#include "cli/command.h"

namespace dt::cli::bench {
namespace {

constexpr int kMaxRanks = 4096;  // as dt run
constexpr int64_t kMaxBytes = int64_t{1} << 40;
constexpr size_t kMaxSizes = 1000;

// dt's name, nccl-tests' name
struct DtypeName {
  const char* ours;
  const char* theirs;
};
constexpr DtypeName kDtypes[] = {
    {"i8", "int8"},    {"u8", "uint8"}, {"i32", "int32"},     {"u32", "uint32"}, {"i64", "int64"},
    {"u64", "uint64"}, {"f16", "half"}, {"bf16", "bfloat16"}, {"f32", "float"},  {"f64", "double"}};
static_assert(std::size(kDtypes) == BENCH_DTYPE_COUNT);

struct Words {
  std::string collective;
  std::string ranks = "2";
  std::string dtype = "f32";
  std::string op = "sum";
  std::string device = "host";
  std::string memory = "shared";
  std::string min = "8";
  std::string max = "32M";
  std::string sizes;
  std::string compare;
  std::string wire;
  std::string tune_keys;
  std::string bind;
  int factor = 2;
};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> items;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    items.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return items;
}

int index_of(const char* const* names, int count, const std::string& name) {
  for (int i = 0; i < count; ++i) {
    if (name == names[i]) return i;
  }
  return -1;
}

Status invalid(std::string text) { return Status(Code::kInvalidArgument, std::move(text)); }

Result<int> dtype_of(const std::string& name) {
  for (int i = 0; i < BENCH_DTYPE_COUNT; ++i) {
    if (name == kDtypes[i].ours || name == kDtypes[i].theirs) return i;
  }
  return invalid("--dtype " + name +
                 ": there are i8, u8, i32, u32, i64, u64, f16, bf16, f32 and f64");
}

Result<std::vector<int64_t>> sizes_of(const Words& words) {
  std::vector<int64_t> sizes;
  if (!words.sizes.empty()) {
    for (const std::string& item : split(words.sizes)) {
      DT_TRY_VALUE(const int64_t bytes, parse_size(item));
      sizes.push_back(bytes);
    }
  } else {
    DT_TRY_VALUE(const int64_t first, parse_size(words.min));
    DT_TRY_VALUE(const int64_t last, parse_size(words.max));
    if (first > last) return invalid("-b " + words.min + " is more than -e " + words.max);
    if (first == 0 && last > 0) return invalid("-b 0 never grows; give -b 1 or more");
    for (int64_t bytes = first; bytes <= last; bytes *= words.factor) {
      sizes.push_back(bytes);
      if (bytes == 0) break;
    }
  }
  if (sizes.size() > kMaxSizes) return invalid(format("more than %zu sizes", kMaxSizes));
  return sizes;
}

bool is_reduction(int collective) {
  return collective == BENCH_ALLREDUCE || collective == BENCH_REDUCE_SCATTER ||
         collective == BENCH_REDUCE;
}

Status interpret_rivals(const Words& words, Options* options) {
  if (words.compare.empty()) return {};
  options->all_rivals = words.compare == "all";
  options->rivals = options->all_rivals ? rival_names() : split(words.compare);
  if (options->cuda) {
    return invalid(
        "--compare measures beside MPI in host memory, where --device cuda is not; leave out one "
        "of "
        "the two");
  }
  for (const std::string& rival : options->rivals) {
    for (const int collective : options->collectives) {
      for (const int dtype : options->dtypes) {
        Options one = for_collective(*options, collective);
        one.dtype = dtype;
        const Status status = check_rival(rival, one);
        if (!status.ok() && !options->all_rivals) return status;
      }
    }
  }
  return {};
}

Result<std::vector<int>> ranks_of(const std::string& text) {
  std::vector<int> ranks;
  for (const std::string& item : split(text)) {
    const Result<int64_t> number = parse_size(item);
    if (!number.ok() || number.value() < 1 || number.value() > kMaxRanks) {
      return invalid(
          format("--nproc %s: write numbers from 1 to %d: 2 or 2,4,8", text.c_str(), kMaxRanks));
    }
    ranks.push_back(static_cast<int>(number.value()));
  }
  return ranks;
}

Result<std::vector<int>> dtypes_of(const std::string& text) {
  std::vector<int> dtypes;
  if (text == "all") {
    for (int i = 0; i < BENCH_DTYPE_COUNT; ++i) dtypes.push_back(i);
    return dtypes;
  }
  for (const std::string& item : split(text)) {
    DT_TRY_VALUE(const int dtype, dtype_of(item));
    dtypes.push_back(dtype);
  }
  return dtypes;
}

std::string collectives_text() {
  std::string text;
  for (const char* const name : bench_collective_names) text += std::string(name) + ", ";
  return text.substr(0, text.size() - 2) + " and all";
}

Result<std::vector<int>> collectives_of(const std::string& text) {
  std::vector<int> collectives;
  if (text == "all") {
    for (int i = 0; i < BENCH_COLLECTIVE_COUNT; ++i) collectives.push_back(i);
    return collectives;
  }
  for (const std::string& item : split(text)) {
    collectives.push_back(index_of(bench_collective_names, BENCH_COLLECTIVE_COUNT, item));
    if (collectives.back() < 0) {
      return invalid("unknown collective \"" + item + "\"; there are " + collectives_text());
    }
  }
  return collectives;
}

Status interpret_tuning(const Words& words, Options* options) {
  const std::pair<bool, const char*> others[] = {
      {!words.collective.empty(), "a collective"},
      {options->cuda, "--device cuda"},
      {!words.compare.empty(), "--compare"},
      {!words.wire.empty(), "--wire"},
      {options->ranks_list.size() > 1, "a list of ranks"},
      {options->dtypes.size() > 1, "a list of dtypes"},
      {!options->json.empty(), "--json"},
      {!options->csv.empty(), "--csv"},
      {!options->plot.empty(), "--plot"},
      {!options->expect.empty(), "--expect"},
      {!options->save_expectation.empty(), "--save-expectation"},
  };
  for (const auto& [given, name] : others) {
    if (given) return invalid(std::string("--tune does not go with ") + name);
  }
  if (options->rounds < kTuneRoundsMin) {
    return invalid(format("--tune needs at least %d rounds", kTuneRoundsMin));
  }
  if (!words.tune_keys.empty()) options->tune_keys = split(words.tune_keys);
  return {};
}

Status interpret(Words words, Options* options) {
  if (words.collective.empty() && !options->tune) return invalid("collective is required");
  const Words given = words;
  if (options->tune) words.collective = bench_collective_names[BENCH_ALLREDUCE];
  DT_TRY_VALUE(options->collectives, collectives_of(words.collective));
  DT_TRY_VALUE(options->ranks_list, ranks_of(words.ranks));
  options->ranks = options->ranks_list.front();
  DT_TRY_VALUE(options->dtypes, dtypes_of(words.dtype));
  options->dtype = options->dtypes.front();
  options->op = index_of(bench_op_names, BENCH_OP_COUNT, words.op);
  if (options->op < 0) {
    return invalid("--op " + words.op + ": there are sum, avg, prod, min and max");
  }
  if (words.memory != "shared" && words.memory != "private") {
    return invalid("--memory " + words.memory + ": there are shared and private");
  }
  options->shared = words.memory == "shared";
  if (words.device != "host" && words.device != "cuda") {
    return invalid("--device " + words.device + ": there are host and cuda");
  }
  options->cuda = words.device == "cuda";
  if (!words.bind.empty() && words.bind != "cores" && words.bind != "none") {
    return invalid("--bind " + words.bind + ": there are cores and none");
  }
  options->bind = !words.bind.empty() ? words.bind : options->cuda ? "none" : "cores";
  DT_TRY_VALUE(options->sizes_bytes, sizes_of(words));
  if (!words.wire.empty()) {
    DT_TRY_VALUE(options->wire_gbps, parse_wire(words.wire));
  }
  if (options->tune) DT_TRY(interpret_tuning(given, options));
  DT_TRY(interpret_rivals(words, options));
  // Where there are several, each takes its own from the options as they were given.
  if (options->collectives.size() == 1) {
    *options = for_collective(*options, options->collectives.front());
  }
  return {};
}

}  // namespace

Result<int64_t> parse_size(const std::string& text) {
  size_t at = 0;
  int64_t value = 0;
  for (; at < text.size() && text[at] >= '0' && text[at] <= '9' && value <= kMaxBytes; ++at) {
    value = value * 10 + (text[at] - '0');
  }
  int shift = 0;
  if (at > 0 && at + 1 == text.size()) {
    const char unit = text[at++];
    if (unit == 'K' || unit == 'k') shift = 10;
    if (unit == 'M' || unit == 'm') shift = 20;
    if (unit == 'G' || unit == 'g') shift = 30;
    if (shift == 0) --at;
  }
  if (at == 0 || at != text.size()) {
    return invalid("\"" + text + "\" is no size; write bytes, or 64K, 25M, 1G");
  }
  if (value > (kMaxBytes >> shift)) {
    return invalid("size " + text + " is above the limit of 1024G");
  }
  return value << shift;
}

ParsedOptions parse_options(int argument_count, char** arguments) {
  ParsedOptions parsed;
  Options& options = parsed.options;
  Words words;
  CLI::App app("Measures a collective; prints the columns of nccl-tests.", "dt bench");
  app.footer(kHelp);
  app.add_option("collective", words.collective, "what to measure");
  auto* ranks =
      app.add_option("-n,--nproc", words.ranks, "how many ranks to start; a list: 2,4,8 (2)");
  auto* min = app.add_option("-b,--min", words.min, "smallest size (8)");
  auto* max = app.add_option("-e,--max", words.max, "largest size (32M)");
  auto* factor = app.add_option("-f,--factor", words.factor, "from one size to the next (2)");
  factor->check(CLI::Range(2, 1 << 20));
  auto* sizes = app.add_option("--sizes", words.sizes, "a list instead: 8,1K,64K,1M,25M")
                    ->excludes(min)
                    ->excludes(max)
                    ->excludes(factor);
  app.add_option("-w,--warmup", options.warmup, "operations before the timed ones (5)")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--iters", options.iterations,
                 "timed operations per round and size (as many as fit into --budget-ms, 4 to 5000)")
      ->check(CLI::Range(1, 100'000'000));
  app.add_option("--budget-ms", options.budget_ms, "time for one round of one size (10)")
      ->check(CLI::Range(1, 600'000));
  auto* rounds = app.add_option("--rounds", options.rounds,
                                "how often to measure each size (5; with --tune up to 9)");
  rounds->check(CLI::Range(1, 10'000));
  app.add_option("--dtype", words.dtype, "element type, a list of them, or all (f32)");
  app.add_option("--op", words.op, "reduction (sum)");
  app.add_option("--device", words.device, "host: host memory; cuda: GPU memory (host)");
  auto* memory =
      app.add_option("--memory", words.memory,
                     "shared: buffers from dt_mem_alloc(); private: ordinary ones (shared; with "
                     "--tune: both)");
  app.add_option("--json", options.json, "also write all figures to FILE")->check(refuse_no_name);
  app.add_option("--csv", options.csv, "also write all figures to FILE")->check(refuse_no_name);
  app.add_option("--compare", words.compare,
                 "also measure these: openmpi,mpich,gloo,torch; or all that are installed: all");
  app.add_option("--timeout", options.timeout_s, "seconds until a run is given up (600)")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--plot", options.plot,
                 "draw time and bandwidth over size into FILE, an SVG picture")
      ->check(refuse_no_name);
  app.add_option("--wire", words.wire,
                 "Gbit/s between hosts, or an interface: drawn as a limit by --plot");
  app.add_option("--save-expectation", options.save_expectation,
                 "write dt's medians to FILE, for --expect")
      ->check(refuse_no_name);
  app.add_option("--expect", options.expect,
                 "exit with 1 when a row of this FILE takes longer than --expect-factor allows")
      ->check(refuse_no_name);
  app.add_option("--expect-factor", options.expect_factor, "times the expected median (1.5)")
      ->check(CLI::Range(1.0, 1e6));
  auto* tune = app.add_flag("--tune", options.tune,
                            "find values of [host] in dt.toml that are faster on this machine");
  app.add_option("--tune-keys", words.tune_keys, "only these: slot_bytes,push_bytes (all)")
      ->needs(tune);
  app.add_option("--tune-seconds", options.tune_seconds,
                 "how long about to try; three rounds of each value take place in any case (180)")
      ->needs(tune)
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--tune-write", options.tune_write, "set what was found in FILE, a dt.toml")
      ->needs(tune)
      ->check(refuse_no_name);
  auto* bind = app.add_option("--bind", words.bind,
                              "cores: each rank on cores of its own, while there are enough; none "
                              "(cores; cuda: none)");
  app.add_flag("--raw", options.raw)->group("");
  app.add_option("--bound", options.bound)->group("");
  app.add_option("--cores", options.cores)->group("");
  parsed.exit_code = parse(&app, argument_count, arguments);
  if (parsed.exit_code) return parsed;
  options.ranks_given = ranks->count() > 0;
  if (options.tune && rounds->count() == 0) options.rounds = kTuneRounds;
  options.bind_given = bind->count() > 0;
  options.memory_given = memory->count() > 0;
  options.sizes_given = sizes->count() + min->count() + max->count() > 0;
  if (const Status status = interpret(words, &options); !status.ok()) {
    fprintf(stderr, "dt bench: %s; see dt bench --help\n", status.message().c_str());
    parsed.exit_code = kExitUsage;
  }
  return parsed;
}

std::vector<std::string> worker_arguments(const Options& options) {
  std::string sizes;
  for (const int64_t bytes : options.sizes_bytes) {
    sizes += (sizes.empty() ? "" : ",") + std::to_string(bytes);
  }
  std::vector<std::string> arguments = {collective_name(options),
                                        "--dtype",
                                        kDtypes[options.dtype].ours,
                                        "--op",
                                        bench_op_names[options.op],
                                        "--memory",
                                        options.shared ? "shared" : "private",
                                        "--sizes",
                                        sizes,
                                        "--warmup",
                                        std::to_string(options.warmup),
                                        "--budget-ms",
                                        std::to_string(options.budget_ms),
                                        "--rounds",
                                        std::to_string(options.rounds),
                                        "--timeout",
                                        std::to_string(options.timeout_s)};
  const auto add = [&arguments](const char* name, const std::string& value) {
    arguments.insert(arguments.end(), {name, value});
  };
  if (options.iterations > 0) add("--iters", std::to_string(options.iterations));
  if (!options.json.empty()) add("--json", options.json);
  if (!options.csv.empty()) add("--csv", options.csv);
  if (!options.plot.empty()) add("--plot", options.plot);
  if (options.wire_gbps > 0) add("--wire", format("%g", options.wire_gbps));
  if (!options.expect.empty()) add("--expect", options.expect);
  if (!options.save_expectation.empty()) add("--save-expectation", options.save_expectation);
  if (options.expect_factor != Options{}.expect_factor) {
    add("--expect-factor", format("%g", options.expect_factor));
  }
  if (options.cuda) add("--device", "cuda");
  if (options.raw) arguments.push_back("--raw");
  if (!options.bound.empty()) add("--bound", options.bound);
  if (options.cores > 0) add("--cores", std::to_string(options.cores));
  return arguments;
}

Options for_collective(const Options& options, int collective) {
  Options one = options;
  one.collective = collective;
  if (!is_reduction(collective)) one.op = BENCH_SUM;
  if (collective == BENCH_BARRIER) one.sizes_bytes = {0};
  return one;
}

bool is_campaign(const Options& options) {
  return !options.rivals.empty() || options.ranks_list.size() > 1 || options.dtypes.size() > 1 ||
         options.collectives.size() > 1;
}

const char* collective_name(const Options& options) {
  return bench_collective_names[options.collective];
}

const char* dtype_name(const Options& options) { return kDtypes[options.dtype].theirs; }

const char* op_name(const Options& options) {
  return is_reduction(options.collective) ? bench_op_names[options.op] : "none";
}

const char* memory_name(const Options& options) {
  if (options.cuda) return options.shared ? "dt_mem_alloc" : "cudaMalloc";
  return options.shared ? "shared" : "private";
}

const char* bound_text(const Options& options) {
  if (options.bound == "cores") return "each rank on cores of its own";
  return options.bound == "none" ? "ranks not bound" : "ranks bound as the launcher did";
}

int root_of(const Options& options) {
  const bool rooted = options.collective == BENCH_BROADCAST || options.collective == BENCH_REDUCE ||
                      options.collective == BENCH_GATHER || options.collective == BENCH_SCATTER;
  return rooted ? 0 : -1;
}

double bus_factor(const Options& options, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  switch (options.collective) {
    case BENCH_ALLREDUCE: return 2 * others;
    case BENCH_ALLGATHER:
    case BENCH_ALLTOALL:
    case BENCH_GATHER:
    case BENCH_SCATTER:
    case BENCH_ALLGATHERV:
    case BENCH_REDUCE_SCATTER: return others;
    // Among an even number of ranks what each keeps is one of the small blocks.
    case BENCH_ALLTOALLV: return ranks % 2 == 0 ? 1 - 0.5 / ranks : others;
    default: return 1;
  }
}

}  // namespace dt::cli::bench
