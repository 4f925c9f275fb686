// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>

namespace dt {

/// What a call's failure asks of the program. Values equal dt_status (asserted in runtime/capi).
enum class Code : int32_t {
  kOk = 0,
  // fix the call
  kInvalidArgument = 1,
  kInvalidState = 2,
  kUnsupported = 3,
  kVersion = 4,
  // fix the machine
  kConfig = 11,
  kOutOfMemory = 12,
  kSystem = 13,
  kCuda = 14,
  kNccl = 15,
  // go on with dt_comm_shrink
  kTimeout = 21,
  kPeerLost = 22,
  kMismatch = 23,
  kAborted = 24,
  // report a bug
  kInternal = 31,
};

/// "PEER_LOST": the name without the prefix DT_ERR_.
const char* code_name(Code code);

/// A failure as data. Written once, by whoever finds it.
struct ErrorInfo {
  Code code = Code::kInternal;
  std::string message;    ///< what, where, why, next
  int32_t rank = -1;      ///< world rank behind the failure, -1 unknown
  std::string host;       ///< that rank's host, empty unknown
  int64_t pid = 0;        ///< that rank's process, 0 unknown
  std::string operation;  ///< "allreduce", empty none
  int64_t sequence = -1;  ///< of the operation on its communicator, -1 none
};

/// Success, or an immutable ErrorInfo shared by everyone who reports it. Copies are cheap.
class [[nodiscard]] Status {
 public:
  Status() = default;
  explicit Status(ErrorInfo info) : info_(std::make_shared<const ErrorInfo>(std::move(info))) {}
  Status(Code code, std::string message) : Status(make_info(code, std::move(message))) {}

  bool ok() const { return info_ == nullptr; }
  Code code() const { return info_ ? info_->code : Code::kOk; }
  /// Valid only when not ok().
  const ErrorInfo& info() const { return *info_; }
  const std::string& message() const;
  /// The same failure with `where` set in front: "where: message".
  Status within(const std::string& where) const;

 private:
  static ErrorInfo make_info(Code code, std::string message) {
    ErrorInfo info;
    info.code = code;
    info.message = std::move(message);
    return info;
  }

  std::shared_ptr<const ErrorInfo> info_;
};

/// A value, or the Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Status status) : state_(std::in_place_index<1>, std::move(status)) {}

  bool ok() const { return state_.index() == 0; }
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  Status status() const { return ok() ? Status() : std::get<1>(state_); }

 private:
  std::variant<T, Status> state_;
};

/// Text of an errno value: "Connection refused".
std::string errno_text(int error);

/// printf into a std::string.
[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...);

}  // namespace dt

#define DT_CONCAT_INNER(a, b) a##b
#define DT_CONCAT(a, b) DT_CONCAT_INNER(a, b)

/// Returns the Status of `expression` from the function around it unless it is ok.
#define DT_TRY(expression)                                                                    \
  do {                                                                                        \
    if (::dt::Status dt_try_status = (expression); !dt_try_status.ok()) return dt_try_status; \
  } while (false)

/// `DT_TRY_VALUE(auto port, listen());`: declares the value, or returns the Status.
#define DT_TRY_VALUE(declaration, expression)                                                 \
  auto DT_CONCAT(dt_result_, __LINE__) = (expression);                                        \
  if (!DT_CONCAT(dt_result_, __LINE__).ok()) return DT_CONCAT(dt_result_, __LINE__).status(); \
  declaration = std::move(DT_CONCAT(dt_result_, __LINE__)).value()
