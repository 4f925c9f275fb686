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
import sys

from slow_network import spread
from two_hosts import limit

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "multihost"))
from cases import ranks  # noqa: E402
from network import Network, Unavailable  # noqa: E402

HOSTS, RANKS = 2, 2
MATRICES, SIDE, STEPS = 20, 512, 5
WAYS = {"one replica": "0", "a replica on each host": "2"}


def steps(network, program, stage, shard_ranks):
    """Milliseconds of each step, and what host 0 sends for one, in MB."""
    before = network.sent_bytes(0)
    output = ranks(network, [program, STEPS, MATRICES, SIDE, stage], RANKS, SHARD_RANKS=shard_ranks)
    lines = [line.split() for line in output.splitlines()]
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
