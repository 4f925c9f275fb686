// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "kernels/low_rank.h"

namespace dt::kernels {

/// Over host memory, on the calling thread; streams are ignored.
std::shared_ptr<LowRankKernels> host_low_rank_kernels();

}  // namespace dt::kernels
