// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "device.h"

namespace gpt {

/// Whether this program was built with CUDA.
bool has_cuda();

/// GPU `index` as this process counts. kF32 or kBf16. Throws where there is none.
std::unique_ptr<Device> make_cuda_device(int index, Precision precision);

}  // namespace gpt
