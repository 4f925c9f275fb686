// SPDX-License-Identifier: Apache-2.0
#include "cli/run/output_pipes.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace dt::cli {
namespace {

constexpr size_t kReadBytes = 64 * 1024;  // a pipe's usual size

}  // namespace

Result<OutputPipes> OutputPipes::create(std::array<Fd, kStreams.size()>* child_ends) {
  OutputPipes pipes;
  for (size_t i = 0; i < kStreams.size(); ++i) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
      return Status(Code::kSystem, "no pipe for its output: " + errno_text(errno) +
                                       "; raise the limit of open files (ulimit -n)");
    }
    pipes.streams_[i].reset(ends[0]);
    (*child_ends)[i].reset(ends[1]);
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
  }
  return pipes;
}

bool OutputPipes::read_some(Stream stream, int rank, Output* output) {
  if (output->is_pointless(stream)) {
    finish(stream, rank, output);  // the process then gets SIGPIPE, as it would without dt
    return false;
  }
  std::array<char, kReadBytes> buffer;
  const ssize_t bytes = read(fd(stream), buffer.data(), buffer.size());
  if (bytes > 0) {
    output->feed(rank, stream, {buffer.data(), static_cast<size_t>(bytes)});
    return true;
  }
  if (bytes == 0) finish(stream, rank, output);
  return false;
}

void OutputPipes::finish(Stream stream, int rank, Output* output) {
  if (!is_open(stream)) return;
  streams_[static_cast<size_t>(stream)].reset();
  output->finish(rank, stream);
}

void OutputPipes::finish_read(Stream stream, int rank, Output* output) {
  int waiting = 0;
  if (is_open(stream) && ioctl(fd(stream), FIONREAD, &waiting) != 0) waiting = 0;
  // A read takes all there is, up to kReadBytes.
  for (size_t left = static_cast<size_t>(waiting); left > 0 && is_open(stream);
       left -= std::min(left, kReadBytes)) {
    if (!read_some(stream, rank, output)) break;
  }
  finish(stream, rank, output);
}

bool OutputPipes::drain(Stream stream, int rank, Output* output) {
  while (is_open(stream)) {
    if (!output->accepts(stream)) return false;
    if (!read_some(stream, rank, output)) finish(stream, rank, output);
  }
  return true;
}

}  // namespace dt::cli
