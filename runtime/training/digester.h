// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "comm/communicator.h"

namespace dt::training {

/// Hashes memory of the kind that a communicator takes. That of a GPU comes piece by piece through
/// pinned memory, which is made at the first need and stays for the next time. One thread at a
/// time.
class Digester {
 public:
  explicit Digester(std::shared_ptr<comm::Communicator> comm) : comm_(std::move(comm)) {}

  /// XXH64 of `bytes` bytes. On a GPU as they are when `stream` comes to this call, for which it
  /// waits, under the deadline of operations. May be null for 0 bytes.
  Result<uint64_t> hash(const void* data, int64_t bytes, cuda::Stream stream);

 private:
  struct Staging;

  Status begin_staging();
  Status await_piece(cuda::Event copied, Deadline deadline);
  Result<uint64_t> hash_on_device(const char* data, int64_t bytes, cuda::Stream stream);

  const std::shared_ptr<comm::Communicator> comm_;
  std::shared_ptr<Staging> staging_;  // null: not needed so far
};

}  // namespace dt::training
