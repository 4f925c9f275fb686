// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "cli/bench/report.h"

namespace dt::cli::bench {

/// What this host can do at one size: a copy of that many bytes by every rank here at once, none of
/// which waits for another.
struct CopyLimit {
  int64_t bytes = 0;
  double us = 0;
};

/// Measures it with one thread per rank, at the sizes for which there is memory. Empty: there is
/// not enough for any, or not for the threads.
std::vector<CopyLimit> measure_copies(int ranks, const std::vector<int64_t>& sizes_bytes);

/// One number of ranks and one dtype: a row of two panels.
struct Plot {
  const Measured* measured = nullptr;
  std::vector<CopyLimit> copies;
  double wire_gbps = 0;  ///< of the wire between hosts, Gbit/s; 0: none
};

/// An SVG picture: of each plot, time over size (left) and bandwidth over size (right), both axes
/// logarithmic. Medians of the out-of-place times, with bars from the fastest to the slowest round.
std::string svg_of(const std::vector<Plot>& plots, const Machine& machine);

/// Gbit/s of "10", "2.5" or of an interface ("eth0").
Result<double> parse_wire(const std::string& text);

}  // namespace dt::cli::bench
