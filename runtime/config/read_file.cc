// SPDX-License-Identifier: Apache-2.0
#include "config/read_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>

namespace dt::config {
namespace {

constexpr size_t kMaxFileBytes = 1 << 20;  // a dt.toml with every key has 3 KiB

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

Status failed(const std::string& shown, const std::string& why) {
  return Status(Code::kConfig, shown + ": " + why);
}

Status check_kind(const struct stat& facts, const std::string& shown) {
  // DT_CONFIG=/dev/null is the usual way to say "no file".
  const bool null_device = S_ISCHR(facts.st_mode) && facts.st_rdev == makedev(1, 3);
  if (S_ISDIR(facts.st_mode)) return failed(shown, "is a directory; expected a file");
  if (!S_ISREG(facts.st_mode) && !null_device) {
    return failed(shown, "is neither a regular file nor /dev/null");
  }
  return {};
}

bool is_trusted(const struct stat& facts) { return facts.st_uid == 0 || facts.st_uid == geteuid(); }

/// Not an error: in a folder such as /tmp anybody could stop everybody's jobs.
FileText passed_over(const struct stat& facts, const std::string& shown) {
  FileText file;
  file.warning = format(
      "%s in the working directory is not read: it belongs to user %u, and must belong to this "
      "user (%u) or to root; if you trust it, set DT_CONFIG=./%s, otherwise start in another "
      "directory or remove it",
      shown.c_str(), facts.st_uid, geteuid(), shown.c_str());
  return file;
}

}  // namespace

bool is_out_of_reach(const std::string& path) {
  struct stat facts {};
  return lstat(path.c_str(), &facts) != 0 && errno == EACCES;
}

Result<FileText> read_file(const std::string& path, const std::string& shown, FilePolicy policy) {
  // Before it is opened, because it may be a link, a FIFO or a device.
  struct stat entry {};
  if (policy.check_owner && lstat(path.c_str(), &entry) == 0 && !is_trusted(entry)) {
    return passed_over(entry, shown);
  }
  // O_NONBLOCK: opening a FIFO must not wait for its writer.
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (file.get() < 0) {
    const int error = errno;
    struct stat link {};
    if (error == ENOENT && lstat(path.c_str(), &link) == 0) {
      return failed(shown, "is a symbolic link to a file that does not exist; mend or remove it");
    }
    const bool absent = error == ENOENT || error == ENOTDIR;
    if (absent && !policy.must_exist) return FileText();
    return failed(shown, "cannot be read: " + errno_text(error));
  }
  struct stat facts {};
  if (fstat(file.get(), &facts) != 0) {
    return failed(shown, "cannot be read: " + errno_text(errno));
  }
  if (policy.check_owner && !is_trusted(facts)) return passed_over(facts, shown);
  DT_TRY(check_kind(facts, shown));
  if (policy.check_owner && (facts.st_mode & S_IWOTH) != 0) {
    return failed(shown, "can be written by everybody; run: chmod o-w " + shown);
  }
  std::string text;
  char buffer[16384];
  for (;;) {
    const ssize_t got = read(file.get(), buffer, sizeof buffer);
    if (got == 0) return FileText{std::move(text), {}};
    if (got < 0) {
      if (errno == EINTR) continue;
      return failed(shown, "cannot be read: " + errno_text(errno));
    }
    text.append(buffer, static_cast<size_t>(got));
    if (text.size() > kMaxFileBytes) {
      return failed(shown, format("is larger than %zu bytes; this is no dt.toml", kMaxFileBytes));
    }
  }
}

}  // namespace dt::config
