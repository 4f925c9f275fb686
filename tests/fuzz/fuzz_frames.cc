// SPDX-License-Identifier: Apache-2.0
// The frame parser and the decoding of requests, fed with arbitrary bytes in arbitrary pieces.
// An input is the bytes of a piece less one, the request and the message that the rest is also read
// as, and the rest.
// Properties: no crash, no bytes lost by a different split, and what decodes encodes to the same.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "store/protocol.h"
#include "store/uplink.h"

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
  if (bytes < 3) return 0;
  const size_t step = size_t{data[0]} + 1;
  // The types of requests are below those of what the server sends.
  const uint8_t type = data[1] % static_cast<uint8_t>(FrameType::kReply);
  const uint8_t message = data[2];
  const char* stream = reinterpret_cast<const char*>(data) + 3;
  bytes -= 3;
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
  check_request({static_cast<FrameType>(type), 1, payload});
  switch (message % 7) {
    case 0: check_message<Verdict>(payload); break;
    case 1: check_message<Welcome>(payload); break;
    case 2: check_message<dt::ErrorInfo>(payload); break;
    case 3: check_message<JoinRecord>(payload); break;
    case 4: check_message<std::vector<DumpAnswer>>(payload); break;
    case 5: check_message<UplinkHello>(payload); break;
    default: check_message<GatherVerdict>(payload); break;
  }
  return 0;
}
