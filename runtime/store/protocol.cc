// SPDX-License-Identifier: Apache-2.0
#include "store/protocol.h"

#include <cstring>

namespace dt::store {
namespace {

constexpr size_t kCompactBytes = 1 << 20;     // read bytes are dropped from the buffer beyond this
constexpr size_t kKeptBufferBytes = 4 << 10;  // of an empty buffer
constexpr unsigned kVarintBits = 7;           // in each byte of a varint
constexpr uint8_t kVarintMore = 1 << kVarintBits;  // set where another byte follows

template <class T>
void append_le(std::string* out, T value) {
  for (size_t i = 0; i < sizeof value; ++i) {
    out->push_back(static_cast<char>(static_cast<uint8_t>(value >> (8 * i))));
  }
}

template <class T>
T read_le(const void* from) {
  const uint8_t* bytes = static_cast<const uint8_t*>(from);
  T value = 0;
  for (size_t i = 0; i < sizeof value; ++i)
    value |= static_cast<T>(static_cast<T>(bytes[i]) << (8 * i));
  return value;
}

bool known_type(uint8_t type) {
  return (type >= static_cast<uint8_t>(FrameType::kHello) &&
          type <= static_cast<uint8_t>(FrameType::kResume)) ||
         (type >= static_cast<uint8_t>(FrameType::kReply) &&
          type <= static_cast<uint8_t>(FrameType::kDeparted));
}

Status broken(std::string text) { return Status(Code::kInvalidArgument, std::move(text)); }

}  // namespace

std::string encode_header(FrameType type, uint64_t id, size_t payload_bytes) {
  std::string out;
  append_le(&out, kMagic);
  append_le(&out, kFrameVersion);
  append_le(&out, static_cast<uint8_t>(type));
  append_le(&out, uint16_t{0});
  append_le(&out, static_cast<uint32_t>(payload_bytes));
  append_le(&out, id);
  return out;
}

std::string encode_frame(FrameType type, uint64_t id, std::string_view payload) {
  std::string out;
  out.reserve(kHeaderBytes + payload.size());
  out += encode_header(type, id, payload.size());
  out.append(payload);
  return out;
}

// ---- FrameParser ----

void empty_buffer(std::string* buffer) {
  if (buffer->capacity() > kKeptBufferBytes) std::string().swap(*buffer);
  buffer->clear();
}

void FrameParser::feed(const char* data, size_t bytes) {
  if (!status_.ok()) return;
  if (begin_ > kCompactBytes) {
    buffer_.erase(0, begin_);
    begin_ = 0;
  }
  buffer_.append(data, bytes);
}

bool FrameParser::next(Frame* out) {
  if (!status_.ok()) return false;
  if (begin_ == buffer_.size()) {
    empty_buffer(&buffer_);
    begin_ = 0;
  }
  const size_t available = buffer_.size() - begin_;
  const char* header = buffer_.data() + begin_;
  // The magic is checked as soon as its bytes are there: a foreign protocol may never send 20.
  char magic[sizeof kMagic];
  for (size_t i = 0; i < sizeof magic; ++i) magic[i] = static_cast<char>(kMagic >> (8 * i));
  if (memcmp(header, magic, available < sizeof magic ? available : sizeof magic) != 0) {
    status_ = broken("the bytes are not dt's store protocol; something else uses this port");
    return false;
  }
  if (available < kHeaderBytes) return false;
  const uint8_t version = read_le<uint8_t>(header + 4);
  const uint8_t type = read_le<uint8_t>(header + 5);
  const uint16_t flags = read_le<uint16_t>(header + 6);
  const uint32_t payload_bytes = read_le<uint32_t>(header + 8);
  if (version != kFrameVersion) {
    status_ = Status(Code::kVersion,
                     format("the frame has version %u, this side speaks %u; use the same release "
                            "of dt everywhere",
                            unsigned{version}, unsigned{kFrameVersion}));
    return false;
  }
  if (!known_type(type) || flags != 0) {
    status_ =
        broken(format("a frame of unknown type %u with flags %u", unsigned{type}, unsigned{flags}));
    return false;
  }
  if (payload_bytes > max_payload_bytes_) {
    status_ = broken(format("a frame of %u bytes is over the limit of %zu bytes", payload_bytes,
                            max_payload_bytes_));
    return false;
  }
  if (available - kHeaderBytes < payload_bytes) return false;
  out->type = static_cast<FrameType>(type);
  out->id = read_le<uint64_t>(header + 12);
  out->payload.assign(header + kHeaderBytes, payload_bytes);
  begin_ += kHeaderBytes + payload_bytes;
  return true;
}

// ---- Writer, Reader ----

Writer& Writer::u8(uint8_t value) {
  append_le(&bytes_, value);
  return *this;
}
Writer& Writer::u32(uint32_t value) {
  append_le(&bytes_, value);
  return *this;
}
Writer& Writer::u64(uint64_t value) {
  append_le(&bytes_, value);
  return *this;
}
Writer& Writer::text(std::string_view value) {
  append_le(&bytes_, static_cast<uint32_t>(value.size()));
  bytes_.append(value);
  return *this;
}

Writer& Writer::varint(uint64_t value) {
  for (; value >= kVarintMore; value >>= kVarintBits) {
    bytes_.push_back(static_cast<char>(static_cast<uint8_t>(value) | kVarintMore));
  }
  bytes_.push_back(static_cast<char>(value));
  return *this;
}

Writer& Writer::raw(std::string_view bytes) {
  bytes_.append(bytes);
  return *this;
}

bool Reader::take(void* out, size_t bytes) {
  if (!ok_ || rest_.size() < bytes) {
    ok_ = false;
    memset(out, 0, bytes);
    return false;
  }
  memcpy(out, rest_.data(), bytes);
  rest_.remove_prefix(bytes);
  return true;
}

uint8_t Reader::u8() {
  uint8_t raw;
  take(&raw, sizeof raw);
  return raw;
}
uint32_t Reader::u32() {
  char raw[4];
  take(raw, sizeof raw);
  return read_le<uint32_t>(raw);
}
uint64_t Reader::u64() {
  char raw[8];
  take(raw, sizeof raw);
  return read_le<uint64_t>(raw);
}

uint64_t Reader::varint() {
  uint64_t value = 0;
  for (unsigned shift = 0; shift < 8 * sizeof value; shift += kVarintBits) {
    const uint8_t byte = u8();
    value |= static_cast<uint64_t>(byte & (kVarintMore - 1)) << shift;
    if (byte < kVarintMore) return value;
  }
  ok_ = false;  // it does not end
  return 0;
}

std::string Reader::text(size_t max_bytes) { return take_text(u32(), max_bytes); }

std::string Reader::bytes(size_t max_bytes) { return take_text(varint(), max_bytes); }

std::string Reader::take_text(size_t bytes, size_t max_bytes) {
  if (!ok_ || bytes > max_bytes || bytes > rest_.size()) {
    ok_ = false;
    return {};
  }
  std::string value(rest_.substr(0, bytes));
  rest_.remove_prefix(bytes);
  return value;
}

size_t Reader::count(size_t min_item_bytes) {
  const size_t items = u32();
  if (!ok_ || items > rest_.size() / min_item_bytes) {
    ok_ = false;
    return 0;
  }
  return items;
}

// ---- requests ----

Status check_key(std::string_view key) {
  if (key.empty()) return broken("a key must not be empty");
  if (key.size() > kMaxKeyBytes) {
    return broken(
        format("a key of %zu bytes is over the limit of %zu bytes", key.size(), kMaxKeyBytes));
  }
  return {};
}

bool out_of_reach(std::string_view key) {
  return key.size() > kMaxKeyBytes || key.find('\0') != std::string_view::npos;
}

Status check_value(std::string_view value) {
  if (value.size() <= kMaxValueBytes) return {};
  return broken(
      format("a value of %zu bytes is over the limit of %zu bytes", value.size(), kMaxValueBytes));
}

namespace {

// The fields of each request, in order: k = one key, K = keys, v = one value, V = values,
// e = expected, n = number, t = timeout, j/h/f/a/b/o = join, hello, failure, activity, busy,
// orders, m = text, p = prefix, r = ranks.
// Encoder and decoder walk the same word, so they cannot drift apart.
const char* fields_of(FrameType type) {
  switch (type) {
    case FrameType::kHello: return "h";
    case FrameType::kSet: return "kv";
    case FrameType::kGet: return "kt";
    case FrameType::kAdd: return "kn";
    case FrameType::kWait: return "Kt";
    case FrameType::kCompareSet: return "kev";
    case FrameType::kErase: return "k";
    case FrameType::kList: return "p";
    case FrameType::kMultiGet: return "K";
    case FrameType::kMultiSet: return "KV";
    case FrameType::kBarrier: return "knt";
    case FrameType::kJoin: return "jt";
    case FrameType::kGoodbye: return "t";
    case FrameType::kAbort: return "m";
    case FrameType::kReportFailure: return "f";
    case FrameType::kAskPeer: return "nt";
    case FrameType::kDumpTraces: return "mt";
    case FrameType::kTraceDumped: return "nm";
    case FrameType::kBeat: return "a";
    case FrameType::kBusy: return "b";
    case FrameType::kGather: return "krvt";
    case FrameType::kOrders: return "o";
    case FrameType::kHeedsStop:
    case FrameType::kPing:
    case FrameType::kHere:
    case FrameType::kCancel: return "";
    case FrameType::kReply:
    case FrameType::kError:
    case FrameType::kFailure:
    case FrameType::kDumpTrace:
    case FrameType::kNotice:
    case FrameType::kStop:
    case FrameType::kDeparted:
    case FrameType::kUplink:
    case FrameType::kOpen:
    case FrameType::kData:
    case FrameType::kClose:
    case FrameType::kPause:
    case FrameType::kResume: return nullptr;
  }
  return nullptr;
}

void read_list(Reader* reader, size_t max_item_bytes, std::vector<std::string>* out) {
  const size_t items = reader->count(sizeof(uint32_t));
  if (items > kMaxKeysPerCall) {
    reader->text(0);
    return;
  }
  for (size_t i = 0; i < items && reader->ok(); ++i) out->push_back(reader->text(max_item_bytes));
}

bool read_field(char field, Reader* reader, Request* out) {
  switch (field) {
    case 'k':
    case 'p': out->keys.push_back(reader->text(kMaxKeyBytes)); break;
    case 'K': read_list(reader, kMaxKeyBytes, &out->keys); break;
    case 'v': out->values.push_back(reader->text(kMaxValueBytes)); break;
    case 'V': read_list(reader, kMaxValueBytes, &out->values); break;
    case 'e': {
      const bool present = reader->u8() != 0;
      std::string value = reader->text(kMaxValueBytes);
      if (present) out->expected = std::move(value);
      break;
    }
    case 'n': out->number = reader->i64(); break;
    case 't': out->timeout_ms = reader->i64(); break;
    case 'j': return decode(reader->text(kMaxPayloadBytes), &out->join);
    case 'h': return decode(reader->text(kMaxPayloadBytes), &out->hello);
    case 'f': return decode(reader->text(kMaxPayloadBytes), &out->failure);
    case 'a': return decode(reader->text(kMaxPayloadBytes), &out->activity);
    case 'b': return decode(reader->text(kMaxTextBytes), &out->busy);
    case 'o': return decode(reader->text(kMaxPayloadBytes), &out->orders);
    case 'm': out->text = reader->text(kMaxTextBytes); break;
    case 'r': {
      const size_t count = reader->count(sizeof(uint32_t));
      if (count > static_cast<size_t>(kMaxWorldSize)) return false;
      for (size_t i = 0; i < count && reader->ok(); ++i) out->ranks.push_back(reader->i32());
      break;
    }
    default: return false;
  }
  return reader->ok();
}

void write_field(char field, const Request& request, Writer* writer) {
  switch (field) {
    case 'k':
    case 'p': writer->text(request.keys.at(0)); break;
    case 'K':
      writer->u32(static_cast<uint32_t>(request.keys.size()));
      for (const std::string& key : request.keys) writer->text(key);
      break;
    case 'v': writer->text(request.values.at(0)); break;
    case 'V':
      writer->u32(static_cast<uint32_t>(request.values.size()));
      for (const std::string& value : request.values) writer->text(value);
      break;
    case 'e':
      writer->u8(request.expected.has_value() ? 1 : 0).text(request.expected.value_or(""));
      break;
    case 'n': writer->i64(request.number); break;
    case 't': writer->i64(request.timeout_ms); break;
    case 'j': writer->text(encode(request.join)); break;
    case 'h': writer->text(encode(request.hello)); break;
    case 'f': writer->text(encode(request.failure)); break;
    case 'a': writer->text(encode(request.activity)); break;
    case 'b': writer->text(encode(request.busy)); break;
    case 'r':
      writer->u32(static_cast<uint32_t>(request.ranks.size()));
      for (const int32_t rank : request.ranks) writer->i32(rank);
      break;
    case 'o': writer->text(encode(request.orders)); break;
    case 'm': writer->text(std::string_view(request.text).substr(0, kMaxTextBytes)); break;
    default: break;
  }
}

}  // namespace

Result<Request> decode_request(const Frame& frame) {
  const char* fields = fields_of(frame.type);
  if (fields == nullptr) {
    return broken(format("frame type %d is no request", static_cast<int>(frame.type)));
  }
  Request request;
  request.type = frame.type;
  request.id = frame.id;
  Reader reader(frame.payload);
  for (const char* field = fields; *field != '\0'; ++field) {
    if (!read_field(*field, &reader, &request)) {
      return broken(
          format("request type %d is malformed or over a limit (key %zu bytes, value "
                 "%zu bytes, %zu keys)",
                 static_cast<int>(frame.type), kMaxKeyBytes, kMaxValueBytes, kMaxKeysPerCall));
    }
  }
  if (!reader.done()) {
    return broken(format("request type %d has bytes left over", static_cast<int>(frame.type)));
  }
  if (frame.type != FrameType::kList) {
    for (const std::string& key : request.keys) DT_TRY(check_key(key));
  }
  if (frame.type == FrameType::kMultiSet && request.keys.size() != request.values.size()) {
    return broken("multi_set needs one value for each key");
  }
  if (frame.type == FrameType::kBarrier && (request.number < 1 || request.number > INT32_MAX)) {
    return broken("a barrier needs a count of 1 or more");
  }
  return request;
}

std::string encode_request(const Request& request) {
  Writer writer;
  const char* fields = fields_of(request.type);
  for (; fields != nullptr && *fields != '\0'; ++fields) write_field(*fields, request, &writer);
  return writer.take();
}

}  // namespace dt::store
