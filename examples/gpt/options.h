// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "device.h"
#include "network.h"

namespace gpt {

enum class DeviceKind { kAuto, kCpu, kCuda };

struct Options {
  DeviceKind device = DeviceKind::kAuto;
  std::string dtype = "auto";
  Shape shape;
  int64_t batch = 16;  // sequences per step over all ranks
  int64_t steps = 200;
  double rate = 1e-3;
  double decay = 0.1;
  int64_t seed = 1;
  int64_t interval = 20;  // steps between two lines of output
  int64_t bucket_bytes = 0;
  int64_t tune_steps = 0;  // with each of some bucket sizes; 0: they are not tuned
  int64_t text_bytes = int64_t{4} << 20;
  int64_t accumulate = 1;       // backward passes of a step
  std::string wire = "same";    // what gradients travel as
  int64_t power_sgd = 0;        // rank of the matrices that travel; 0: gradients do
  double clip = 0;              // largest norm of the gradients; 0: any
  std::optional<int64_t> zero;  // stage of the shards; none: each rank keeps everything
  std::string offload;          // directory of a rank's part of the model; empty: in memory
  bool memory = false;          // measures it in the last step
  std::string loss_log;         // empty: not
  bool apart = false;           // ranks exchange no gradients
  int64_t outer = 0;            // steps after which groups of ranks come together; 0: one group
  int64_t group = 1;            // ranks of such a group
  int64_t outer_delay = 0;      // steps that go on while they do
  std::string outer_format = "f32";  // what travels then
  std::string checkpoint;            // what is saved and gone on from, see --help; empty: none
  bool quiet = false;
  std::vector<std::string> files;  // empty: default_files()
};

/// Returns true to go on; else the program ends with *out_exit_code.
bool parse_options(int argc, char** argv, Options* out, int* out_exit_code);

/// Empty, or why this batch cannot be dealt to the ranks' passes, with the nearest sizes that can.
std::string check_batch(int64_t batch, int64_t world_size, int64_t passes);

/// Empty, or why ranks cannot come together as --outer says.
std::string check_outer(const Options& options, bool is_gpu, int64_t world_size);

/// Empty, or why gradients of this precision cannot travel, or lie in shards, as the options say.
std::string check_exchange(const Options& options, Precision precision);

/// Rises over the first steps, then follows half a cosine down to a tenth at the last one.
double learning_rate_at(double peak, int64_t step, int64_t steps);

/// Everything that must be equal on all ranks, as text to compare.
std::string describe(const Options& options, Precision precision, uint64_t text_hash);

}  // namespace gpt
