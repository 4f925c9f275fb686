// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "base/numa.h"
#include "base/status.h"
#include "config/config.h"

namespace dt::job {

/// host.progress_cpus: processors on which a thread of this process may run; none: not given.
Result<std::vector<int32_t>> progress_processors(const Config& config);
/// host.numa.
Result<NumaWish> numa_wish(const Config& config);

/// The settings that Config::load() does not check: those that must fit each other, and those whose
/// text only a job parses.
Status check_settings(const Config& config);

}  // namespace dt::job
