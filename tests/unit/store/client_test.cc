// SPDX-License-Identifier: Apache-2.0
#include "store/client.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "fixture.h"
#include "net/address.h"

using namespace dt;
using namespace dt::store;
using namespace dt::store::test;

TEST_CASE("Client: set, get, add, compare_set, erase, list, multi_get, multi_set, ping") {
  Job job(1);
  const auto client = job.connect(0);
  const Wait wait = patiently();
  CHECK(client->welcome().server.text() == "rank 0 (hostA pid 10)");
  CHECK(client->peer_host() == "127.0.0.1");
  CHECK(client->ping(wait).ok());

  CHECK(client->set("k", std::string("\0bytes\xff", 7), wait).ok());
  CHECK(client->get("k", wait).value() == std::string("\0bytes\xff", 7));
  CHECK(client->set("k", "", wait).ok());
  CHECK(client->get("k", wait).value().empty());

  CHECK(client->add("n", 5, wait).value() == 5);
  CHECK(client->add("n", -7, wait).value() == -2);
  CHECK(client->get("n", wait).value() == "-2");
  CHECK(client->set("text", "12x", wait).ok());
  const Status no_number = client->add("text", 1, wait).status();
  CHECK(no_number.code() == Code::kInvalidArgument);
  CHECK(no_number.message() == "add to key \"text\": its value \"12x\" is no number");

  CHECK(client->compare_set("c", std::nullopt, "1", wait).value().swapped);
  Swap swap = client->compare_set("c", std::nullopt, "2", wait).value();
  CHECK_FALSE(swap.swapped);
  CHECK(swap.current == "1");
  swap = client->compare_set("c", "1", "2", wait).value();
  CHECK(swap.swapped);
  CHECK(swap.current == "2");
  swap = client->compare_set("absent", "1", "2", wait).value();
  CHECK_FALSE(swap.swapped);
  CHECK_FALSE(swap.current.has_value());

  CHECK(client->multi_set({{"m/1", "one"}, {"m/2", "two"}}, wait).ok());
  CHECK(client->list("m/", wait).value() == std::vector<std::string>{"m/1", "m/2"});
  CHECK(client->list("", wait).value().size() == 6);
  const auto values = client->multi_get({"m/2", "none", "m/1"}, wait).value();
  REQUIRE(values.size() == 3);
  CHECK(values[0] == "two");
  CHECK_FALSE(values[1].has_value());
  CHECK(values[2] == "one");
  CHECK(client->multi_get({}, wait).value().empty());

  CHECK(client->erase("m/1", wait).value());
  CHECK_FALSE(client->erase("m/1", wait).value());
}

TEST_CASE("Client: a get and a wait block until another client sets the keys") {
  Job job(2);
  const auto reader = job.connect(0);
  const auto writer = job.connect(1);
  std::string got;
  Status waited(Code::kInternal, "unset");
  std::thread getting([&] { got = reader->get("a", patiently()).value(); });
  std::thread waiting([&] { waited = reader->wait_for({"a", "b", "c"}, patiently()); });
  CHECK(writer->set("a", "1", patiently()).ok());
  CHECK(writer->multi_set({{"b", "2"}, {"c", "3"}}, patiently()).ok());
  getting.join();
  waiting.join();
  CHECK(got == "1");
  CHECK(waited.ok());
}

TEST_CASE("Client: deadlines end waits, and the texts say what was missing") {
  Job job(1);
  const auto client = job.connect(0);
  const Status got = client->get("late", briefly(100)).status();
  CHECK(got.code() == Code::kTimeout);
  CHECK(got.message() ==
        "key \"late\" was not set within 0.1 s; look for the rank that should set it");
  CHECK(client->set("x", "", patiently()).ok());
  CHECK(client->wait_for({"x", "y", "z"}, briefly(100)).message() ==
        "2 of 3 keys were not set within 0.1 s: \"y\", \"z\"; look for the ranks that should set "
        "them");
  CHECK(client->barrier("b", 3, briefly(100)).message() ==
        "barrier \"b\": 1 of 3 arrived within 0.1 s: rank 0 (hostA pid 10); look for the ones "
        "that did not");
  CHECK(client->get("late", briefly(0)).status().code() == Code::kTimeout);
}

