// SPDX-License-Identifier: Apache-2.0
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fixture.h"
#include "net/address.h"
#include "store/protocol.h"

using namespace dt;
using namespace dt::store;
using namespace dt::store::test;

namespace {

const char kDeathOfRank2[] =
    "rank 2 (hostB pid 12) closed its connection to the store without a goodbye: the process "
    "ended, was killed, or lost its network; look at its log, then go on with dt_comm_shrink or "
    "start the job again";

}  // namespace

TEST_CASE("death: every other rank is told once, and its calls return the same") {
  Job job(4);
  auto clients = job.join_all();
  Failures failures[4];
  for (size_t rank = 0; rank < 4; ++rank) failures[rank].watch(clients[rank].get());
  Status blocked;
  std::thread waiting([&] { blocked = clients[0]->get("never", patiently()).status(); });
  clients[2].reset();
  waiting.join();
  CHECK(blocked.code() == Code::kPeerLost);
  CHECK(blocked.message() == kDeathOfRank2);
  for (const size_t rank : {0, 1, 3}) {
    const Failure failure = failures[rank].wait_first();
    CHECK(failure.scope.empty());
    CHECK(failure.info.code == Code::kPeerLost);
    CHECK(failure.info.rank == 2);
    CHECK(failure.info.host == "hostB");
    CHECK(failure.info.pid == 12);
    CHECK(failure.info.message == kDeathOfRank2);
    CHECK(clients[rank]->ping(patiently()).message() == kDeathOfRank2);
    CHECK(failures[rank].count() == 1);
    CHECK(clients[rank]->goodbye(patiently()).code() == Code::kPeerLost);
  }
  CHECK(failures[2].count() == 0);
}

TEST_CASE("death: of those that end at once each is told once, and before any answer") {
  constexpr int32_t kRanks = 16;
  Job job(kRanks);
  auto clients = job.join_all();
  Failures failures;
  failures.watch(clients[0].get());
  Status said;
  std::thread leaving([&] { said = clients[1]->goodbye(patiently()); });
  // In one callback of the loop that the server runs on, too, so that it finds all ends together.
  REQUIRE(job.loop->run([&] {
    for (size_t rank = 2; rank < kRanks; ++rank) clients[rank].reset();
  }));
  failures.wait_first();
  // An answer comes behind all that was told before it.
  ErrorInfo info;
  info.code = Code::kTimeout;
  info.message = "the store is asked";
  const Deadline deadline = Deadline::after_ms(kPatienceMs);
  do {
    REQUIRE(clients[0]->report_failure("grad", info, patiently()).ok());
  } while (failures.count() < kRanks - 2 && !deadline.passed());
  std::vector<int> told(kRanks);
  failures.shared->list.with([&](const std::vector<Failure>& list) {
    for (const Failure& failure : list) {
      CHECK(failure.info.code == Code::kPeerLost);
      CHECK(failure.info.message.find(" without a goodbye: ") != std::string::npos);
      ++told[static_cast<size_t>(failure.info.rank)];
    }
  });
  for (size_t rank = 0; rank < kRanks; ++rank) CHECK(told[rank] == (rank < 2 ? 0 : 1));
  leaving.join();
  CHECK(said.code() == Code::kPeerLost);
  CHECK(job.server->first_failure().rank >= 2);
}

TEST_CASE("death: seen by a rank of the same host, it comes before the ends that follow from it") {
  Job job(4);  // ranks 2 and 3 are on hostB
  auto clients = job.join_all();
  Failures failures[4];
  for (size_t rank = 0; rank < 4; ++rank) failures[rank].watch(clients[rank].get());
  ErrorInfo info;
  info.code = Code::kPeerLost;
  info.message = "rank 2 is gone";
  info.rank = 2;
  info.host = "hostB";
  CHECK(clients[3]->report_failure("", info, patiently()).ok());
  clients[3].reset();
  clients[2].reset();
  for (const size_t rank : {0, 1}) {
    const Failure failure = failures[rank].wait_first();
    CHECK(failure.info.code == Code::kPeerLost);
    CHECK(failure.info.rank == 2);
    CHECK(failure.info.pid == 12);
    CHECK(failure.info.message ==
          "rank 2 (hostB pid 12) ended or was killed, as rank 3 (hostB pid 13) saw on that host; "
          "look at its log, then go on with dt_comm_shrink or start the job again");
    CHECK(clients[rank]->ping(patiently()).message() == failure.info.message);
  }
  CHECK(job.server->first_failure().rank == 2);
}

