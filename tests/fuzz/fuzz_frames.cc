// SPDX-License-Identifier: Apache-2.0
// The frame parser and the decoding of requests, fed with arbitrary bytes in arbitrary pieces.
// Properties: no crash, no bytes lost by a different split, and what decodes encodes to the same.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "store/protocol.h"

namespace {

using namespace dt::store;

void require(bool holds) {
  if (!holds) std::abort();
}

std::vector<Frame> parse(const char* data, size_t bytes, size_t step, bool* broken) {
  FrameParser parser(1 << 16);
  std::vector<Frame> frames;
  Frame frame;
  for (size_t at = 0; at < bytes; at += step) {
    parser.feed(data + at, at + step < bytes ? step : bytes - at);
    while (parser.next(&frame)) frames.push_back(frame);
  }
  *broken = !parser.status().ok();
  return frames;
}

void check_request(const Frame& frame) {
  const dt::Result<Request> decoded = decode_request(frame);
  if (!decoded.ok()) return;
  const std::string payload = encode_request(decoded.value());
  const dt::Result<Request> again = decode_request({frame.type, frame.id, payload});
  require(again.ok());
  require(encode_request(again.value()) == payload);
}

template <class Message>
void check_message(const std::string& bytes) {
  Message message;
  if (!decode(bytes, &message)) return;
  const std::string encoded = encode(message);
  Message again;
  require(decode(encoded, &again));
  require(encode(again) == encoded);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  if (bytes < 2) return 0;
  const size_t step = size_t{data[0]} + 1;
  const uint8_t type = data[1];
  const char* stream = reinterpret_cast<const char*>(data) + 2;
  bytes -= 2;
  bool broken = false;
  bool broken_whole = false;
  const std::vector<Frame> frames = parse(stream, bytes, step, &broken);
  const std::vector<Frame> whole = parse(stream, bytes, bytes == 0 ? 1 : bytes, &broken_whole);
  require(frames.size() == whole.size() && broken == broken_whole);
  for (size_t i = 0; i < frames.size(); ++i) {
    require(frames[i].payload == whole[i].payload && frames[i].id == whole[i].id);
    check_request(frames[i]);
  }
  // The same bytes as a payload: the fuzzer need not find the header first.
  const std::string payload(stream, bytes);
  check_request({static_cast<FrameType>(type % 22), 1, payload});
  if (type % 5 == 4) {
    std::vector<DumpAnswer> answers;
    std::vector<DumpAnswer> again;
    if (decode(payload, &answers)) {
      const std::string encoded = encode(answers);
      require(decode(encoded, &again) && encode(again) == encoded);
    }
  }
  switch (type % 4) {
    case 0: check_message<Verdict>(payload); break;
    case 1: check_message<Welcome>(payload); break;
    case 2: check_message<dt::ErrorInfo>(payload); break;
    default: check_message<JoinRecord>(payload); break;
  }
  return 0;
}
