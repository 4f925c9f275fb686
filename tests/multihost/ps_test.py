#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Parameter servers and workers on hosts that are network namespaces.

ps_test.py DT SKIPGRAM [case ...]; ends with 77 where namespaces cannot be made.
"""

import json
import re
import sys

from agents import Agents
from cases import environment, expect, run_cases
from network import Network

SILENCE_MS = 4000


class Processes(Agents):
    """One process on each of some hosts, by name."""

    def __init__(self, network):
        super().__init__(network, 0, 0)

    def add(self, name, host, command, **settings):
        self.start_process(name, self.network.command(host, command), environment(**settings))


def servers_on_two_hosts():
    """dt run on two nodes, each with a server and two workers, which meet all servers."""
    with Network(2) as network, Processes(network) as job:
        for host in range(2):
            job.add(host, host, [Agents.dt, "run", "--nnodes", "2", "--node-rank", str(host), "--rendezvous",
                                 f"{network.address(0)}:29500", "-n", "2", "--servers", "1", Agents.program,
                                 "--steps", "200"])
        for host in range(2):
            expect(job.end(host) == 0, job.all_text())
            expect(re.search(rf"\[server {host}\] server {host}: 1600 pushes", job.text[host]), job.all_text())
        expect("step 200: loss 2." in job.text[0], job.all_text())
        expect(network.sent_bytes(1) > 10 << 20, f"host 1 sent {network.sent_bytes(1)} bytes")


def server_by_name():
    """Debian's /etc/hosts: on its own host a server's name leads to 127.0.1.1, where no other host can come."""
    with Network(2) as network, Processes(network) as job:
        network.write_names(0, "127.0.0.1 localhost\n127.0.1.1 server0\n")
        network.write_names(1, f"127.0.0.1 localhost\n{network.address(0)} server0\n")
        cluster = {"ps": ["server0:4000"], "chief": [f"{network.address(1)}:4100"]}
        for name, host, kind in (("server", 0, "ps"), ("chief", 1, "chief")):
            job.add(name, host, [Agents.program, "--steps", "20"],
                    TF_CONFIG=json.dumps({"cluster": cluster, "task": {"type": kind, "index": 0}}))
        for name in ("chief", "server"):
            expect(job.end(name) == 0, job.all_text())


def host_falls_silent_and_comes_back():
    """The network of a worker is cut: the other worker goes on, and so does this one when the network is back."""
    with Network(2) as network, Processes(network) as job:
        cluster = {"ps": [f"{network.address(0)}:{4000 + index}" for index in range(2)],
                   "chief": [f"{network.address(0)}:4100"], "worker": [f"{network.address(1)}:4100"]}

        def add(name, host, kind, index):
            # The chief stays until the worker is back: once a worker has left, servers wait for a lost one for
            # absent_ms only.
            steps = 6000 if kind == "chief" else 3000
            task = json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})
            job.add(name, host, [Agents.program, "--steps", str(steps), "--report", "100", "--ahead", "20"],
                    TF_CONFIG=task, DT_HEARTBEAT_INTERVAL_MS="200", DT_HEARTBEAT_TIMEOUT_MS=str(SILENCE_MS))

        for index in range(2):
            add(f"server {index}", 0, "ps", index)
        add("chief", 0, "chief", 0)
        add("worker", 1, "worker", 0)
        job.wait_for("chief", "step 200:")
        network.unplug(1)
        for index in range(2):
            job.wait_for(f"server {index}", rf"worker 1 \(host1 pid \d+\) is lost: it has been silent for "
                                            rf"{SILENCE_MS} ms; the others go on")
        done = int(re.findall(r"step (\d+):", job.text["chief"])[-1])
        job.wait_for("chief", f"step {done + 200}:")
        job.wait_for("worker", r"parameter server 0 \(host0 pid \d+\) at 10\.77\.0\.1:4000 is lost: it has been silent")
        network.plug(1)
        for index in range(2):
            job.wait_for("worker", rf"parameter server {index} .* is back after \d+ ms")
        for name in ("chief", "worker", "server 0", "server 1"):
            expect(job.end(name) == 0, job.all_text())
        expect(re.search(r"worker 1: 6000 pushes, \d+ pulls, [2-9] reconnects", job.text["worker"]), job.all_text())


if __name__ == "__main__":
    Agents.dt, Agents.program = sys.argv[1:3]
    sys.exit(run_cases([servers_on_two_hosts, server_by_name, host_falls_silent_and_comes_back], 2))
