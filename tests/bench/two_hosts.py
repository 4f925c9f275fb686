#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An allreduce between two or more hosts, beside plain TCP streams, MPI and gloo.

The hosts are network namespaces; --rate puts a token bucket in front of each, without it the machine's
processors are the limit. With --delay the two are joined by wire.cc, which holds each packet up, and loses
--loss percent of them. Rounds are interleaved: every program runs once per round, in the same order.
`tcp` is one connection on which both sides stream at once, with nothing to compute: with one rank on
each of two hosts an allreduce sends exactly its buffer in each direction. More than two hosts have no
such line. Times are of an allreduce in
place (--out-of-place: of dt from one buffer to another), of f32, rewritten before each operation of 64 KiB and more.

    tests/bench/two_hosts.py --build build --rate 10gbit --sizes 1M,25M
    tests/bench/two_hosts.py --build before=build-main --build after=build --rivals none --hosts 4
    tests/bench/two_hosts.py --build build --build four=build,DT_NETWORK_CONNECTIONS=4 --rate 200mbit --delay 5 --loss 0.1
"""
import argparse
import os
import pathlib
import re
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "multihost"))
from cases import environment  # noqa: E402
from network import Network, Unavailable  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
BENCH = HERE.parents[1] / "runtime/cli/bench"
QUEUE_US = 40000  # of what may wait in front of the wire: a few round trips of a long way
CONGESTION_FILE = "/proc/sys/net/ipv4/tcp_congestion_control"
PORT = 29500
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
FRESH_BYTES = 65536  # as method.h
STREAM_CALL_BYTES = 1 << 20
RIVALS = ("openmpi", "mpich", "gloo", "gloo-tuned", "torch")
COMPILERS = {"openmpi": ["mpicc.openmpi", "-std=c99", "-O2", BENCH / "rival_mpi.c"],
             "mpich": ["mpicc.mpich", "-std=c99", "-O2", BENCH / "rival_mpi.c"],
             "gloo": ["c++", "-std=c++17", "-O3", BENCH / "rival_gloo.cc", "-lgloo"],
             "wire": ["c++", "-std=c++17", "-O2", HERE / "wire.cc", "-pthread"]}

# One rank of torch.distributed with gloo, measured as method.h says.
TORCH = """
import sys, time
import torch, torch.distributed as dist
budget, sizes = float(sys.argv[1]) / 1e3, [int(word) for word in sys.argv[2:]]
dist.init_process_group("gloo")
def timed(data, count):
    total = 0
    for _ in range(count):
        if data.numel() * 4 >= 65536:
            data.fill_(1)
            dist.barrier()
        begin = time.perf_counter()
        dist.all_reduce(data)
        total += time.perf_counter() - begin
    return total / count