TEST_CASE("Client: an interrupt releases a blocked call") {
  Job job(1);
  const auto client = job.connect(0);
  Interrupt interrupt;
  std::thread firing([&] { interrupt.fire(Status(Code::kAborted, "stop it")); });
  const Status status = client->get("never", {Deadline::never(), &interrupt}).status();
  firing.join();
  CHECK(status.code() == Code::kAborted);
  CHECK(status.message() == "stop it");
  CHECK(client->ping(patiently()).ok());
}

TEST_CASE("Client: a barrier releases all, is reusable, and refuses different counts") {
  constexpr int32_t kRanks = 4;
  Job job(kRanks);
  std::vector<std::shared_ptr<Client>> clients;
  for (int32_t rank = 0; rank < kRanks; ++rank) clients.push_back(job.connect(rank));
  for (int round = 1; round <= 3; ++round) {
    std::vector<int64_t> seen(kRanks);
    on_threads(kRanks, [&](int32_t rank) {
      const auto& client = clients[static_cast<size_t>(rank)];
      (void)client->add("arrived", 1, patiently());
      if (!client->barrier("b", kRanks, patiently()).ok()) return;
      seen[static_cast<size_t>(rank)] = client->add("arrived", 0, patiently()).value();
      (void)client->barrier("after", kRanks, patiently());
    });
    for (const int64_t count : seen) CHECK(count == round * kRanks);
  }
  std::thread first([&] { CHECK(clients[0]->barrier("c", 2, patiently()).ok()); });
  Status refused;
  do {  // until rank 0 is there
    refused = clients[1]->barrier("c", 3, briefly(0));
  } while (refused.code() == Code::kTimeout);
  CHECK(refused.code() == Code::kMismatch);
  CHECK(refused.message() ==
        "barrier \"c\": rank 1 (hostA pid 11) waits for 3 arrivals, but rank 0 (hostA pid 10) for "
        "2; give the same count everywhere");
  CHECK(clients[1]->barrier("c", 2, patiently()).ok());
  first.join();
}

TEST_CASE("Client: limits are errors with names, and the connection lives on") {
  Job job(1);
  const auto client = job.connect(0);
  const std::string long_key(kMaxKeyBytes + 1, 'k');
  CHECK(client->set("", "v", patiently()).message() == "set \"\": a key must not be empty");
  CHECK(client->set(long_key, "v", patiently())
            .message()
            .find("a key of 1025 bytes is over the limit of 1024 bytes") != std::string::npos);
  CHECK(client->set("big", std::string(kMaxValueBytes + 1, 'v'), patiently()).message() ==
        "set \"big\": a value of 16777217 bytes is over the limit of 16777216 bytes");
  const std::string largest(kMaxValueBytes, 'v');
  CHECK(client->set("big", largest, patiently()).ok());
  CHECK((client->get("big", patiently()).value() == largest));
  CHECK(client->multi_get({"big", "big"}, patiently()).value()[1] == largest);
  CHECK(client->multi_get({"big", "big", "big"}, patiently())
            .status()
            .message()
            .find("ask for fewer keys at a time") != std::string::npos);
  CHECK(client->set("dt.join/0", "forged", patiently()).message() ==
        "key \"dt.join/0\": names below \"dt.join/\" belong to the store; choose another name");
  const std::vector<std::string> many(kMaxKeysPerCall + 1, "k");
  CHECK(client->multi_get(many, patiently()).status().message() ==
        "multi_get of 65537 keys: 65537 keys in one call are over the limit of 65536");
  const std::vector<std::string> bulky(kMaxKeysPerCall, std::string(kMaxKeyBytes, 'k'));
  CHECK(client->wait_for(bulky, patiently()).message() ==
        "wait for 65536 keys: 67633152 bytes of keys and values in one call are over the limit of "
        "67107840 bytes");
  CHECK(client->ping(patiently()).ok());
}

TEST_CASE("Client: calls on the loop's own thread are refused") {
  Job job(1);
  const auto client = job.connect(0);
  Status called, connected;
  job.loop->run([&] {
    called = client->set("k", "v", patiently());
    connected = Client::connect(job.loop.get(), job.client_options(-1), patiently()).status();
  });
  CHECK(called.code() == Code::kInvalidState);
  CHECK(called.message() ==
        "set \"k\": the I/O thread must not wait for the store; call from another thread");
  CHECK(connected.code() == Code::kInvalidState);
}

