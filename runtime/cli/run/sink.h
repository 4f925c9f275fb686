// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace dt::cli {

/// Where lines go: the agent's stdout or stderr. Takes them at once and writes them as fast as the
/// reader accepts them, so that the agent never blocks and still hears signals.
///
/// On a terminal the last line may be live: it is cleared before an ordinary line and drawn again
/// below it. One thread.
class Sink {
 public:
  /// `fd` is borrowed.
  explicit Sink(int fd);

  bool is_terminal() const { return is_terminal_; }
  int fd() const { return fd_; }
  /// A write failed; everything is thrown away from now on.
  bool is_broken() const { return error_ != 0; }
  /// The errno value of that, 0 none. EPIPE and EIO: the reader or the terminal is gone.
  int error() const { return error_; }
  /// Holds so much that whoever writes must wait. Nothing is lost when it is used all the same.
  bool is_full() const { return buffer_.size() - written_ > kFullBytes; }
  bool is_empty() const { return buffer_.size() == written_; }

  void line(std::string_view prefix, std::string_view text);
  /// Shows `text` as the live line; empty takes it away. Nothing happens where no terminal is.
  void set_live(std::string_view prefix, std::string_view text);
  /// Draws the live line again if lines have covered it. Before write_some().
  void draw_live();
  /// Writes what the descriptor takes without blocking.
  void write_some();
  void discard();

 private:
  static constexpr size_t kFullBytes = 1024 * 1024;

  void erase_live();
  size_t columns() const;

  const int fd_;
  const bool is_terminal_;
  int error_ = 0;
  bool live_drawn_ = false;
  std::string live_prefix_;
  std::string live_;
  std::string buffer_;
  size_t written_ = 0;  // bytes of buffer_
};

}  // namespace dt::cli
