// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace dt::test {

/// A layer's backward pass, as far as a reducer sees it: takes a known time and writes a gradient.
struct Layer {
  float* gradient = nullptr;
  int64_t count = 0;
  float value = 0;
  int64_t duration_ns = 0;
};

/// On a stream (cudaStream_t) of `device`, by `blocks` thread blocks. The error of the launch as
/// cudaError_t; -1 in a build without CUDA.
int32_t launch_layer(const Layer& layer, int32_t device, void* stream, int32_t blocks);
/// The same on the calling thread.
void run_layer(const Layer& layer);

}  // namespace dt::test
