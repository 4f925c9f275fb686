#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs over several hosts, which are network namespaces: right results, and what goes wrong between hosts.

multihost_test.py PROGRAM [case ...]; ends with 77 where namespaces cannot be made.
"""

import os
import re
import subprocess
import sys
import time

from cases import expect, run_cases
from job import SLACK_S, Job
from network import Network

SHAPES = {
    2: ([0, 1], [0, 0, 0, 1], [0, 1, 0, 1]),
    3: ([0, 1, 2], [0, 0, 1, 2, 2]),
    4: ([0, 1, 2, 3], [0, 1, 2, 3, 0, 1]),
}
UNEVEN = [0] * 6 + [1] * 3 + [2] * 2  # who stands for whom differs from host to host


def results(count):
    """Every dtype and every kind of collective gives the right elements."""
    with Network(count) as network:
        for hosts in SHAPES[count]:
            with Job(network, hosts, ["check"]) as job:
                job.expect_good(hosts)


def results_on_2():
    results(2)


def results_on_3():
    results(3)


def results_on_4():
    results(4)


def local_ranks_in_another_order():
    """Results follow the ranks where a launcher numbers a host's ranks in an order of its own."""
    with Network(3) as network:
        for hosts, local_ranks in (([0, 0, 0, 0], [0, 2, 1, 3]), ([0, 0, 0, 1, 1, 1], [2, 0, 1, 0, 2, 1]),
                                   ([0, 1, 0, 1, 2, 0, 1], [2, 0, 1, 2, 0, 0, 1])):
            for mode in (["check"], ["random", "1", "30"]):
                with Job(network, hosts, mode, local_ranks=local_ranks) as job:
                    job.expect_good(hosts)


def results_over_ipv6():
    with Network(2) as network:
        hosts = [0, 0, 1]
        with Job(network, hosts, ["check"], family=6) as job:
            job.expect_good(hosts)


def bytes_on_the_wire():
    """What two hosts exchange passes through the wire, and what two ranks of a host exchange does not."""
    count = 4_000_000
    with Network(2) as network:
        for hosts, low, high in (([0, 1], 1.0, 1.2), ([0, 0, 1, 1], 1.0, 1.2), ([0, 0], 0.0, 0.01)):
            with Job(network, hosts, ["bytes", str(count)]) as job:
                job.wait_ready()
                before = network.sent_bytes(0)
                job.go()
                job.expect_good(hosts)
                share = (network.sent_bytes(0) - before) / (4 * count)
                print(f"  ranks on hosts {hosts}: host 0 sent {share:.3f} of the buffer's bytes")
                expect(low <= share <= high, f"hosts {hosts}: {share} of the buffer's bytes")


def add_decoy(network, count):
    """What a container engine leaves on every host: the same address everywhere."""
    for host in range(count):
        network.ip(host, "link", "add", "docker0", "type", "bridge")
        network.ip(host, "addr", "add", "172.17.0.1/16", "dev", "docker0")
        network.ip(host, "link", "set", "docker0", "up")


def as_hex(address):
    return "".join(f"{int(part):02X}" for part in reversed(address.split(".")))


def interface_by_route():
    """The decoy is not chosen, and nothing listens anywhere else than where peers call."""
    with Network(3) as network:
        add_decoy(network, 3)
        hosts = [0, 0, 1, 2]
        with Job(network, hosts, ["bytes", "1000"]) as job:
            job.wait_ready()
            for host in range(3):
                found = network.listening(host)
                expect(found == {as_hex(network.address(host))}, f"host {host} listens on {found}")
            job.go()
            job.expect_good(hosts)


def one_host_listens_for_itself():
    """On one host the links are gone after the start, and the store is on the loopback address."""
    with Network(1) as network:
        hosts = [0, 0]
        with Job(network, hosts, ["bytes", "1000"], {"DT_MASTER_ADDR": "127.0.0.1"}) as job:
            job.wait_ready()
            found = network.listening(0)
            expect(found == {as_hex("127.0.0.1")}, f"listens on {found}")
            job.go()
            job.expect_good(hosts)


