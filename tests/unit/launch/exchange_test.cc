// SPDX-License-Identifier: Apache-2.0
// The client of PMI-1 against answers as Hydra and Slurm write them, and against none. The real
// services are used in tests/launchers.
#include "launch/exchange.h"

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "../contains.h"
#include "launch/aside.h"
#include "launch/pmi.h"
#include "launch/pmix.h"

using dt::Code;
using dt::Deadline;
using dt::Environment;
using dt::Wait;
using dt::launch::exchange_address;
using dt::launch::Place;
using dt::launch::PmiClient;
using dt::launch::StoreAddress;
using dt::test::contains;

namespace {

Wait soon() { return Wait{Deadline::after_ms(50), nullptr}; }
Wait later() { return Wait{Deadline::after_ms(20000), nullptr}; }

/// A service that gives one answer after the other, whatever is asked.
class Service {
 public:
  explicit Service(std::vector<std::string> answers) {
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends_) == 0);
    thread_ = std::thread([this, answers] { serve(answers); });
  }
  ~Service() {
    shutdown(ends_[0], SHUT_RDWR);
    thread_.join();
    close(ends_[0]);
    close(ends_[1]);
  }
  int fd() const { return ends_[0]; }
  std::string asked() {  // after the last answer
    thread_.join();
    thread_ = std::thread([] {});
    return asked_;
  }

 private:
  void serve(const std::vector<std::string>& answers) {
    for (const std::string& answer : answers) {
      char c = 0;
      while (c != '\n') {
        if (read(ends_[1], &c, 1) != 1) return;
        asked_ += c;
      }
      if (send(ends_[1], answer.data(), answer.size(), MSG_NOSIGNAL) < 0) return;
    }
    shutdown(ends_[1], SHUT_WR);
  }

  int ends_[2];
  std::string asked_;
  std::thread thread_;
};

const std::vector<std::string> kHydra = {
    "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n",
    "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024\n",
    "cmd=my_kvsname kvsname=kvs_77_0_1_host\n",
    "cmd=put_result rc=0 msg=success\n",
    "cmd=barrier_out\n",
    "cmd=get_result rc=0 msg=success value=10.0.0.4:4711\n",
    "cmd=finalize_ack\n"};

/// Rank 1 of 2 on another host than rank 0, which PMI can carry a token to.
Place place_without_token() {
  Place place;
  place.rank = 1;
  place.world_size = 2;
  place.master_addr = "node0";
  place.master_port = 29500;
  place.token_exchange = dt::launch::Exchange::kPmi;
  return place;
}

}  // namespace

TEST_CASE("pmi: rank 0 puts, all get") {
  Service hydra(kHydra);
  CHECK(PmiClient(hydra.fd(), later()).exchange(0, "10.0.0.4:4711").value() == "10.0.0.4:4711");
  CHECK(hydra.asked() ==
        "cmd=init pmi_version=1 pmi_subversion=1\n"
        "cmd=get_maxes\n"
        "cmd=get_my_kvsname\n"
        "cmd=put kvsname=kvs_77_0_1_host key=dt.store value=10.0.0.4:4711\n"
        "cmd=barrier_in\n"
        "cmd=get kvsname=kvs_77_0_1_host key=dt.store\n"
        "cmd=finalize\n");
}

TEST_CASE("pmi: answers are read by name, in any order and any pieces") {
  Service slurm({"cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1\n",
                 "cmd=maxes rc=0 kvsname_max=256 keylen_max=256 vallen_max=256\n",
                 "cmd=my_kvsname rc=0 kvsname=5.5\n",
                 "cmd=barrier_out rc=0\ncmd=get_result rc=0 value=[::1]:9\n",
                 "cmd=finalize_ack rc=0\n", ""});
  Place place;
  place.rank = 1;
  place.world_size = 2;
  place.exchange = dt::launch::Exchange::kPmi;
  const Environment environment = {{"PMI_FD", std::to_string(slurm.fd())}};
  const auto got = exchange_address(place, environment, {}, later());
  INFO(got.status().message());
  REQUIRE(got.ok());
  CHECK(got.value().host == "::1");
  CHECK(got.value().port == 9);
}

