// SPDX-License-Identifier: Apache-2.0
// What a launcher's PMI-1 service may answer, and what becomes of the value that it hands out: the
// address of rank 0 and perhaps a token. The first byte says which rank asks. Properties: no crash,
// an end when the service ends, an address with a port, or an error that shows nothing of the
// token.
#include <sys/socket.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "launch/exchange.h"

namespace {

using namespace dt::launch;

constexpr size_t kPmiAnswerMost = 4096;
constexpr char kOwnToken[] = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

void require_pmi(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  if (bytes < 1 || bytes > kPmiAnswerMost) return 0;
  int ends[2];
  require_pmi(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  // All answers are there before the first question.
  require_pmi(send(ends[1], data + 1, bytes - 1, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes - 1));
  require_pmi(shutdown(ends[1], SHUT_WR) == 0);
  Place place;
  place.rank = data[0] % 2;
  place.world_size = 2;
  place.launcher = "hydra";
  place.exchange = Exchange::kPmi;
  StoreAddress mine;
  mine.host = "10.0.0.1";
  mine.port = 4711;
  if (data[0] % 4 == 0) mine.token = std::move(dt::net::Token::from_text(kOwnToken)).value();
  const auto got = exchange_address(place, {{"PMI_FD", std::to_string(ends[0])}}, mine, dt::Wait());
  if (got.ok()) {
    require_pmi(got.value().port > 0 && !got.value().host.empty());
  } else {
    const std::string& message = got.status().message();
    require_pmi(message.find(": ") != std::string::npos);
    const std::string secret = std::string(kOwnToken).substr(0, 16);
    const std::string given(reinterpret_cast<const char*>(data), bytes);
    require_pmi(given.find(secret) != std::string::npos ||
                message.find(secret) == std::string::npos);
  }
  close(ends[0]);
  close(ends[1]);
  return 0;
}
