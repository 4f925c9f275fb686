// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "base/status.h"
#include "cli/run/fd.h"
#include "cli/run/output.h"

namespace dt::cli {

/// Where the agent reads what one process writes.
class OutputPipes {
 public:
  /// `child_ends` are for the process.
  static Result<OutputPipes> create(std::array<Fd, kStreams.size()>* child_ends);

  int fd(Stream stream) const { return streams_[static_cast<size_t>(stream)].get(); }
  bool is_open(Stream stream) const { return fd(stream) >= 0; }
  /// Brings some of it to `output`, as that of `rank`. False: there was nothing to read.
  bool read_some(Stream stream, int rank, Output* output);
  void finish(Stream stream, int rank, Output* output);
  /// The process is dead, but others that it has started may still write: reads what is in the pipe
  /// now, and closes it.
  void finish_read(Stream stream, int rank, Output* output);
  /// Every writer is dead: what is not in the pipe now will never come. False: the reader of
  /// `output` takes no more for now.
  bool drain(Stream stream, int rank, Output* output);

 private:
  std::array<Fd, kStreams.size()> streams_;
};

}  // namespace dt::cli
