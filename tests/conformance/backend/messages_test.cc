// SPDX-License-Identifier: Apache-2.0
// Send and receive on the host backend.
#include <doctest/doctest.h>

#include <cstdlib>

#include "../../sanitizers.h"
#include "backend/host/host_backend.h"
#include "play.h"

using namespace conformance;

namespace {

Setup few_slots(int32_t size) {
  Setup one;
  one.size = size;
  one.host.inline_bytes = 256;
  one.host.slot_bytes = 1024;
  one.host.ring_bytes = 4096;
  return one;
}

float element(int64_t message, int64_t index) {
  return static_cast<float>((message * 1009 + index) % 65'521);
}

/// Passes `counts` elements on around the ring of ranks, one message after the other.
void pass_on(Rank& rank, const std::vector<int64_t>& counts) {
  int64_t number = 0;
  for (const int64_t count : counts) {
    ++number;
    std::vector<float> out(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) out[i] = element(number + rank.rank, i);
    std::vector<float> in(static_cast<size_t>(count), -1);
    const int32_t before = (rank.rank + rank.size - 1) % rank.size;
    Collective send = allreduce_f32(out.data(), nullptr, count);
    send.kind = Kind::kSend;
    send.root = (rank.rank + 1) % rank.size;
    Collective recv = allreduce_f32(nullptr, in.data(), count);
    recv.kind = Kind::kRecv;
    recv.root = before;
    auto sent = std::make_shared<Work>();
    rank.expect_ok(rank.backend->submit(send, sent), "submit");
    rank.expect_ok(rank.backend->run(recv), "recv");
    rank.expect(rank.backend->wait(*sent, {Deadline::after_ms(30'000)}), "sent");
    rank.expect_ok(sent->status(), "send");
    for (int64_t i = 0; i < count; ++i) {
      if (in[i] == element(number + before, i)) continue;
      rank.expect(false, dt::format("message %d of %lld elements: element %lld is %g, not %g",
                                    static_cast<int>(number), static_cast<long long>(count),
                                    static_cast<long long>(i), in[i], element(number + before, i)));
      break;
    }
  }
}

}  // namespace

TEST_CASE("Host: messages of all sizes follow each other through one ring") {
  const std::vector<int64_t> counts = {0,    1,      26,      27, 300,    1024,    1025, 2500,
                                       5000, 70'000, 600'000, 3,  70'001, 600'001, 2000, 0};
  // Among few ranks the ring is large, among more it has the least number of slots.
  for (const int32_t size : {2, 5})
    play(few_slots(size), [&](Rank& rank) { pass_on(rank, counts); });
  Setup usual;
  usual.size = 2;
  play(usual, [&](Rank& rank) { pass_on(rank, counts); });
}

TEST_CASE("Host: small messages go around the ring many times") {
  std::vector<int64_t> counts;
  for (int64_t i = 0; i < 400; ++i) counts.push_back(i * 37 % 4000);
  play(few_slots(3), [&](Rank& rank) { pass_on(rank, counts); });
}

TEST_CASE("Host: send and recv that disagree fail on both sides") {
  play(few_slots(2), [](Rank& rank) {
    std::vector<float> data(100, 1);
    Collective one = allreduce_f32(data.data(), data.data(), rank.rank == 0 ? 100 : 99);
    one.kind = rank.rank == 0 ? Kind::kSend : Kind::kRecv;
    one.root = 1 - rank.rank;
    const Status status = rank.backend->run(one);
    rank.expect(status.code() == Code::kMismatch, "MISMATCH");
    rank.expect(contains(status.message(), "sends f32 x 100") &&
                    contains(status.message(), "receives f32 x 99"),
                status.message());
    rank.expect(!rank.backend->broken().ok(), "broken");
    rank.meet();
  });
}

TEST_CASE("Host: blocking exchanges work when one side sends first and the other receives first") {
  play(few_slots(2), [](Rank& rank) {
    for (int i = 0; i < 50; ++i) {
      std::vector<float> out(3000, static_cast<float>(rank.rank + i));
      std::vector<float> in(3000, -1);
      Collective send = allreduce_f32(out.data(), nullptr, 3000);
      send.kind = Kind::kSend;
      send.root = 1 - rank.rank;
      Collective recv = allreduce_f32(nullptr, in.data(), 3000);
      recv.kind = Kind::kRecv;
      recv.root = 1 - rank.rank;
      rank.expect_ok(rank.backend->run(rank.rank == 0 ? send : recv), "first");
      rank.expect_ok(rank.backend->run(rank.rank == 0 ? recv : send), "second");
      rank.expect(in[0] == static_cast<float>(1 - rank.rank + i) && in[2999] == in[0], "value");
    }
  });
}

TEST_CASE("thousands of messages queued ahead in both directions cost no more than one by one") {
  // Each has 20 s, in which ThreadSanitizer on busy processors gets through some 15,000.
  constexpr int32_t kMessages = dt::test::kThreadSanitizer ? 2000 : 20'000;
  for (const char* backend : {"host", "multihost"}) {
    CAPTURE(backend);
    Setup setup = few_slots(2);
    setup.backend = backend;
    if (backend != std::string("host")) setup.hosts = {0, 1};
    play(setup, [&](Rank& rank) {
      std::vector<float> out(kMessages);
      std::vector<float> in(kMessages, -1);
      std::vector<std::shared_ptr<Work>> works;
      for (int32_t i = 0; i < 2 * kMessages; ++i) {
        // One rank queues its sends first, the other its receives.
        const bool sends = (i < kMessages) == (rank.rank == 0);
        const int32_t message = i % kMessages;
        if (sends) out[message] = element(message, rank.rank);
        Collective one = allreduce_f32(&out[message], &in[message], 1);
        one.kind = sends ? Kind::kSend : Kind::kRecv;
        one.root = 1 - rank.rank;
        one.deadline = Deadline::after_ms(20'000);
        works.push_back(std::make_shared<Work>());
        rank.expect_ok(rank.backend->submit(one, works.back()), "submit");
      }
      for (const auto& work : works) {
        if (!rank.backend->wait(*work, {Deadline::after_ms(20'000)}) || !work->status().ok()) {
          return rank.expect_ok(work->status(), "message");
        }
      }
      int32_t wrong = 0;
      for (int32_t i = 0; i < kMessages; ++i) wrong += in[i] != element(i, 1 - rank.rank) ? 1 : 0;
      rank.expect(wrong == 0, "values");
    });
  }
}
