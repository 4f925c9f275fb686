// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "device.h"

namespace gpt {

/// This processor, one thread. kF32 or kF64.
std::unique_ptr<Device> make_cpu_device(Precision precision);

}  // namespace gpt
