// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

namespace dt {

/// Variables by name. Taken once, so that a setenv() in another thread cannot race with us, and
/// injectable, so that tests need no process of their own.
using Environment = std::map<std::string, std::string>;

/// A copy of this process's environment as it is now (Python's os.environ sets variables late).
Environment process_environment();

}  // namespace dt
