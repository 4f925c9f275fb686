# SPDX-License-Identifier: Apache-2.0
"""Carries a schedule out: starts its ranks, does the harm, collects what they say."""

import json
import os
import pathlib
import selectors
import signal
import subprocess
import sys
import time

from rules import KILLING, Outcome, first

START_S = 60  # until all ranks are ready, on a busy machine
END_S = 30  # from an error, or the wish to stop, until the process has ended
TOKEN = "5a" * 32
RELAY = str(pathlib.Path(__file__).resolve().parent / "relay.py")


class Stuck(Exception):
    pass


class Run:
    def __init__(self, schedule, program, network, folder):
        self.schedule, self.network, self.folder = schedule, network, pathlib.Path(folder)
        self.outcome = Outcome(named_hosts=hasattr(network, "unplug"))
        self.selector = selectors.DefaultSelector()
        self.partial = {}
        self.processes = []
        self.errors = []
        self.relay = None
        self.program = program

    def start(self):
        schedule = self.schedule
        place = (self.network.address(schedule.placed[0]), self.network.port)
        if schedule.relayed >= 0:
            relayed = self.start_relay(schedule.placed[schedule.relayed], place)
        for rank, host in enumerate(schedule.placed):
            inherited = {name: value for name, value in os.environ.items() if not name.startswith("DT_")}
            address = relayed if rank == schedule.relayed else place
            environment = inherited | schedule.settings | {
                "DT_RANK": str(rank), "DT_WORLD_SIZE": str(len(schedule.placed)), "DT_MASTER_ADDR": address[0],
                "DT_MASTER_PORT": str(address[1]), "HOME": str(self.folder), "TMPDIR": str(self.folder)}
            if schedule.settings["DT_SECURITY_MODE"] != "none":
                environment["DT_TOKEN"] = TOKEN
            disk = None
            if schedule.kind.startswith("disk_"):
                disk = self.folder / "disk"
                disk.mkdir(exist_ok=True)
                environment["CHAOS_DISK"] = str(disk)
            if schedule.kind == "disk_trace":
                environment["DT_TRACE_DIR"] = str(disk)
            command = self.network.command(host, [self.program, str(schedule.seed), str(schedule.pace_ms)], disk=disk)
            stderr = open(self.folder / f"stderr-{rank}", "w+")
            self.errors.append(stderr)
            process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                       stderr=stderr, cwd=self.folder)
            self.processes.append(process)
            self.outcome.pids[rank] = process.pid  # what stands before it becomes the program
            self.outcome.events[rank] = []
            self.partial[rank] = b""
            os.set_blocking(process.stdout.fileno(), False)
            self.selector.register(process.stdout, selectors.EVENT_READ, rank)

    def start_relay(self, host, target):
        address, port = self.network.relay_address(host)
        command = self.network.command(host, [sys.executable, RELAY, address, str(port), *map(str, target)])
        self.relay = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        words = self.relay.stdout.readline().split()
        if words[:1] != ["listening"]:
            raise Stuck("the relay does not listen")
        return address, int(words[1])

    def tell_relay(self, command):
        self.relay.stdin.write(command + "\n")
        self.relay.stdin.flush()
        if self.relay.stdout.readline().strip() != command.split()[0]:
            raise Stuck(f"the relay does not answer to {command!r}")

    def tell(self, rank, command):
        try:
            self.processes[rank].stdin.write(command.encode() + b"\n")
            self.processes[rank].stdin.flush()
        except OSError:
            pass  # it has ended, and its events say how

    def pump(self, seconds, until=lambda: False):
        """Reads what the ranks say until the condition holds; False when the time is over."""
        limit = time.monotonic() + seconds
        while not until():
            left = limit - time.monotonic()
            if left <= 0:
                return False
            # An end of a process is no event here: its output's end is.
            for key, _ in self.selector.select(min(left, 1)):
                self.read(key)
        return True

    def read(self, key):
        data = key.fileobj.read(65536)
        if data is None:
            return
        if not data:
            self.selector.unregister(key.fileobj)
            return
        *lines, self.partial[key.data] = (self.partial[key.data] + data).split(b"\n")
        self.outcome.events[key.data] += [json.loads(line) for line in lines]

    def said(self, rank, name):
        return first(self.outcome.events[rank], name) is not None

    def closed(self, ranks):
        """Whether these have closed their output, as at their end."""
        still = {key.data for key in self.selector.get_map().values()}
        return not still.intersection(ranks)

    def do(self):
        """All of it; the outcome is complete afterwards."""
        try:
            self.start()
            everyone = range(len(self.schedule.placed))
            if not self.pump(START_S, lambda: all(self.said(rank, "ready") or self.said(rank, "error")
                                                  for rank in everyone)):
                raise Stuck(f"not ready: ranks {[rank for rank in everyone if not self.said(rank, 'ready')]}")
            if any(self.said(rank, "error") for rank in everyone):
                raise Stuck("an error before any fault")
            for fault in self.schedule.faults:
                self.pump(fault.after_ms / 1000)
                self.outcome.fault_ns = time.monotonic_ns()
                self.cause(fault)
            self.finish()
        except (Stuck, OSError, RuntimeError) as problem:
            self.outcome.trouble.append(f"{type(problem).__name__}: {problem}")
        finally:
            self.collect()
        return self.outcome

    def cause(self, fault):
        kind = fault.kind
        if kind == "kill_unheard":
            self.tell_relay("hold to_store")
        if kind in KILLING:
            for rank in fault.ranks:
                self.processes[rank].kill()
        elif kind in ("stop_short", "stop_long"):
            self.processes[fault.ranks[0]].send_signal(signal.SIGSTOP)
            if kind == "stop_short":
                self.pump(fault.lasts_ms / 1000)
                self.processes[fault.ranks[0]].send_signal(signal.SIGCONT)
        elif kind in ("link_down", "link_flap"):
            self.network.unplug(fault.hosts[0])
            if kind == "link_flap":
                self.pump(fault.lasts_ms / 1000)
                self.network.plug(fault.hosts[0])
        elif kind in ("blackhole", "blackhole_one_way"):
            self.network.lose(*fault.hosts)
            if kind == "blackhole":
                self.network.lose(*reversed(fault.hosts))
        elif kind == "reset_data":
            if self.network.reset(*fault.hosts) == 0:
                raise Stuck(f"no connection between the hosts {fault.hosts} could be reset")
        elif kind == "reset_control":
            self.tell_relay("reset")
        elif kind == "delay":
            self.tell_relay(f"delay {fault.lasts_ms}")
        elif kind == "control_one_way":
            self.tell_relay(f"hold {fault.direction}")
        elif kind == "leave":
            for rank, (operation, inside) in zip(fault.ranks, fault.leaves):
                self.tell(rank, f"leave {operation} {'inside' if inside else 'before'}")
        elif kind == "slow":
            self.tell(fault.ranks[0], f"slow {fault.lasts_ms}")
        else:
            command = {"disk_checkpoint": "checkpoint", "absent": "absent"}.get(kind, kind.replace("_", " "))
            self.tell(fault.ranks[0], command)

    def finish(self):
        schedule, fault = self.schedule, self.schedule.faults[-1]
        everyone = set(range(len(schedule.placed)))
        if schedule.harmless:
            self.pump(fault.lasts_ms / 1000 + 0.3)
            self.tell(schedule.stopper, "stop")
            self.pump(END_S, lambda: self.closed(everyone))
            return
        apart = set(fault.ranks) if schedule.kind in ("stop_long", "absent") else set()
        # An absent rank has told of its fault itself; so has a wrong one.
        self.pump(schedule.limit_ms() / 1000 + END_S,
                  lambda: all(self.said(rank, "error") or self.closed([rank]) for rank in everyone - apart))
        told = [first(self.outcome.events[rank], "fault") for rank in fault.ranks]
        self.outcome.fault_ns = min((event["at"] for event in told if event is not None),
                                    default=self.outcome.fault_ns)
        for rank in apart:
            if schedule.kind == "stop_long":
                self.processes[rank].send_signal(signal.SIGCONT)
            else:
                self.tell(rank, "go")
        self.pump(END_S, lambda: self.closed(everyone))

    def collect(self):
        hung = []
        for rank, process in enumerate(self.processes):
            try:
                process.wait(0 if not self.closed([rank]) else 5)
            except subprocess.TimeoutExpired:
                hung.append(rank)
                self.outcome.trouble.append(f"rank {rank} hangs: {stacks(process.pid)}")
                process.kill()
                process.wait()
            self.outcome.codes[rank] = None if rank in hung else process.returncode
        self.pump(0.1, lambda: self.closed(range(len(self.processes))))
        for rank, process in enumerate(self.processes):
            process.stdin.close()
            process.stdout.close()
            self.errors[rank].seek(0)
            self.outcome.stderr[rank] = self.errors[rank].read()
            self.errors[rank].close()
        self.selector.close()
        if self.relay is not None:
            self.relay.kill()
            self.relay.wait()
            self.relay.stdin.close()
            self.relay.stdout.close()
        self.outcome.left += [f"process {pid}" for pid in self.network.processes()]
        for entry in self.folder.iterdir():
            if not entry.name.startswith("stderr-") and not (entry.name == "disk" and not list(entry.iterdir())):
                self.outcome.left.append(f"file {entry.name}")


def stacks(pid):
    """Where the threads of a process are, as well as that can be told here."""
    try:
        done = subprocess.run(["gdb", "-p", str(pid), "-batch", "-ex", "thread apply all bt 12"], capture_output=True,
                              text=True, timeout=30)
        return done.stdout[-6000:]
    except (OSError, subprocess.SubprocessError):
        tasks = pathlib.Path(f"/proc/{pid}/task")
        return ", ".join(f"{task.name} in {(task / 'wchan').read_text()}" for task in tasks.iterdir())