def interface_by_choice():
    """By name, network and address; a wrong choice is an error with the interfaces of both sides."""
    with Network(2) as network:
        add_decoy(network, 2)
        hosts = [0, 1]
        for wanted in ("eth0", "10.77.0.0/16"):
            with Job(network, hosts, ["reach"], {"DT_NETWORK_INTERFACE": wanted}) as job:
                job.expect_good(hosts)
        with Job(network, hosts, ["reach"], of_host={0: {"DT_NETWORK_INTERFACE": "10.77.0.1"}}) as job:
            job.expect_good(hosts)
        both = (r"host[01] has .*docker0 172\.17\.0\.1/16.*; host[01] has .*eth0 10\.77\.0\.[12]/24.*"
                r"choose with network\.interface")
        with Job(network, hosts, [], {"DT_NETWORK_INTERFACE": "docker0"}) as job:
            job.expect_errors(30, r"two hosts have the same address: rank \d \(host\d pid \d+\) is at "
                              r"172\.17\.0\.1, and rank \d \(host\d pid \d+\) \(at 172\.17\.0\.1\) has that "
                              r"address too; " + both, status="CONFIG")
        # The one that listens there would be sought at home by the other.
        with Job(network, hosts, [], of_host={0: {"DT_NETWORK_INTERFACE": "docker0"}}) as job:
            job.expect_errors(30, r"rank 0 \(host0 pid \d+\) is at 172\.17\.0\.1, and rank 1 \(host1 pid \d+\) "
                              r"\(at 10\.77\.0\.2\) has that address too; " + both, status="CONFIG")
        with Job(network, hosts, [], {"DT_NETWORK_INTERFACE": "lo"}) as job:
            job.expect_errors(30, r"a loopback address reaches no other host: .*; " + both)
        with Job(network, [0, 1], [], of_host={1: {"DT_NETWORK_INTERFACE": "eth7"}}) as job:
            job.expect_errors(30, r"rank 1 \(host1 pid \d+\) cannot be reached by ranks of other hosts: "
                              r"network\.interface is \"eth7\", and this "
                              r"host has no such interface", status="CONFIG")


def add_default_routes(network, count):
    for host in range(count):
        network.ip(host, "route", "add", "default", "dev", "eth0")


def master_by_name():
    """Debian's /etc/hosts: on its own host the master's name leads to 127.0.1.1, where no other host can come."""
    with Network(2) as network:
        add_default_routes(network, 2)
        network.write_names(0, "127.0.0.1 localhost\n127.0.1.1 master\n")
        network.write_names(1, f"127.0.0.1 localhost\n{network.address(0)} master\n")
        for hosts in ([0, 1], [0, 0, 1], [0, 1, 1]):
            with Job(network, hosts, ["reach"], {"DT_MASTER_ADDR": "master"}) as job:
                job.expect_good(hosts)


def master_that_listens_everywhere():
    """Rank 0 may not know its own address (AWS Batch)."""
    with Network(2) as network:
        add_default_routes(network, 2)
        hosts = [0, 1]
        with Job(network, hosts, ["reach"], of_host={0: {"DT_MASTER_ADDR": "0.0.0.0"}}) as job:
            job.expect_good(hosts)


def port_range():
    with Network(2) as network:
        hosts = [0, 0, 1]
        with Job(network, hosts, ["reach"], {"DT_NETWORK_PORT_RANGE": "29600-29601"}) as job:
            job.expect_good(hosts)
        with Job(network, hosts, [], {"DT_NETWORK_PORT_RANGE": "29600"}) as job:
            job.expect_errors(5, r"rank [01] \(host0 pid \d+\) cannot be reached by ranks of other hosts: every port from 29600 to 29600 of "
                              r"10\.77\.0\.1 is in use")


PAIR_1_2 = r"(rank 1 \(host1.*rank 2 \(host2|rank 2 \(host2.*rank 1 \(host1)"


def blackhole_at_start():
    """Two hosts that both reach the store and not each other: neighbours in the ring."""
    with Network(3) as network:
        network.ip(1, "route", "add", "blackhole", f"{network.address(2)}/32")
        with Job(network, [0, 1, 2], [], {"DT_RENDEZVOUS_TIMEOUT_MS": "8000"}) as job:
            job.expect_errors(8, r"dt_init: rank 1 \(host1\) at 10\.77\.0\.2:\d+ cannot reach rank 2 "
                              r"\(host2 pid \d+\) at 10\.77\.0\.3:\d+: .*does answer through the store, so its "
                              r"host is up")


