// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"

namespace dt::training {

/// Zeroed memory of this rank alone, mapped by itself. Either anonymous, or a file without a name:
/// the system writes its pages there when it needs memory, and reads them back when they are used.
/// The file goes with the mapping, at the latest with the process.
///
/// A file's pages are shared with children that fork made, as all memory of communicators is:
/// they may read them, and may not write.
class MappedMemory {
 public:
  /// @param bytes 0: nothing is mapped, but a directory is tried all the same
  /// @param directory of the file; empty: anonymous
  static Result<std::unique_ptr<MappedMemory>> create(int64_t bytes, const std::string& directory);
  ~MappedMemory();
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;

  /// Aligned to a page. Null: nothing is mapped.
  char* data() const { return data_; }
  /// Leaves it mapped to the end of the process, for operations that may still use it.
  void leave() { data_ = nullptr; }

 private:
  MappedMemory(char* data, int64_t bytes) : data_(data), bytes_(bytes) {}

  char* data_;
  const int64_t bytes_;
};

}  // namespace dt::training
