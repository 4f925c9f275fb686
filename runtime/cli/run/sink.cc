// SPDX-License-Identifier: Apache-2.0
#include "cli/run/sink.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace dt::cli {
namespace {

// A pipe that poll() calls writable takes this much without blocking, whatever its flags say.
constexpr size_t kPipeChunkBytes = 4096;
constexpr size_t kTerminalChunkBytes = 256;
constexpr int kChunksPerCall = 64;  // then signals and the other stream get a turn
constexpr size_t kDefaultColumns = 80;

// Counts a code point as one column; an escape sequence only makes the line shorter.
std::string_view first_columns(std::string_view text, size_t columns) {
  size_t at = 0;
  for (; at < text.size(); ++at) {
    const bool begins_character = (static_cast<unsigned char>(text[at]) & 0xC0) != 0x80;
    if (begins_character && columns-- == 0) break;
  }
  return text.substr(0, at);
}

}  // namespace

Sink::Sink(int fd) : fd_(fd), is_terminal_(isatty(fd) == 1) {}

size_t Sink::columns() const {
  winsize size{};
  if (ioctl(fd_, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kDefaultColumns;
  return size.ws_col;
}

void Sink::erase_live() {
  if (!live_drawn_) return;
  buffer_ += "\r\x1b[K";
  live_drawn_ = false;
}

void Sink::line(std::string_view prefix, std::string_view text) {
  if (broken_) return;
  erase_live();
  buffer_.append(prefix).append(text).push_back('\n');
}

void Sink::set_live(std::string_view prefix, std::string_view text) {
  if (!is_terminal_ || broken_ || text == live_) return;
  erase_live();
  live_prefix_ = prefix;
  live_ = text;
}

void Sink::draw_live() {
  if (live_drawn_ || live_.empty() || broken_) return;
  const size_t visible_prefix = live_prefix_.rfind(' ') + 1;  // a colour around it counts too
  const size_t width = columns() - 1;                         // a full row would wrap
  const size_t taken = live_prefix_.empty() ? 0 : std::min(visible_prefix, width);
  buffer_.append(live_prefix_).append(first_columns(live_, width - taken));
  live_drawn_ = true;
}

void Sink::write_some() {
  const size_t chunk_bytes = is_terminal_ ? kTerminalChunkBytes : kPipeChunkBytes;
  for (int chunk = 0; chunk < kChunksPerCall && !is_empty(); ++chunk) {
    pollfd ready{fd_, POLLOUT, 0};
    if (poll(&ready, 1, 0) != 1) break;
    const size_t bytes = std::min(chunk_bytes, buffer_.size() - written_);
    const ssize_t count = write(fd_, buffer_.data() + written_, bytes);
    if (count >= 0) {
      written_ += static_cast<size_t>(count);
    } else if (errno != EAGAIN && errno != EINTR) {
      broken_ = true;  // EPIPE, ENOSPC, EIO of a terminal that was closed
      discard();
    } else {
      break;
    }
  }
  if (is_empty()) {
    buffer_.clear();
    written_ = 0;
  } else if (written_ > kFullBytes) {
    buffer_.erase(0, written_);
    written_ = 0;
  }
}

void Sink::discard() {
  buffer_.clear();
  written_ = 0;
}

}  // namespace dt::cli