TEST_CASE("pmi: each wrong answer is an error with the way out") {
  const char* const next =
      "; set MASTER_ADDR and MASTER_PORT to the host of rank 0 and a free port there, also where "
      "the program calls MPI_Init or starts a second job, since PMI serves one of them";
  for (size_t wrong = 0; wrong < kHydra.size(); ++wrong) {
    for (const char* answer : {"cmd=foo\n", "\n", "cmd= rc=0\n", "=\n", "rc=0 cmd\n"}) {
      std::vector<std::string> answers(kHydra.begin(), kHydra.begin() + static_cast<long>(wrong));
      answers.push_back(answer);
      Service service(answers);
      const auto got = PmiClient(service.fd(), later()).exchange(0, "a:1");
      REQUIRE_FALSE(got.ok());
      CHECK(got.status().code() == Code::kConfig);
      CHECK(contains(got.status().message(),
                     "no_rendezvous: the launcher's PMI service answered \""));
      CHECK(contains(got.status().message(), next));
    }
  }
  Service gone({});
  CHECK(contains(PmiClient(gone.fd(), later()).exchange(0, "").status().message(),
                 "no_rendezvous: the launcher's PMI service has closed the connection"));
  Service refused({"cmd=response_to_init rc=-1\n"});
  CHECK(contains(PmiClient(refused.fd(), later()).exchange(0, "").status().message(),
                 "answered \"cmd=response_to_init rc=-1\" to \"cmd=init "));
  Service endless({std::string(100000, 'x')});
  CHECK(contains(PmiClient(endless.fd(), later()).exchange(0, "").status().message(),
                 "sent a line without an end"));
  CHECK(contains(PmiClient(1 << 20, later()).exchange(0, "").status().message(),
                 "(PMI_FD=1048576) cannot be"));
}

TEST_CASE("pmi: no message shows a part of the token that is exchanged") {
  const std::string token = "0123456789abcdef0123456789ABCDEF0123456789abcdef0123456789abcdef";
  const std::string mine = "10.0.0.4:4711#" + token;
  Service refuses({kHydra[0], kHydra[1], kHydra[2], "cmd=put_result rc=-1 msg=" + mine + "\n"});
  const auto put = PmiClient(refuses.fd(), later()).exchange(0, mine);
  CHECK(contains(put.status().message(),
                 "answered \"cmd=put_result rc=-1 msg=10.0.0.4:4711#...\" to \"cmd=put "
                 "kvsname=kvs_77_0_1_host key=dt.store value=10.0.0.4:4711#...\""));
  Service odd({kHydra[0], kHydra[1], kHydra[2], kHydra[4],
               "cmd=got rc=0 value=" + mine + " " + token + "\n"});
  const auto got = PmiClient(odd.fd(), later()).exchange(1, "");
  CHECK(contains(got.status().message(), "value=10.0.0.4:4711#... ...\" to \"cmd=get "));
  for (size_t at = 0; at + 8 <= token.size(); ++at) {
    CHECK_FALSE(contains(put.status().message(), token.substr(at, 8)));
    CHECK_FALSE(contains(got.status().message(), token.substr(at, 8)));
  }
}

TEST_CASE("pmi: ranks that do not come end the wait at its deadline") {
  Service silent({kHydra[0], kHydra[1], kHydra[2], ""});
  const auto got = PmiClient(silent.fd(), later()).exchange(1, "");
  CHECK(contains(got.status().message(), "has closed the connection"));
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  const auto late = PmiClient(ends[0], soon()).exchange(1, "");
  CHECK(late.status().code() == Code::kTimeout);
  CHECK(late.status().message() ==
        "rendezvous: not all ranks came to the exchange over PMI in time; MASTER_ADDR and "
        "MASTER_PORT may be set on some hosts only: mpirun -x MASTER_ADDR -x MASTER_PORT carries "
        "them to all; look at the ranks that printed nothing, or raise rendezvous.timeout_ms");
  dt::Interrupt interrupt;
  interrupt.fire(dt::Status(Code::kAborted, "x"));
  const auto stopped =
      PmiClient(ends[0], Wait{Deadline::after_ms(20000), &interrupt}).exchange(1, "");
  CHECK(stopped.status().code() == Code::kAborted);
  close(ends[0]);
  close(ends[1]);
}

TEST_CASE("exchange: without the launcher's variables the error says what to set") {
  Place place;
  place.rank = 1;
  place.world_size = 4;
  place.launcher = "openmpi";
  place.master_addr = "127.0.0.1";
  for (const auto kind : {dt::launch::Exchange::kPmi, dt::launch::Exchange::kPmix}) {
    place.exchange = kind;
    CHECK(
        exchange_address(place, {}, {}, later()).status().message() ==
        "no_rendezvous: the world size is 4 and the address 127.0.0.1 are known, but not the port; "
        "set MASTER_ADDR and MASTER_PORT (or DT_MASTER_ADDR and DT_MASTER_PORT) to the host of "
        "rank 0 and a free port there, the same on all ranks: mpirun -x MASTER_ADDR=... -x "
        "MASTER_PORT=... (without -x other hosts get neither)");
  }
}

