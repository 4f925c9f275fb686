// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "cli/bench/options.h"

namespace dt::cli::bench {

/// One half of a row: out of place or in place.
struct Series {
  std::vector<double> us;       ///< per round: one operation, averaged over the ranks
  std::vector<double> wall_us;  ///< the same by the host's clock; of rivals empty
  int64_t wrong = 0;            ///< elements, over all ranks
};

struct Spread {
  double median = 0;
  double min = 0;
  double max = 0;
};
/// Zeros for no values.
Spread spread(std::vector<double> values);

struct Row {
  int64_t bytes = 0;
  int64_t count = 0;
  Series places[2];  ///< [in place]
};

/// What one program measured.
struct Program {
  std::string name;     ///< "dt-shared", "openmpi"
  std::string version;  ///< "dt 0.1.0", "Open MPI v4.1.4"
  bool is_rival = false;
  std::vector<Row> rows;
};

/// One collective with one dtype and one number of ranks.
struct Measured {
  Options options;  ///< with the number of ranks and the dtype
  std::vector<Program> programs;
  int local_ranks = 0;  ///< those on this host; 0: all
};

/// The least median among the rivals; 0 where none was measured.
double best_rival_us(const Measured& measured, size_t row, int in_place);

/// Gigabytes (10^9) per second; zeros for no time.
struct Bandwidth {
  double algorithm = 0;
  double bus = 0;
};
Bandwidth bandwidth(const Options& options, int ranks, int64_t bytes, double us);

struct Machine {
  std::string host;
  std::string cpu;
  int cores = 0;     ///< this process may use
  std::string date;  ///< UTC, ISO 8601
  int nodes = 1;     ///< NUMA, on which the cores are
};
Machine read_machine();
/// "# host: ..., cpu: ..., 2 cores, 2026-...\n"; with several nodes "16 cores on 2 NUMA nodes"
std::string machine_line(const Machine& machine);

/// nccl-tests' table.
std::string table_header();
std::string table_row(const Options& options, int ranks, const Row& row);
std::string table_footer(const Options& options, int ranks, const std::vector<Row>& rows);

/// How far the host's clock and CUDA's events are apart.
std::string clock_line(const std::vector<Row>& rows);

int64_t wrong_elements(const std::vector<Row>& rows);

}  // namespace dt::cli::bench
