// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace dt::test {

/// How often the calling thread has asked the operators new for memory, in this program and in all
/// libraries that it has loaded: allocations.cc puts its own in their place.
int64_t allocations();

}  // namespace dt::test
