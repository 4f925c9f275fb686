#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""outer_group.py DT GPT TEXT...: a job whose groups come together now and then loses one group, and takes it back.

Two groups of two ranks train with `gpt --outer --group 2 --checkpoint`, each under a dt run of its own. One of them, dt
run and ranks, is killed by SIGKILL. The other one goes on from the last turn, by itself. Then the lost group is started
again, and both go on from the turn in which the job stopped for it. The loss at the end is nearly that of a run that
nobody disturbed, and the parameters of all ranks are equal (gpt ends with an error otherwise).

--report trains a larger model for longer, loses each of the two groups in a run of its own, and prints rows for
docs/measured/local_steps.md.
"""
import argparse
import contextlib
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time

LIMIT_S = 600  # of a wait, and of a run
TRIES = 10
RANKS = 2  # of a group
TOLERANCE = 0.1  # of the last loss, relative


class TooEarly(Exception):
    """The job was over before it could be disturbed."""


class Plan:
    """What is trained, and when it is disturbed."""

    def __init__(self, report):
        # Killed after the learning rate has risen: before, the loss depends much on the moments that AdamW loses.
        self.turn, self.steps, self.killed, self.interval = (50, 600, 225, 25) if report else (20, 600, 230, 10)
        # The step of the group that is left at which the other one comes.
        self.alone = self.killed + (self.steps // 5 if report else self.turn)
        self.model = ["--layers", "4", "--channels", "128", "--length", "64"] if report else [
            "--layers", "1", "--channels", "48", "--heads", "3", "--length", "48"]
        self.model += ["--batch", "8", "--lr", "0.002", "--steps", str(self.steps), "--interval", str(self.interval),
                       "--outer", str(self.turn), "--group", str(RANKS)]


def expect(condition, text):
    if not condition:
        raise AssertionError(text)


def held_port():
    """A port that nobody else gets while it is open."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held


class Agent:
    """A dt run with the ranks of one group. Its lines have the time at which they were read."""

    def __init__(self, command, node):
        environment = {key: value for key, value in os.environ.items() if not key.startswith("DT_")}
        environment.update(DT_HOST_ID=f"group{node}", DT_RUN_ELASTIC_WAIT_MS="60000")
        self.node, self.lines, self.rest = node, [], b""
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, env=environment)
        os.set_blocking(self.process.stdout.fileno(), False)

    def read(self):
        """False at the end of its output."""
        piece = self.process.stdout.read(65536)
        if piece is None:
            return True
        *whole, self.rest = (self.rest + piece).split(b"\n")
        self.lines += [(time.monotonic(), line.decode()) for line in whole]
        return bool(piece)

    def text(self):
        return "".join(f"group {self.node}: {line}\n" for _, line in self.lines)

    def kill_all(self):
        """dt run and all that it has started, as if the machine were gone; returns when they have ended."""
        pid, found = self.process.pid, [os.pidfd_open(self.process.pid)]
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="utf-8") as file:
                found += [os.pidfd_open(int(child)) for child in file.read().split()]
        for each in found:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(each, signal.SIGKILL)
        with selectors.DefaultSelector() as selector:
            for each in found:
                selector.register(each, selectors.EVENT_READ)
            while selector.get_map():
                ended = selector.select(LIMIT_S)
                expect(ended, f"group {self.node}: a process outlives SIGKILL")
                for key, _ in ended:
                    selector.unregister(key.fd)
                    os.close(key.fd)
        self.process.wait()


