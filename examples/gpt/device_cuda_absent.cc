// SPDX-License-Identifier: Apache-2.0
#include <stdexcept>

#include "device_cuda.h"

namespace gpt {

bool has_cuda() { return false; }

std::unique_ptr<Device> make_cuda_device(int, Precision) {
  throw std::runtime_error(
      "this program was built without CUDA; build it where nvcc and cuBLAS are, or use "
      "--device cpu");
}

}  // namespace gpt