TEST_CASE("Client: comes before the server and waits for it") {
  uint16_t port = 0;
  auto options = ClientOptions();
  {
    Job first(1);
    port = first.server->port();
    options = first.client_options(0);
  }
  auto loop = std::move(net::Loop::start()).value();
  Status connected(Code::kInternal, "unset");
  const auto tried = std::make_shared<Event>();
  options.logger =
      std::make_shared<Logger>(LogLevel::kDebug, [tried](LogLevel, const char*) { tried->set(); });
  std::thread joining(
      [&] { connected = Client::connect(loop.get(), options, patiently()).status(); });
  CHECK(tried->wait(patiently()));  // the first try has failed
  Job second(1, [&](ServerOptions* server) { server->port = port; });
  joining.join();
  CHECK(connected.message() == "");
}

TEST_CASE("Client: without a server the error names address, tries, time and what errno means") {
  auto options = ClientOptions();
  { options = Job(1).client_options(0); }
  auto loop = std::move(net::Loop::start()).value();
  const Status status = Client::connect(loop.get(), options, briefly(200)).status();
  CHECK(status.code() == Code::kTimeout);
  const std::string begin =
      "no store at 127.0.0.1:" + std::to_string(options.port) + " within 0.2 s (";
  CHECK(status.message().substr(0, begin.size()) == begin);
  CHECK(status.message().find(" tries, the last: connection refused: the host is up, nothing "
                              "listens there yet); check that") != std::string::npos);

  Interrupt interrupt;
  interrupt.fire(Status(Code::kAborted, "enough"));
  CHECK(Client::connect(loop.get(), options, {Deadline::never(), &interrupt}).status().message() ==
        "enough");
  options.host = "no-such-host.invalid";
  CHECK(Client::connect(loop.get(), options, briefly(300))
            .status()
            .message()
            .find("no store at no-such-host.invalid:") == 0);
  options.port = 0;
  CHECK(Client::connect(loop.get(), options, briefly(300)).status().code() ==
        Code::kInvalidArgument);
}

TEST_CASE("Client: refusals are final at once and name both sides") {
  Job job(4);
  const auto refused = [&](const std::function<void(ClientOptions*)>& change) {
    ClientOptions options = job.client_options(1);
    change(&options);
    return Client::connect(job.loop.get(), options, {Deadline::never()}).status();
  };
  Status status = refused([](ClientOptions* options) { options->attempt = 1; });
  CHECK(status.code() == Code::kConfig);
  CHECK(status.message() == "store at " + job.address() +
                                " serves job \"a\" attempt 2; this process belongs to job \"a\" "
                                "attempt 1 (stale)");
  status = refused([](ClientOptions* options) { options->attempt = 3; });
  CHECK(status.message().find("attempt 3 (the store is stale)") != std::string::npos);
  status = refused([](ClientOptions* options) { options->job_id = "b"; });
  CHECK(status.message() == "store at " + job.address() +
                                " serves job \"a\" attempt 2; this process belongs to job \"b\" "
                                "attempt 2 (another job)");
  status = refused([](ClientOptions* options) { options->world_size = 8; });
  CHECK(status.message() == "store at " + job.address() +
                                " serves a job with world size 4; rank 1 (hostA pid 11) has world "
                                "size 8; start every rank with the same world size");
  status = refused([](ClientOptions* options) { options->rank = 4; });
  CHECK(status.message() ==
        "rank 4 (hostA pid 11) is out of range: the job has world size 4, so ranks are 0 to 3");
  const auto first = job.connect(1);
  status = refused([](ClientOptions* options) {
    options->host_name = "hostC";
    options->pid = 99;
  });
  CHECK(status.code() == Code::kConfig);
  CHECK(status.message() ==
        "duplicate rank 1: (hostA pid 11) has it, and (hostC pid 99) claims it too and is refused; "
        "give every process its own rank");
  CHECK(status.info().host == "hostC");
}