TEST_CASE("death: what a rank of another host reports is passed on as it is, and kills nobody") {
  Job job(4);
  auto clients = job.join_all();
  Failures failures[4];
  for (size_t rank = 0; rank < 4; ++rank) failures[rank].watch(clients[rank].get());
  ErrorInfo info;
  info.code = Code::kPeerLost;
  info.message = "rank 2 does not answer";
  info.rank = 2;
  info.host = "hostB";
  CHECK(clients[0]->report_failure("", info, patiently()).ok());
  for (const size_t rank : {1, 2, 3}) {
    CHECK(failures[rank].wait_first().info.message == "rank 2 does not answer");
  }
  CHECK(failures[0].count() == 0);
}

TEST_CASE("death: a callback set afterwards is told as well") {
  Job job(2);
  auto clients = job.join_all();
  clients[1].reset();
  CHECK(clients[0]->get("never", patiently()).status().code() == Code::kPeerLost);
  Failures failures;
  failures.watch(clients[0].get());
  CHECK(failures.wait_first().info.rank == 1);
  CHECK(failures.count() == 1);
}

TEST_CASE("death: a rank that never joined, and one that joins alone, are no deaths") {
  Job job(2);
  const auto first = job.connect(0);
  Failures failures;
  failures.watch(first.get());
  job.connect(1).reset();
  // The slot is free again, once the server has seen the end.
  const auto again = job.connect(-1);
  CHECK(first->ping(patiently()).ok());
  CHECK(failures.count() == 0);
}

TEST_CASE("abort: reaches everyone, the one who aborts included, with its name") {
  Job job(3);
  auto clients = job.join_all();
  Failures failures[3];
  for (size_t rank = 0; rank < 3; ++rank) failures[rank].watch(clients[rank].get());
  CHECK(clients[1]->abort("loss is NaN", patiently()).ok());
  for (Failures& each : failures) {
    const Failure failure = each.wait_first();
    CHECK(failure.info.code == Code::kAborted);
    CHECK(failure.info.message == "rank 1 (hostA pid 11) aborted the job: loss is NaN");
    CHECK(failure.info.rank == 1);
  }
  // What follows from an abort is no news.
  clients[1].reset();
  clients[2].reset();
  CHECK(job.connect(-1)->ping(patiently()).ok());
  CHECK(clients[0]->ping(patiently()).code() == Code::kAborted);
  CHECK(failures[0].count() == 1);
}

TEST_CASE("report_failure: goes to all others with its scope; calls go on") {
  Job job(3);
  auto clients = job.join_all();
  Failures failures[3];
  for (size_t rank = 0; rank < 3; ++rank) failures[rank].watch(clients[rank].get());
  ErrorInfo info;
  info.code = Code::kMismatch;
  info.message = "counts differ";
  info.operation = "allreduce";
  info.sequence = 812;
  CHECK(clients[0]->report_failure("comm 5", info, patiently()).ok());
  for (const size_t rank : {1, 2}) {
    const Failure failure = failures[rank].wait_first();
    CHECK(failure.scope == "comm 5");
    CHECK(failure.info.message == "counts differ");
    CHECK(failure.info.operation == "allreduce");
    CHECK(failure.info.sequence == 812);
    CHECK(clients[rank]->ping(patiently()).ok());
  }
  CHECK(failures[0].count() == 0);
}

TEST_CASE("goodbye: four ranks leave together, and the ends of their connections are silent") {
  Job job(4);
  auto clients = job.join_all();
  Failures failures[4];
  for (size_t rank = 0; rank < 4; ++rank) failures[rank].watch(clients[rank].get());
  Status said[4];
  on_threads(4, [&](int32_t rank) {
    const size_t index = static_cast<size_t>(rank);
    said[index] = clients[index]->goodbye(patiently());
    if (rank != 3) clients[index].reset();
  });
  for (const Status& status : said) CHECK(status.message() == "");
  CHECK(job.server->wait_empty(briefly(50)).message() ==
        "store: 1 clients are still connected after 0.1 s: rank 3 (hostB pid 13)");
  job.server.reset();  // silent for rank 3, too
  CHECK(clients[3]->ping(patiently()).code() == Code::kPeerLost);
  for (Failures& each : failures) CHECK(each.count() == 0);
}

