// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "comm/communicator.h"
#include "training/digester.h"

namespace dt::training {

/// What one rank holds, as it shows it to the others.
struct Exhibit {
  uint64_t hash = 0;
  int64_t bytes = 0;
  int64_t pid = 0;
  int32_t failed = 0;  ///< it could not read what it holds
  char name[36] = {};  ///< cut
  char host[64] = {};  ///< cut

  bool same(const Exhibit& other) const;
  /// `"weights", 40 bytes, hash 00000000075bcd15`.
  std::string text() const;
};
static_assert(sizeof(Exhibit) == 128);

/// Everyone's `bytes` bytes, in rank order. Collective, over host memory.
Result<std::vector<char>> gather_rows(comm::Communicator& comm, const void* mine, size_t bytes,
                                      const char* label);

/// This rank's, without what it holds.
Exhibit own_exhibit(const std::string& name);
/// Everyone's, in rank order. Collective. A status of `mine` is this rank's failure to read, which
/// is returned after the others were told.
Result<std::vector<Exhibit>> show(comm::Communicator& comm, Exhibit exhibit, const Status& mine,
                                  const char* operation);
/// MISMATCH unless all are the same: with both sides, and the ranks that differ from the majority.
/// `where`: `dt_check_equal "weights" on comm "world", rank 0`.
Status compare(const comm::Communicator& comm, const std::vector<Exhibit>& all,
               const char* operation, const std::string& where);

/// Collective: whether `bytes` bytes are the same on all ranks. The communicator stays whole.
Status check_equal(const std::shared_ptr<comm::Communicator>& comm, const void* data, int64_t bytes,
                   const std::string& name, cuda::Stream stream);

}  // namespace dt::training
