// SPDX-License-Identifier: Apache-2.0
#include "cli/run/output.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace dt::cli {
namespace {

constexpr size_t kTailLineBytes = 2048;  // longer lines are cut in the report only
constexpr const char* kColors[] = {"\x1b[36m", "\x1b[33m", "\x1b[32m",
                                   "\x1b[35m", "\x1b[34m", "\x1b[31m"};
constexpr const char* kColorEnd = "\x1b[0m";

bool same_terminal(int one, int other) {
  struct stat a;
  struct stat b;
  return isatty(one) == 1 && isatty(other) == 1 && fstat(one, &a) == 0 && fstat(other, &b) == 0 &&
         a.st_rdev == b.st_rdev;
}

/// Empties the file `path`, or makes it. The user names the folder only, so what others put there
/// under the names of log files must neither block this process nor lead it to other files.
/// Returns why it failed, or "".
std::string open_log(const std::string& path, Fd* out) {
  const char* const not_regular = "it is not a regular file; remove it or name another folder";
  // O_NONBLOCK: opening a FIFO must not wait for its reader. It changes nothing for regular files.
  out->reset(open(path.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC,
                  0666));
  if (!out->is_open()) {
    if (errno == ELOOP) return "it is a symbolic link; remove it or name another folder";
    return errno == ENXIO ? not_regular : errno_text(errno);  // a FIFO without a reader, a socket
  }
  struct stat facts {};
  if (fstat(out->get(), &facts) != 0) return errno_text(errno);
  if (!S_ISREG(facts.st_mode)) return not_regular;
  if (facts.st_nlink > 1) return "it is one file under several names (hard links); remove it";
  return ftruncate(out->get(), 0) == 0 ? "" : errno_text(errno);
}

bool color_allowed() {
  const char* no_color = getenv("NO_COLOR");  // https://no-color.org: set and not empty
  return no_color == nullptr || no_color[0] == '\0';
}

}  // namespace

Output::Output(const OutputOptions& options, int stdout_fd, int stderr_fd)
    : options_(options),
      color_(color_allowed()),
      sources_(static_cast<size_t>(options.ranks + options.servers) * 2),
      tails_(static_cast<size_t>(options.ranks + options.servers)) {
  sinks_[0] = std::make_shared<Sink>(stdout_fd);
  // Two buffers in front of one screen would tear live lines and swap the order of lines.
  sinks_[1] = same_terminal(stdout_fd, stderr_fd) ? sinks_[0] : std::make_shared<Sink>(stderr_fd);
}

Result<std::unique_ptr<Output>> Output::create(const OutputOptions& options, int stdout_fd,
                                               int stderr_fd) {
  std::unique_ptr<Output> output(new Output(options, stdout_fd, stderr_fd));
  if (!options.log_dir.empty()) DT_TRY(output->open_logs(options.log_dir));
  return output;
}

Status Output::open_logs(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    return Status(Code::kSystem, "--log-dir: cannot create " + folder + ": " + error.message());
  }
  for (int rank = 0; rank < options_.ranks + options_.servers; ++rank) {
    const std::string name =
        rank < options_.ranks
            ? format("/rank-%04d.", options_.first_rank + rank)
            : format("/server-%04d.", options_.first_server + rank - options_.ranks);
    for (const Stream stream : kStreams) {
      const std::string path = folder + name + (stream == Stream::kStdout ? "out" : "err");
      Fd& log = source(rank, stream).log;
      const std::string why = open_log(path, &log);
      if (!why.empty()) {
        return Status(Code::kSystem, "--log-dir: cannot write " + path + ": " + why);
      }
    }
  }
  has_logs_ = true;
  return {};
}

std::string Output::name_of(int rank) const {
  if (rank < options_.ranks) return std::to_string(options_.first_rank + rank);
  return "server " + std::to_string(options_.first_server + rank - options_.ranks);
}

std::string Output::prefix(int rank, const Sink& sink) const {
  return prefix(name_of(rank), options_.first_rank + rank, sink);
}

std::string Output::prefix(const std::string& name, int number, const Sink& sink) const {
  if (!options_.prefix) return {};
  const int width = static_cast<int>(std::to_string(options_.world_size - 1).size());
  const std::string plain = format("[%*s] ", width, name.c_str());
  if (!sink.is_terminal() || !color_) return plain;
  const size_t color = static_cast<size_t>(number) % std::size(kColors);
  return kColors[color] + plain + kColorEnd;
}

