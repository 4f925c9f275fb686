// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "config/environment.h"

namespace dt::launch {

/// What torchrun reads of a rank that has failed: the file that TORCHELASTIC_ERROR_FILE names.
/// torchrun blames the rank whose file tells the earliest second; a rank without a file counts from
/// when torchrun finds it ended, which is after the others have failed because of it.
///
/// So a rank that fails because of another one of its torchrun writes that one's file too, unless
/// it has written one itself, with an earlier second than its own.
class ErrorFile {
 public:
  ErrorFile() = default;
  /// `rank` of the job, or -1 while it is not known. Without the variable nothing is ever written.
  ErrorFile(const Environment& variables, int32_t rank);

  bool named() const { return !path_.empty(); }
  /// Best effort. `now_s`: seconds since 1970.
  void write(const Status& status, int64_t now_s) const;

 private:
  /// Of another rank; empty where it has none that is known here.
  std::string path_of(int32_t rank) const;

  std::string path_;
  int32_t rank_ = -1;
  int32_t local_rank_ = -1;  // as torchrun counts; -1: others' files are not known
  int32_t local_size_ = 0;
};

}  // namespace dt::launch
