#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the outer optimizer saves where hosts are joined by a slow network, and what it costs in the loss.

Two ranks, each on a host of its own: network namespaces (root only). The example language model trains with each way
from the same weights over the same batches: once for the losses, which do not depend on the network, and --rounds times
in turn for the time and the bytes that a host sends. --delay holds each packet up (wire.cc). Prints a table in Markdown:
medians, with the lowest and the highest in brackets.

    tests/bench/local_steps.py --build build --rate 1gbit --delay 100
"""
import argparse
import csv
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

from slow_network import LAST, MODEL, spread
from two_hosts import lay_wire, limit

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "multihost"))
from cases import ranks  # noqa: E402
from network import Network, Unavailable  # noqa: E402

WAYS = {"gradients, each step": [],
        "gradients as bf16, each step": ["--wire", "bf16"],
        "parameters, each 10 steps": ["--outer", "10"],
        "parameters, each 50 steps": ["--outer", "50"],
        "the same in 8 bits": ["--outer", "50", "--outer-format", "8bit"],
        "the same in 4 bits": ["--outer", "50", "--outer-format", "4bit"],
        "4 bits, 5 steps of delay": ["--outer", "50", "--outer-format", "4bit", "--outer-delay", "5"]}


def losses(network, gpt, options, steps):
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder) / "loss.csv"
        ranks(network, [gpt, *MODEL, *options, "--steps", steps, "--interval", steps, "--loss-log", log])
        with open(log, newline="", encoding="utf-8") as file:
            curve = [float(row["loss"]) for row in csv.DictReader(file)]
    return [statistics.mean(curve[at - LAST:at]) for at in (steps // 2, steps)]


def timed(network, gpt, options, steps):
    """Milliseconds of a step, and what host 0 sends for it, in MB. The first report of a loss is the last one, too."""
    before = network.sent_bytes(0)
    output = ranks(network, [gpt, *MODEL, *options, "--steps", steps, "--interval", steps])
    tokens = int(MODEL[MODEL.index("--batch") + 1]) * int(MODEL[MODEL.index("--length") + 1])
    return (1e3 * tokens / float(re.search(r"(\d+) tokens/s", output)[1]),
            (network.sent_bytes(0) - before) / 1e6 / steps)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"))
    parser.add_argument("--rate", default="1gbit", help="of each direction, as tc says it")
    parser.add_argument("--delay", type=float, default=0, help="milliseconds to the other host")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100, help="of a timed run")
    parser.add_argument("--loss-steps", type=int, default=300, help="0: no losses")
    arguments = parser.parse_args()
    arguments.loss = 0
    build = arguments.build.resolve()
    gpt = build / "examples/gpt/gpt"
    uname = os.uname()
    print(f"{os.cpu_count()} processors, {uname.sysname} {uname.release}, 2 hosts at {arguments.rate}, "
          f"{arguments.delay:g} ms there, {arguments.rounds} rounds of {arguments.steps} steps, "
          f"load average {os.getloadavg()[0]:.1f} before")
    found = {way: [] for way in WAYS}
    sent = {way: [] for way in WAYS}
    ends = {way: ["", ""] for way in WAYS}
    try:
        if arguments.loss_steps:
            with Network(2) as network:
                for way, options in WAYS.items():
                    ends[way] = [f"{each:.4f}" for each in losses(network, gpt, options, arguments.loss_steps)]
        with tempfile.TemporaryDirectory() as folder, Network(2) as network:
            wire = lay_wire(arguments, network, pathlib.Path(folder)) if arguments.delay else None
            if wire is None:
                limit(network, arguments.rate, 2, None)
            for _ in range(arguments.rounds):
                for way, options in WAYS.items():
                    ms, megabytes = timed(network, gpt, options, arguments.steps)
                    found[way].append(ms)
                    sent[way].append(megabytes)
            if wire:
                wire.stdin.close()
                wire.wait()
    except Unavailable as reason:
        sys.exit(f"local_steps.py: {reason}")
    first = statistics.median(next(iter(found.values())))
    print(f"\n| what ranks exchange | step, ms | first / this | MB sent by a host in a step | "
          f"loss at step {arguments.loss_steps // 2} | at step {arguments.loss_steps} |")
    print("| --- | --- | --- | --- | --- | --- |")
    for way in WAYS:
        print(f"| {way} | {spread(found[way], 0)} | {first / statistics.median(found[way]):.2f} | "
              f"{statistics.median(sent[way]):.3f} | {ends[way][0]} | {ends[way][1]} |")
    print(f"\nLoad average {os.getloadavg()[0]:.1f} at the end.")


if __name__ == "__main__":
    sys.exit(main())
