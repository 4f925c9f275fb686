// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "optimizer.h"

namespace fashion {

struct Options {
  int64_t epochs = 3;
  int64_t batch = 120;  // images per step over all ranks
  double rate = 0;      // 0: the optimizer's default
  int64_t seed = 1;
  OptimizerKind optimizer = OptimizerKind::kSgd;
  std::string data = "/usr/share/datasets/fashion-mnist";
  std::string save;    // empty: not
  std::string resume;  // empty: not
  std::string loss_log;
  std::string curves = "fashion_mnist.png";
  int64_t save_every = 0;  // steps; 0: at the end of each epoch
  int64_t limit = 0;       // use only so many training images; 0: all
  int64_t steps = 0;       // stop after so many in all; 0: run all epochs
  int64_t eval_every = 0;  // steps; 0: at the end of each epoch
  int64_t accumulate = 1;  // backward passes in a step
  std::string wire = "f32";
  int32_t power_sgd = 0;  // rank; 0: none
  double clip = 0;        // of the gradients' norm; 0: none
  bool no_eval = false;
  bool survive = false;
  bool quiet = false;
  bool compute_only = false;
};

/// Returns true to go on; else the program ends with *out_exit_code.
bool parse_options(int argc, char** argv, Options* out, int* out_exit_code);

/// Empty, or why a file that is written at the end cannot be written.
std::string check_outputs(const Options& options);

/// Empty, or why this batch cannot be dealt to the ranks and their passes, with the nearest sizes
/// that can.
std::string check_batch(int64_t batch, int64_t world_size, int64_t images, int64_t passes = 1);

}  // namespace fashion