void Output::keep(int rank, std::string_view text) {
  Tail& tail = tails_[static_cast<size_t>(rank)];
  text = text.substr(0, kTailLineBytes);
  if (static_cast<int>(tail.lines.size()) < options_.tail_lines) {
    tail.lines.emplace_back(text);
  } else if (!tail.lines.empty()) {
    tail.lines[tail.next].assign(text);
    tail.next = (tail.next + 1) % tail.lines.size();
  }
}

void Output::pass_on(int rank, Stream stream, std::string_view text) {
  keep(rank, text);
  if (!options_.shown[static_cast<size_t>(rank)]) return;
  Sink& to = sink(stream);
  if (rank == 0 && stream == live_stream_) to.set_live({}, {});  // this is what it has become
  to.line(prefix(rank, to), text);
}

void Output::feed(int rank, Stream stream, std::string_view bytes) {
  write_log(rank, stream, bytes);
  LineSplitter& lines = source(rank, stream).lines;
  lines.feed(bytes, [&](std::string_view text) { pass_on(rank, stream, text); });
  Sink& to = sink(stream);
  if (rank != 0 || !options_.shown[0] || !to.is_terminal()) return;
  if (lines.unfinished().empty() && stream != live_stream_) return;
  live_stream_ = stream;
  to.set_live(prefix(rank, to), lines.unfinished());
}

void Output::finish(int rank, Stream stream) {
  source(rank, stream).lines.finish([&](std::string_view text) { pass_on(rank, stream, text); });
  source(rank, stream).log.reset();
}

void Output::write_log(int rank, Stream stream, std::string_view bytes) {
  Fd& log = source(rank, stream).log;
  while (log.is_open() && !bytes.empty()) {
    const ssize_t count = write(log.get(), bytes.data(), bytes.size());
    if (count >= 0) {
      bytes.remove_prefix(static_cast<size_t>(count));
    } else if (errno != EINTR) {
      const std::string whose = rank < options_.ranks ? "rank " : "";
      message(
          format("dt run: the log file of %s is cut short: %s; make room for it, or name another "
                 "folder with --log-dir",
                 (whose + name_of(rank)).c_str(), errno_text(errno).c_str()));
      log.reset();
      log_cut_short_ = true;
    }
  }
}

void Output::message(std::string_view text) { sink(Stream::kStderr).line({}, text); }

std::vector<std::string> Output::tail(int rank) const {
  const Tail& tail = tails_[static_cast<size_t>(rank)];
  std::vector<std::string> lines;
  for (size_t i = 0; i < tail.lines.size(); ++i) {
    lines.push_back(tail.lines[(tail.next + i) % tail.lines.size()]);
  }
  return lines;
}

void Output::show_tail(int world_rank, const std::vector<std::string>& lines) {
  if (options_.world_size == 1 && options_.servers == 0 && options_.shown[0]) return;
  Sink& to = sink(Stream::kStderr);
  for (const std::string& line : lines) {
    to.line(prefix(std::to_string(world_rank), world_rank, to), line);
  }
}

void Output::show_server_tail(int server) {
  const int rank = options_.ranks + server;
  Sink& to = sink(Stream::kStderr);
  for (const std::string& line : tail(rank)) to.line(prefix(rank, to), line);
  tails_[static_cast<size_t>(rank)] = {};
}

bool Output::left(const Sink& sink) { return sink.error() == EPIPE || sink.error() == EIO; }

void Output::flush() {
  for (const Stream stream : kStreams) {
    Sink& to = sink(stream);
    to.draw_live();
    to.write_some();
    if (!to.is_broken() || left(to) || cut_short_) continue;
    cut_short_ = true;
    message(format("dt run: cannot write to %s: %s; what the ranks print from here on is lost",
                   stream == Stream::kStdout ? "stdout" : "stderr",
                   errno_text(to.error()).c_str()));
  }
}

bool Output::flushed() const { return sinks_[0]->is_empty() && sinks_[1]->is_empty(); }

std::vector<int> Output::waiting_fds() const {
  std::vector<int> fds;
  for (const auto& sink : sinks_) {
    if (!sink->is_empty()) fds.push_back(sink->fd());
  }
  return fds;
}

void Output::discard() {
  for (const auto& sink : sinks_) sink->discard();
}

}  // namespace dt::cli
