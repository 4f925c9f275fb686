// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "cli/bench/options.h"
#include "config/config.h"

namespace dt::cli::bench {

/// Sizes of a collective that show what a setting does.
struct Probe {
  int collective = 0;     ///< bench_collective
  bool shared = false;    ///< memory of dt_mem_alloc()
  bool in_place = false;  ///< sums in place count as well
  std::vector<int64_t> sizes_bytes;
};

/// A setting that --tune tries.
struct Knob {
  std::string key;  ///< "host.slot_bytes"
  int64_t present = 0;
  std::vector<int64_t> values;  ///< to try beside it
  std::vector<Probe> probes;
};

/// The knobs that `options` name, in the order in which they are tried; a later one is measured
/// with what was found for the earlier ones. With --memory only those that such buffers are moved
/// by. INVALID_ARGUMENT: an unknown name, or one that says nothing about this memory.
Result<std::vector<Knob>> plan_tuning(const Options& options, const Config& config);

/// The variable that sets `key`: "DT_HOST_SLOT_BYTES".
std::string variable_of(const std::string& key);

}  // namespace dt::cli::bench
