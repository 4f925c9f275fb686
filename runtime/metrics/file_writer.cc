// SPDX-License-Identifier: Apache-2.0
#include "metrics/file_writer.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "base/fork.h"
#include "base/thread.h"
#include "base/wait.h"

namespace dt::metrics {
namespace {

constexpr int64_t kSettleMs = 2000;
constexpr char kRankMark[] = "{rank}";

bool write_whole(int fd, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t bytes = write(fd, text.data() + done, text.size() - done);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) return false;
    done += static_cast<size_t>(bytes);
  }
  return true;
}

/// Beside the file, hidden, so that the rename stays in the file system and nobody collects it.
std::string temporary_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  const size_t name = slash == path.npos ? 0 : slash + 1;
  return path.substr(0, name) +
         format(".%s.%d.%d", path.c_str() + name, int{getpid()}, int{gettid()});
}

/// Empty: it is written.
std::string replace_file(const std::string& path, const std::string& text) {
  struct stat there {};
  if (stat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode)) {
    return path + ": it is no regular file, and is not replaced";  // as root could /dev/null
  }
  const std::string temporary = temporary_of(path);
  // Made anew: what lies there is of a process that ended, or somebody's trap.
  unlink(temporary.c_str());
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) return temporary + ": " + errno_text(errno);
  std::string why;
  if (!write_whole(fd, text)) why = temporary + ": " + errno_text(errno);
  // Some file systems tell only here that there was no room.
  if (close(fd) != 0 && why.empty()) why = temporary + ": " + errno_text(errno);
  if (why.empty() && rename(temporary.c_str(), path.c_str()) == 0) return {};
  if (why.empty()) why = path + ": " + errno_text(errno);
  unlink(temporary.c_str());
  return why;
}

}  // namespace

struct FileWriter::State {
  explicit State(Options given) : options(std::move(given)) {}

  void run() {
    write();
    while (!ending.wait(Wait{Deadline::after_ms(options.interval_ms), nullptr})) write();
    write();
    ended.set();
  }
  void write() {
    const std::string why = replace_file(options.path, options.text());
    if (why.empty() || warned) return;
    warned = true;
    options.logger->log(LogLevel::kWarning,
                        "no metrics of %s: cannot write %s; choose another file (metrics.file). "
                        "It is tried again, without another word",
                        options.self.c_str(), why.c_str());
  }

  const Options options;
  const uint32_t generation = fork_generation();
  bool warned = false;  // the thread's
  Event ending;
  Event ended;
};

Result<std::unique_ptr<FileWriter>> FileWriter::start(Options options) {
  auto state = std::make_shared<State>(std::move(options));
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  auto thread = start_thread("writes the metrics", [state] { state->run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  DT_TRY(thread.status());
  pthread_setname_np(thread.value().native_handle(), "dt-metrics");
  thread.value().detach();
  return std::unique_ptr<FileWriter>(new FileWriter(std::move(state)));
}

FileWriter::~FileWriter() {
  if (state_->generation != fork_generation()) return;  // the thread is not here
  state_->ending.set();
  (void)state_->ended.wait(Wait{Deadline::after_ms(kSettleMs), nullptr});
}

std::string path_of_rank(const std::string& path, int32_t rank, bool shared) {
  std::string text = path;
  const size_t mark = text.find(kRankMark);
  if (mark == text.npos && shared) {
    const size_t name = text.rfind('/') == text.npos ? 0 : text.rfind('/') + 1;
    const size_t dot = text.rfind('.');
    // A dot in front is no extension.
    const bool has_extension = dot != text.npos && dot > name;
    return text.insert(has_extension ? dot : text.size(), "." + std::to_string(rank));
  }
  for (size_t at = mark; at != text.npos; at = text.find(kRankMark, at)) {
    text.replace(at, sizeof kRankMark - 1, std::to_string(rank));
  }
  return text;
}

}  // namespace dt::metrics
