// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dt/dt.h>
#include <pthread.h>

#include <algorithm>
#include <cstdarg>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "base/status.h"
#include "capi/handles.h"
#include "cuda/runtime.h"

namespace dt::capi {

/// Keeps the error for dt_last_error() of this thread and returns its number.
dt_status record(const Status& status);

/// How many errors this thread has recorded.
uint64_t recorded();

/// As record(), without memory: `text` has at most 15 bytes.
dt_status record_short(Code code, const char* text) noexcept;

/// Fills a caller's dt_error_info of whatever size it has.
Status fill_error_info(const char* function, const ErrorInfo* info, dt_error_info* out);

/// One call of the C ABI: its name in messages, and the checks that all calls share.
class Call {
 public:
  explicit Call(const char* function) : function_(function) {}

  const char* function() const { return function_; }
  /// INVALID_ARGUMENT with the function's name in front.
  [[gnu::format(printf, 2, 3)]] Status invalid(const char* pattern, ...) const;

  /// The object behind a handle. T::kKind is its HandleKind.
  template <class T>
  Result<std::shared_ptr<T>> get(const void* handle, const char* argument) const {
    auto found = handle_table().find(handle, T::kKind);
    if (!found.ok()) {
      return Status(found.status().code(),
                    format("%s: %s %s", function_, argument, found.status().message().c_str()));
    }
    return std::static_pointer_cast<T>(std::move(found).value());
  }
  /// Opens a handle and stores it in *out.
  template <class T, class Handle>
  Status give(std::shared_ptr<T> object, Handle** out) const {
    DT_TRY_VALUE(void* const handle, handle_table().open(T::kKind, std::move(object)));
    *out = static_cast<Handle*>(handle);
    return {};
  }
  Status not_null(const void* pointer, const char* argument) const {
    return pointer != nullptr ? Status() : invalid("%s is NULL", argument);
  }
  /// A struct with struct_size that we fill: its size must be one that some version of dt had.
  Status known_size(uint32_t struct_size, size_t first_version, const char* argument,
                    const char* init) const;

 private:
  const char* const function_;
};

/// Puts off pthread_cancel() of the calling thread. A cancelled wait would unwind frames that hold
/// locks and that are noexcept, which ends the process.
class CancellationOff {
 public:
  CancellationOff() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~CancellationOff() { pthread_setcancelstate(before_, nullptr); }
  CancellationOff(const CancellationOff&) = delete;
  CancellationOff& operator=(const CancellationOff&) = delete;

 private:
  int before_ = PTHREAD_CANCEL_ENABLE;
};

/// Runs one call: the only place where exceptions end. Nothing of ours throws; the standard library
/// throws bad_alloc.
template <class F>
dt_status guard(const char* function, F&& body) noexcept {
  const CancellationOff cancellation_off;
  try {
    const Status status = std::forward<F>(body)(Call(function));
    return status.ok() ? DT_OK : record(status);
  } catch (const std::bad_alloc&) {
    return record_short(Code::kOutOfMemory, "out of memory");
  } catch (...) {
    return record_short(Code::kInternal, "bug: exception");
  }
}

/// Closes a handle; the object goes when the last reference does.
template <class T>
void destroy(const void* handle) noexcept {
  const CancellationOff cancellation_off;
  try {
    handle_table().close(handle, T::kKind);
  } catch (...) {  // a full free list: the slot is lost, nothing else
  }
}

/// A struct that a caller filled, of whatever size, as ours: missing fields are zero, fields that
/// we do not know must be zero.
template <class T>
Status read_options(const Call& call, const T* given, const char* argument, const char* init,
                    T* out) {
  memset(out, 0, sizeof *out);
  if (given == nullptr) return {};
  DT_TRY(call.known_size(given->struct_size, sizeof(uint32_t), argument, init));
  const size_t size = given->struct_size;
  memcpy(out, given, std::min(size, sizeof *out));
  if constexpr (requires { out->reserved; }) {
    if (out->reserved != 0) {
      return call.invalid("%s->reserved is not 0; begin with %s()", argument, init);
    }
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  for (size_t i = sizeof *out; i < size; ++i) {
    if (bytes[i] != 0) {
      return call.invalid("%s has a field at byte %zu that this library (%s) does not know",
                          argument, i, dt_version());
    }
  }
  return {};
}

/// Fills a field of a caller's struct: what does not fit is cut.
template <size_t N>
void copy_text(const std::string& text, char (&out)[N]) {
  const size_t length = std::min(text.size(), N - 1);
  memcpy(out, text.data(), length);
  out[length] = '\0';
}

/// Copies a text or bytes as dt_config_get() and dt_store_get() promise: cut to `capacity`.
/// `check_only`: looks at the arguments and copies nothing, for calls that first have an effect.
Status copy_out(const Call& call, const std::string& value, void* buffer, int64_t capacity,
                int64_t* out_bytes, bool check_only = false);

/// A stream as the core knows it.
inline cuda::Stream stream_of(dt_stream stream) { return static_cast<cuda::Stream>(stream); }

}  // namespace dt::capi
