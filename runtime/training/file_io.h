// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "base/status.h"

namespace dt::training {

/// An open file, closed with it; -1: none.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() { reset(-1); }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }
  void reset(int fd);

 private:
  int fd_ = -1;
};

/// Bytes in memory, and where they are in a file.
struct Extent {
  char* memory = nullptr;
  int64_t at = 0;
  int64_t bytes = 0;
};

/// In quotes; of a long one the end.
std::string quoted_path(const std::string& path);
/// "cannot WHAT PATH: why; what to do".
Status failed_io(const std::string& what, const std::string& path, int error);

/// Calls until no signal interrupts it.
template <class F>
auto uninterrupted(F&& call) {
  for (;;) {
    const auto result = call();
    if (result >= 0 || errno != EINTR) return result;
  }
}

/// A descriptor, or -1 and errno. Never waits for the other end of a pipe.
int open_file(const std::string& path, int flags);
/// Both return 0 or an errno, read_all() ENODATA where the file ends before.
int write_all(int fd, Extent extent);
int read_all(int fd, Extent extent);
/// 0, or EFBIG where this process may not write a file of that length: it would end by SIGXFSZ.
int check_file_limit(int64_t bytes);
/// Gives a new file its length, and room on the disk, so that a full disk shows here. 0 or an
/// errno. Where the file system gives no room in advance, the file has its length only.
int reserve_file(int fd, int64_t bytes);
/// 0 or an errno.
int sync_file(int fd);
/// INVALID_ARGUMENT where something is at `path` that is not a file, such as a device.
Status check_replaceable(const std::string& path);
/// Writes a file of this length beside `path` and, once all is on the disk, renames it to that.
Status replace_file(const std::string& path, int64_t bytes, std::span<const Extent> extents);
/// Makes that `path` was renamed or made outlast a power failure.
Status sync_directory_of(const std::string& path);

}  // namespace dt::training
