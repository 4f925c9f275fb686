// SPDX-License-Identifier: Apache-2.0
// The checks of `dt doctor` of a job's place and connections, on machines that are pretended.
#include <doctest/doctest.h>

#include "cli/doctor/checks.h"
#include "pretended_machine.h"

using dt::Status;
using dt::test::check_finding;
using dt::test::PretendedMachine;
using namespace dt::cli::doctor;

TEST_CASE("a launcher that contradicts itself is bad, with its own advice") {
  PretendedMachine pretended;
  pretended.machine.place.reset();
  pretended.machine.place_error =
      Status(dt::Code::kConfig, "partial: RANK=3 is set, but WORLD_SIZE is not; set both");
  check_finding(look_at_launcher(pretended.machine), Grade::kBad,
                "partial: RANK=3 is set, but WORLD_SIZE is not", "set both");
  check_finding(look_at_place(pretended.machine), Grade::kBad, "unknown", "see launcher");
}

TEST_CASE("the interface is the one on the route to the rendezvous") {
  PretendedMachine pretended;
  pretended.join_job(4, 2, 2);
  const Finding good = look_at_interface(pretended.machine);
  check_finding(good, Grade::kGood,
                "eth0 10.0.0.5, by the route to 10.0.0.1; not lo 127.0.0.1 (loopback), docker0 "
                "172.17.0.1 (bridge)");
  CHECK(good.compared == "eth0");  // addresses differ between hosts
  pretended.machine.rendezvous->local_address = "172.17.0.1";
  check_finding(look_at_interface(pretended.machine), Grade::kWarning,
                "docker0 172.17.0.1 (bridge), by the route to 10.0.0.1; not lo 127.0.0.1 "
                "(loopback), eth0 10.0.0.5",
                "bridges of containers have the same address on many hosts: give the rendezvous an "
                "address of the real network");
  pretended.machine.rendezvous->local_address = "127.0.0.1";
  CHECK(look_at_interface(pretended.machine).grade == Grade::kWarning);
  pretended.machine.place->node_count = 1;
  CHECK(look_at_interface(pretended.machine).grade == Grade::kGood);
  pretended.machine.rendezvous->local_address.clear();
  CHECK(look_at_interface(pretended.machine).grade == Grade::kBad);
}

TEST_CASE("what guards the connections, and where the token comes from") {
  PretendedMachine pretended;
  Machine& machine = pretended.machine;
  check_finding(look_at_security(machine), Grade::kGood,
                "there is no token; jobs on one host need none, those on several do");
  pretended.join_job(4, 2, 2);
  const Finding found = look_at_security(machine);
  check_finding(found, Grade::kGood, "auth, with the token of the file /run/dt");
  CHECK(found.compared == "auth");  // the file may be elsewhere on other hosts
  machine.credentials = {};
  const std::string advice = "run dt token, and copy ~/.config/dt/token to every host";
  check_finding(look_at_security(machine), Grade::kBad,
                "there is no token, so the job listens on loopback only", advice);
  machine.rendezvous->local_address = "127.0.0.1";
  check_finding(look_at_security(machine), Grade::kWarning,
                "there is no token, so the job listens on loopback only", advice);
  machine.place->node_count = -1;  // not known, but there are ranks elsewhere
  CHECK(look_at_security(machine).grade == Grade::kWarning);
  machine.place->exchange = dt::launch::Exchange::kPmix;
  check_finding(look_at_security(machine), Grade::kGood,
                "auth, with a token that rank 0 makes and the launcher carries");
  machine.place->exchange = dt::launch::Exchange::kNone;
  machine.credentials.security.open_to_all = true;
  check_finding(
      look_at_security(machine), Grade::kWarning,
      "none, as security.mode says: whoever reaches a port of the job joins, reads and ends it",
      "unless you trust the network: dt token, its file on every host, and no security.mode");
  machine.place->node_count = 1;
  CHECK(look_at_security(machine).grade == Grade::kGood);

  machine.credentials_error = Status(dt::Code::kConfig, "it is wrong; mend it");
  check_finding(look_at_security(machine), Grade::kBad, "it is wrong", "mend it");
}

TEST_CASE("a rendezvous that cannot be reached says how") {
  PretendedMachine pretended;
  pretended.join_job(4, 2, 2);
  check_finding(look_at_rendezvous(pretended.machine), Grade::kGood, "10.0.0.1:4711 answers");
  pretended.machine.rendezvous->kind = Reach::kRefused;
  check_finding(look_at_rendezvous(pretended.machine), Grade::kBad,
                "10.0.0.1:4711: refused, the host is up but nothing listens there",
                "see whether dt run still runs, and whether the port is right");
  pretended.machine.place->store_served = pretended.machine.place->port_taken = false;
  check_finding(look_at_rendezvous(pretended.machine), Grade::kGood,
                "10.0.0.1:4711: the host answers, rank 0 does not serve there yet");
  pretended.machine.rendezvous->kind = Reach::kSilent;
  check_finding(look_at_rendezvous(pretended.machine), Grade::kBad, "10.0.0.1:4711: no answer",
                "the host is down, or a firewall drops the packets: open the port between the "
                "nodes");
  pretended.machine.rendezvous = Reach{
      Reach::kUnresolved, "the name \"head\" cannot be resolved: unknown; check the name", {}};
  check_finding(look_at_rendezvous(pretended.machine), Grade::kBad,
                "10.0.0.1:4711: the name \"head\" cannot be resolved: unknown",
                "check the name, /etc/hosts and DNS on this host, or give an address");
}

