#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ps_job.py DT SKIPGRAM [--report]: a job of 2 parameter servers and 4 workers, of which one each is killed.

Started by TF_CONFIG, as by Kubeflow, and by `dt run --servers 2`. The others go on, the server comes back from its
checkpoint, and the loss in the end is that of a job that nobody disturbed, within 5 %. --report prints the figures.
"""
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

SLOW = "CURVE_STEPS" in os.environ  # a sanitizer's build: fewer steps, and more time for them
LIMIT_S, REPORT = (240, 40) if SLOW else (120, 100)
STEPS, KILL_WORKER_AT, KILL_SERVER_AT = 10 * REPORT, 3 * REPORT, 5 * REPORT
AHEAD = 4
SAVE_MS = 200
TOLERANCE = 0.05
WORKERS, SERVERS = 4, 2


def expect(condition, text):
    if not condition:
        raise AssertionError(text)


class Process:
    """A process and its lines, which a thread reads."""

    def __init__(self, command, env):
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True)
        self.lines = []
        self.changed = threading.Condition()
        self.over = False
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            with self.changed:
                self.lines.append(line.rstrip("\n"))
                self.changed.notify_all()
        with self.changed:
            self.over = True
            self.changed.notify_all()

    def await_line(self, pattern):
        """The match of the first line that has it."""
        deadline = time.monotonic() + LIMIT_S
        seen = 0
        with self.changed:
            while True:
                for line in self.lines[seen:]:
                    found = re.search(pattern, line)
                    if found:
                        return found
                seen = len(self.lines)
                left = deadline - time.monotonic()
                expect(not self.over and left > 0, f"no line {pattern!r} in:\n" + "\n".join(self.lines[-40:]))
                self.changed.wait(left)

    def end(self):
        """Its exit code."""
        code = self.process.wait(LIMIT_S)
        self.reader.join(LIMIT_S)
        return code

    def kill(self):
        self.process.kill()
        self.process.wait(LIMIT_S)

    def text(self):
        return "\n".join(self.lines)


def clean_environment(**more):
    env = {name: value for name, value in os.environ.items() if not name.startswith(("DT_", "TF_CONFIG"))}
    env.update(more)
    return env


def trainer(program, folder):
    return [program, "--steps", str(STEPS), "--report", str(REPORT), "--ahead", str(AHEAD),
            "--save-ms", str(SAVE_MS), "--checkpoint", folder]


class TfConfigJob:
    """Processes that a platform would start, each with its TF_CONFIG."""

    def __init__(self, program, folder):
        # Held, so that nobody else gets the ports; a socket that listens may share them.
        self.held = []
        for _ in range(WORKERS + SERVERS):
            each = socket.socket()
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.bind(("127.0.0.1", 0))
            self.held.append(each)
        addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in self.held]
        self.cluster = {"ps": addresses[:SERVERS], "chief": addresses[SERVERS:SERVERS + 1],
                        "worker": addresses[SERVERS + 1:]}
        self.command = trainer(program, folder)
        self.servers = [self.start("ps", index) for index in range(SERVERS)]
        self.workers = [self.start("chief", 0)] + [self.start("worker", index) for index in range(WORKERS - 1)]

    def start(self, kind, index):
        config = json.dumps({"cluster": self.cluster, "task": {"type": kind, "index": index}})
        return Process(self.command, clean_environment(TF_CONFIG=config))

    def disturb(self):
        self.workers[0].await_line(f"step {KILL_WORKER_AT}:")
        self.workers[2].kill()
        self.workers[0].await_line(f"step {KILL_SERVER_AT}:")
        self.servers[1].kill()
        self.workers[0].await_line(r"parameter server 1 \(.* is lost")
        self.servers[1] = self.start("ps", 1)  # as the platform does

    def end(self):
        for each in self.workers + self.servers:
            each.process.kill()
        for each in self.workers + self.servers:
            each.process.wait(LIMIT_S)

    def finish(self, disturbed):
        for index, worker in enumerate(self.workers):
            if disturbed and index == 2:
                continue
            expect(worker.end() == 0, f"worker {index}: {worker.text()}")
        for index, server in enumerate(self.servers):
            expect(server.end() == 0, f"server {index}: {server.text()}")
        for each in self.held:
            each.close()
        return "\n".join(each.text() for each in self.workers + self.servers)


class DtRunJob:
    """The same by dt run, which starts the server again."""

    def __init__(self, dt, program, folder):
        self.run = Process([dt, "run", "-n", str(WORKERS), "--servers", str(SERVERS)] + trainer(program, folder),
                           clean_environment())

    def pid_of(self, name, value):
        """Of the child in whose environment the variable has this value."""
        with open(f"/proc/{self.run.process.pid}/task/{self.run.process.pid}/children", encoding="ascii") as file:
            for pid in file.read().split():
                with open(f"/proc/{pid}/environ", "rb") as environ:
                    if f"{name}={value}".encode() in environ.read().split(b"\0"):
                        return int(pid)
        raise AssertionError(f"dt run has no child with {name}={value}")

    def disturb(self):
        self.run.await_line(f"step {KILL_WORKER_AT}:")
        os.kill(self.pid_of("DT_RANK", 2), signal.SIGKILL)
        self.run.await_line(f"step {KILL_SERVER_AT}:")
        os.kill(self.pid_of("DT_PS_INDEX", 1), signal.SIGKILL)

    def end(self):
        self.run.kill()

    def finish(self, _disturbed):
        expect(self.run.end() == 0, self.run.text())
        return self.run.text()


def run(start, disturbed):
    """What a job printed."""
    with tempfile.TemporaryDirectory() as folder:
        job = start(folder)
        try:
            if disturbed:
                job.disturb()
            return job.finish(disturbed)
        finally:
            job.end()  # what a failure has left would write to the folder


def loss_of(text):
    return float(re.search(f"step {STEPS}: loss ([0-9.]+)", text).group(1))


def check(name, start, report):
    plain, disturbed = run(start, False), run(start, True)
    expected, found = loss_of(plain), loss_of(disturbed)
    expect(abs(found - expected) <= TOLERANCE * expected, f"{name}: loss {found}, undisturbed {expected}")
    for text, workers in ((plain, WORKERS), (disturbed, WORKERS - 1)):
        ahead = [int(each) for each in re.findall(r"at most (\d+) steps ahead", text)]
        expect(len(ahead) == workers and max(ahead) <= AHEAD, f"{name}: {workers} workers, steps ahead {ahead}")
    expect(len(re.findall(r" is lost: .*; the others go on", disturbed)) >= 1, f"{name}: {disturbed}")
    expect(len(re.findall(r"parameter server 1 .* is back after \d+ ms", disturbed)) == WORKERS - 1,
           f"{name}: {disturbed}")
    expect(not re.search("lost|back", plain), f"{name}: {plain}")
    if report:
        rates = [int(each) for each in re.findall(r"(\d+) requests a second of its processor", plain)]
        back = [int(each) for each in re.findall(r"is back after (\d+) ms", disturbed)]
        print(f"{name}: loss {expected:.4f}, disturbed {found:.4f}; back after {max(back)} ms; "
              f"requests a second of a server's processor {min(rates)} to {max(rates)}")


def main():
    dt, program = sys.argv[1:3]
    report = "--report" in sys.argv
    check("TF_CONFIG", lambda folder: TfConfigJob(program, folder), report)
    check("dt run", lambda folder: DtRunJob(dt, program, folder), report)


if __name__ == "__main__":
    main()