for size in sizes:
    data = torch.ones(size // 4)
    slowest = torch.tensor([timed(data, 2)])
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    mean = torch.tensor([timed(data, max(4, min(5000, int(budget / slowest.item()))))])
    dist.all_reduce(mean)
    if dist.get_rank() == 0:
        print("dt-bench-row", size, size // 4, 0, mean.item() / dist.get_world_size() * 1e6, 0, 0, flush=True)
"""


def bytes_of(text):
    found = re.fullmatch(r"(\d+)([KMG]?)", text.upper())
    if not found:
        raise argparse.ArgumentTypeError(f"{text} is no size")
    return int(found[1]) * UNITS[found[2]]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--build", action="append", help="a build folder, or NAME=FOLDER, with what is to be set for it: "
                        "NAME=FOLDER,NAME=VALUE; may come several times")
    parser.add_argument("--sizes", default="8,1K,64K,1M,25M")
    parser.add_argument("--rate", help="of each direction, as tc says it: 1gbit; none: no limit")
    parser.add_argument("--port-bytes", type=int, help="that wait at most where the switch sends to a host, at --rate; "
                        "beyond, packets get lost, as where many hosts send to one")
    parser.add_argument("--delay", type=float, default=0, help="milliseconds to the other of two hosts; needs --rate")
    parser.add_argument("--loss", type=float, default=0, help="percent of the packets, where there is a delay")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--budget-ms", type=int, default=300, help="of one size in one run")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=1, help="on each host")
    parser.add_argument("--operation", default="allreduce", help="of dt; another one needs --rivals none")
    parser.add_argument("--op", default="sum", help="of dt; another one needs --rivals none")
    parser.add_argument("--out-of-place", action="store_true", help="needs --rivals none")
    parser.add_argument("--rivals", default=",".join(RIVALS), help="some of %(default)s, or none")
    parser.add_argument("--env", action="append", default=[], help="NAME=VALUE for dt")
    parser.add_argument("--timeout", type=float, default=120, help="seconds per run")
    parser.add_argument("--stream", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.sizes = [bytes_of(word) for word in arguments.sizes.split(",")]
    arguments.build = [word.split("=", 1) if "=" in word else ["dt", word] for word in arguments.build or ["build"]]
    if arguments.delay and (arguments.hosts != 2 or not arguments.rate):
        parser.error("--delay is for two hosts, with a --rate")
    if (arguments.operation, arguments.op, arguments.out_of_place) != ("allreduce", "sum", False) and \
            arguments.rivals != "none":
        parser.error("only an allreduce in place, of sums, is measured beside others")
    arguments.rivals = [] if arguments.rivals == "none" else arguments.rivals.split(",")
    return arguments


def stream(side, address, size, seconds, congestion):
    """One end of a connection on which both ends send without a pause; prints the time of `size` bytes."""
    with socket.socket() as listener:
        if congestion:
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
        if side == "0":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address, PORT))
            listener.listen()
            connection = listener.accept()[0]
        else:
            while listener.connect_ex((address, PORT)) != 0:
                os.sched_yield()
            connection = listener
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end = time.monotonic() + seconds

            def send():
                data = bytes(STREAM_CALL_BYTES)
                while time.monotonic() < end:
                    connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)

            sender = threading.Thread(target=send)
            sender.start()
            into = bytearray(STREAM_CALL_BYTES)
            got = 0
            begin = None
            last = None
            while count := connection.recv_into(into):
                last = time.monotonic()
                if begin is None and last > end - seconds * 0.75:  # the start does not count
                    begin = last
                    count = 0
                got += count if begin else 0
            sender.join()
            if side == "0":
                print("dt-bench-row", size, 0, 0, (last - begin) * 1e6 * size / got, 0, 0)


class Bench:
    def __init__(self, arguments, network, scratch):
        self.arguments = arguments
        self.network = network
        self.scratch = scratch
        self.ranks = arguments.hosts * arguments.ranks
        self.meetings = 0
        self.programs = {}
        for name, folder in arguments.build:
            self.programs[name] = lambda size, folder=folder: self.dt(folder, size)
        if arguments.hosts == 2 and arguments.operation == "allreduce":
            self.programs["tcp"] = lambda size: self.stream(size, "")
        if arguments.hosts == 2 and network.inside(0, "cat", CONGESTION_FILE).strip() != "cubic":
            self.programs["tcp-cubic"] = lambda size: self.stream(size, "cubic")
        for rival in arguments.rivals:
            if rival == "torch":
                self.programs[rival] = self.torch
                continue
            library, _, tuned = rival.partition("-")
            if not (scratch / library).exists():
                subprocess.run([*COMPILERS[library], "-o", scratch / library], check=True)
            if library == "gloo":
                self.programs[rival] = lambda size, way=tuned or "default": self.gloo(way, size)
            else:
                self.programs[rival] = lambda size, rival=rival: self.mpi(rival, size)

    def host(self, rank):
        return rank // self.arguments.ranks

    def start(self, host, command, settings):
        return subprocess.Popen(self.network.command(host, [str(word) for word in command]), env=settings,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True, start_new_session=True)

    def finish(self, processes):
        """The output of the first; all have ended."""
        try:
            outputs = [process.communicate(timeout=self.arguments.timeout) for process in processes]
        except subprocess.TimeoutExpired:
            sys.exit(f"two_hosts.py: {processes[0].args} is not done after {self.arguments.timeout} s")
        finally:
            for process in processes:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        for process, (output, error) in zip(processes, outputs):
            if process.returncode != 0:
                sys.exit(f"two_hosts.py: {process.args} ended with {process.returncode}:\n{output}{error}")
        return outputs[0][0]

    def dt(self, folder, size):
        folder, *own = folder.split(",")
        worker = pathlib.Path(folder).resolve() / "runtime/cli/dt-bench-worker"
        command = [worker, self.arguments.operation, "--op", self.arguments.op, "--raw", "--sizes", size, "--rounds", 1, "--budget-ms", self.arguments.budget_ms,
                   "--memory", "private"]
        processes = []
        for rank in range(self.ranks):
            settings = environment(DT_RANK=str(rank), DT_WORLD_SIZE=str(self.ranks),
                                   DT_MASTER_ADDR=self.network.address(0), DT_MASTER_PORT=str(PORT))
            settings.update(word.split("=", 1) for word in self.arguments.env + own)
            processes.append(self.start(self.host(rank), command, settings))
        return self.finish(processes)

    def stream(self, size, congestion):
        if size < FRESH_BYTES:
            return ""
        seconds = self.arguments.budget_ms / 1000
        return self.finish([self.start(host, [sys.executable, __file__, "--stream", host, self.network.address(0), size,
                                              seconds, congestion], None) for host in range(2)])

    def torch(self, size):
        processes = []
        for rank in range(self.ranks):
            settings = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(self.ranks), MASTER_PORT=str(PORT),
                            MASTER_ADDR=self.network.address(0), GLOO_SOCKET_IFNAME="eth0", OMP_NUM_THREADS="1")
            processes.append(self.start(self.host(rank), ["/usr/bin/python3", "-c", TORCH,
                                                          self.arguments.budget_ms, size], settings))
        return self.finish(processes)

    def gloo(self, way, size):
        """Its ranks meet in files, which the namespaces share; it also measures out of place."""
        self.meetings += 1
        processes = []
        for rank in range(self.ranks):
            settings = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(self.ranks), DT_JOB_ID=f"job{self.meetings}")
            processes.append(self.start(self.host(rank), [
                self.scratch / "gloo", self.scratch, self.network.address(self.host(rank)), way, *self.what(size)],
                settings))
        return self.finish(processes)

    def what(self, size):
        """What a rival's program is to measure: an allreduce, f32, sum, as method.h counts them."""
        return [0, 8, 0, 5, 0, self.arguments.budget_ms * 1000, int(self.arguments.timeout), size]

    def mpi(self, rival, size):
        """Started in host 0, which reaches host 1 as if by ssh."""
        agent = self.scratch / "agent"
        lines = [f"{self.network.address(host)}) exec {shlex.join(self.network.command(host, []))} sh -c \"$*\";;"
                 for host in range(self.arguments.hosts)]
        agent.write_text('#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nhost=$1; shift\n'
                         "case $host in\n" + "\n".join(lines) + "\nesac\n")
        agent.chmod(0o755)
        hosts = [self.network.address(host) for host in range(self.arguments.hosts)]
        program = [self.scratch / rival, *self.what(size)]
        settings = dict(os.environ)
        if rival == "openmpi":
            places = ",".join(f"{host}:{self.arguments.ranks}" for host in hosts)
            command = ["mpirun.openmpi", "--allow-run-as-root", "--host", places, "--mca", "plm_rsh_agent", agent,
                       "--mca", "btl", "tcp,self" if self.arguments.ranks == 1 else "tcp,self,vader",
                       "--mca", "btl_tcp_if_include", "eth0",
                       "--mca", "oob_tcp_if_include", "eth0", "--mca", "pml", "ob1", "--bind-to", "none",
                       "-n", self.ranks, *program]
        else:
            settings["UCX_TLS"] = "tcp" if self.arguments.ranks == 1 else "tcp,sm"
            settings["UCX_NET_DEVICES"] = "eth0"
            command = ["mpiexec.hydra", "-launcher", "ssh", "-launcher-exec", agent, "-iface", "eth0",
                       "-hosts", ",".join(hosts), "-ppn", self.arguments.ranks, "-n", self.ranks, *program]
        return self.finish([self.start(0, command, settings)])

    def measure(self, name, size):
        found = [line.split() for line in self.programs[name](size).splitlines() if line.startswith("dt-bench-row")]
        if not found:
            return None
        place = 0 if self.arguments.out_of_place and not name.startswith("tcp") else 1
        if int(found[0][5 + place]) != 0:
            sys.exit(f"two_hosts.py: {name} has wrong results at {size} bytes")
        return float(found[0][3 + place])


def bits_of(rate):
    return float(rate[:-4]) * {"k": 1e3, "m": 1e6, "g": 1e9}[re.fullmatch(r"[\d.]+([kmg])bit", rate)[1]]


def lay_wire(arguments, network, scratch):
    """In place of the hosts' own interfaces; it goes when the process is told to end."""
    subprocess.run([*COMPILERS["wire"], "-o", scratch / "wire"], check=True)
    for host in range(2):
        network.ip(host, "link", "del", "eth0")
    wire = subprocess.Popen([scratch / "wire", network.namespace(0), network.namespace(1), str(bits_of(arguments.rate)),
                             str(int(arguments.delay * 1000)), str(arguments.loss / 100), str(QUEUE_US)],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    if not wire.stdout.readline():
        sys.exit("two_hosts.py: the wire is not there, see above")
    for host in range(2):
        network.ip(host, "addr", "add", f"{network.address(host)}/24", "dev", "eth0")
        network.ip(host, "link", "set", "eth0", "up", "txqueuelen", "10000")
    return wire


def limit(network, rate, hosts, port_bytes):
    """The bucket holds what leaves in half a millisecond, and a few large frames; the queue 8 ms."""
    bits = bits_of(rate)
    for host in range(hosts):
        subprocess.run(["tc", "-n", network.namespace(host), "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", rate,
                        "burst", str(max(256 << 10, int(bits / 16000))), "limit", str(max(1 << 20, int(bits / 1000)))],
                       check=True)
        if port_bytes:
            subprocess.run(["tc", "-n", network.switch, "qdisc", "add", "dev", f"port{host}", "root", "tbf", "rate", rate,
                            "burst", str(64 << 10), "limit", str(port_bytes)], check=True)


def main():
    arguments = parse_arguments()
    if arguments.stream:
        side, address, size, seconds, congestion = arguments.stream
        return stream(side, address, int(size), float(seconds), congestion)
    try:
        with tempfile.TemporaryDirectory() as folder, Network(arguments.hosts) as network:
            wire = lay_wire(arguments, network, pathlib.Path(folder)) if arguments.delay else None
            if arguments.rate and wire is None:
                limit(network, arguments.rate, arguments.hosts, arguments.port_bytes)
            bench = Bench(arguments, network, pathlib.Path(folder))
            print(f"# {arguments.ranks} rank(s) on each of {arguments.hosts} hosts, {arguments.rate or 'no'} limit, "
                  f"{arguments.delay} ms there, {arguments.loss} % lost, "
                  f"{os.cpu_count()} processors, {arguments.rounds} interleaved rounds: median us (least to most), times of the first")
            for size in arguments.sizes:
                times = {name: [] for name in bench.programs}
                for _ in range(arguments.rounds):
                    for name, found in times.items():
                        us = bench.measure(name, size)
                        if us is not None:
                            found.append(us)
                times = {name: found for name, found in times.items() if found}
                first = statistics.median(next(iter(times.values())))
                for name, found in times.items():
                    median = statistics.median(found)
                    print(f"{size:>10} {name:<10} {median:12.1f} ({min(found):.1f} to {max(found):.1f}) "
                          f"{median / first:6.2f}", flush=True)
            if wire:
                wire.stdin.close()
                wire.wait()
    except Unavailable as reason:
        sys.exit(f"two_hosts.py: {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
