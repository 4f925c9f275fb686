// SPDX-License-Identifier: Apache-2.0
#include "store/torch_protocol.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "store/protocol.h"

namespace dt::store {
namespace {

constexpr int kNone = -1;

/// How an operation looks on the wire. `kNone`: the dialect lacks it.
struct Shape {
  TorchOp op;
  int old_number;
  int middle_number;
  int new_number;
  bool counted;     ///< a u64 says how many items follow
  uint8_t strings;  ///< of one item; the first is a key
  uint8_t number_bytes;
};

constexpr std::array<Shape, 20> kShapes = {{
    {TorchOp::kValidate, kNone, kNone, 0, false, 0, 4},
    {TorchOp::kSet, 0, 0, 1, false, 2, 0},
    {TorchOp::kCompareSet, 1, 1, 2, false, 3, 0},
    {TorchOp::kGet, 2, 2, 3, false, 1, 0},
    {TorchOp::kAdd, 3, 3, 4, false, 1, 8},
    {TorchOp::kCheck, 4, 4, 5, true, 1, 0},
    {TorchOp::kWait, 5, 5, 6, true, 1, 0},
    {TorchOp::kCountKeys, 6, 6, 7, false, 0, 0},
    {TorchOp::kErase, 8, 7, 8, false, 1, 0},
    {TorchOp::kAppend, kNone, 8, 9, false, 2, 0},
    {TorchOp::kMultiGet, kNone, 9, 10, true, 1, 0},
    {TorchOp::kMultiSet, kNone, 10, 11, true, 2, 0},
    {TorchOp::kCancelWait, kNone, 11, 12, false, 0, 0},
    {TorchOp::kPing, kNone, kNone, 13, false, 0, 4},
    {TorchOp::kQueuePush, kNone, kNone, 14, false, 2, 0},
    {TorchOp::kQueuePop, kNone, kNone, 15, false, 1, 0},
    {TorchOp::kQueueLength, kNone, kNone, 16, false, 1, 0},
    {TorchOp::kListKeys, kNone, kNone, 17, false, 0, 0},
    {TorchOp::kBarrier, kNone, kNone, 18, false, 1, 8},
    {TorchOp::kWatch, 7, kNone, kNone, false, 1, 0},
}};
constexpr int kLastOldOrMiddle = 11;
constexpr int kFirstOnlyMiddle = 9;
constexpr int kWatchOrErase = 7;

int number_of(const Shape& shape, TorchDialect dialect) {
  switch (dialect) {
    case TorchDialect::kOld: return shape.old_number;
    case TorchDialect::kMiddle: return shape.middle_number;
    case TorchDialect::kNew: break;
  }
  return shape.new_number;
}

const Shape* shape_of(int number, TorchDialect dialect) {
  const auto* const found = std::find_if(kShapes.begin(), kShapes.end(), [&](const Shape& shape) {
    return number_of(shape, dialect) == number;
  });
  return found == kShapes.end() ? nullptr : found;
}

const Shape& shape_of(TorchOp op) { return kShapes[static_cast<size_t>(op)]; }

template <class T>
T read_number(const char* bytes) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value |= static_cast<T>(static_cast<T>(static_cast<uint8_t>(bytes[i])) << (8 * i));
  }
  return value;
}

}  // namespace

bool may_begin_torch(char first_byte) {
  return static_cast<uint8_t>(first_byte) <= kLastOldOrMiddle;
}

// ---- TorchParser ----

void TorchParser::feed(const char* data, size_t bytes) {
  if (!status_.ok()) return;
  if (begin_ > buffer_.size() / 2) {
    buffer_.erase(0, begin_);
    begin_ = 0;
  }
  buffer_.append(data, bytes);
}

size_t TorchParser::kept_bytes() const {
  return buffer_.capacity() + request_bytes_ + request_.texts.capacity() * sizeof(std::string);
}

