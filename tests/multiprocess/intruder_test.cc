// SPDX-License-Identifier: Apache-2.0
// Who can reach the port of a running job's store, and is no part of it: the job goes on
// undisturbed, ends well, and its server does not grow.
#include "intruder.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using dt::net::Purpose;
using namespace dt::test;
using namespace dt::test::intruder;

namespace {

constexpr size_t kGarbageBytes = size_t{64} << 20;

std::string hello_frame() {
  dt::store::Request request;
  request.type = dt::store::FrameType::kHello;
  request.hello.protocol = dt::store::kProtocolVersion;
  return encode_frame(request.type, 1, encode_request(request));
}

void replay(uint16_t port, dt::net::SecurityMode mode) {
  std::string words;
  const Raw honest(port);
  REQUIRE(greet(honest, mode, Purpose::kStore, &words));
  const Raw again(port);
  (void)again.say(words + hello_frame());
  again.end();
  const std::string heard = again.hear_all();
  CHECK(heard.find("dtSt") == std::string::npos);  // no frame of the store
}

void announce_too_much(uint16_t port, dt::net::SecurityMode mode) {
  const std::string header = encode_header(dt::store::FrameType::kHello, 1, 0xfffffff0);
  const Raw stranger(port);
  CHECK(stranger.say(header));
  stranger.end();
  CHECK(stranger.hear_all().find("sent a plain hello") != std::string::npos);
  if (mode != dt::net::SecurityMode::kAuth) return;
  // One who has the token may not, either.
  std::string words;
  const Raw member(port);
  REQUIRE(greet(member, mode, Purpose::kStore, &words));
  CHECK(member.say(header));
  CHECK(member.hear_all().find("over the limit") != std::string::npos);
}

}  // namespace

TEST_CASE(
    "intruders: the job goes on undisturbed, whatever they send, and its server does not grow") {
  for (const dt::net::SecurityMode mode :
       {dt::net::SecurityMode::kAuth, dt::net::SecurityMode::kEncrypt}) {
    CAPTURE(std::string(mode_name(mode)));
    RunningJob job({"DT_SECURITY_MODE=" + std::string(mode_name(mode))});
    knock_without_the_token(job.port(), mode);
    const int64_t before = job.server_bytes();
    replay(job.port(), mode);
    truncate(job.port(), mode, Purpose::kStore);
    announce_too_much(job.port(), mode);
    send_garbage(job.port(), kGarbageBytes);
    {
      const std::vector<Raw> idle = crowd(job.port(), 10'000);
      MESSAGE(idle.size() << " idle connections");
      CHECK(idle.size() > 500);
      CHECK(knock(job.port(), secure(mode, kToken)).ok());  // who belongs comes in beside them
      const int64_t growth = job.server_bytes() - before;
      MESSAGE("the server grew by " << growth / 1024 << " KiB");
      CHECK(growth < kGrowthBytes);
      job.end_well();
    }
    CHECK(count_of(job.process().err, "store: refused a connection from 127.0.0.1") >= 1);
  }
}
