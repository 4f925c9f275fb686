// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "base/status.h"
#include "config/config.h"

namespace dt::cli {

/// How many NVIDIA GPUs a program started here would see: the nvidia0, nvidia1, ... in `dev_root`
/// ("/dev"), of which CUDA_VISIBLE_DEVICES, when it is set, names some. No CUDA needed.
int count_gpus(const std::string& dev_root, const char* visible);

/// How many ranks `-n` asks for: "gpu" one for each of `gpus`; "auto" likewise, or one for each of
/// `processors` where there is no GPU; otherwise a number. INVALID_ARGUMENT: it is none; CONFIG: no
/// GPU is there.
Result<int> count_ranks(const std::string& text, int gpus, int processors);

/// CONFIG when `local_size` ranks of the nccl backend would have to share `gpus` devices and
/// backend.shared_gpu does not let them.
Status check_gpus(int local_size, int gpus, const Config& config);

}  // namespace dt::cli
