// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/doctor/checks.h"

namespace dt::cli::doctor {

/// What one rank found.
struct Report {
  int rank = 0;
  std::string host;
  std::vector<Finding> findings;  ///< as many as checks()
};

Report examine(const Machine& machine, const std::string& host);
Grade worst(const Report& report);

/// A table of at most 80 columns, and a line that counts.
std::string text_of(const Report& report);
/// {"grade": , "host": , "rank": , "checks": [{"name": , "grade": , "finding": , "advice": }]}
std::string json_of(const Report& report);

/// What differs between ranks, by check; and what is not good on all of them in one line.
/// `reports[i]` is rank i; ranks that sent none have no findings.
std::string differences_text(const std::vector<Report>& reports);
/// {"grade": , "ranks": , "missing": [], "alike": [names], "differences": [{"name": , "groups":
/// [{"ranks": [], "grade": , "finding": , "advice": }]}]}
std::string differences_json(const std::vector<Report>& reports);
/// Also bad when a rank sent none.
Grade worst(const std::vector<Report>& reports);

std::string encode(const Report& report);
/// False: the bytes are no such thing.
bool decode(std::string_view bytes, Report* out);

}  // namespace dt::cli::doctor
