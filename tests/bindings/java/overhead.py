#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""overhead.py DT C_PROGRAM JAVA CLASS_PATH [RUNS]: what Java adds to an allreduce of 1 KiB.

C and Java run one after the other, RUNS times; printed are the median of the runs and the least and most. A run
counts as the median of its rounds, without those in which Java's compiler is at work.
"""
import statistics
import subprocess
import sys

LOOPS = 200
WARM_ROUNDS = 300
ROUNDS = 500


def measured(command):
    lines = subprocess.run(command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL).stdout.split()
    if len(lines) != ROUNDS:
        sys.exit(f"{len(lines)} rounds instead of {ROUNDS}")
    return statistics.median(map(float, lines[WARM_ROUNDS:]))


def shown(values):
    return f"{statistics.median(values):8.0f} ns ({min(values):.0f} to {max(values):.0f})"


def main():
    dt, program, java, class_path = sys.argv[1:5]
    runs = int(sys.argv[5]) if len(sys.argv) > 5 else 7
    size = [str(LOOPS), str(ROUNDS)]
    for ranks in (1, 2):
        start = [] if ranks == 1 else [dt, "run", "--no-prefix", "-n", str(ranks)]
        ways = {"C": [*start, program, *size]}
        for way in ("buffer", "address", "array"):
            ways["Java " + way] = [*start, java, "-cp", class_path, "dttest.Overhead", *size, way]
        times = {way: [] for way in ways}
        for _ in range(runs):
            for way, command in ways.items():
                times[way].append(measured(command))
        base = statistics.median(times["C"])
        for way, values in times.items():
            more = "" if way == "C" else f", {statistics.median(values) - base:+.0f} ns over C"
            print(f"{ranks} rank(s), {way:12}: {shown(values)}{more}")


if __name__ == "__main__":
    main()
