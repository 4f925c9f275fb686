// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace dt::cli::bench {

constexpr int kTuneRoundsMin = 3;
constexpr int kTuneRounds = 9;  ///< where --rounds does not say it

/// The words after `dt bench`. The worker takes the same words, and --raw.
struct Options {
  int collective = 0;  ///< bench_collective, bench_dtype, bench_op of method.h
  int dtype = 0;
  int op = 0;
  int ranks = 2;
  bool ranks_given = false;
  bool bind_given = false;
  bool memory_given = false;
  std::vector<int64_t> sizes_bytes;
  int warmup = 5;
  int iterations = 0;  ///< 0: as many as fit into budget_ms
  int budget_ms = 10;  ///< of one round of one size
  int rounds = 5;
  int timeout_s = 600;
  std::string bind;    ///< "cores" or "none": wanted for ranks that this command starts
  std::string bound;   ///< the worker's: "cores", "none", or "launcher": as that left them
  int cores = 0;       ///< the worker's: of the command that started it; 0: its own
  bool shared = true;  ///< buffers from dt_mem_alloc()
  bool cuda = false;   ///< on GPU memory
  bool raw = false;    ///< lines for compare.cc instead of the table
  std::string json;
  std::string csv;
  std::string plot;              ///< an SVG picture
  double wire_gbps = 0;          ///< Gbit/s between hosts, for the picture; 0: not known
  std::string expect;            ///< an expectation to be held
  std::string save_expectation;  ///< a new one
  double expect_factor = 1.5;
  std::vector<std::string> rivals;  ///< names of rivals.h
  bool all_rivals = false;          ///< --compare all: those that are installed
  /// Everything is measured for each of these; `ranks`, `dtype` and `collective` above are the
  /// first ones.
  std::vector<int> ranks_list = {2};
  std::vector<int> dtypes;
  std::vector<int> collectives;
  bool sizes_given = false;
  bool tune = false;                   ///< try values of [host] instead
  std::vector<std::string> tune_keys;  ///< empty: all that are known
  std::string tune_write;              ///< a dt.toml
  int tune_seconds = 180;
};

/// `options` for one of its collectives: what is not reduced has no reduction, and a barrier no
/// size.
Options for_collective(const Options& options, int collective);

/// Whether more than one run of ranks is needed.
bool is_campaign(const Options& options);

/// The options, or the exit code when the command is over (--help, a mistake).
struct ParsedOptions {
  Options options;
  std::optional<int> exit_code;
};
ParsedOptions parse_options(int argument_count, char** arguments);

/// Bytes of "8", "1K", "25M", "1G": K, M and G are 2^10, 2^20, 2^30.
Result<int64_t> parse_size(const std::string& text);

/// The worker's arguments that mean `options`; without what only the command looks at.
std::vector<std::string> worker_arguments(const Options& options);

const char* collective_name(const Options& options);
/// As nccl-tests call them: "float", "half".
const char* dtype_name(const Options& options);
/// "none" where nothing is reduced.
const char* op_name(const Options& options);
/// "shared" or "private"; of GPUs "dt_mem_alloc" or "cudaMalloc".
const char* memory_name(const Options& options);
/// What `bound` means, for people.
const char* bound_text(const Options& options);
/// 0, or -1 where there is none.
int root_of(const Options& options);
/// The busbw of nccl-tests is algbw times this.
double bus_factor(const Options& options, int ranks);

}  // namespace dt::cli::bench
