// SPDX-License-Identifier: Apache-2.0
// A backend over several hosts, of which a part fails, is interrupted or ends.
#include <doctest/doctest.h>
#include <poll.h>

#include <mutex>
#include <thread>

#include "play.h"

using namespace conformance;

TEST_CASE("Multihost: nobody sees a failure before the control plane has it") {
  for (const bool answers : {true, false}) {
    std::mutex guard;
    std::function<void()> handed_over;
    dt::Event told;
    Setup setup = hosts({0, 1});
    setup.on_telling = [&](std::function<void()> call) {
      std::lock_guard lock(guard);
      handed_over = std::move(call);
      told.set();
    };
    play(setup, [&](Rank& rank) {
      rank.expect_ok(rank.backend->run(Collective()), "barrier");
      rank.meet();
      if (rank.rank == 1) return rank.meet();
      auto work = std::make_shared<Work>();
      auto fd = rank.backend->completion_fd();
      rank.expect_ok(fd.status(), "completion_fd");
      Collective barrier;
      barrier.deadline = Deadline::after_ms(20);
      rank.expect_ok(rank.backend->submit(barrier, work), "submit");
      rank.expect(told.wait({Deadline::after_ms(30'000)}), "told");
      // Nothing happens on the backend's thread until it is called, or 2 s later.
      pollfd polled{fd.value(), POLLIN, 0};
      rank.expect(!work->done() && poll(&polled, 1, 50) == 0 && !work->done(), "seen too early");
      if (answers) {
        std::lock_guard lock(guard);
        handed_over();
      }
      rank.expect(poll(&polled, 1, 30'000) == 1 && work->done(), "seen");
      rank.expect(work->status().code() == Code::kTimeout, work->status().message());
      rank.meet();
    });
    handed_over();  // the backend is gone
  }
}

TEST_CASE("Multihost: a message that waits where a collective begins is a mismatch of both") {
  for (const int64_t count : {0, 3}) {
    CAPTURE(count);
    play(hosts({0, 1}), [&](Rank& rank) {
      rank.expect_ok(rank.backend->run(Collective()), "barrier");
      std::vector<float> data(3, 1);
      if (rank.rank == 0) {
        Collective message = allreduce_f32(data.data(), data.data(), count);
        message.kind = Kind::kSend;
        message.root = 1;
        rank.expect_ok(rank.backend->run(message), "send");
        rank.meet();
        return rank.meet();
      }
      rank.meet();  // the message is in the connection
      Collective reduce = allreduce_f32(data.data(), data.data(), 3);
      reduce.deadline = Deadline::after_ms(30'000);
      const Status status = rank.backend->run(reduce);
      const std::string text = status.message();
      rank.expect(status.code() == Code::kMismatch && status.info().rank == 100, text);
      rank.expect(contains(text, "ranks disagree: rank 0 (world rank 100, host0, pid ") &&
                      contains(text, dt::format("): send f32 x %d", static_cast<int>(count))) &&
                      contains(text, "): allreduce f32 sum x 3"),
                  text);
      rank.meet();
    });
  }
}

TEST_CASE("Multihost: interrupt wakes a call that waits for another host") {
  play(hosts({0, 1, 1}), [](Rank& rank) {
    std::vector<float> data(200'000, 1);
    if (rank.rank == 2) return rank.meet();
    auto work = std::make_shared<Work>();
    rank.expect_ok(rank.backend->submit(allreduce_f32(data.data(), data.data(), 200'000), work),
                   "submit");
    std::thread control(
        [&] { rank.backend->interrupt(Status(Code::kPeerLost, "rank 2 is gone")); });
    rank.expect(rank.backend->wait(*work, {Deadline::after_ms(30'000)}), "wait");
    control.join();
    rank.expect(work->status().message() == "rank 2 is gone", work->status().message());
    rank.expect(rank.backend->run(Collective()).code() == Code::kPeerLost, "later");
    rank.meet();
  });
}

TEST_CASE("Multihost: backends are destroyed with works queued, in any order") {
  for (int round = 0; round < 10; ++round) {
    play(hosts({0, 0, 1}), [&](Rank& rank) {
      auto child = rank.backend->split(0, 0, "child", Deadline::after_ms(30'000));
      rank.expect_ok(child.status(), "split");
      auto work = std::make_shared<Work>();
      std::vector<float> data(100'000);
      if (rank.rank == round % 3) {
        rank.expect_ok(
            child.value().backend->submit(allreduce_f32(data.data(), data.data(), 100'000), work),
            "submit");
      }
      if (round % 2 == 0) rank.backend.reset();
      child = Backend::Split();
      if (rank.rank == round % 3) {
        rank.expect(work->done() && !work->status().ok(), "failed");
        rank.expect(contains(work->status().message(), "\"child\" was destroyed while") ||
                        contains(work->status().message(), " broke: "),
                    work->status().message());
      }
    });
  }
}

TEST_CASE("Multihost: a peer whose connection breaks is named with both addresses") {
  // A peer that has left the job may have left before or after the break: the error says both.
  for (const bool has_left : {false, true}) {
    play(hosts({0, 1}), [has_left](Rank& rank) {
      rank.expect_ok(rank.backend->run(Collective()), "barrier");
      rank.meet();
      if (rank.rank == 1) {
        rank.backend->interrupt(Status(Code::kPeerLost, "failed here"));
        return rank.meet();
      }
      if (has_left) rank.backend->peer_left(1);
      Collective barrier;
      barrier.deadline = Deadline::after_ms(30'000);
      const Status status = rank.backend->run(barrier);
      const std::string text = status.message();
      rank.expect(status.code() == Code::kPeerLost && status.info().rank == 101, text);
      rank.expect(contains(text,
                           "barrier #2 on comm \"world\", rank 0 (host0): the connection "
                           "between rank 100 (host0) at 127.0.0.1:") &&
                      contains(text, " and rank 101 (host1 pid ") && contains(text, " broke: "),
                  text);
      rank.expect(
          contains(text, "start the job again; besides, rank 1 (world rank 101, host1, pid ") ==
                  has_left &&
              contains(text, ") has left the job with dt_finalize, and this") == has_left,
          text);
      rank.meet();
    });
  }
}

TEST_CASE("Multihost: a rank that destroyed its communicator is named by whoever meets it") {
  enum class Way { kCollective, kRecv, kSend, kLargeSend, kSendPastUnread, kDial };
  for (const Way way : {Way::kCollective, Way::kRecv, Way::kSend, Way::kLargeSend,
                        Way::kSendPastUnread, Way::kDial}) {
    CAPTURE(static_cast<int>(way));
    play(hosts({0, 1}), [&](Rank& rank) {
      const Deadline deadline = Deadline::after_ms(30'000);
      auto child = rank.backend->split(0, rank.rank, "child", deadline);
      rank.expect_ok(child.status(), "split");
      Backend& backend = *child.value().backend;
      // Less than sockets hold, and more than that.
      std::vector<float> data(way == Way::kLargeSend || way == Way::kSendPastUnread ? 16 << 20 : 1);
      Collective one = allreduce_f32(data.data(), data.data(), static_cast<int64_t>(data.size()));
      one.root = 1 - rank.rank;
      one.deadline = deadline;
      if (way != Way::kDial) rank.expect_ok(backend.run(Collective()), "barrier");
      if (way == Way::kSendPastUnread) {
        Collective unread = one;
        unread.kind = Kind::kSend;
        unread.count = 1;
        rank.expect_ok(backend.run(unread), "send");
      }
      auto work = std::make_shared<Work>();
      if (way == Way::kLargeSend && rank.rank == 0) {  // it is half sent when the peer leaves
        one.kind = Kind::kSend;
        rank.expect_ok(backend.submit(one, work), "submit");
      }
      rank.meet();
      if (rank.rank == 1) {
        child = Backend::Split();
        rank.meet();
        return rank.meet();
      }
      rank.meet();
      if (way == Way::kRecv) one.kind = Kind::kRecv;
      if (way == Way::kSend || way == Way::kSendPastUnread) one.kind = Kind::kSend;
      if (way != Way::kLargeSend) rank.expect_ok(backend.submit(one, work), "submit");
      rank.expect(backend.wait(*work, {deadline, nullptr}), "wait");
      const std::string text = work->status().message();
      rank.expect(work->status().code() == Code::kAborted, "ABORTED: " + text);
      const std::string kind = one.kind == Kind::kAllreduce ? "allreduce #" : kind_name(one.kind);
      rank.expect(text.rfind(kind, 0) == 0 &&
                      contains(text,
                               " on comm \"child\", rank 0 (host0): rank 1 "
                               "(world rank 101, host1, pid ") &&
                      contains(text, ") has destroyed this communicator; let all ranks end"),
                  text);
      rank.expect(work->status().info().rank == 101 && work->status().info().host == "host1",
                  "as data");
      rank.meet();
    });
  }
}

TEST_CASE("Multihost: what was sent before a communicator was destroyed still arrives") {
  play(hosts({0, 1}), [](Rank& rank) {
    auto child = rank.backend->split(0, rank.rank, "child", Deadline::after_ms(30'000));
    rank.expect_ok(child.status(), "split");
    rank.expect_ok(child.value().backend->run(Collective()), "barrier");
    std::vector<float> data(50'000, static_cast<float>(rank.rank));
    Collective message = allreduce_f32(data.data(), data.data(), 50'000);
    message.root = 1 - rank.rank;
    message.kind = rank.rank == 1 ? Kind::kSend : Kind::kRecv;
    if (rank.rank == 1) {
      rank.expect_ok(child.value().backend->run(message), "send");
      child = Backend::Split();
    }
    rank.meet();
    if (rank.rank == 0) {
      rank.expect_ok(child.value().backend->run(message), "recv");
      rank.expect(data[0] == 1 && data[49'999] == 1, "bytes");
    }
    rank.meet();
  });
}
