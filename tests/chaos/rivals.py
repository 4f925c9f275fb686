#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The same faults to a job of dt, of torch.distributed over gloo, and of Open MPI, side by side (root only).

rivals.py CHAOS_RANK [--repeat N] [--only dt,gloo,openmpi] [--jobs N]: four ranks on two hosts, which are network
namespaces, everything as it is by default. Prints, for each fault, the time until every rank that lives had ended or
had an error, and what the texts name: the guilty rank, its address, or nothing.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import selectors
import shutil
import signal
import subprocess
import sys
import time

import hosts

HERE = pathlib.Path(__file__).resolve().parent
PLACED = [0, 0, 1, 1]
VICTIM = 3
LIMIT_S = 60
TOKEN = "5a" * 32
FAULTS = ("kill", "stop", "link_down", "blackhole", "wrong_count", "wrong_op", "absent")

AGENT = """#!/bin/sh
# mpirun's way to another host: AGENT ADDRESS COMMAND...
address=$1
shift
case "$address" in {cases} esac
exec ip netns exec "$name" unshare --uts sh -c 'hostname "$0"; exec sh -c "$1"' "$host" "$*"
"""


class System:
    """A job of one kind; ranks write events to stdout as JSON, a launcher what it has to say to stderr."""

    def __init__(self, network, folder, program, timeout_s):
        self.network, self.folder, self.program, self.timeout_s = network, folder, program, timeout_s
        self.processes, self.events = [], []
        self.selector = selectors.DefaultSelector()
        self.errors = open(folder / "stderr", "w+")

    def launch(self, host, command, **variables):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DT_")} | variables
        process = subprocess.Popen(self.network.command(host, command), env=environment, stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=self.errors, cwd=self.folder)
        os.set_blocking(process.stdout.fileno(), False)
        self.selector.register(process.stdout, selectors.EVENT_READ, [len(self.processes), b""])
        self.processes.append(process)

    def pump(self, seconds, until):
        limit = time.monotonic() + seconds
        while not until():
            if time.monotonic() > limit:
                return False
            for key, _ in self.selector.select(0.02):
                data = key.fileobj.read(65536)
                if data == b"":
                    self.selector.unregister(key.fileobj)
                    continue
                *lines, key.data[1] = (key.data[1] + (data or b"")).split(b"\n")
                for line in lines:
                    if line.startswith(b"{"):
                        event = json.loads(line)
                        self.events.append(self.with_rank(event, key.data[0]))
        return True

    def with_rank(self, event, index):
        del index
        return event

    def found(self, name):
        return {event["who"] if "who" in event else event["rank"]: event for event in reversed(self.events)
                if event["event"] == name}

    def ask(self, fault):
        (self.folder / "asking").write_text(fault)
        (self.folder / "asking").rename(self.folder / "fault")

    def stderr(self):
        self.errors.seek(0)
        return self.errors.read()

    def end(self):
        for process in self.processes:
            process.kill()
        hosts.kill_all(self.network.processes())
        for process in self.processes:
            process.wait()
            process.stdin.close()
            process.stdout.close()
        self.selector.close()
        self.errors.close()


class Dt(System):
    def start(self):
        for rank, host in enumerate(PLACED):
            self.launch(host, [self.program, "1", "1"], DT_RANK=str(rank), DT_WORLD_SIZE=str(len(PLACED)),
                        DT_MASTER_ADDR=self.network.address(0), DT_MASTER_PORT=str(hosts.PORT), DT_TOKEN=TOKEN,
                        DT_COLLECTIVE_TIMEOUT_MS=f"{self.timeout_s}000" if self.timeout_s else "")

    def with_rank(self, event, index):
        return event | {"who": index, "pid": self.processes[index].pid}

    def ask(self, fault):
        self.processes[VICTIM].stdin.write(fault.replace("_", " ").encode() + b"\n")
        self.processes[VICTIM].stdin.flush()


class Gloo(System):
    def start(self):
        for rank, host in enumerate(PLACED):
            self.launch(host, ["/usr/bin/python3", str(HERE / "rival_torch.py"), str(VICTIM), str(self.folder)],
                        RANK=str(rank), WORLD_SIZE=str(len(PLACED)), MASTER_ADDR=self.network.address(0),
                        MASTER_PORT=str(hosts.PORT), GLOO_SOCKET_IFNAME="eth0", OMP_NUM_THREADS="1",
                        RIVAL_TIMEOUT_S=str(self.timeout_s or ""))


class OpenMpi(System):
    def start(self):
        agent = self.folder / "agent"
        cases = " ".join(f"{self.network.address(host)}) name={self.network.namespace(host)}; host=host{host} ;;"
                         for host in (0, 1))
        agent.write_text(AGENT.replace("{cases}", cases))
        agent.chmod(0o700)
        both = ",".join(f"{self.network.address(host)}:2" for host in (0, 1))
        self.launch(0, ["mpirun.openmpi", "--bind-to", "none", "--mca", "plm", "rsh", "--mca", "plm_rsh_agent",
                        str(agent), "--mca", "btl", "tcp,vader,self", "--mca", "pml", "ob1", "--host", both, "-n", "4",
                        self.program, str(VICTIM), str(self.folder)],
                    OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")


SYSTEMS = {"dt": Dt, "gloo": Gloo, "openmpi": OpenMpi}


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] not in "ZX"
    except OSError:
        return False


