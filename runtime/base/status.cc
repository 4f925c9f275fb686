// SPDX-License-Identifier: Apache-2.0
#include "base/status.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace dt {

const char* code_name(Code code) {
  switch (code) {
    case Code::kOk: return "OK";
    case Code::kInvalidArgument: return "INVALID_ARGUMENT";
    case Code::kInvalidState: return "INVALID_STATE";
    case Code::kUnsupported: return "UNSUPPORTED";
    case Code::kVersion: return "VERSION";
    case Code::kConfig: return "CONFIG";
    case Code::kOutOfMemory: return "OUT_OF_MEMORY";
    case Code::kSystem: return "SYSTEM";
    case Code::kCuda: return "CUDA";
    case Code::kNccl: return "NCCL";
    case Code::kTimeout: return "TIMEOUT";
    case Code::kPeerLost: return "PEER_LOST";
    case Code::kMismatch: return "MISMATCH";
    case Code::kAborted: return "ABORTED";
    case Code::kInternal: return "INTERNAL";
  }
  return "UNKNOWN";
}

const std::string& Status::message() const {
  static const std::string empty;
  return info_ ? info_->message : empty;
}

Status Status::within(const std::string& where) const {
  if (ok()) return {};
  ErrorInfo info = *info_;
  info.message = where + ": " + info.message;
  return Status(std::move(info));
}

std::string errno_text(int error) {
  char buffer[128];
  return strerror_r(error, buffer, sizeof buffer);
}

std::string format(const char* pattern, ...) {
  va_list args;
  va_start(args, pattern);
  va_list again;
  va_copy(again, args);
  const int length = vsnprintf(nullptr, 0, pattern, args);
  va_end(args);
  std::string text(length > 0 ? static_cast<size_t>(length) : 0, '\0');
  if (length > 0) vsnprintf(text.data(), text.size() + 1, pattern, again);
  va_end(again);
  return text;
}

}  // namespace dt
