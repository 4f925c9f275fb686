// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "fake_cuda.h"
#include "kernels/cuda/tensors.h"

namespace dt::test {

/// TensorKernels by plain loops on the streams of `runtime`. Products of f16, bf16 and f32 are
/// rounded to f32 once, those with an f64 to f64.
std::shared_ptr<kernels::TensorKernels> fake_tensor_kernels(std::shared_ptr<FakeCuda> runtime);

}  // namespace dt::test
