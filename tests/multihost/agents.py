# SPDX-License-Identifier: Apache-2.0
"""Agents of one job on hosts that are network namespaces."""

import os
import re
import selectors
import subprocess
import time

from cases import PORT, environment, expect

SILENCE_MS = 6000
PATIENCE_S = 90  # far above what a busy machine needs


class Agents:
    """dt run on host 0, 1, ..., with one rank on each. Whatever is left is killed at the end."""

    dt = ""
    program = ""

    def __init__(self, network, count, addresses, options=()):
        self.network = network
        self.count = count
        self.rendezvous = ",".join(f"{network.address(host)}:{PORT}" for host in range(addresses))
        self.options = options
        self.selector = selectors.DefaultSelector()
        self.text = {}
        self.processes = {}

    def start(self, host):
        settings = environment(DT_RUN_ELASTIC_WAIT_MS="60000", DT_HEARTBEAT_TIMEOUT_MS=str(SILENCE_MS))
        command = [self.dt, "run", "--nnodes", str(self.count), "--node-rank", str(host),
                   "--rendezvous", self.rendezvous, "--prefix", *self.options, self.program, "part"]
        self.start_process(host, self.network.command(host, command), settings)

    def start_process(self, name, command, settings):
        process = subprocess.Popen(command, env=settings, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT)
        os.set_blocking(process.stdout.fileno(), False)
        self.selector.register(process.stdout, selectors.EVENT_READ, name)
        self.processes[name] = process
        self.text[name] = ""

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

    def end(self, host):
        """The exit code of the host's agent."""
        limit = time.monotonic() + PATIENCE_S
        while self.processes[host].poll() is None:
            expect(time.monotonic() < limit, f"host {host} does not end: {self.all_text()}")
            self.read(0.1)
        self.read(0)
        return self.processes[host].returncode

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
