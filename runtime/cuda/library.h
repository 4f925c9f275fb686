// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/runtime.h"

namespace dt::cuda {

/// Fills in what CUDA itself answers. In a build without CUDA: nothing.
void ask_library(Answers* answers);

}  // namespace dt::cuda