bool TorchParser::next(TorchRequest* out) {
  while (status_.ok() && !complete_) {
    if (advance()) continue;
    if (begin_ == buffer_.size()) {
      empty_buffer(&buffer_);
      begin_ = 0;
    }
    return false;
  }
  if (!status_.ok()) return false;
  *out = std::move(request_);
  request_ = {};
  request_bytes_ = 0;
  complete_ = false;
  first_ = false;
  return true;
}

// False: more bytes are needed, or the stream is broken.
bool TorchParser::advance() {
  switch (step_) {
    case Step::kBegin: return begin();
    case Step::kOp: return take_op();
    case Step::kCount: return take_count();
    case Step::kLength: return take_length();
    case Step::kBytes: return take_bytes();
    case Step::kNumber: return take_number();
  }
  return false;
}

bool TorchParser::fail(std::string message) {
  status_ = Status(Code::kInvalidArgument, "PyTorch's store protocol: " + std::move(message));
  buffer_.clear();
  begin_ = 0;
  return false;
}

template <class T>
bool TorchParser::take(T* value) {
  if (available() < sizeof(T)) return false;
  *value = read_number<T>(buffer_.data() + begin_);
  begin_ += sizeof(T);
  return true;
}

// An old client's first byte 0 is a set, whose next four bytes are the low half of a key's length:
// equal to the magic it would be a key of 1 GB.
bool TorchParser::begin() {
  if (available() == 0) return false;
  if (buffer_[begin_] == 0) {
    if (available() < 1 + sizeof kTorchMagic) return false;
    if (read_number<uint32_t>(buffer_.data() + begin_ + 1) == kTorchMagic) {
      dialect_ = TorchDialect::kNew;
    }
  }
  step_ = Step::kOp;
  return true;
}

bool TorchParser::take_op() {
  uint8_t number = 0;
  if (!take(&number)) return false;
  if (dialect_ == TorchDialect::kOld &&
      ((number >= kFirstOnlyMiddle && number <= kLastOldOrMiddle) ||
       (number == kWatchOrErase && !first_ && !watches_))) {
    dialect_ = TorchDialect::kMiddle;
  }
  const Shape* shape = shape_of(number, dialect_);
  if (shape == nullptr) return fail(format("there is no operation %u", unsigned{number}));
  if (shape->op == TorchOp::kWatch) watches_ = true;
  request_.op = shape->op;
  strings_left_ = shape->strings;
  append_is_open_ = shape->op == TorchOp::kErase && dialect_ == TorchDialect::kOld;
  if (shape->counted) {
    step_ = Step::kCount;
  } else if (strings_left_ > 0) {
    step_ = Step::kLength;
  } else {
    strings_end();
  }
  return true;
}

bool TorchParser::take_count() {
  uint64_t count = 0;
  if (!take(&count)) return false;
  if (count > kMaxTorchKeys) {
    return fail(format("%llu keys in one request are over the limit of %zu",
                       static_cast<unsigned long long>(count), kMaxTorchKeys));
  }
  strings_left_ = count * shape_of(request_.op).strings;
  if (strings_left_ > 0) {
    step_ = Step::kLength;
  } else {
    strings_end();
  }
  return true;
}

bool TorchParser::take_length() {
  if (!take(&length_)) return false;
  const bool is_key = request_.texts.size() % shape_of(request_.op).strings == 0;
  const size_t limit = is_key ? kMaxTorchKeyBytes : kMaxValueBytes;
  if (length_ > limit) {
    return fail(format("a %s of %llu bytes is over the limit of %zu bytes",
                       is_key ? "key" : "value", static_cast<unsigned long long>(length_), limit));
  }
  request_bytes_ += sizeof length_ + length_;
  if (request_bytes_ > kMaxTorchRequestBytes) {
    return fail(format("a request is over the limit of %zu bytes", kMaxTorchRequestBytes));
  }
  step_ = Step::kBytes;
  return true;
}

bool TorchParser::take_bytes() {
  if (available() < length_) return false;
  request_.texts.emplace_back(buffer_, begin_, length_);
  begin_ += length_;
  step_ = Step::kLength;
  if (--strings_left_ == 0) strings_end();
  return true;
}

