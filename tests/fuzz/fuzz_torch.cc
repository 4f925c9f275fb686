// SPDX-License-Identifier: Apache-2.0
// The parser of PyTorch's store protocol and what it makes the service do, fed with arbitrary bytes
// in arbitrary pieces. Properties: no crash, the same requests however the bytes are split (but for
// the one number whose meaning depends on it), what was parsed encodes to the same, and replies
// that are whole by their own lengths.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "store/keyspace.h"
#include "store/torch_protocol.h"
#include "store/torch_service.h"

namespace {

using namespace dt::store;

void require(bool holds) {
  if (!holds) std::abort();
}

struct Parsed {
  std::vector<TorchRequest> requests;
  std::vector<TorchDialect> dialects;
  bool broken = false;
  bool depends_on_split = false;
};

Parsed parse(const char* data, size_t bytes, size_t step) {
  TorchParser parser;
  Parsed parsed;
  TorchRequest request;
  for (size_t at = 0; at < bytes; at += step) {
    parser.feed(data + at, at + step < bytes ? step : bytes - at);
    while (parser.next(&request)) {
      parsed.requests.push_back(request);
      parsed.dialects.push_back(parser.dialect());
      if (parser.dialect() != TorchDialect::kNew &&
          (request.op == TorchOp::kErase || request.op == TorchOp::kAppend)) {
        parsed.depends_on_split = true;
      }
    }
  }
  parsed.broken = !parser.status().ok();
  // An append that has not come wholly does not show among the requests.
  parsed.depends_on_split |= parser.dialect() == TorchDialect::kMiddle;
  return parsed;
}

/// How the reply to each operation looks, for who knows what was asked.
std::string shape_of(const TorchRequest& request) {
  switch (request.op) {
    case TorchOp::kCompareSet:
    case TorchOp::kGet: return "s";
    case TorchOp::kAdd:
    case TorchOp::kCountKeys:
    case TorchOp::kErase:
    case TorchOp::kQueueLength: return "n";
    case TorchOp::kCheck:
    case TorchOp::kWatch:
    case TorchOp::kCancelWait: return "b";
    case TorchOp::kMultiGet: return std::string(request.texts.size(), 's');
    case TorchOp::kPing: return "u";
    default: return "";
  }
}

void check_reply(const TorchRequest& request, const std::string& reply) {
  std::string shape = shape_of(request);
  if (request.op == TorchOp::kQueuePop || request.op == TorchOp::kListKeys) {
    TorchReply number("n");
    number.feed(reply.data(), reply.size());
    require(number.done() && number.numbers[0] >= 0);
    const auto count = static_cast<size_t>(number.numbers[0]);
    shape = "n" + std::string(request.op == TorchOp::kListKeys ? count : count > 0 ? 1 : 0, 's');
  }
  TorchReply whole(shape);
  require(whole.feed(reply.data(), reply.size()) == reply.size());
  require(whole.done());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  if (bytes < 1) return 0;
  const size_t step = size_t{data[0]} + 1;
  const char* stream = reinterpret_cast<const char*>(data) + 1;
  bytes -= 1;
  const Parsed parsed = parse(stream, bytes, step);
  const Parsed whole = parse(stream, bytes, bytes == 0 ? 1 : bytes);
  if (!parsed.depends_on_split && !whole.depends_on_split) {
    require(parsed.requests.size() == whole.requests.size() && parsed.broken == whole.broken);
  }
  Keyspace keyspace(1 << 20);
  TorchService service(&keyspace);
  for (size_t i = 0; i < parsed.requests.size(); ++i) {
    const TorchRequest& request = parsed.requests[i];
    require(torch_dialect_has(parsed.dialects[i], request.op));
    const std::string encoded = encode_torch(request, parsed.dialects[i]);
    if (!parsed.depends_on_split && parsed.dialects[i] != TorchDialect::kNew) {
      TorchParser again;
      TorchRequest same;
      again.feed(encoded.data(), encoded.size());
      require(again.next(&same) && same.op == request.op && same.texts == request.texts &&
              same.number == request.number);
    }
    // Two clients, so that one can end what the other waits for.
    Answers answers;
    const auto reply = service.handle(1 + i % 2, parsed.dialects[i], request, &answers);
    if (reply.ok()) check_reply(request, reply.value().whole());
    for (const Answer& answer : answers) require(TorchService::reply_to_wait(answer).size() == 1);
    service.take_events();
    if (!reply.ok()) {
      keyspace.drop(1 + i % 2);
      service.drop(1 + i % 2);
    }
  }
  return 0;
}
