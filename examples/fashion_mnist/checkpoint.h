// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data.h"
#include "optimizer.h"

namespace fashion {

/// One finished training step, over the global batch.
struct StepRecord {
  float loss = 0;
  float accuracy = 0;  // share in [0, 1]
};

/// One evaluation on the whole test set.
struct EvalRecord {
  int64_t step = 0;  // steps done before it
  double loss = 0;
  double accuracy = 0;
};

/// Everything that training needs to go on as if it had never stopped, on any number of ranks.
struct Checkpoint {
  OptimizerKind optimizer = OptimizerKind::kSgd;
  int64_t seed = 0;
  int64_t batch = 0;           // global
  int64_t step = 0;            // steps done
  int64_t epoch = 0;           // that the next step belongs to
  int64_t position = 0;        // global batches of that epoch done
  std::vector<int64_t> shape;  // elements of each parameter
  std::vector<float> parameters;
  std::vector<float> optimizer_state;
  std::vector<StepRecord> history;
  std::vector<EvalRecord> evaluations;
};

/// FNV-1a over 8-byte words, then the tail bytewise: not cryptographic, catches what disks and
/// ranks get wrong.
uint64_t hash_bytes(const void* data, size_t bytes, uint64_t start = 0xcbf29ce484222325u);

/// The bytes of a checkpoint's file.
std::vector<char> pack_checkpoint(const Checkpoint& checkpoint);

/// `shape` is the network's; the bytes of another network are refused. `path` is for the texts.
Error unpack_checkpoint(const std::vector<char>& bytes, const std::string& path,
                        const std::vector<int64_t>& shape, Checkpoint* out);

/// Replaces `path` at once: readers see the old file or the new one, also after a crash.
Error save_checkpoint(const std::string& path, const Checkpoint& checkpoint);

Error load_checkpoint(const std::string& path, const std::vector<int64_t>& shape, Checkpoint* out);

}  // namespace fashion