void TorchParser::strings_end() {
  if (append_is_open_ && available() > 0) {
    // An old client says nothing more until its erase was answered.
    append_is_open_ = false;
    dialect_ = TorchDialect::kMiddle;
    request_.op = TorchOp::kAppend;
    strings_left_ = 1;
    step_ = Step::kLength;
    return;
  }
  if (shape_of(request_.op).number_bytes > 0) {
    step_ = Step::kNumber;
    return;
  }
  complete_ = true;
  step_ = Step::kOp;
}

bool TorchParser::take_number() {
  if (shape_of(request_.op).number_bytes == sizeof(uint32_t)) {
    uint32_t value = 0;
    if (!take(&value)) return false;
    request_.number = value;
    if (request_.op == TorchOp::kValidate && value != kTorchMagic) {
      return fail("the connection is validated with a wrong number");
    }
  } else {
    uint64_t value = 0;
    if (!take(&value)) return false;
    request_.number = static_cast<int64_t>(value);
  }
  complete_ = true;
  step_ = Step::kOp;
  return true;
}

// ---- the other direction ----

void append_torch_number(std::string* bytes, uint64_t value) {
  for (size_t i = 0; i < sizeof value; ++i) bytes->push_back(static_cast<char>(value >> (8 * i)));
}

void append_torch_text(std::string* bytes, std::string_view text) {
  append_torch_number(bytes, text.size());
  bytes->append(text);
}

bool torch_dialect_has(TorchDialect dialect, TorchOp op) {
  return number_of(shape_of(op), dialect) != kNone;
}

std::string encode_torch(const TorchRequest& request, TorchDialect dialect) {
  if (!torch_dialect_has(dialect, request.op)) return {};
  const Shape& shape = shape_of(request.op);
  std::string bytes(1, static_cast<char>(number_of(shape, dialect)));
  if (shape.counted) append_torch_number(&bytes, request.texts.size() / shape.strings);
  for (const std::string& text : request.texts) append_torch_text(&bytes, text);
  for (size_t i = 0; i < shape.number_bytes; ++i) {
    bytes.push_back(static_cast<char>(static_cast<uint64_t>(request.number) >> (8 * i)));
  }
  return bytes;
}

// ---- TorchReply ----

size_t TorchReply::feed(const char* data, size_t bytes) {
  size_t taken = 0;
  while (!done() && status_.ok()) {
    const char kind = items_.has_value() ? 's' : shape_[at_];
    const size_t wanted = length_.has_value() ? static_cast<size_t>(*length_)
                          : kind == 'b'       ? 1
                          : kind == 'u'       ? sizeof(uint32_t)
                                              : sizeof(uint64_t);
    const size_t piece = std::min(wanted - partial_.size(), bytes - taken);
    partial_.append(data + taken, piece);
    taken += piece;
    if (partial_.size() < wanted) break;
    if (length_.has_value()) {
      texts.push_back(std::move(partial_));
      length_.reset();
      if (items_.has_value() && --*items_ > 0) {
        partial_.clear();
        continue;
      }
      items_.reset();
      ++at_;
    } else if (kind == 'l') {
      items_ = read_number<uint64_t>(partial_.data());
      if (*items_ == 0) {
        items_.reset();
        ++at_;
      }
    } else if (kind == 's') {
      length_ = read_number<uint64_t>(partial_.data());
      if (*length_ > kMaxTorchRequestBytes) {
        status_ = Status(Code::kInternal,
                         format("a reply of %llu bytes is over the limit of %zu "
                                "bytes",
                                static_cast<unsigned long long>(*length_), kMaxTorchRequestBytes));
      }
    } else {
      numbers.push_back(kind == 'b' ? static_cast<uint8_t>(partial_[0])
                        : kind == 'u'
                            ? int64_t{read_number<uint32_t>(partial_.data())}
                            : static_cast<int64_t>(read_number<uint64_t>(partial_.data())));
      ++at_;
    }
    partial_.clear();
  }
  return taken;
}

}  // namespace dt::store
