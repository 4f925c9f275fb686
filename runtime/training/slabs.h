// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "comm/communicator.h"

namespace dt::training {

/// Blocks of a communicator's memory that are lent, given back and lent again, so that what is used
/// one after the other needs memory once. Nothing goes back to the system before the end. A block
/// serves requests of at least half its size.
///
/// Threads: one at a time.
class Slabs {
 public:
  explicit Slabs(std::shared_ptr<comm::Communicator> comm) : comm_(std::move(comm)) {}
  /// A block that is lent may still be in use; it stays with the communicator.
  ~Slabs();
  Slabs(const Slabs&) = delete;
  Slabs& operator=(const Slabs&) = delete;

  /// At least so many bytes, aligned to 256 of them; what they hold is undefined.
  Result<char*> take(int64_t bytes);
  void give(const char* block);
  /// Leaves all blocks with the communicator: a GPU may use them, lent or not.
  void leave() { slabs_.clear(); }
  /// Whether take() would do without more memory.
  bool has_free(int64_t bytes) const { return best_free(bytes) < slabs_.size(); }
  /// Whether the address lies in any block, lent or not.
  bool contain(const void* address) const;
  /// Of all blocks.
  int64_t bytes() const { return bytes_; }

 private:
  struct Slab {
    char* data = nullptr;
    int64_t bytes = 0;
    bool lent = false;
  };
  /// slabs_.size(): none.
  size_t best_free(int64_t bytes) const;

  const std::shared_ptr<comm::Communicator> comm_;
  std::vector<Slab> slabs_;
  int64_t bytes_ = 0;
};

}  // namespace dt::training
