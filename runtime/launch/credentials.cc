// SPDX-License-Identifier: Apache-2.0
#include "launch/credentials.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "config/read_file.h"

namespace dt::launch {
namespace {

constexpr size_t kMaxTokenFileBytes = 4096;

/// Closed at the end of its scope.
class TokenFd {
 public:
  explicit TokenFd(int fd) : fd_(fd) {}
  ~TokenFd() {
    if (fd_ >= 0) close(fd_);
  }
  TokenFd(const TokenFd&) = delete;
  TokenFd& operator=(const TokenFd&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

Status token_file_error(const std::string& path, const std::string& why) {
  return Status(Code::kConfig, "the token file " + path + " " + why);
}

Status check_private(const struct stat& facts, const std::string& path) {
  if (!S_ISREG(facts.st_mode)) return token_file_error(path, "is no regular file");
  if (facts.st_uid != geteuid() && facts.st_uid != 0) {
    return token_file_error(path, format("belongs to user %u, not to you (user %u) or root: who "
                                         "owns it can read and change it; make one of your own "
                                         "with dt token",
                                         facts.st_uid, geteuid()));
  }
  if ((facts.st_mode & 077) != 0) {
    return token_file_error(path,
                            format("can be used by others (mode %04o): they could join and read "
                                   "the job; run: chmod 600 %s",
                                   facts.st_mode & 07777, path.c_str()));
  }
  return {};
}

std::string token_variable(const Environment& environment, const char* name) {
  const auto found = environment.find(name);
  return found == environment.end() ? std::string() : found->second;
}

net::SecurityMode mode_of(const std::string& wanted, bool has_token) {
  if (wanted == "encrypt") return net::SecurityMode::kEncrypt;
  if (wanted == "auth" || (wanted == "auto" && has_token)) return net::SecurityMode::kAuth;
  return net::SecurityMode::kNone;
}

/// As mkdir -p; the folders that are made are the user's alone.
void make_folders_above(const std::string& path) {
  for (size_t at = path.find('/', 1); at != std::string::npos; at = path.find('/', at + 1)) {
    (void)mkdir(path.substr(0, at).c_str(), 0700);  // what is missing in the end, open() says
  }
}

Status write_all(int fd, const std::string& text) {
  for (size_t sent = 0; sent < text.size();) {
    const ssize_t wrote = write(fd, text.data() + sent, text.size() - sent);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return Status(Code::kSystem, errno_text(errno));
    sent += static_cast<size_t>(wrote);
  }
  if (fsync(fd) != 0) return Status(Code::kSystem, errno_text(errno));
  return {};
}

}  // namespace

void Credentials::take(net::Token token, const std::string& from) {
  security.token = std::move(token);
  security.mode = mode_of(wanted, true);
  source = from;
  from_home = false;
}

std::string home_token_path(const Environment& environment) {
  const std::string xdg = token_variable(environment, "XDG_CONFIG_HOME");
  if (!xdg.empty() && xdg.front() == '/') return xdg + "/dt/token";
  const std::string home = token_variable(environment, "HOME");
  return home.empty() ? std::string() : home + "/.config/dt/token";
}

Result<std::optional<net::Token>> read_token_file(const std::string& path) {
  // O_NONBLOCK: opening a FIFO must not wait for its writer.
  const TokenFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (file.get() < 0) {
    if (errno == ENOENT || errno == ENOTDIR) return std::optional<net::Token>();
    return token_file_error(path, "cannot be read: " + errno_text(errno));
  }
  struct stat facts {};
  if (fstat(file.get(), &facts) != 0) {
    return token_file_error(path, "cannot be read: " + errno_text(errno));
  }
  DT_TRY(check_private(facts, path));
  char text[kMaxTokenFileBytes];
  size_t bytes = 0;
  for (;;) {
    const ssize_t got = read(file.get(), text + bytes, sizeof text - bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return token_file_error(path, "cannot be read: " + errno_text(errno));
    bytes += static_cast<size_t>(got);
    if (got == 0 || bytes == sizeof text) break;
  }
  auto token = net::Token::from_text({text, bytes});
  net::wipe(text, sizeof text);
  if (!token.ok()) return token.status().within(path);
  return std::optional<net::Token>(std::move(token).value());
}

Status write_token_file(const std::string& path, const net::Token& token, bool replace) {
  struct stat there {};
  if (replace && stat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode)) {
    return token_file_error(path, "is no regular file, and is not replaced; name another one");
  }
  make_folders_above(path);
  const std::string beside = format("%s.%d", path.c_str(), getpid());
  const auto failed = [&](const std::string& why) {
    return token_file_error(path, "cannot be written: " + why);
  };
  // Whole before it has its name, and never readable by others.
  const TokenFd file(
      open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (file.get() < 0) return failed(errno_text(errno));
  std::string text = token.text() + "\n";
  const Status written = write_all(file.get(), text);
  net::wipe(text.data(), text.size());
  int error = 0;
  if (written.ok()) {
    // link() refuses where a file is, rename() does not.
    const int named =
        replace ? rename(beside.c_str(), path.c_str()) : link(beside.c_str(), path.c_str());
    if (named != 0) error = errno;
  }
  if (!replace || !written.ok() || error != 0) unlink(beside.c_str());
  if (!written.ok()) return failed(written.message());
  if (error == EEXIST) {
    return token_file_error(path,
                            "exists: jobs that use it would not find each other with another; to "
                            "replace it, say --force");
  }
  return error == 0 ? Status() : failed(errno_text(error));
}

Result<Credentials> find_credentials(const Config& config, const Environment& environment,
                                     bool may_come) {
  Credentials found;
  found.wanted = config.text("security.mode");
  found.security.open_to_all = found.wanted == "none";
  if (found.security.open_to_all) return found;
  const std::string& file = config.text("security.token_file");
  const std::string own = token_variable(environment, "DT_TOKEN");
  if (!file.empty()) {
    DT_TRY_VALUE(auto token, read_token_file(file));
    const std::string named_by = config.source_of("security.token_file").where;
    if (!token) {
      return token_file_error(file, format("does not exist (%s names it); make one with dt token "
                                           "--file, and copy it to every host",
                                           named_by.c_str()));
    }
    found.take(*std::move(token), "the file " + file);
  } else if (!own.empty()) {
    auto token = net::Token::from_text(own);
    if (!token.ok()) return token.status().within("DT_TOKEN");
    found.take(std::move(token).value(), "environment DT_TOKEN");
  } else if (const std::string path = home_token_path(environment);
             !path.empty() && !config::is_out_of_reach(path)) {  // Config has warned of it
    DT_TRY_VALUE(auto token, read_token_file(path));
    if (token) {
      found.take(*std::move(token), "the file " + path);
      found.from_home = true;
    }
  }
  if (!may_come) DT_TRY(check_credentials(found));
  return found;
}

Status check_credentials(const Credentials& credentials) {
  if (credentials.has_token() || credentials.wanted == "auto" || credentials.wanted == "none") {
    return {};
  }
  return Status(Code::kConfig,
                format("security.mode is %s, but there is no token: give all processes of the job "
                       "one, in a file that DT_TOKEN_FILE (or security.token_file) names, or in "
                       "~/.config/dt/token on every host, which dt token makes",
                       credentials.wanted.c_str()));
}

}  // namespace dt::launch