def blackhole_beside_the_ring():
    """Two hosts that the greeting at the start does not join: the first operation names them."""
    with Network(4) as network:
        network.ip(1, "route", "add", "blackhole", f"{network.address(3)}/32")
        with Job(network, [0, 1, 2, 3], ["loop"], {"DT_COLLECTIVE_TIMEOUT_MS": "5000"}) as job:
            job.expect_errors(5, r"(rank 1 \(host1.*rank 3 \(host3|rank 3 \(host3.*rank 1 \(host1)")


def blackhole_in_the_middle():
    with Network(3) as network:
        with Job(network, [0, 1, 2], ["loop"], {"DT_COLLECTIVE_TIMEOUT_MS": "4000"}) as job:
            job.wait_ready()
            network.ip(1, "route", "add", "blackhole", f"{network.address(2)}/32")
            job.expect_errors(4, PAIR_1_2, status="TIMEOUT|PEER_LOST")


def blackhole_between_operations():
    """Nothing is under way when the routes go, so nothing is left unacknowledged."""
    with Network(3) as network:
        with Job(network, [0, 1, 2], ["bytes", "1000"], {"DT_COLLECTIVE_TIMEOUT_MS": "4000"}) as job:
            job.wait_ready()
            limit = time.monotonic() + 10
            while network.unacknowledged(1) or network.unacknowledged(2):
                expect(time.monotonic() < limit, "the hosts do not come to rest")
            network.ip(1, "route", "add", "blackhole", f"{network.address(2)}/32")
            network.ip(2, "route", "add", "blackhole", f"{network.address(1)}/32")
            job.go()
            job.expect_errors(4, rf"{PAIR_1_2}.* does not acknowledge what was sent", status="TIMEOUT")


def late_ranks_at_a_gap():
    """Who has heard of all ranks and waits for data tells last, also if those at the gap called later."""
    with Network(3) as network:
        with Job(network, [0, 1, 2], ["bytes", "1000"], {"DT_COLLECTIVE_TIMEOUT_MS": "4000"}) as job:
            job.wait_ready()
            limit = time.monotonic() + 10
            while network.unacknowledged(2):
                expect(time.monotonic() < limit, "the host does not come to rest")
            network.ip(2, "route", "add", "blackhole", f"{network.address(1)}/32")
            job.go([0])
            try:
                job.processes[0].wait(1.5)
            except subprocess.TimeoutExpired:
                job.go([1, 2])
            job.expect_errors(4, PAIR_1_2, status="TIMEOUT")


def transfer_deadline():
    """A receive fails by its own deadline, whatever waits beside it, and names its own peer."""
    with Network(3) as network:
        with Job(network, [0, 1, 2], ["transfers"]) as job:
            job.wait_ready()
            began = time.monotonic()
            codes = job.end(1.5 + SLACK_S, but=[1, 2])
            expect(codes[0] == 9 and time.monotonic() - began > 1, f"rank 0: {codes[0]}: {job.text(0)}")
            expect(re.search(r"saw DT_ERR_TIMEOUT of rank 2 host host2 pid \d+: recv on comm \"world\", rank 0 "
                             r"\(host0\): timed out: rank 2 \(host2, pid \d+\) at .* has not sent; ", job.text(0)),
                   job.text(0))
            job.go([1, 2])
            for rank, code in job.end(SLACK_S, but=[0]).items():
                expect(code == 9 and "rank 2 (host2, pid" in job.text(rank), f"rank {rank}: {job.text(rank)}")


def link_down(count):
    """Every error names a rank on each side of the gap."""
    with Network(count) as network:
        hosts = list(range(count)) + [0]
        with Job(network, hosts, ["loop"], {"DT_COLLECTIVE_TIMEOUT_MS": "4000"}) as job:
            job.wait_ready()
            network.unplug(count - 1)
            last = count - 1
            here = rf"rank (?!{last}\b)\d+ \(host(?!{last}\b)\d+"
            there = rf"rank {last} \(host{last}"
            job.expect_errors(4, rf"({here}.*{there}|{there}.*{here})", status="TIMEOUT|PEER_LOST")


def link_down_on_2():
    link_down(2)


