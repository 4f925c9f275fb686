// SPDX-License-Identifier: Apache-2.0
#include "capi/call.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstring>

#include "base/dtype.h"
#include "base/log.h"

namespace dt::capi {
namespace {

static_assert(static_cast<int>(Code::kVersion) == DT_ERR_VERSION &&
              static_cast<int>(Code::kConfig) == DT_ERR_CONFIG &&
              static_cast<int>(Code::kNccl) == DT_ERR_NCCL &&
              static_cast<int>(Code::kTimeout) == DT_ERR_TIMEOUT &&
              static_cast<int>(Code::kAborted) == DT_ERR_ABORTED &&
              static_cast<int>(Code::kInternal) == DT_ERR_INTERNAL);
static_assert(static_cast<int>(Dtype::kF64) == DT_F64 && static_cast<int>(Dtype::kF16) == DT_F16 &&
              static_cast<int>(Dtype::kBool) == DT_BOOL &&
              static_cast<int>(Dtype::kF8E5M2) == DT_F8E5M2 &&
              static_cast<int>(ReduceOp::kMax) == DT_MAX &&
              static_cast<int>(ReduceOp::kBxor) == DT_BXOR &&
              static_cast<int>(LogLevel::kDebug) == DT_LOG_DEBUG);

/// The calling thread's last error.
struct LastError {
  uint64_t count = 0;  // so far
  ErrorInfo info;
};

LastError& last_error() {
  thread_local LastError error;
  return error;
}

}  // namespace

dt_status record(const Status& status) {
  LastError& error = last_error();
  ++error.count;
  error.info = status.info();
  return static_cast<dt_status>(error.info.code);
}

uint64_t recorded() { return last_error().count; }

dt_status record_short(Code code, const char* text) noexcept {
  LastError& error = last_error();
  ++error.count;
  error.info = ErrorInfo();
  error.info.code = code;
  error.info.message = text;
  return static_cast<dt_status>(code);
}

Status Call::invalid(const char* pattern, ...) const {
  char text[512];
  va_list args;
  va_start(args, pattern);
  vsnprintf(text, sizeof text, pattern, args);
  va_end(args);
  return Status(Code::kInvalidArgument, format("%s: %s", function_, text));
}

Status Call::known_size(uint32_t struct_size, size_t first_version, const char* argument,
                        const char* init) const {
  constexpr uint32_t kLargest = 1 << 16;  // larger is not a size but garbage
  if (struct_size >= first_version && struct_size <= kLargest) return {};
  return invalid("%s->struct_size is %u; initialise the struct with %s()", argument, struct_size,
                 init);
}

Status fill_error_info(const char* function, const ErrorInfo* info, dt_error_info* out) {
  const Call call(function);
  DT_TRY(call.not_null(out, "out_info"));
  DT_TRY(
      call.known_size(out->struct_size, sizeof(dt_error_info), "out_info", "dt_error_info_init"));
  dt_error_info filled;
  dt_error_info_init(&filled);
  filled.rank = -1;
  filled.sequence = -1;
  if (info != nullptr) {
    filled.status = static_cast<dt_status>(info->code);
    filled.rank = info->rank;
    filled.pid = info->pid;
    filled.sequence = info->sequence;
    copy_text(info->host, filled.host);
    copy_text(info->operation, filled.operation);
    copy_text(info->message, filled.message);
  }
  filled.struct_size = out->struct_size;
  memcpy(out, &filled, std::min<size_t>(out->struct_size, sizeof filled));
  return {};
}

Status copy_out(const Call& call, const std::string& value, void* buffer, int64_t capacity,
                int64_t* out_bytes, bool check_only) {
  DT_TRY(call.not_null(out_bytes, "out_bytes"));
  if (capacity < 0) return call.invalid("capacity_bytes is %lld", static_cast<long long>(capacity));
  if (capacity > 0) DT_TRY(call.not_null(buffer, "buffer"));
  if (check_only) return {};
  const size_t bytes = std::min(value.size(), static_cast<size_t>(capacity));
  if (bytes > 0) memcpy(buffer, value.data(), bytes);
  *out_bytes = static_cast<int64_t>(value.size());
  return {};
}

}  // namespace dt::capi

extern "C" {

const char* dt_status_name(dt_status status) {
  switch (status) {
    case DT_OK: return "DT_OK";
    case DT_ERR_INVALID_ARGUMENT: return "DT_ERR_INVALID_ARGUMENT";
    case DT_ERR_INVALID_STATE: return "DT_ERR_INVALID_STATE";
    case DT_ERR_UNSUPPORTED: return "DT_ERR_UNSUPPORTED";
    case DT_ERR_VERSION: return "DT_ERR_VERSION";
    case DT_ERR_CONFIG: return "DT_ERR_CONFIG";
    case DT_ERR_OUT_OF_MEMORY: return "DT_ERR_OUT_OF_MEMORY";
    case DT_ERR_SYSTEM: return "DT_ERR_SYSTEM";
    case DT_ERR_CUDA: return "DT_ERR_CUDA";
    case DT_ERR_NCCL: return "DT_ERR_NCCL";
    case DT_ERR_TIMEOUT: return "DT_ERR_TIMEOUT";
    case DT_ERR_PEER_LOST: return "DT_ERR_PEER_LOST";
    case DT_ERR_MISMATCH: return "DT_ERR_MISMATCH";
    case DT_ERR_ABORTED: return "DT_ERR_ABORTED";
    case DT_ERR_INTERNAL: return "DT_ERR_INTERNAL";
    case DT_STATUS_FORCE32: break;
  }
  return "DT_ERR_UNKNOWN";
}

const char* dt_last_error(void) { return dt::capi::last_error().info.message.c_str(); }

dt_status dt_last_error_info(dt_error_info* out_info) {
  // Not recorded: asking for the last error must not replace it, unless the question is wrong.
  return dt::capi::guard("dt_last_error_info", [&](const dt::capi::Call& call) {
    const auto& error = dt::capi::last_error();
    return dt::capi::fill_error_info(call.function(), error.count > 0 ? &error.info : nullptr,
                                     out_info);
  });
}

}  // extern "C"
