// SPDX-License-Identifier: Apache-2.0
#include "cli/run/lines.h"

namespace dt::cli {

void LineSplitter::feed(std::string_view bytes, const OnLine& on_line) {
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    std::string_view text = bytes.substr(0, end);
    for (;;) {
      const size_t carriage_return = text.find('\r');
      append(text.substr(0, carriage_return), on_line);
      if (carriage_return == std::string_view::npos) break;
      if (!current_.empty()) {
        before_return_.swap(current_);
        current_.clear();
      }
      text.remove_prefix(carriage_return + 1);
    }
    if (end == std::string_view::npos) return;
    on_line(unfinished());
    clear();
    bytes.remove_prefix(end + 1);
  }
}

void LineSplitter::append(std::string_view text, const OnLine& on_line) {
  while (current_.size() + text.size() > kLimitBytes) {
    const size_t room = kLimitBytes - current_.size();
    current_.append(text.substr(0, room));
    text.remove_prefix(room);
    on_line(current_);
    clear();
  }
  current_.append(text);
}

void LineSplitter::finish(const OnLine& on_line) {
  if (!unfinished().empty()) on_line(unfinished());
  clear();
}

void LineSplitter::clear() {
  current_.clear();
  before_return_.clear();
}

}  // namespace dt::cli