def link_down_on_3():
    link_down(3)


def firewall(silent):
    """Only the store's port passes: the ports of the links do not."""
    with Network(2) as network:
        if silent:  # the answers of the listening host are lost
            network.ip(1, "rule", "add", "priority", "10", "ipproto", "6", "sport", "29600-29699", "blackhole")
        else:
            network.ip(0, "rule", "add", "priority", "10", "ipproto", "6", "dport", "29600-29699", "prohibit")
        with Job(network, [0, 1], [], {"DT_RENDEZVOUS_TIMEOUT_MS": "8000",
                                       "DT_NETWORK_PORT_RANGE": "29600-29699"}) as job:
            why = "it does not take the connection: a firewall drops the packets" if silent else \
                "Permission denied: a firewall or a route of this host forbids it"
            job.expect_errors(8, r"dt_init: rank 0 \(host0\) at 10\.77\.0\.1:296\d\d cannot reach rank 1 "
                              r"\(host1 pid \d+\) at 10\.77\.0\.2:296\d\d: " + why +
                              r".*network\.port_range.*does answer through the store, so its host is up")


def firewall_that_drops():
    firewall(True)


def firewall_that_forbids():
    firewall(False)


def encrypted():
    """The same results by TLS, and no byte of a message in the clear."""
    with Network(3) as network:
        for hosts in SHAPES[3]:
            with Job(network, hosts, ["check"], {"DT_SECURITY_MODE": "encrypt"}) as job:
                job.expect_good(hosts)
        with Job(network, [0, 0, 1, 2], ["loop"], {"DT_SECURITY_MODE": "encrypt"}) as job:
            job.wait_ready()
            victim = job.processes[2].pid
            job.kill(2)
            job.expect_errors(2, rf"saw DT_ERR_PEER_LOST of rank 2 host host1 pid {victim}: .*rank 2 \(host1 pid {victim}\)",
                              but=[2])


def several_connections():
    """The same results over several connections of a pair, also where they are encrypted, and the same errors."""
    several = {"DT_NETWORK_CONNECTIONS": "3"}
    with Network(3) as network:
        for hosts in SHAPES[3]:
            for security in ("auth", "encrypt"):
                with Job(network, hosts, ["check"], several | {"DT_SECURITY_MODE": security}) as job:
                    job.expect_good(hosts)
        with Job(network, [0, 0, 1, 2], ["loop"], several) as job:
            job.wait_ready()
            victim = job.processes[2].pid
            job.kill(2)
            job.expect_errors(2, rf"saw DT_ERR_PEER_LOST of rank 2 host host1 pid {victim}: .*rank 2 \(host1 pid {victim}\)",
                              but=[2])
        with Job(network, [0, 1, 2], ["loop"], several | {"DT_COLLECTIVE_TIMEOUT_MS": "4000"}) as job:
            job.wait_ready()
            network.ip(1, "route", "add", "blackhole", f"{network.address(2)}/32")
            job.expect_errors(4, PAIR_1_2, status="TIMEOUT|PEER_LOST")
        with Job(network, [0, 1, 2], ["check"], several, {1: {"DT_NETWORK_CONNECTIONS": "1"}}) as job:
            job.expect_errors(5, "network.connections")


def random_operations():
    """What a plain reference gives, with several operations under way; RANDOM_SEEDS plays as many for each shape."""
    seeds = int(os.environ.get("RANDOM_SEEDS", "1"))
    for count in (2, 3, 4):
        with Network(count) as network:
            for number, hosts in enumerate(SHAPES[count] + ((UNEVEN,) if count == 3 else ())):
                for algorithm in ("auto", "halving", "ring")[:1 if count == 2 else 3]:
                    for seed in range(1 + 100 * number, 1 + 100 * number + seeds):
                        with Job(network, hosts, ["random", str(seed), "30"], {"DT_NETWORK_ALGORITHM": algorithm}) as job:
                            job.expect_good(hosts)


