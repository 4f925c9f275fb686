#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What bf16, f16, 8 bits and PowerSGD gain where hosts are joined by a slow network.

Two ranks, each on a host of its own: network namespaces with a token bucket in front (root only). First the step of
a reducer without anything that computes, with slow_network.cc: one step of each way per round. Then the example
language model trains with each way from the same weights over the same batches, --gpt-rounds times in turn (0: not).
Prints tables in Markdown: medians, with the lowest and the highest in brackets.

    tests/bench/slow_network.py --build build --rate 1gbit
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

from two_hosts import limit

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "multihost"))
from cases import ranks  # noqa: E402
from network import Network, Unavailable  # noqa: E402

MATRICES, SIDE = 20, 1024
MODEL = ["--device", "cpu", "--layers", "2", "--channels", "256", "--heads", "4", "--length", "64", "--batch", "8",
         "--lr", "0.002"]
LAST = 10  # steps over which the loss at the end is averaged
GPT_OPTIONS = {"plain": [], "bf16": ["--wire", "bf16"], "f16": ["--wire", "f16"],
               "8bit": ["--wire", "8bit"], "powersgd4": ["--powersgd", "4"],
               "powersgd4_bf16": ["--powersgd", "4", "--wire", "bf16"], "powersgd1": ["--powersgd", "1"]}
NAMES = {"plain": "f32", "bf16": "bf16", "f16": "f16", "8bit": "8 bits",
         "powersgd4": "PowerSGD, rank 4", "powersgd4_bf16": "PowerSGD, rank 4, bf16", "powersgd1": "PowerSGD, rank 1"}


def spread(values, digits):
    return f"{statistics.median(values):.{digits}f} [{min(values):.{digits}f} .. {max(values):.{digits}f}]"


def reduce(network, build, rounds):
    times = {way: [] for way in NAMES}
    sent = {way: [] for way in NAMES}
    for line in ranks(network, [build / "tests/bench/slow_network", rounds, MATRICES, SIDE]).splitlines():
        way, ms, count = line.split()
        times[way].append(float(ms))
        sent[way].append(int(count) / 1e6)
    plain = statistics.median(times["plain"])
    print(f"\n| {MATRICES} gradients of {SIDE} x {SIDE} | step, ms | f32 / this | MB sent by a rank |")
    print("| --- | --- | --- | --- |")
    for way, name in NAMES.items():
        print(f"| {name} | {spread(times[way], 0)} | {plain / statistics.median(times[way]):.2f} | "
              f"{statistics.median(sent[way]):.1f} |")


def train(network, build, rounds, steps):
    times = {way: [] for way in NAMES}
    losses = {}
    for _ in range(rounds):
        for way, options in GPT_OPTIONS.items():
            with tempfile.TemporaryDirectory() as folder:
                log = pathlib.Path(folder) / "loss.csv"
                output = ranks(network, [build / "examples/gpt/gpt", *MODEL, *options, "--steps", steps,
                                         "--interval", steps, "--loss-log", log])
                with open(log, newline="", encoding="utf-8") as file:
                    curve = [float(row["loss"]) for row in csv.DictReader(file)]
            parameters = re.search(r"(\d+) parameters", output)[1]
            tokens = int(MODEL[MODEL.index("--batch") + 1]) * int(MODEL[MODEL.index("--length") + 1])
            times[way].append(1e3 * tokens / float(re.search(r"(\d+) tokens/s", output)[1]))
            if losses.setdefault(way, curve) != curve:
                sys.exit(f"slow_network.py: {way}: two runs have other losses")
    print(f"\n| gpt, {parameters} parameters, {steps} steps | step, ms | loss at step {steps // 2} | at step {steps} |")
    print("| --- | --- | --- | --- |")
    for way, name in NAMES.items():
        middle, end = (statistics.mean(losses[way][at - LAST:at]) for at in (steps // 2, steps))
        print(f"| {name} | {spread(times[way], 0)} | {middle:.4f} | {end:.4f} |")
    print(f"\nLosses are means over the {LAST} steps before.")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"))
    parser.add_argument("--rate", default="1gbit", help="of each direction, as tc says it")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--gpt-rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100)
    arguments = parser.parse_args()
    build = arguments.build.resolve()
    subprocess.run(["ninja", "--quiet", "-C", build, "tests/bench/slow_network", "examples/gpt/gpt"], check=True)
    uname = os.uname()
    print(f"{os.cpu_count()} processors, {uname.sysname} {uname.release}, 2 hosts at {arguments.rate}, "
          f"{arguments.rounds} rounds, {arguments.gpt_rounds} of gpt, load average {os.getloadavg()[0]:.1f} before")
    try:
        with Network(2) as network:
            limit(network, arguments.rate, 2, None)
            reduce(network, build, arguments.rounds)
            if arguments.gpt_rounds:
                train(network, build, arguments.gpt_rounds, arguments.steps)
    except Unavailable as reason:
        sys.exit(f"slow_network.py: {reason}")
    print(f"\nLoad average {os.getloadavg()[0]:.1f} at the end.")


if __name__ == "__main__":
    main()
