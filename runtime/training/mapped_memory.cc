// SPDX-License-Identifier: Apache-2.0
#include "training/mapped_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "training/file_io.h"

namespace dt::training {
namespace {

constexpr mode_t kOwnerOnly = 0600;

/// A descriptor, or -1 and errno.
int open_unnamed(const std::string& directory) {
  const int fd = uninterrupted(
      [&] { return open(directory.c_str(), O_TMPFILE | O_RDWR | O_EXCL | O_CLOEXEC, kOwnerOnly); });
  if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) return fd;
  // NFS and others have only files with names, and kernels before 3.11 take the flag for
  // O_DIRECTORY.
  std::string name = directory + "/dt-offload-XXXXXX";
  const int named = mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) unlink(name.c_str());
  return named;
}

}  // namespace

Result<std::unique_ptr<MappedMemory>> MappedMemory::create(int64_t bytes,
                                                           const std::string& directory) {
  FileDescriptor file;  // closed once it is mapped
  if (!directory.empty()) {
    file.reset(open_unnamed(directory));
    if (file.get() < 0) return failed_io("make a file in", directory, errno);
    int error = check_file_limit(bytes);
    if (error == 0 && bytes > 0) error = reserve_file(file.get(), bytes);
    if (error != 0) {
      return failed_io(format("get %lld bytes for a file in", static_cast<long long>(bytes)),
                       directory, error);
    }
  }
  void* data = nullptr;
  if (bytes > 0) {
    const int flags = directory.empty() ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, flags, file.get(), 0);
  }
  if (data == MAP_FAILED && !directory.empty()) return failed_io("map a file in", directory, errno);
  if (data == MAP_FAILED) {
    return Status(Code::kOutOfMemory,
                  format("cannot get %lld bytes of memory: %s; give the shard a directory for "
                         "offload, or use more ranks",
                         static_cast<long long>(bytes), errno_text(errno).c_str()));
  }
  return std::unique_ptr<MappedMemory>(new MappedMemory(static_cast<char*>(data), bytes));
}

MappedMemory::~MappedMemory() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(bytes_));
}

}  // namespace dt::training