class Job:
    """Two groups on this machine, which take themselves for two hosts."""

    def __init__(self, options, plan, checkpoint):
        self.options, self.plan, self.checkpoint = options, plan, checkpoint
        self.ports = [held_port(), held_port()]
        self.agents, self.all = [None, None], []
        self.selector = selectors.DefaultSelector()

    def __enter__(self):
        for node in (0, 1):
            self.start(node)
        return self

    def __exit__(self, *_):
        for agent in self.all:
            agent.process.kill()
            agent.process.wait()
            agent.process.stdout.close()
        self.selector.close()
        for port in self.ports:
            port.close()

    def start(self, node):
        addresses = ",".join(f"127.0.0.1:{port.getsockname()[1]}" for port in self.ports)
        command = [self.options.dt, "run", "-n", str(RANKS), "--nnodes", "2", "--min-nodes", "1", "--allow-minority",
                   "--node-rank", str(node), "--rendezvous", addresses, self.options.gpt, *self.plan.model,
                   "--checkpoint", self.checkpoint, "--loss-log", self.checkpoint + ".csv", *self.options.texts]
        self.agents[node] = Agent(command, node)
        self.all.append(self.agents[node])
        self.selector.register(self.agents[node].process.stdout, selectors.EVENT_READ, self.agents[node])

    def text(self):
        return "".join(agent.text() for agent in self.all)

    def wait(self, agent, done):
        """Until done() gives something; None: that group has ended before."""
        deadline = time.monotonic() + LIMIT_S
        while not (result := done()):
            if agent.process.stdout not in (key.fileobj for key in self.selector.get_map().values()):
                return None
            ready = self.selector.select(max(0, deadline - time.monotonic()))
            expect(ready, f"no end in time\n{self.text()}")
            for key, _ in ready:
                if not key.data.read():
                    self.selector.unregister(key.fileobj)
        return result

    def line(self, agent, pattern, behind=0):
        """(its number, its time, the match) of the first such line of a group that is behind others."""
        def find():
            for number, (when, line) in enumerate(agent.lines[behind:], behind):
                if match := re.search(pattern, line):
                    return number, when, match
            return None
        found = self.wait(agent, find)
        if found is None:
            expect("parameters equal" in agent.text(), f"no {pattern}\n{self.text()}")
            raise TooEarly
        return found

    def step(self, agent, least=0, behind=0):
        """The first line that shows a step, that one or a later one."""
        while True:
            behind, when, match = self.line(agent, r"\] step (\d+)/", behind)
            if int(match[1]) >= least:
                return behind, when, int(match[1])
            behind += 1

    def end(self):
        """The loss of the last step."""
        for agent in self.agents:
            self.wait(agent, lambda: False)
            expect(agent.process.wait(LIMIT_S) == 0, f"group {agent.node} failed\n{self.text()}")
        with open(self.checkpoint + ".csv", encoding="utf-8") as log:
            steps = [line.split(",")[0] for line in log]
        expect(steps == ["step", *(str(step) for step in range(1, self.plan.steps + 1))],
               f"the log has not each step once: {steps}")
        return last_loss(self.plan, self.text(), 2 * RANKS)


def lose(job, lost):
    """Kills a group, waits until the other one trains, and brings the first one back. What happened, in words."""
    plan, left = job.plan, job.agents[1 - lost]
    job.step(job.agents[0], plan.killed)  # rank 0 is there
    reached = max(int(step) for step in re.findall(r"\] step (\d+)/", job.text()))
    killed = time.monotonic()
    behind = len(left.lines)
    job.agents[lost].kill_all()
    behind, _, match = job.line(left, r"\] resumed at step (\d+)", behind)
    again = int(match[1])
    expect(again % plan.turn == 0 and again >= (reached - 1) // plan.turn * plan.turn, job.text())  # saved behind its line
    job.line(left, rf" {RANKS} ranks,", behind)
    _, goes_on, _ = job.step(left, behind=behind)
    behind, _, _ = job.step(left, plan.alone, behind)
    started = time.monotonic()
    job.start(lost)
    behind, _, match = job.line(left, r"\] stopped after step (\d+)", behind)
    stopped = int(match[1])
    if stopped == plan.steps:
        raise TooEarly
    behind, _, _ = job.line(left, rf"\] resumed at step {stopped}$", behind)
    job.line(left, rf" {2 * RANKS} ranks,", behind)
    _, back, _ = job.step(left, behind=behind)
    story = f"group {lost} killed after step {reached}; the other one went on from step {again}, back after step {stopped}"
    return (story, f"{goes_on - killed:.1f} s", f"{back - started:.1f} s")


def last_loss(plan, text, ranks):
    expect(f"parameters equal on all {ranks} ranks" in text, text)
    return float(re.findall(rf"\] step {plan.steps}/\d+  loss ([0-9.]+)", text)[-1])


def undisturbed(options, plan, groups):
    """The last loss of so many groups."""
    command = [options.dt, "run", "-n", str(groups * RANKS), options.gpt, *plan.model, *options.texts]
    run = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    expect(run.returncode == 0 and not run.stderr, run.stdout + run.stderr)
    return last_loss(plan, run.stdout, groups * RANKS)


def disturbed(options, plan, folder, lost):
    for number in range(TRIES):
        try:
            with Job(options, plan, os.path.join(folder, f"lost{lost}.{number}")) as job:
                told = lose(job, lost)
                return told, job.end()
        except TooEarly:  # where the test itself got no processor for seconds
            pass
    raise AssertionError(f"over before it was disturbed, {TRIES} times")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dt")
    parser.add_argument("gpt")
    parser.add_argument("texts", nargs="*")
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args()
    plan = Plan(options.report)
    wanted = undisturbed(options, plan, 2)
    print(f"| undisturbed | | | {wanted:.4f} | |", flush=True)
    if options.report:
        alone = undisturbed(options, plan, 1)
        print(f"| one group from the first step to the last | | | {alone:.4f} | {alone - wanted:+.4f} |", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for lost in (0, 1) if options.report else (1,):
            told, loss = disturbed(options, plan, folder, lost)
            print(f"| {' | '.join(told)} | {loss:.4f} | {loss - wanted:+.4f} |", flush=True)
            if abs(loss - wanted) > TOLERANCE * wanted:
                sys.exit(f"the loss is {loss} instead of {wanted}, further away than {TOLERANCE} of it")


if __name__ == "__main__":
    main()
