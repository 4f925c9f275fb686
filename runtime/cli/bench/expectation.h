// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "cli/bench/report.h"

namespace dt::cli::bench {

/// What dt itself (no rival) took in one row, once.
struct ExpectedRow {
  std::string program;  ///< "dt-shared"
  std::string collective;
  std::string type;
  std::string op;
  int ranks = 0;
  int64_t bytes = 0;
  bool in_place = false;
  double us = 0;  ///< the median

  /// "dt-shared allreduce float sum, 2 ranks, 65536 B, in place"
  std::string name() const;
};

struct Expectation {
  std::string cpu;
  std::string version;  ///< of dt
  std::vector<ExpectedRow> rows;
};

Expectation make_expectation(const Machine& machine, const std::vector<Measured>& measured);

/// As --save-expectation writes it (JSON), and back. `path` is for the error.
std::string expectation_text(const Machine& machine, const Expectation& expectation);
Result<Expectation> parse_expectation(const std::string& text, const std::string& path);
Result<Expectation> read_expectation(const std::string& path);

/// What is said about `measured`, and how many rows of `expected` were missed: took more than
/// `factor` times as long, or were not measured at all. Rows that nobody expected are counted only.
struct Verdict {
  std::string text;
  int missed = 0;
};
Verdict judge(const Expectation& expected, const Expectation& measured, double factor);

}  // namespace dt::cli::bench
