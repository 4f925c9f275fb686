#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Agents of a job that needs all its nodes, on hosts that are network namespaces, one of which falls silent.

The ranks say nothing to each other, so that the agents alone find it out.
silence_test.py DT PROGRAM [case ...]; ends with 77 where namespaces cannot be made.
"""

import sys
import time

from agents import Agents, SILENCE_MS, is_alive
from cases import expect, run_cases
from network import Network

SILENCE = f"{SILENCE_MS / 1000:.1f} s"


def gone_text(agents, node, teller=None):
    """What is said of a lost node; the teller doubts its own network where it is the only one that was asked."""
    own = "" if teller is None else f", or the network of this machine (node {teller}, host host{teller}) is"
    return (f"node {node} (host host{node}, dt run pid {agents.processes[node].pid}) is gone: it gave no sign of life "
            f"for {SILENCE}: its agent is stopped, or its machine or network is down{own}; it held rank {node}; look "
            "at its log, then start the job again\n")


def lose(victim, cut, texts, options=()):
    """`cut` makes the victim silent: every agent ends with its text, and none of their ranks is left."""
    with Network(3) as network, Agents(network, 3, 1, options) as agents:
        pids = [agents.wait_for_part(host, 0, host, 3) for host in range(3)]
        cut(network)
        began = time.monotonic()
        others = [host for host in range(3) if host != victim]
        ended_s = {}
        for host in [*others, victim]:
            text = texts(agents, host)
            while text not in agents.text[host]:
                code = agents.processes[host].poll()
                expect(code is None, f"host {host} ended without {text!r}: {agents.all_text()}")
                expect(time.monotonic() < began + 60, f"host {host} does not say {text!r}: {agents.all_text()}")
                agents.read(0.1)
            ended_s[host] = time.monotonic() - began
        for host in range(3):
            expect(agents.end(host) == 1, agents.all_text())
            expect(not is_alive(pids[host]), f"the rank of host {host} lives")
            expect("attempt 1" not in agents.text[host], agents.all_text())
        all_s = time.monotonic() - began
        told = ", ".join(f"host {host} after {seconds:.1f} s" for host, seconds in sorted(ended_s.items()))
        print(f"  silence of {SILENCE} is told by {told}; all had ended after {all_s:.1f} s")


def of_node0(agents, host):
    if host != 0:
        return gone_text(agents, 0, host)
    return (f"this machine (node 0, host host0) hears none of the other nodes for {SILENCE}: 1 (host host1), "
            "2 (host host2); its own network is down, or theirs; look at the network of host host0 first, "
            "then start the job again\n")


def node0_unplugged():
    lose(0, lambda network: network.unplug(0), of_node0)


def node0_unplugged_with_restarts():
    """Another attempt would need all nodes."""
    lose(0, lambda network: network.unplug(0), of_node0, ["--max-restarts", "2"])


def node0_interface_down():
    """As an administrator does it."""
    lose(0, lambda network: network.ip(0, "link", "set", "eth0", "down"), of_node0)


def node2_unplugged():
    """The others agree on it; the lost one knows only that it hears nobody."""
    def texts(agents, host):
        return gone_text(agents, 0, 2) if host == 2 else gone_text(agents, 2)
    lose(2, lambda network: network.unplug(2), texts)


CASES = [node0_unplugged, node0_unplugged_with_restarts, node0_interface_down, node2_unplugged]


if __name__ == "__main__":
    Agents.dt, Agents.program = sys.argv[1:3]
    sys.exit(run_cases(CASES, 2))