def named(job, fault, rank):
    """What the rank's own error, or what the launcher says, tells of the cause."""
    error = job.found("error").get(rank)
    text = (error["message"] if error else "") + "\n" + job.stderr()
    guilty = {VICTIM} if fault not in ("link_down", "blackhole") else \
        {other for other, host in enumerate(PLACED) if host != PLACED[rank]}
    if error is not None and "status" in error:
        return "rank" if error["rank"] in guilty else "nothing"
    if any(re.search(rf"\brank:? {other}\b", text) for other in guilty):
        return "rank"
    if any(job.network.address(PLACED[other]) in text for other in guilty):
        return "address"
    return "nothing"


def one(kind, fault, program, serial, folder, timeout_s):
    """(seconds or None, what is named, values were wrong)."""
    folder = folder / f"{kind}-{fault}-{serial}"
    folder.mkdir()
    with hosts.Namespaces(2, f"r{serial}") as network:
        job = SYSTEMS[kind](network, folder, program, timeout_s)
        try:
            job.start()
            if not job.pump(60, lambda: len(job.found("ready")) == len(PLACED)):
                raise RuntimeError(f"{kind} does not start: {job.events} {job.stderr()}")
            pids = {rank: event["pid"] for rank, event in job.found("ready").items()}
            job.pump(0.5, lambda: False)
            began = time.monotonic_ns()
            if fault == "kill":
                os.kill(pids[VICTIM], signal.SIGKILL)
            elif fault == "stop":
                os.kill(pids[VICTIM], signal.SIGSTOP)
            elif fault == "link_down":
                network.unplug(1)
            elif fault == "blackhole":
                network.lose(0, 1)
                network.lose(1, 0)
            else:
                job.ask(fault)
            others = [rank for rank in pids if rank != VICTIM or fault in ("link_down", "blackhole", "wrong_count",
                                                                           "wrong_op")]
            over = job.pump(LIMIT_S, lambda: all(rank in job.found("error") or not alive(pids[rank])
                                                 for rank in others))
            seconds = (time.monotonic_ns() - began) / 1e9
            times = [event.get("returned", event["at"]) for rank, event in job.found("error").items() if rank in others]
            if over and len(times) == len(others):
                seconds = (max(times) - began) / 1e9
            job.pump(0.3, lambda: False)
            says = {named(job, fault, rank) for rank in others}
            worst = "nothing" if "nothing" in says else "address" if "address" in says else "rank"
            return seconds if over else None, worst if over else "nothing", bool(job.found("wrong"))
        finally:
            (folder / "events").write_text("\n".join(map(str, job.events)))
            job.end()


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="chaos_rank")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", default="dt,gloo,openmpi")
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--timeout-s", type=int, help="of an operation, for those that have such a limit")
    parser.add_argument("--keep", action="store_true", help="keep what the jobs wrote")
    return parser.parse_args()


def shown(results):
    times = sorted(seconds for seconds, _, _ in results if seconds is not None)
    wrong = "; wrong values" if any(wrong for _, _, wrong in results) else ""
    if len(times) < len(results):
        some = f" in {len(results) - len(times)} of {len(results)}" if times else ""
        return f"no error in {LIMIT_S} s{some}{wrong}"
    says = {"rank": "names the rank", "address": "names an address", "nothing": "names nobody"}
    worst = next(each for each in ("nothing", "address", "rank") if each in {what for _, what, _ in results})
    return f"{times[0]:.3f} to {times[-1]:.3f} s, {says[worst]}{wrong}"


def main():
    wanted = options()
    able = hosts.probe()
    if able.get("filter") is not True:
        print(f"skipped: {able['filter']}")
        return 77
    folder = pathlib.Path(hosts.folder_for("rivals", wanted.keep))
    programs = {"dt": str(pathlib.Path(wanted.program).resolve()), "gloo": "", "openmpi": str(folder / "rival_mpi")}
    kinds = wanted.only.split(",")
    if "openmpi" in kinds:
        subprocess.run(["mpicc.openmpi", "-O1", "-o", programs["openmpi"], str(HERE / "rival_mpi.c")], check=True)
    results = collections.defaultdict(list)
    with concurrent.futures.ThreadPoolExecutor(wanted.jobs) as pool:
        running, serial = {}, 0
        for _ in range(wanted.repeat):
            for fault in wanted.faults.split(","):
                for kind in kinds:
                    serial += 1
                    running[pool.submit(one, kind, fault, programs[kind], serial, folder,
                                        wanted.timeout_s)] = (kind, fault)
        for done in concurrent.futures.as_completed(running):
            kind, fault = running[done]
            results[kind, fault].append(done.result())
            print(kind, fault, done.result(), flush=True)
    print(f"\n| fault | {' | '.join(kinds)} |\n|---|{'---|' * len(kinds)}")
    for fault in wanted.faults.split(","):
        print(f"| {fault} | {' | '.join(shown(results[kind, fault]) for kind in kinds)} |")
    if wanted.keep:
        print(f"kept {folder}")
    else:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
