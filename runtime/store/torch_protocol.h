// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace dt::store {

// The protocol of PyTorch's TCPStore, as both of its sides need it. A request is a byte that says
// the operation and its arguments; nothing frames it. Numbers are little endian, a string is a u64
// length and its bytes. A reply has no header at all: replies come in the order of the requests,
// except that a wait is answered whenever its keys have come.

/// Which numbers the operations have. A store does not say it; the other side must know or find
/// out.
enum class TorchDialect {
  kOld,     ///< PyTorch up to 2.0
  kMiddle,  ///< about 2.1: the numbers of kOld without the watch, and more operations
  kNew,     ///< from 2.2 on: begins with kValidate
};

enum class TorchOp : uint8_t {
  kValidate,
  kSet,
  kCompareSet,
  kGet,
  kAdd,
  kCheck,
  kWait,
  kCountKeys,
  kErase,
  kAppend,
  kMultiGet,
  kMultiSet,
  kCancelWait,
  kPing,
  kQueuePush,
  kQueuePop,
  kQueueLength,
  kListKeys,
  kBarrier,
  kWatch,  ///< kOld only
};

inline constexpr uint32_t kTorchMagic = 0x3C85F7CE;   ///< the argument of kValidate
inline constexpr size_t kMaxTorchKeyBytes = 8 << 10;  ///< as PyTorch's libuv server
inline constexpr size_t kMaxTorchKeys = 128 << 10;    ///< in one request; likewise
inline constexpr size_t kMaxTorchRequestBytes = 64 << 20;

/// One answer byte each.
inline constexpr char kTorchReady = 0;          ///< to kCheck: all keys are there
inline constexpr char kTorchNotReady = 1;       ///< to kCheck
inline constexpr char kTorchStopWaiting = 0;    ///< to kWait: all keys have come
inline constexpr char kTorchWaitCancelled = 1;  ///< to kCancelWait
enum class TorchChange : uint8_t { kUpdated = 0, kCreated = 1, kDeleted = 2 };
inline constexpr char kTorchWatching = 3;  ///< to kWatch; each change follows as an event

struct TorchRequest {
  TorchOp op = TorchOp::kPing;
  /// The keys and values in the order of the wire: key; key, value; key, expected, desired; keys;
  /// key, value, key, value, ...
  std::vector<std::string> texts;
  int64_t number = 0;  ///< add: delta; barrier: count; ping and validate: the u32
};

/// True for the first byte of a connection of some PyTorch client. A frame of dt begins with 'd'.
bool may_begin_torch(char first_byte);

/// Cuts the byte stream of one client into requests, however it is split, and finds out which
/// dialect it is. Never reserves memory for bytes that have not come; each byte is looked at once.
///
/// Old and new clients differ in their first five bytes. kOld and kMiddle share what they both have
/// but for two numbers: 7 is kOld's watch, which its clients send on a connection of its own, or
/// kMiddle's erase; 8 is kOld's erase or kMiddle's append, whose value follows in the same piece
/// (the one case that depends on the split). An operation that only kMiddle has settles it.
class TorchParser {
 public:
  void feed(const char* data, size_t bytes);
  /// True: `out` is the next request. False: no whole request is there, or the stream is broken.
  bool next(TorchRequest* out);
  /// The memory that what has come of the next requests takes.
  size_t kept_bytes() const;
  /// Not ok: the bytes make no sense or pass a limit; no further request will come.
  const Status& status() const { return status_; }
  /// As far as it is known; kOld before the first five bytes.
  TorchDialect dialect() const { return dialect_; }

 private:
  enum class Step { kBegin, kOp, kCount, kLength, kBytes, kNumber };

  bool advance();
  bool begin();
  bool take_op();
  bool take_count();
  bool take_length();
  bool take_bytes();
  bool take_number();
  void strings_end();
  bool fail(std::string message);
  size_t available() const { return buffer_.size() - begin_; }
  template <class T>
  bool take(T* value);

  TorchDialect dialect_ = TorchDialect::kOld;
  std::string buffer_;
  size_t begin_ = 0;  // of the unread part of buffer_
  Step step_ = Step::kBegin;
  bool first_ = true;            // no request has been yielded
  bool complete_ = false;        // request_ is whole
  bool watches_ = false;         // the connection is kOld's second one
  bool append_is_open_ = false;  // kOld's erase, or kMiddle's append
  TorchRequest request_;
  uint64_t strings_left_ = 0;
  uint64_t length_ = 0;
  size_t request_bytes_ = 0;
  Status status_;
};

/// The bytes of a request. Empty where the dialect lacks the operation.
std::string encode_torch(const TorchRequest& request, TorchDialect dialect);
bool torch_dialect_has(TorchDialect dialect, TorchOp op);

void append_torch_number(std::string* bytes, uint64_t value);
void append_torch_text(std::string* bytes, std::string_view text);

/// Collects one reply. Never reserves memory for bytes that have not come.
class TorchReply {
 public:
  /// The shape is a word of: b a byte, n an i64, u a u32, s a string, l an i64 and so many strings.
  explicit TorchReply(std::string shape) : shape_(std::move(shape)) {}

  /// Takes what it needs; returns how much that was. Less than `bytes` only once it is done.
  size_t feed(const char* data, size_t bytes);
  bool done() const { return at_ == shape_.size(); }
  /// Not ok: a string is longer than `kMaxTorchRequestBytes`.
  const Status& status() const { return status_; }

  std::vector<std::string> texts;
  std::vector<int64_t> numbers;  ///< bytes too

 private:
  const std::string shape_;
  size_t at_ = 0;
  std::optional<uint64_t> items_;  // of a list that are to come
  std::optional<uint64_t> length_;
  std::string partial_;
  Status status_;
};

}  // namespace dt::store
