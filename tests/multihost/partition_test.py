#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Agents of an elastic job on hosts that are network namespaces: of two sides of a cut only one goes on.

partition_test.py DT PROGRAM [case ...]; ends with 77 where namespaces cannot be made.
"""

import os
import re
import selectors
import subprocess
import sys
import time

from network import Network, Unavailable

DT = ""
PROGRAM = ""
PORT = 29500  # in a namespace of our own: nobody else is there
SILENCE_MS = 6000
PATIENCE_S = 90  # far above what a busy machine needs
TOKEN = "5a" * 32


class Failed(Exception):
    pass


def expect(holds, what):
    if not holds:
        raise Failed(what)


class Agents:
    """dt run on host 0, 1, ..., with one rank on each. Whatever is left is killed at the end."""

    def __init__(self, network, count, addresses, options=()):
        self.network = network
        self.count = count
        self.rendezvous = ",".join(f"{network.address(host)}:{PORT}" for host in range(addresses))
        self.options = options
        self.selector = selectors.DefaultSelector()
        self.text = {}
        self.processes = {}

    def start(self, host):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DT_")}
        environment.update(DT_TOKEN=TOKEN, DT_RUN_ELASTIC_WAIT_MS="60000",
                           DT_HEARTBEAT_TIMEOUT_MS=str(SILENCE_MS))
        command = [DT, "run", "--nnodes", str(self.count), "--node-rank", str(host), "--rendezvous", self.rendezvous,
                   "--prefix", *self.options, PROGRAM, "part"]
        process = subprocess.Popen(self.network.command(host, command), env=environment, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        os.set_blocking(process.stdout.fileno(), False)
        self.selector.register(process.stdout, selectors.EVENT_READ, host)
        self.processes[host] = process
        self.text[host] = ""

    def __enter__(self):
        for host in range(self.count):
            self.start(host)
        return self

    def __exit__(self, *_):
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
            process.stdout.close()
        self.selector.close()

    def read(self, timeout_s):
        for key, _ in self.selector.select(timeout_s):
            found = key.fileobj.read()
            if found:
                self.text[key.data] += found.decode(errors="replace")
            elif found == b"":
                self.selector.unregister(key.fileobj)

    def wait_for(self, host, pattern):
        """What the pattern found in the host's output."""
        limit = time.monotonic() + PATIENCE_S
        while True:
            found = re.search(pattern, self.text[host])
            if found:
                return found
            left = limit - time.monotonic()
            expect(left > 0, f"host {host} does not say {pattern!r}: {self.all_text()}")
            self.read(left)

    def all_text(self):
        return "".join(f"\n-- host {host} --\n{text}" for host, text in self.text.items())

    def wait_for_part(self, host, attempt, rank, size):
        """The pid of the host's rank."""
        both = f"{rank} of {size}"
        return int(self.wait_for(host, rf"attempt {attempt} rank {both} node {both} ready (\d+) end")[1])


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def cut_off(victim):
    """One host of three: the other two go on, it does not, and comes back when the network is mended."""
    others = [host for host in range(3) if host != victim]
    with Network(3) as network, Agents(network, 3, 3, ["--min-nodes", "1"]) as agents:
        pids = [agents.wait_for_part(host, 0, host, 3) for host in range(3)]
        network.unplug(victim)
        began = time.monotonic()
        # The one whose output comes first has the others' processes to look at.
        agents.wait_for_part(others[0], 1, 0, 2)
        expect(not is_alive(pids[victim]), f"the ranks of host {victim} live beside the next attempt")
        again_s = time.monotonic() - began
        agents.wait_for_part(others[1], 1, 1, 2)
        agents.wait_for(victim, r"1 of the 3 agents of attempt 0")
        told_s = time.monotonic() - began
        for host in others:
            expect(re.search(rf"node {victim} \(host host{victim}, dt run pid \d+\) is gone: ", agents.text[host]),
                   agents.all_text())
        expect("attempt 1 rank" not in agents.text[victim], agents.all_text())
        print(f"  silence of {SILENCE_MS / 1000} s ends the attempt: the others began the next one after {again_s:.1f} s, "
              f"host {victim} had told that it is a minority after {told_s:.1f} s")
        network.plug(victim)
        lead = others[0]
        rest = sorted([victim, others[1]])
        agents.wait_for_part(lead, 2, 0, 3)
        for rank, host in enumerate(rest, 1):
            agents.wait_for_part(host, 2, rank, 3)


def cut_off_lead():
    """The host of the store: the agent of the second address serves."""
    cut_off(0)


def cut_off_member():
    cut_off(2)


CASES = [cut_off_lead, cut_off_member]


def main():
    global DT, PROGRAM
    DT, PROGRAM = sys.argv[1:3]
    wanted = sys.argv[3:]
    if os.geteuid() != 0:
        print("skipped: making network namespaces needs root")
        return 77
    try:
        with Network(2):
            pass
    except (Unavailable, FileNotFoundError) as reason:
        print(f"skipped: no network namespaces here: {reason}")
        return 77
    failed = []
    for case in CASES:
        if wanted and case.__name__ not in wanted:
            continue
        began = time.monotonic()
        try:
            case()
            print(f"ok      {case.__name__} ({time.monotonic() - began:.1f} s)", flush=True)
        except (Failed, Unavailable, OSError, subprocess.SubprocessError) as problem:
            failed.append(case.__name__)
            print(f"FAILED  {case.__name__}: {problem}", flush=True)
    if failed:
        print(f"{len(failed)} failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