TEST_CASE("Client: a tool connects to any job, reads, and goes without anyone noticing") {
  Job job(1);
  const auto rank = job.join_all()[0];
  Failures failures;
  failures.watch(rank.get());
  ClientOptions options = job.client_options(-1);
  options.job_id = "";
  options.attempt = -1;
  options.world_size = 0;
  {
    auto tool = Client::connect(job.loop.get(), options, patiently());
    REQUIRE(tool.ok());
    CHECK(tool.value()->welcome().job_id == "a");
    CHECK(tool.value()->welcome().attempt == 2);
    CHECK(tool.value()->list("dt.join/", patiently()).value().size() == 1);
    CHECK(tool.value()->join(job.record(0), patiently()).status().code() == Code::kInvalidState);
    CHECK(tool.value()->goodbye(patiently()).ok());
  }
  CHECK(rank->ping(patiently()).ok());
  CHECK(failures.count() == 0);
}

TEST_CASE("Client: a name is resolved") {
  Job job(1, [](ServerOptions* options) { options->bind_address = "localhost"; });
  ClientOptions options = job.client_options(0);
  options.host = "localhost";
  CHECK(Client::connect(job.loop.get(), options, patiently()).ok());
}

TEST_CASE("Client: 300 of them at one server") {
  constexpr int32_t kRanks = 300;
  rlimit files;
  REQUIRE(getrlimit(RLIMIT_NOFILE, &files) == 0);
  if (files.rlim_cur < 4 * kRanks) {
    files.rlim_cur = std::min<rlim_t>(files.rlim_max, 4 * kRanks);
    REQUIRE(setrlimit(RLIMIT_NOFILE, &files) == 0);
  }
  Job job(kRanks);
  std::vector<std::shared_ptr<Client>> clients(kRanks);
  on_threads(8, [&](int32_t thread) {
    for (int32_t rank = thread; rank < kRanks; rank += 8) {
      auto client = Client::connect(job.loop.get(), job.client_options(rank), patiently());
      if (client.ok()) clients[static_cast<size_t>(rank)] = std::move(client).value();
    }
  });
  int64_t sum = 0;
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    REQUIRE(clients[static_cast<size_t>(rank)] != nullptr);
    sum = clients[static_cast<size_t>(rank)]->add("sum", rank, patiently()).value();
  }
  CHECK(sum == kRanks * (kRanks - 1) / 2);
}

TEST_CASE("client: ranks that ask for the same keys get what is there when they ask") {
  Job job(2);
  const auto ranks = job.join_all();
  const std::vector<std::string> keys = {"a", "b", join_record_key(0)};
  REQUIRE(ranks[0]->set("a", std::string(1 << 20, 'x'), patiently()).ok());
  const std::string record = encode(job.record(0));
  for (const char* b : {"1", "2"}) {
    REQUIRE(ranks[0]->set("b", b, patiently()).ok());
    on_threads(2, [&](int32_t rank) {
      for (int i = 0; i < 3; ++i) {
        const auto values = ranks[static_cast<size_t>(rank)]->multi_get(keys, patiently());
        REQUIRE(values.ok());
        CHECK(values.value()[0]->size() == 1 << 20);
        CHECK(values.value()[1] == b);
        CHECK(values.value()[2] == record);
      }
    });
  }
  CHECK(ranks[1]->erase("b", patiently()).value());
  CHECK(ranks[0]->multi_get(keys, patiently()).value()[1] == std::nullopt);
  CHECK(ranks[1]->multi_get({"a", "c"}, patiently()).value()[1] == std::nullopt);
}

TEST_CASE("Client: whether a rank answers at this moment") {
  // Outlive the job: a client's end needs its loop.
  const auto gate = std::make_shared<Event>();
  const auto stands = std::make_shared<Event>();
  const auto other_loop = std::move(net::Loop::start()).value();
  Job job(3);
  const auto asker = job.connect(0);
  CHECK(asker->answers(0, patiently()).value());
  CHECK(!asker->answers(1, patiently()).value());  // not there yet
  CHECK(!asker->answers(-1, patiently()).value());
  CHECK(!asker->answers(3, patiently()).value());

  auto asked = Client::connect(other_loop.get(), job.client_options(1), patiently());
  REQUIRE(asked.ok());
  CHECK(asker->answers(1, patiently()).value());
  // Its I/O thread stands still, as in a process that was stopped.
  other_loop->post([gate, stands] {
    stands->set();
    gate->wait({});
  });
  REQUIRE(stands->wait(patiently()));
  CHECK(!asker->answers(1, briefly(50)).value());
  std::thread release([&] { gate->set(); });
  CHECK(asker->answers(1, patiently()).value());
  release.join();
}