namespace {

Place on_one_host(int32_t rank, int32_t world_size) {
  Place place;
  place.rank = rank;
  place.world_size = place.local_size = world_size;
  place.exchange = dt::launch::Exchange::kPmix;
  return place;
}

/// A namespace that only this process uses: tests that run at the same time must not meet in it.
Environment named(const std::string& name) {
  return {{"PMIX_NAMESPACE", name + "-" + std::to_string(getpid())}};
}

}  // namespace

TEST_CASE("exchange: the ranks of one host meet without a server or a library of PMIx") {
  constexpr int32_t kRanks = 5;
  const Environment job = named("prterun-host-4711@1");
  for (const uint16_t port : {4711, 4712}) {  // two jobs, one after the other
    std::vector<std::string> got(kRanks);
    std::vector<std::thread> ranks;
    for (int32_t rank = kRanks - 1; rank >= 0; --rank) {
      ranks.emplace_back([&, rank] {
        const StoreAddress mine = rank == 0 ? StoreAddress{"127.0.0.1", port, {}} : StoreAddress();
        const auto store = exchange_address(on_one_host(rank, kRanks), job, mine, later());
        got[static_cast<size_t>(rank)] =
            store.ok() ? store.value().host + " " + std::to_string(store.value().port)
                       : store.status().message();
      });
    }
    for (std::thread& rank : ranks) rank.join();
    for (const std::string& each : got) CHECK(each == "127.0.0.1 " + std::to_string(port));
  }
}

TEST_CASE("exchange: on one host the error names the ranks that are missing") {
  const Environment job = named("missing");
  const StoreAddress mine{"127.0.0.1", 4711, {}};
  const dt::Status first = exchange_address(on_one_host(0, 4), job, mine, soon()).status();
  CHECK(first.code() == Code::kTimeout);
  CHECK(first.message() ==
        "rendezvous: these ranks of this host did not come in time: 1, 2, 3; look at what they "
        "printed, or raise rendezvous.timeout_ms");
  const dt::Status alone = exchange_address(on_one_host(1, 4), job, {}, soon()).status();
  CHECK(alone.code() == Code::kTimeout);
  CHECK(contains(alone.message(), "rendezvous: rank 0 did not answer at the socket \"@dt.launch."));
  CHECK(contains(alone.message(), "look at what rank 0 printed"));
  dt::Interrupt interrupt;
  interrupt.fire(dt::Status(Code::kAborted, "x"));
  const Wait interrupted{later().deadline, &interrupt};
  for (const int32_t rank : {0, 1}) {
    CHECK(exchange_address(on_one_host(rank, 4), job, mine, interrupted).status().code() ==
          Code::kAborted);
  }
}

TEST_CASE("exchange: a second process that says it is rank 0 of the host is refused") {
  const Environment job = named("twice");
  dt::Interrupt end;
  std::thread rank_0([&] {
    (void)exchange_address(on_one_host(0, 3), job, {"127.0.0.1", 1, {}},
                           Wait{later().deadline, &end});
  });
  // Rank 1 has its answer: rank 0 listens, and waits for rank 2.
  CHECK(exchange_address(on_one_host(1, 3), job, {}, later()).ok());
  const dt::Status second =
      exchange_address(on_one_host(0, 3), job, {"127.0.0.1", 2, {}}, later()).status();
  CHECK(second.code() == Code::kSystem);
  CHECK(contains(second.message(), "rendezvous: the ranks of this host meet at the socket \"@dt."));
  CHECK(contains(second.message(), ": bind: Address already in use"));
  end.fire(dt::Status(Code::kAborted, "x"));
  rank_0.join();
}

