// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace dt {

/// The processors of "1,3-5", ascending, each once; none of an empty text. CONFIG where the text is
/// no such list; whose it is stands before the message.
Result<std::vector<int32_t>> parse_processors(const std::string& text);

/// CONFIG that names the first of them on which no thread of this process may run. Asks the system
/// on a thread of its own, so that the caller stays where it is.
Status check_processors(const std::vector<int32_t>& processors);

/// Threads that are made with `attributes` run on these; none: where the caller runs. The number of
/// an error, or 0.
int restrict_to(const std::vector<int32_t>& processors, pthread_attr_t* attributes);
/// The same of the calling thread.
int restrict_to(const std::vector<int32_t>& processors);

}  // namespace dt
