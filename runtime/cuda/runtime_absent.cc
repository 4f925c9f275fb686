// SPDX-License-Identifier: Apache-2.0
// In a build without CUDA.
#include "cuda/library.h"
#include "cuda/runtime.h"

namespace dt::cuda {

void ask_library(Answers*) {}

std::string build_text() { return {}; }

Result<std::vector<DeviceInfo>> list_devices() { return explain(Answers()); }

Result<std::shared_ptr<Runtime>> open_device(int32_t) { return explain(Answers()); }

}  // namespace dt::cuda
