// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "store/messages.h"

namespace dt::store {

// A frame, little endian: magic u32, version u8, type u8, flags u16 (zero), payload bytes u32,
// request id u64, payload. Requests and their answers carry the same id; pushes carry 0.

inline constexpr uint32_t kMagic = 0x74537464;  // "dtSt": no TCPStore client starts with a 'd'
inline constexpr uint8_t kFrameVersion = 1;
inline constexpr uint32_t kProtocolVersion = 8;
inline constexpr size_t kHeaderBytes = 20;

inline constexpr size_t kMaxKeyBytes = 1 << 10;
inline constexpr size_t kMaxValueBytes = 16 << 20;
inline constexpr size_t kMaxKeysPerCall = 65536;
inline constexpr size_t kMaxPayloadBytes = 64 << 20;
inline constexpr size_t kMaxHelloBytes = 16 << 10;  ///< until the hello was accepted
inline constexpr size_t kMaxTextBytes = 16 << 10;   ///< an error's message; longer ones are cut

enum class FrameType : uint8_t {
  kHello = 1,
  kSet = 2,
  kGet = 3,
  kAdd = 4,
  kWait = 5,
  kCompareSet = 6,
  kErase = 7,
  kList = 8,
  kMultiGet = 9,
  kMultiSet = 10,
  kBarrier = 11,
  kJoin = 12,
  kGoodbye = 13,
  kAbort = 14,
  kReportFailure = 15,
  kPing = 16,
  kCancel = 17,       ///< withdraws the pending request with the same id; has no answer
  kAskPeer = 18,      ///< whether a rank's process answers at this moment
  kHere = 19,         ///< it does: the answer to a pushed kPing, with its id; has no answer itself
  kDumpTraces = 20,   ///< asks all ranks to write their traces; answered with a list of DumpAnswer
  kTraceDumped = 21,  ///< a rank has, or could not: the answer to a pushed kDumpTrace, with its id
  kBeat = 23,         ///< a sign of life, with what the rank does; pushed back without; no answer
  kBusy = 24,         ///< the rank is away for a while, or back; pushed on to all
  kHeedsStop = 25,    ///< the rank will end when it is asked to stop
  kGather = 26,       ///< the ranks of a communicator come together after a failure
  kOrders = 27,       ///< what the rank has called on a communicator over devices; no answer
  // of an uplink, see uplink.h
  kUplink = 28,
  kOpen = 29,
  kData = 30,
  kClose = 31,
  kPause = 32,
  kResume = 33,
  // from the server, and kPing, pushed with an id
  kReply = 64,      ///< payload by request
  kError = 65,      ///< ErrorInfo; id 0: about the connection, which is then closed
  kFailure = 66,    ///< Failure, pushed
  kDumpTrace = 68,  ///< asks a rank to write its trace, pushed with an id: the directory
  kNotice = 70,     ///< a text for the log of rank 0, pushed
  kStop = 71,       ///< the ranks shall stop, pushed
  kDeparted = 72,   ///< ranks that have said goodbye, pushed to those that have not
};

struct Frame {
  FrameType type = FrameType::kPing;
  uint64_t id = 0;
  std::string payload;
};

/// The header of a frame whose payload follows in a piece of its own.
std::string encode_header(FrameType type, uint64_t id, size_t payload_bytes);
/// Header and payload in one piece.
std::string encode_frame(FrameType type, uint64_t id, std::string_view payload);

/// Empties the buffer of a parser, and gives back the memory that a large request took.
void empty_buffer(std::string* buffer);

/// Cuts a byte stream into frames, however it is split. Holds at most one frame beyond what was
/// fed last, and never reserves memory for bytes that have not come.
class FrameParser {
 public:
  explicit FrameParser(size_t max_payload_bytes) : max_payload_bytes_(max_payload_bytes) {}

  void set_max_payload(size_t bytes) { max_payload_bytes_ = bytes; }
  void feed(const char* data, size_t bytes);
  size_t kept_bytes() const { return buffer_.capacity(); }
  /// A part of the next frame is there.
  bool has_part() const { return begin_ < buffer_.size(); }
  /// True: `out` is the next frame. False: no whole frame is there, or the stream is broken.
  bool next(Frame* out);
  /// Not ok: the stream makes no sense; no further frame will come.
  const Status& status() const { return status_; }

 private:
  size_t max_payload_bytes_;
  std::string buffer_;
  size_t begin_ = 0;  // of the unread part of buffer_
  Status status_;
};

/// Appends little-endian values. Strings are u32 length, then bytes.
class Writer {
 public:
  Writer& u8(uint8_t value);
  Writer& u32(uint32_t value);
  Writer& u64(uint64_t value);
  Writer& i32(int32_t value) { return u32(static_cast<uint32_t>(value)); }
  Writer& i64(int64_t value) { return u64(static_cast<uint64_t>(value)); }
  Writer& text(std::string_view value);
  /// Seven bits a byte, the lowest first: small numbers are short.
  Writer& varint(uint64_t value);
  /// Bytes that a Writer made before.
  Writer& raw(std::string_view bytes);
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// Reads what Writer wrote. After the first shortage every value is zero and done() is false.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  uint8_t u8();
  uint32_t u32();
  uint64_t u64();
  int32_t i32() { return static_cast<int32_t>(u32()); }
  int64_t i64() { return static_cast<int64_t>(u64()); }
  std::string text(size_t max_bytes);
  uint64_t varint();
  /// As text(), but its length is a varint.
  std::string bytes(size_t max_bytes);
  /// A count of items of at least `min_item_bytes` each: more than can follow is a failure, so that
  /// a lie costs no memory.
  size_t count(size_t min_item_bytes);
  bool ok() const { return ok_; }
  /// Everything was read and nothing is left.
  bool done() const { return ok_ && rest_.empty(); }

 private:
  bool take(void* out, size_t bytes);
  std::string take_text(size_t bytes, size_t max_bytes);

  std::string_view rest_;
  bool ok_ = true;
};

/// A request as the server sees it; which fields count depends on the type.
struct Request {
  FrameType type = FrameType::kPing;
  uint64_t id = 0;
  std::vector<std::string> keys;    ///< list: the prefix; barrier, gather: the name
  std::vector<std::string> values;  ///< set, compare_set, gather: one; multi_set: as many as keys
  std::optional<std::string> expected;
  std::vector<int32_t> ranks;  ///< gather: the members
  int64_t number = 0;  ///< add: delta; barrier: count; ask_peer: rank; trace_dumped: 1 written
  /// get, wait, barrier, join, goodbye, ask_peer, dump_traces, gather: until the server gives up;
  /// -1 never
  int64_t timeout_ms = -1;
  Hello hello;
  JoinRecord join;
  Failure failure;    ///< report_failure
  Activity activity;  ///< beat
  Busy busy;          ///< busy
  Orders orders;      ///< orders
  std::string text;   ///< abort; dump_traces: the directory; trace_dumped: the file, or why not
};

/// Checks every limit. INVALID_ARGUMENT says which one was broken.
Result<Request> decode_request(const Frame& frame);
/// The payload of a request: the inverse of decode_request. For the client.
std::string encode_request(const Request& request);

/// INVALID_ARGUMENT for an empty or too long key.
Status check_key(std::string_view key);
/// PyTorch's clients may choose keys that no call of dt can name.
bool out_of_reach(std::string_view key);
Status check_value(std::string_view value);

}  // namespace dt::store
