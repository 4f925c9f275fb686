// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace dt::cli {

/// Cuts what a program writes into lines.
///
/// A carriage return begins the line again, as on a terminal: of "10%\r20%\rdone\n" the line is
/// "done". One that has nothing after it keeps what it ended, so "\r\n" ends a line too. Lines
/// above the limit come in pieces. Any byte may occur.
class LineSplitter {
 public:
  static constexpr size_t kLimitBytes = 64 * 1024;  // as much as a pipe holds
  /// Gets the line without its end; valid during the call.
  using OnLine = std::function<void(std::string_view)>;

  void feed(std::string_view bytes, const OnLine& on_line);
  /// The program ended: what is left is a line.
  void finish(const OnLine& on_line);
  /// What a terminal would show of the line that has not ended yet.
  std::string_view unfinished() const { return current_.empty() ? before_return_ : current_; }

 private:
  void append(std::string_view text, const OnLine& on_line);
  void clear();

  std::string current_;        // since the last line end or carriage return
  std::string before_return_;  // the last non-empty state that a carriage return ended
};

}  // namespace dt::cli