TEST_CASE("goodbye: a death during it is returned, the deadline names who is still there") {
  Job job(3);
  auto clients = job.join_all();
  const Status late = clients[0]->goodbye(briefly(100));
  CHECK(late.code() == Code::kTimeout);
  CHECK(late.message() ==
        "goodbye: 1 of 3 ranks left within 0.1 s; still there: rank 1 (hostA pid 11), rank 2 "
        "(hostB pid 12)");
  Status said;
  std::thread leaving([&] { said = clients[1]->goodbye(patiently()); });
  clients[2].reset();
  leaving.join();
  CHECK(said.code() == Code::kPeerLost);
  CHECK(said.message() == kDeathOfRank2);
}

TEST_CASE("wait_empty: returns when the last client has gone") {
  Job job(1);
  auto client = job.connect(0);
  Status empty(Code::kInternal, "unset");
  std::thread waiting([&] { empty = job.server->wait_empty(patiently()); });
  client.reset();
  waiting.join();
  CHECK(empty.ok());
}

TEST_CASE("server gone: the client makes the failure itself and names who served") {
  for (const int32_t server_rank : {0, -1}) {
    Job job(2, [&](ServerOptions* options) { options->server_rank = server_rank; });
    auto clients = job.join_all();
    Failures failures;
    failures.watch(clients[1].get());
    Status blocked;
    std::thread waiting([&] { blocked = clients[0]->get("never", patiently()).status(); });
    const std::string address = job.address();
    job.server.reset();
    waiting.join();
    const Failure failure = failures.wait_first();
    CHECK(failure.info.code == Code::kPeerLost);
    CHECK(failure.info.rank == server_rank);
    CHECK(failure.info.host == "hostA");
    CHECK(failure.info.pid == 10);
    // A request that the server has not read makes the end a reset instead of an end of file.
    const std::string who = server_rank == 0 ? "rank 0 (hostA pid 10), which serves the store, "
                                             : "the store's process (dt run, host hostA pid 10) ";
    for (const std::string& message : {failure.info.message, blocked.message()}) {
      CAPTURE(message);
      CHECK((message.find(who + "closed the connection at ") == 0 ||
             message.find(who + "lost the connection (") == 0));
      CHECK(message.find(address) != std::string::npos);
    }
    CHECK(clients[1]->set("k", "v", patiently()).message() == failure.info.message);
  }
}

TEST_CASE("a client whose server stays silent gives its own error") {
  // A listening socket that never accepts: the hello is sent and never answered.
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  net::Address address = net::resolve_now("127.0.0.1", 0, true).value()[0];
  REQUIRE(bind(fd, reinterpret_cast<sockaddr*>(&address.storage), address.length) == 0);
  REQUIRE(listen(fd, 4) == 0);
  REQUIRE(getsockname(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.length) == 0);
  auto loop = std::move(net::Loop::start()).value();
  ClientOptions options;
  options.host = "127.0.0.1";
  options.port = address.port();
  const Status status = Client::connect(loop.get(), options, briefly(100)).status();
  CHECK(status.code() == Code::kTimeout);
  CHECK(status.message() == "no store at " + address.text() +
                                " within 0.1 s (1 try, the last: the first try has not ended); "
                                "check that rank 0 or dt run is started and that the address is "
                                "right");
  close(fd);
}

TEST_CASE("callbacks may drop the last reference to their client") {
  Job job(2);
  auto clients = job.join_all();
  const auto told = std::make_shared<Event>();
  Client* client = clients[0].get();
  client->on_failure([&, told](const Failure&) {
    clients[0].reset();
    told->set();
  });
  clients[1].reset();
  CHECK(told->wait(patiently()));
  CHECK(job.server->wait_empty(patiently()).ok());
}

TEST_CASE("fork: the child cannot use the client, and its end is no death of the rank") {
  Job job(2);
  auto clients = job.join_all();
  const pid_t child = fork();
  if (child == 0) {
    const Status status = clients[0]->set("k", "v", patiently());
    const bool refused = status.code() == Code::kInvalidState &&
                         status.message().find("this process was forked") == 0;
    clients[0].reset();  // must neither hang nor hurt the parent's connection
    _exit(refused ? 0 : 1);
  }
  int result = 0;
  REQUIRE(waitpid(child, &result, 0) == child);
  CHECK(WIFEXITED(result));
  CHECK(WEXITSTATUS(result) == 0);
  CHECK(clients[0]->set("k", "v", patiently()).ok());
  CHECK(clients[1]->get("k", patiently()).value() == "v");
}
