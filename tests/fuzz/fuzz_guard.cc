// SPDX-License-Identifier: Apache-2.0
// What a stranger can send before anybody knows it, to both sides and in each mode.
// Properties: no crash, it never wants more than a few KiB, nobody comes through without the token,
// and in mode none every byte arrives.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "net/guard.h"
#include "net/security.h"

namespace {

using namespace dt::net;

constexpr size_t kMostWanted = 8192;

void require(bool holds) {
  if (!holds) std::abort();
}

Security security_of(SecurityMode mode) {
  static const Token token = std::move(Token::from_text(std::string(64, '7'))).value();
  Security security;
  security.mode = mode;
  if (mode != SecurityMode::kNone) security.token = token;
  return security;
}

/// Feeds in steps; what comes behind the guard's part is returned.
std::string feed(Guard* guard, const char* data, size_t bytes, size_t step) {
  std::string rest = guard->take_held();
  for (size_t at = 0; at < bytes;) {
    const size_t wanted = guard->wanted();
    require(wanted <= kMostWanted);
    const size_t piece = std::min(step, bytes - at);
    if (wanted == 0) {
      rest.append(data + at, piece);
      at += piece;
      continue;
    }
    const size_t taken = std::min(wanted, piece);
    guard->feed(data + at, taken);
    require(guard->take_output().size() <= kMostWanted);
    rest += guard->take_held();
    at += taken;
  }
  return rest;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  if (bytes < 2) return 0;
  const auto mode = static_cast<SecurityMode>(data[0] % 3);
  const Side side = (data[0] / 3) % 2 == 0 ? Side::kServer : Side::kClient;
  const bool greets_well = (data[0] / 6) % 2 == 0;
  const size_t step = size_t{data[1]} + 1;
  const char* stream = reinterpret_cast<const char*>(data) + 2;
  bytes -= 2;
  Guard guard(security_of(mode), Purpose::kStore, side);
  std::string words;
  if (mode != SecurityMode::kNone && side == Side::kServer && greets_well) {
    // The fuzzer need not find the greeting first: an honest one, then its bytes.
    Guard honest(security_of(mode), Purpose::kStore, Side::kClient);
    words = honest.take_output().substr(0, 48);
  }
  words.append(stream, bytes);
  const std::string rest = feed(&guard, words.data(), words.size(), step);
  if (mode != SecurityMode::kNone) {
    require(!guard.established());
  } else if (guard.established()) {
    require(rest == words);
  }
  return 0;
}
