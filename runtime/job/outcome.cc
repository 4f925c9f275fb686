// SPDX-License-Identifier: Apache-2.0
#include "job/outcome.h"

#include <algorithm>

#include "store/protocol.h"

namespace dt::job {
namespace {

constexpr size_t kReasonBytes = 2'000;

}  // namespace

std::string told(const Status& made) {
  if (made.ok()) return {};
  ErrorInfo info = made.info();
  info.message.resize(std::min(info.message.size(), kReasonBytes));
  return store::encode(info);
}

Status outcome(const std::vector<std::pair<int32_t, std::string>>& present, const Status& mine) {
  ErrorInfo cause;
  int32_t culprit = -1;
  for (const auto& [rank, says] : present) {
    ErrorInfo info;
    if (says.empty() || !store::decode(says, &info)) continue;
    if (culprit >= 0 && (cause.code != Code::kTimeout || info.code == Code::kTimeout)) continue;
    culprit = rank;
    cause = std::move(info);
  }
  if (culprit < 0) return {};
  if (!mine.ok() && (mine.code() != Code::kTimeout || cause.code == Code::kTimeout)) return mine;
  cause.message = format("rank %d could not make it: %s", culprit, cause.message.c_str());
  return Status(std::move(cause));
}

Status named(const Status& status, const std::string& what, const char* operation) {
  ErrorInfo info = status.info();
  if (info.message.rfind(what, 0) != 0) info.message = what + ": " + info.message;
  info.operation = operation;
  return Status(std::move(info));
}

}  // namespace dt::job
