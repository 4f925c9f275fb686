// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cli/run/fd.h"
#include "cli/run/lines.h"
#include "cli/run/sink.h"

namespace dt::cli {

/// Which of a rank's two outputs.
enum class Stream { kStdout = 0, kStderr = 1 };
inline constexpr std::array<Stream, 2> kStreams = {Stream::kStdout, Stream::kStderr};

struct OutputOptions {
  int ranks = 1;       ///< of this node
  int first_rank = 0;  ///< the world rank of the first of them
  int world_size = 1;
  int servers = 0;       ///< parameter servers of this node
  int first_server = 0;  ///< the index of the first of them
  bool prefix = true;
  std::vector<bool> shown;  ///< per rank, then per server of this node: is its output passed on?
  std::string log_dir;      ///< empty: none
  int tail_lines = 30;      ///< kept per process for the report
};

/// Brings what the ranks write to the agent's stdout and stderr: whole lines, prefixed by rank; on
/// a terminal rank 0's unfinished line is live. Also writes the log files and keeps each rank's
/// last lines. `rank` counts the node's ranks, and behind them its parameter servers; what is shown
/// is the world rank, or "server" and the server's index. One thread.
class Output {
 public:
  /// Creates the log files. `stdout_fd` and `stderr_fd` are borrowed.
  static Result<std::unique_ptr<Output>> create(const OutputOptions& options, int stdout_fd,
                                                int stderr_fd);

  void feed(int rank, Stream stream, std::string_view bytes);
  /// The rank's stream has ended.
  void finish(int rank, Stream stream);
  /// A line of dt's own to stderr, without prefix.
  void message(std::string_view text);
  /// The rank's last lines, oldest first.
  std::vector<std::string> tail(int rank) const;
  /// Shows a server's last lines to stderr, and forgets them: they belong to a process that ended.
  void show_server_tail(int server);
  /// Shows them to stderr with the prefix of `world_rank`; nothing where they are all that was
  /// shown anyway, because there is one rank.
  void show_tail(int world_rank, const std::vector<std::string>& lines);

  /// False while the reader of `stream` is so slow that no more should be read from the ranks.
  bool accepts(Stream stream) const { return !sink(stream).is_full(); }
  /// Nobody will ever see or keep what a rank still writes to `stream`, and somebody wanted that.
  bool is_pointless(Stream stream) const { return left(sink(stream)) && !has_logs_; }
  /// Output could not be written although its reader is there, or a log file: a full disk, say. It
  /// was told to stderr when it happened.
  bool is_cut_short() const { return cut_short_ || log_cut_short_; }
  bool is_terminal(Stream stream) const { return sink(stream).is_terminal(); }
  /// Writes what can be written without blocking.
  void flush();
  bool flushed() const;
  /// The descriptors that flush() waits for.
  std::vector<int> waiting_fds() const;
  void discard();

 private:
  struct Source {
    LineSplitter lines;
    Fd log;
  };
  struct Tail {
    std::vector<std::string> lines;  // a ring of at most tail_lines
    size_t next = 0;                 // where the next line goes once the ring is full
  };

  Output(const OutputOptions& options, int stdout_fd, int stderr_fd);
  Status open_logs(const std::string& folder);
  /// Its reader, or the terminal, is gone.
  static bool left(const Sink& sink);
  void keep(int rank, std::string_view text);
  void pass_on(int rank, Stream stream, std::string_view text);
  void write_log(int rank, Stream stream, std::string_view bytes);
  /// "3", or "server 0".
  std::string name_of(int rank) const;
  std::string prefix(int rank, const Sink& sink) const;
  std::string prefix(const std::string& name, int number, const Sink& sink) const;
  Source& source(int rank, Stream stream) {
    return sources_[static_cast<size_t>(rank) * 2 + static_cast<size_t>(stream)];
  }
  Sink& sink(Stream stream) { return *sinks_[static_cast<size_t>(stream)]; }
  const Sink& sink(Stream stream) const { return *sinks_[static_cast<size_t>(stream)]; }

  const OutputOptions options_;
  const bool color_;
  bool has_logs_ = false;
  bool cut_short_ = false;
  bool log_cut_short_ = false;
  Stream live_stream_ = Stream::kStdout;        // whose unfinished line is live
  std::array<std::shared_ptr<Sink>, 2> sinks_;  // one and the same for one terminal
  std::vector<Source> sources_;                 // by rank and stream, then by server and stream
  std::vector<Tail> tails_;                     // by rank, then by server
};

}  // namespace dt::cli