def each_algorithm():
    """The same results however the hosts exchange, and a word where they do not agree on it. Send and receive have
    one way only."""
    for count in (3, 4):
        with Network(count) as network:
            for hosts in SHAPES[count]:
                for algorithm in ("direct", "halving", "ring"):
                    with Job(network, hosts, ["collectives"], {"DT_NETWORK_ALGORITHM": algorithm}) as job:
                        job.expect_good(hosts)
            if count == 4:
                continue
            with Job(network, [0, 1, 2], ["loop"], {"DT_NETWORK_ALGORITHM": "ring"}) as job:
                job.wait_ready()
                victim = job.processes[1].pid
                job.kill(1)
                job.expect_errors(2, rf"saw DT_ERR_PEER_LOST of rank 1 host host1 pid {victim}", but=[1])
            with Job(network, [0, 1, 2], ["loop"],
                     {"DT_NETWORK_ALGORITHM": "ring", "DT_COLLECTIVE_TIMEOUT_MS": "4000"}) as job:
                job.wait_ready()
                network.ip(1, "route", "add", "blackhole", f"{network.address(2)}/32")
                job.expect_errors(4, PAIR_1_2, status="TIMEOUT|PEER_LOST")
                network.ip(1, "route", "del", "blackhole", f"{network.address(2)}/32")
            with Job(network, [0, 1, 2], ["check"], {"DT_NETWORK_ALGORITHM": "ring"},
                     {1: {"DT_NETWORK_ALGORITHM": "halving"}}) as job:
                job.expect_errors(5, "network.algorithm")


def open_network():
    """Without a token only where it is written."""
    with Network(2) as network:
        with Job(network, [0, 1], ["reach"], {"DT_TOKEN": "", "DT_SECURITY_MODE": "none"}) as job:
            job.expect_good([0, 1])
        with Job(network, [0, 1], ["reach"], {"DT_TOKEN": "", "DT_RENDEZVOUS_TIMEOUT_MS": "3000"}) as job:
            job.expect_errors(3, r"cannot serve the store on 10\.77\.0\.1 port 29500: the store would listen on "
                                 r"10\.77\.0\.1, .*: there is no token\. Give all .*, which dt token makes\. .* set "
                                 r'security\.mode = "none"|no store at 10\.77\.0\.1:29500 within')


def strangers():
    """Who has another token, or none, is refused at once, and both sides say why."""
    with Network(2) as network:
        for other, says in (({"DT_TOKEN": "a5" * 32}, "the other side has another token"),
                            ({"DT_TOKEN": "", "DT_SECURITY_MODE": "none"}, "this side sent a plain hello"),
                            ({"DT_SECURITY_MODE": "encrypt"}, "this side uses security.mode = encrypt, the other side "
                                                              "security.mode = auth")):
            with Job(network, [0, 1], ["check"], {"DT_RENDEZVOUS_TIMEOUT_MS": "8000"}, {1: other}) as job:
                began = time.monotonic()
                codes = job.end(8 + SLACK_S)
                expect(codes == {0: 9, 1: 9}, f"{codes}: {job.text(0)} {job.text(1)}")
                expect(says in job.text(1), f"rank 1 does not say {says!r}: {job.text(1)}")
                expect("store: refused a connection from 10.77.0.2" in job.text(0), job.text(0))
                print(f"  {says}: after {time.monotonic() - began:.1f} s")


def kill_on_another_host():
    with Network(3) as network:
        with Job(network, [0, 0, 1, 2], ["loop"]) as job:
            job.wait_ready()
            victim = job.processes[2].pid
            job.kill(2)
            job.expect_errors(2, rf"saw DT_ERR_PEER_LOST of rank 2 host host1 pid {victim}: .*rank 2 \(host1 pid {victim}\)",
                              but=[2])


CASES = [results_on_2, results_on_3, results_on_4, local_ranks_in_another_order, results_over_ipv6, bytes_on_the_wire, interface_by_route,
         one_host_listens_for_itself, interface_by_choice, master_by_name,
         master_that_listens_everywhere, port_range, blackhole_at_start,
         blackhole_beside_the_ring, blackhole_in_the_middle, blackhole_between_operations, late_ranks_at_a_gap,
         transfer_deadline, link_down_on_2, link_down_on_3,
         firewall_that_drops, firewall_that_forbids, kill_on_another_host,
         encrypted, several_connections, each_algorithm, random_operations, open_network, strangers]


if __name__ == "__main__":
    Job.program = sys.argv[1]
    sys.exit(run_cases(CASES, 1))
