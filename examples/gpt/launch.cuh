// SPDX-License-Identifier: Apache-2.0
// A test that runs the kernels on a CPU has another one of this header, so it has a guard by name.
#ifndef GPT_LAUNCH_CUH
#define GPT_LAUNCH_CUH

#include <cuda_runtime.h>

namespace gpt::kernels {

constexpr int kBlock = 128;   // threads; a power of two
constexpr int kTileRows = 8;  // of column_sums: threads that share a column
constexpr int kTileColumns = 32;

template <class... Parameters, class... Arguments>
void launch(dim3 blocks, dim3 threads, cudaStream_t stream, void (*kernel)(Parameters...),
            Arguments... arguments) {
  kernel<<<blocks, threads, 0, stream>>>(arguments...);
}

}  // namespace gpt::kernels

#endif  // GPT_LAUNCH_CUH
