// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "kernels/host/reduce.h"
#include "kernels/low_rank.h"

namespace dt::kernels {

/// Over host memory, on the calling thread; streams are ignored. Every instruction set gives the
/// same bits, but for those of a NaN, as ranks on different processors must; where `isa` is not
/// there, the portable one is used.
std::shared_ptr<LowRankKernels> host_low_rank_kernels(Isa isa = chosen_isa());

/// What restore() does with kept_q.
void keep_columns(const LowRankMatrix& matrix, int32_t rank);

}  // namespace dt::kernels
