// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "record/meter.h"

namespace dt::metrics {

/// What is said of a rank at one moment.
struct Snapshot {
  std::string job_id;
  std::string host;
  int32_t rank = 0;
  int32_t world_size = 1;
  int32_t restarts = 0;
  int64_t uncounted = 0;  ///< operations that the flight recorder had no room for
  record::Totals totals;
};

/// The text format 0.0.4 of Prometheus. docs/metrics.md says what each name means.
std::string exposition(const Snapshot& snapshot);

/// Between the quotes of a label: backslash, quote and end of line are escaped.
std::string label_text(const std::string& value);

}  // namespace dt::metrics