TEST_CASE("exchange_token: where the address is known, PMI carries the token that is missing") {
  const std::string token(64, 'a');
  std::vector<std::string> answers = kHydra;
  answers.erase(answers.begin() + 3);  // rank 1 puts nothing
  answers[4] = "cmd=get_result rc=0 msg=success value=node0:29500#" + token + "\n";
  Service hydra(answers);
  const Place place = place_without_token();
  const Environment environment = {{"PMI_FD", std::to_string(hydra.fd())}};
  const auto carried = [&](const Place& at, dt::launch::Credentials* credentials) {
    return exchange_token(at, environment, credentials, later());
  };
  // Where it is not needed nobody is asked.
  dt::launch::Credentials open;
  open.wanted = "none";
  CHECK(carried(place, &open).ok());
  Place other = place;
  other.master_addr = "127.0.0.1";
  dt::launch::Credentials credentials;
  CHECK(carried(other, &credentials).ok());
  other = place;
  other.store_served = true;
  CHECK(carried(other, &credentials).ok());
  CHECK_FALSE(credentials.has_token());

  CHECK(carried(place, &credentials).ok());
  REQUIRE(credentials.has_token());
  CHECK(credentials.security.token->text() == token);
  CHECK(credentials.security.mode == dt::net::SecurityMode::kAuth);
  CHECK(credentials.source == "rank 0, by the launcher's service");
  CHECK(carried(place, &credentials).ok());  // it has one: the service has closed
}

TEST_CASE("exchange_token: the error of a rank without a token names it") {
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  const Place place = place_without_token();
  dt::launch::Credentials credentials;
  const dt::Status late =
      exchange_token(place, {{"PMI_FD", std::to_string(ends[0])}}, &credentials, soon());
  CHECK(late.code() == Code::kTimeout);
  CHECK(contains(late.message(),
                 "rendezvous.timeout_ms; this rank has no token and waits for one that rank 0 "
                 "makes: if other ranks have one, give it to all (DT_TOKEN_FILE, "));
  close(ends[0]);
  close(ends[1]);
}

TEST_CASE("pmix: the library of the Open MPI that started the process goes before the system's") {
  CHECK(dt::launch::pmix_libraries({}) == std::vector<std::string>{"libpmix.so.2"});
  CHECK(dt::launch::pmix_libraries(
            {{"PMIX_PREFIX", "/opt/ompi"}, {"OMPI_LIBDIR_LOC", "/hpcx/lib"}}) ==
        std::vector<std::string>{"/opt/ompi/lib/libpmix.so.2", "/opt/ompi/lib64/libpmix.so.2",
                                 "/opt/ompi/lib/openmpi/libpmix.so.2", "/hpcx/lib/libpmix.so.2",
                                 "/hpcx/lib/openmpi/libpmix.so.2", "libpmix.so.2"});
}

TEST_CASE("run_aside: a call without an end is left behind at the deadline") {
  const auto answer = std::make_shared<dt::Event>();
  const auto late = dt::launch::run_aside(
      [answer]() -> dt::Result<std::string> {
        (void)answer->wait(later());
        return std::string("late");
      },
      "what it was", soon());
  CHECK(late.status().code() == Code::kTimeout);
  CHECK(late.status().message() == "what it was");
  answer->set();
  CHECK(dt::launch::run_aside([]() -> dt::Result<std::string> { return std::string("x"); }, "",
                              later())
            .value() == "x");
}

TEST_CASE("own_address: loopback on one node, else an address of this host") {
  Place place;
  place.node_count = 1;
  CHECK(dt::launch::own_address(place, {}, "", later()).value() == "127.0.0.1");
  place.node_count = -1;
  place.master_addr = "127.0.0.3";  // a literal is meant, as on pretended hosts
  CHECK(dt::launch::own_address(place, {}, "", later()).value() == "127.0.0.3");
  // An address of nobody is not this host's.
  place.master_addr = "203.0.113.9";
  const std::string address =
      dt::launch::own_address(place, {{"PMIX_HOSTNAME", "localhost"}}, "", later()).value();
  CHECK(address != "203.0.113.9");
  CHECK_FALSE(address.empty());
}

TEST_CASE("own_address: network.interface goes before the names of this host") {
  Place place;
  place.master_addr = "127.0.0.3";
  CHECK(dt::launch::own_address(place, {}, "lo", later()).value() == "127.0.0.1");
  CHECK(dt::launch::own_address(place, {}, "127.0.0.0/8", later()).value() == "127.0.0.1");
  const dt::Status none = dt::launch::own_address(place, {}, "nosuch0", later()).status();
  CHECK(none.code() == Code::kConfig);
  CHECK(
      none.message().find("network.interface is \"nosuch0\", and this host has no such interface, "
                          "network or address; it has ") == 0);
  place.node_count = 1;
  CHECK(dt::launch::own_address(place, {}, "nosuch0", later()).value() == "127.0.0.1");
}
