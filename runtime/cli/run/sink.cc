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

// The length of the escape sequence that begins here, such as "\x1b[36m"; 0: none does.
size_t escape_bytes(std::string_view text) {
  if (text.size() < 2 || text[0] != '\x1b' || text[1] != '[') return 0;
  size_t at = 2;
  while (at < text.size() && (text[at] < '@' || text[at] > '~')) ++at;
  return std::min(at + 1, text.size());
}

// Appends what fits into `columns` and returns how many are left. A code point counts as one
// column, an escape sequence as none: those behind the cut are kept, for they may end a colour.
size_t append_columns(std::string_view text, size_t columns, std::string* out) {
  bool cut = false;
  for (size_t at = 0; at < text.size();) {
    const size_t escape = escape_bytes(text.substr(at));
    const bool begins_character = (static_cast<unsigned char>(text[at]) & 0xC0) != 0x80;
    if (escape == 0 && begins_character) {
      cut = columns == 0;
      if (!cut) --columns;
    }
    const size_t bytes = std::max<size_t>(escape, 1);
    if (escape > 0 || !cut) out->append(text.substr(at, bytes));
    at += bytes;
  }
  return columns;
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
  if (is_broken()) return;
  erase_live();
  buffer_.append(prefix).append(text).push_back('\n');
}

void Sink::set_live(std::string_view prefix, std::string_view text) {
  if (!is_terminal_ || is_broken() || text == live_) return;
  erase_live();
  live_prefix_ = prefix;
  live_ = text;
}

void Sink::draw_live() {
  if (live_drawn_ || live_.empty() || is_broken()) return;
  const size_t width = columns() - 1;  // a full row would wrap
  append_columns(live_, append_columns(live_prefix_, width, &buffer_), &buffer_);
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
      error_ = errno;
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
