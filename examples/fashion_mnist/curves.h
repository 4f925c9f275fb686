// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "checkpoint.h"

namespace fashion {

/// Draws loss and accuracy over the training steps into a PNG file.
/// @param subtitle one line about the run.
Error draw_curves(const std::string& path, const std::string& subtitle,
                  const std::vector<StepRecord>& history,
                  const std::vector<EvalRecord>& evaluations);

}  // namespace fashion
