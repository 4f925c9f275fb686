// SPDX-License-Identifier: Apache-2.0
#include "training/file_io.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

namespace dt::training {
namespace {

constexpr int64_t kMostAtOnce = int64_t{1} << 30;  // a call moves less than 2 GiB
constexpr size_t kShownPath = 500;                 // of a path in a message
constexpr mode_t kFileMode = 0666;                 // less the process's umask

const char* advice(int error) {
  switch (error) {
    case ENOENT: return "look whether its directory is there";
    case EACCES:
    case EPERM:
    case EROFS: return "give a path that this process may read and write";
    case ENOSPC:
    case EDQUOT: return "make room, or give a path with more";
    case EFBIG: return "raise the limit of a file's size (ulimit -f), or give another file system";
    case EISDIR: return "give the path of a file";
    case ENODATA: return "it was cut short since it was opened; load another checkpoint";
    default: return "look at the path and its file system";
  }
}

}  // namespace

void FileDescriptor::reset(int fd) {
  if (fd_ >= 0) close(fd_);
  fd_ = fd;
}

std::string quoted_path(const std::string& path) {
  if (path.size() <= kShownPath) return '"' + path + '"';
  return "\"..." + path.substr(path.size() - kShownPath) + '"';
}

Status failed_io(const std::string& what, const std::string& path, int error) {
  return Status(Code::kSystem,
                format("cannot %s %s: %s; %s", what.c_str(), quoted_path(path).c_str(),
                       errno_text(error).c_str(), advice(error)));
}

int open_file(const std::string& path, int flags) {
  return uninterrupted(
      [&] { return open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK, kFileMode); });
}

int write_all(int fd, Extent extent) {
  while (extent.bytes > 0) {
    const auto once = static_cast<size_t>(std::min(extent.bytes, kMostAtOnce));
    const ssize_t done = uninterrupted([&] { return pwrite(fd, extent.memory, once, extent.at); });
    if (done <= 0) return done < 0 ? errno : EIO;
    extent = {extent.memory + done, extent.at + done, extent.bytes - done};
  }
  return 0;
}

int read_all(int fd, Extent extent) {
  while (extent.bytes > 0) {
    const auto once = static_cast<size_t>(std::min(extent.bytes, kMostAtOnce));
    const ssize_t done = uninterrupted([&] { return pread(fd, extent.memory, once, extent.at); });
    if (done <= 0) return done < 0 ? errno : ENODATA;
    extent = {extent.memory + done, extent.at + done, extent.bytes - done};
  }
  return 0;
}

int check_file_limit(int64_t bytes) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return 0;
  return limit.rlim_cur >= static_cast<rlim_t>(bytes) ? 0 : EFBIG;
}

int reserve_file(int fd, int64_t bytes) {
  if (uninterrupted([&] { return fallocate(fd, 0, 0, bytes); }) == 0) return 0;
  if (errno != EOPNOTSUPP && errno != ENOSYS) return errno;
  return ftruncate(fd, bytes) == 0 ? 0 : errno;
}

int sync_file(int fd) {
  return uninterrupted([&] { return fsync(fd); }) == 0 ? 0 : errno;
}

Status check_replaceable(const std::string& path) {
  struct stat status = {};
  if (stat(path.c_str(), &status) != 0 || S_ISREG(status.st_mode)) return {};
  return Status(Code::kInvalidArgument,
                format("%s is not a file; give the path of a file, which then is replaced",
                       quoted_path(path).c_str()));
}

Status replace_file(const std::string& path, int64_t bytes, std::span<const Extent> extents) {
  DT_TRY(check_replaceable(path));
  const std::string partial = path + ".partial";
  if (unlink(partial.c_str()) != 0 && errno != ENOENT) {
    return failed_io("remove what an earlier save left at", partial, errno);
  }
  FileDescriptor file(open_file(partial, O_WRONLY | O_CREAT | O_EXCL));
  if (file.get() < 0) return failed_io("make", partial, errno);
  const auto write = [&]() -> Status {
    int error = check_file_limit(bytes);
    if (error == 0) error = reserve_file(file.get(), bytes);
    if (error != 0) {
      return failed_io(format("get %lld bytes for", static_cast<long long>(bytes)), partial, error);
    }
    for (const Extent& extent : extents) {
      if (error == 0) error = write_all(file.get(), extent);
    }
    if (error == 0) error = sync_file(file.get());
    if (error != 0) return failed_io("write", partial, error);
    if (rename(partial.c_str(), path.c_str()) == 0) return {};
    return failed_io(format("rename %s to", quoted_path(partial).c_str()), path, errno);
  };
  Status written = write();
  if (!written.ok()) {
    unlink(partial.c_str());
    return written;
  }
  return sync_directory_of(path);
}

Status sync_directory_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string directory = slash == std::string::npos ? "."
                                : slash == 0               ? "/"
                                                           : path.substr(0, slash);
  const FileDescriptor handle(open_file(directory, O_RDONLY | O_DIRECTORY));
  const int error = handle.get() < 0 ? errno : sync_file(handle.get());
  if (error == 0 || error == EINVAL) return {};  // some file systems sync no directories
  return failed_io("write to the disk the directory of", path, error);
}

}  // namespace dt::training
