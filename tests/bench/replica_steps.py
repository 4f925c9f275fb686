#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A step of shards over two hosts joined by a slow network: one replica over both, or one on each.

Two ranks on each of two hosts: network namespaces with a token bucket in front (root only). shard_steps.cc has the
model, which computes nothing but AdamW. Runs of both ways take turns. Prints a table in Markdown: medians, with the
lowest and the highest in brackets.

    tests/bench/replica_steps.py --build build --rate 1gbit
"""
import argparse
import os
import pathlib
import statistics
import subprocess
import sys

from slow_network import TIMEOUT_S, spread
from two_hosts import PORT, limit

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "multihost"))
from cases import environment  # noqa: E402
from network import Network, Unavailable  # noqa: E402

HOSTS, RANKS = 2, 2
MATRICES, SIDE, STEPS = 20, 512, 5
WAYS = {"one replica": "0", "a replica on each host": "2"}


def steps(network, program, stage, shard_ranks):
    """Milliseconds of each step, and what host 0 sends for one, in MB."""
    before = network.sent_bytes(0)
    processes = []
    for rank in range(HOSTS * RANKS):
        settings = environment(DT_RANK=str(rank), DT_WORLD_SIZE=str(HOSTS * RANKS), DT_MASTER_ADDR=network.address(0),
                               DT_MASTER_PORT=str(PORT), DT_HOST_ID=f"host{rank // RANKS}", SHARD_RANKS=shard_ranks)
        command = network.command(rank // RANKS, [str(word) for word in (program, STEPS, MATRICES, SIDE, stage)])
        processes.append(subprocess.Popen(command, env=settings, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                          stderr=subprocess.PIPE, text=True))
    try:
        outputs = [process.communicate(timeout=TIMEOUT_S) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    for process, (output, error) in zip(processes, outputs):
        if process.returncode != 0:
            sys.exit(f"replica_steps.py: {process.args} ended with {process.returncode}:\n{output}{error}")
    lines = [line.split() for line in outputs[0][0].splitlines()]
    found = [float(line[1]) for line in lines if line[1] != "memory"]
    return found, (network.sent_bytes(0) - before) / 1e6 / (STEPS + 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"))
    parser.add_argument("--rate", default="1gbit", help="of each direction, as tc says it")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    program = arguments.build.resolve() / "tests/bench/shard_steps"
    print(f"{os.cpu_count()} processors, {HOSTS} hosts of {RANKS} ranks at {arguments.rate}, {arguments.rounds} rounds of "
          f"{STEPS} steps, load average {os.getloadavg()[0]:.1f} before")
    print(f"\n| stage, {MATRICES} parameters of {SIDE} x {SIDE} | replicas | step, ms | MB sent by a host in a step |")
    print("| --- | --- | --- | --- |")
    try:
        with Network(HOSTS) as network:
            limit(network, arguments.rate, HOSTS, None)
            for stage in (1, 2, 3):
                times = {way: [] for way in WAYS}
                sent = {way: [] for way in WAYS}
                for _ in range(arguments.rounds):
                    for way, shard_ranks in WAYS.items():
                        found, megabytes = steps(network, program, stage, shard_ranks)
                        times[way] += found
                        sent[way].append(megabytes)
                for way in WAYS:
                    print(f"| {stage} | {way} | {spread(times[way], 0)} | {statistics.median(sent[way]):.1f} |", flush=True)
    except Unavailable as reason:
        sys.exit(f"replica_steps.py: {reason}")
    print(f"\nLoad average {os.getloadavg()[0]:.1f} at the end.")


if __name__ == "__main__":
    sys.exit(main())
