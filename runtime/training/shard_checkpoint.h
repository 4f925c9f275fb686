// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "base/status.h"
#include "training/optimizer.h"
#include "training/shard.h"

namespace dt::training {

/// Both collective, between steps. They succeed on all ranks, or fail on all with the same text,
/// that of the first rank that failed. `optimizer`: of the shard, or null.

/// Each rank writes its pieces to `path`.partial, which rank 0 makes and, once all bytes are on the
/// disk, renames to `path`: a file as in shard_file.h. What fails or dies leaves `path` as it was.
Status save_shard(Shard& shard, Optimizer* optimizer, const std::string& path);

/// Each rank reads its pieces of the parameters and of the state, then Shard::updated(). A file
/// that does not fit changes nothing; one that cannot be read to its end leaves pieces of both.
Status load_shard(Shard& shard, Optimizer* optimizer, const std::string& path);

}  // namespace dt::training