TEST_CASE("network.interface chooses, and a bad one is bad") {
  PretendedMachine pretended;
  pretended.join_job(4, 2, 2);
  pretended.machine.chosen_address = "172.17.0.1";
  check_finding(look_at_interface(pretended.machine), Grade::kWarning,
                "docker0 172.17.0.1 (bridge), by network.interface; not lo 127.0.0.1 (loopback), "
                "eth0 10.0.0.5",
                "bridges of containers have the same address on many hosts: give "
                "network.interface one of the real network");
  pretended.machine.network_error =
      Status(dt::Code::kConfig, "network.port_range is \"7\"; give \"first-last\"");
  check_finding(look_at_interface(pretended.machine), Grade::kBad, "network.port_range is \"7\"",
                "give \"first-last\"");
}

TEST_CASE("an address that comes through the launcher is not looked for") {
  PretendedMachine pretended;
  pretended.join_job(4, 2, 2);
  Machine& machine = pretended.machine;
  machine.place->store_served = machine.place->port_taken = false;
  machine.place->master_addr.clear();
  machine.place->master_port = 0;
  machine.place->exchange = dt::launch::Exchange::kPmi;
  machine.rendezvous.reset();
  check_finding(look_at_rendezvous(machine), Grade::kBad,
                "by PMI-1, but PMI_FD is not set in this process",
                "keep the launcher's variables, or set MASTER_ADDR and MASTER_PORT on all ranks");
  machine.environment["PMI_FD"] = "7";
  check_finding(look_at_rendezvous(machine), Grade::kGood,
                "by PMI-1: rank 0 tells the others its address, the port is the kernel's choice");
  check_finding(look_at_interface(machine), Grade::kGood,
                "by the route to rank 0, whose address comes by PMI-1; there are lo 127.0.0.1 "
                "(loopback), eth0 10.0.0.5, docker0 172.17.0.1 (bridge)");
  check_finding(look_at_store_port(machine), Grade::kGood, "the kernel's choice, told by PMI-1");
  machine.store_port = Status(dt::Code::kSystem, "Cannot assign requested address");
  check_finding(look_at_store_port(machine), Grade::kBad,
                "the kernel's choice, told by PMI-1; but store.bind cannot be served: Cannot "
                "assign requested address",
                "give store.bind an address of this host, or leave it out");
  machine.place->exchange = dt::launch::Exchange::kPmix;
  machine.environment["PMIX_NAMESPACE"] = "a";
  CHECK(look_at_rendezvous(machine).text ==
        "by PMIx: rank 0 tells the others its address, the port is the kernel's choice");
  machine.place->node_count = 1;
  CHECK(look_at_rendezvous(machine).text ==
        "by a socket that PMIX_NAMESPACE names: rank 0 tells the others its address, the port is "
        "the kernel's choice");
}

TEST_CASE("under torchrun the ranks meet in its agent's store") {
  PretendedMachine pretended;
  pretended.join_job(4, 2, 2);
  Machine& machine = pretended.machine;
  machine.place->store_served = false;  // but the port is taken
  check_finding(look_at_rendezvous(machine), Grade::kGood,
                "10.0.0.1:4711 answers: the ranks meet in PyTorch's store there");
  check_finding(look_at_store_port(machine), Grade::kGood,
                "the kernel's choice, told by PyTorch's store");
  machine.rendezvous->kind = Reach::kRefused;
  check_finding(look_at_rendezvous(machine), Grade::kBad,
                "10.0.0.1:4711: refused, PyTorch's store, in which the ranks meet, is not there",
                "see whether torchrun's agent still runs, and whether the port is right");
}

TEST_CASE("the port of the store is free, held, or in danger") {
  PretendedMachine pretended;
  pretended.join_job(4, 2, 2);
  CHECK(look_at_store_port(pretended.machine).text ==
        "4711 is held by the launcher, which serves the store");
  pretended.machine.place->store_served = pretended.machine.place->port_taken = false;
  CHECK(look_at_store_port(pretended.machine).text == "4711 is rank 0's to serve");
  pretended.machine.place->rank = 0;
  pretended.machine.serves_store = true;
  check_finding(look_at_store_port(pretended.machine), Grade::kGood, "4711 is free");
  pretended.machine.place->master_port = 40000;
  check_finding(look_at_store_port(pretended.machine), Grade::kWarning,
                "40000 is free, but any connection of this host may take it (32768-60999)",
                "choose a port outside of that range");
  pretended.machine.store_port = Status(dt::Code::kSystem, "Address already in use");
  check_finding(look_at_store_port(pretended.machine), Grade::kBad,
                "40000 cannot be served here: Address already in use",
                "give another MASTER_PORT on all ranks, or end what holds this one (ss -ltnp), and "
                "check that MASTER_ADDR, or store.bind, is this host's");
}
