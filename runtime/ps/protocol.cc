// SPDX-License-Identifier: Apache-2.0
#include "ps/protocol.h"

#include <cmath>
#include <cstring>

#include "base/byte_codec.h"
#include "base/xxh64.h"

namespace dt::ps {

uint64_t session_of(const std::string& job_id) {
  return xxh64(job_id.data(), job_id.size(), 0x5053);
}

std::string encode(const Enter& enter) {
  ByteWriter out;
  out.put(enter.version);
  out.put(enter.nonce);
  out.put(enter.clock);
  out.put(static_cast<int32_t>(enter.keeps_clock));
  out.put(enter.host);
  out.put(enter.pid);
  return out.take();
}

bool decode(std::string_view bytes, Enter* out) {
  ByteReader in(bytes);
  out->version = in.get<uint32_t>();
  out->nonce = in.get<uint64_t>();
  out->clock = in.get<int64_t>();
  out->keeps_clock = in.get<int32_t>() != 0;
  out->host = in.text();
  out->pid = in.get<int64_t>();
  return in.complete();
}

std::string encode(const Welcome& welcome) {
  ByteWriter out;
  out.put(welcome.last_change);
  out.put(welcome.lowest_clock);
  out.put(welcome.host);
  out.put(welcome.pid);
  return out.take();
}

bool decode(std::string_view bytes, Welcome* out) {
  ByteReader in(bytes);
  out->last_change = in.get<uint64_t>();
  out->lowest_clock = in.get<int64_t>();
  out->host = in.text();
  out->pid = in.get<int64_t>();
  return in.complete();
}

std::string encode(const OpenRequest& request) {
  ByteWriter out;
  out.put(static_cast<int32_t>(request.existed));
  out.put(request.variable);
  return out.take();
}

bool decode(std::string_view bytes, OpenRequest* out) {
  ByteReader in(bytes);
  out->existed = in.get<int32_t>() != 0;
  out->variable = in.text();
  return in.complete();
}

std::string encode(const Refusal& refusal) {
  ByteWriter out;
  out.put(refusal.code);
  out.put(refusal.text);
  return out.take();
}

bool decode(std::string_view bytes, Refusal* out) {
  ByteReader in(bytes);
  out->code = in.get<Code>();
  out->text = in.text();
  if (out->code == Code::kOk) out->code = Code::kInternal;
  return in.complete();
}

std::string encode(const Waiting& waiting) {
  ByteWriter out;
  out.put(waiting.worker);
  out.put(waiting.clock);
  out.put(waiting.host);
  out.put(waiting.pid);
  return out.take();
}

bool decode(std::string_view bytes, Waiting* out) {
  ByteReader in(bytes);
  out->worker = in.get<int32_t>();
  out->clock = in.get<int64_t>();
  out->host = in.text();
  out->pid = in.get<int64_t>();
  return in.complete();
}

Status parse_rows(What what, std::string_view payload, int64_t count, int32_t columns, int64_t rows,
                  Rows* out) {
  const auto bad = [] { return Status(Code::kInvalidArgument, "a request for rows is damaged"); };
  const auto bytes = static_cast<int64_t>(payload.size());
  const auto head_bytes = static_cast<int64_t>(sizeof out->head);
  if (bytes < head_bytes || bytes > kMostBytes || count < 0 || count > kMostBytes) return bad();
  memcpy(&out->head, payload.data(), sizeof out->head);
  if (what == What::kPush && !(out->head.rate < HUGE_VAL)) return bad();
  const bool ranged = out->head.first >= 0;
  const int64_t places_bytes = ranged ? 0 : count * 8;
  const int64_t values_bytes = what == What::kPull ? 0 : count * columns * 4;
  if (bytes != head_bytes + places_bytes + values_bytes) return bad();
  // The answer to kPull is held to the same limit.
  if (count * columns * 4 > kMostBytes) return bad();
  const char* at = payload.data() + head_bytes;
  if (ranged) {
    if (out->head.first > rows || count > rows - out->head.first) return bad();
  } else {
    out->places = reinterpret_cast<const int64_t*>(at);
    for (int64_t i = 0; i < count; ++i) {
      if (out->places[i] < 0 || out->places[i] >= rows) return bad();
    }
    at += places_bytes;
  }
  if (what != What::kPull) out->values = reinterpret_cast<const float*>(at);
  return {};
}

}  // namespace dt::ps
