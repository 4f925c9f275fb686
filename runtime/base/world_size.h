// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace dt {

/// Ranks of one job. Far more than any job has: it bounds what one number, from a launcher or from
/// the network, makes a process allocate.
inline constexpr int32_t kMaxWorldSize = 1 << 20;

}  // namespace dt
