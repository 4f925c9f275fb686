#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""overhead.py DT C_PROGRAM JAVA CLASS_PATH [ROUNDS]: what Java adds to an allreduce of 1 KiB.

Each round runs C and Java one after the other; printed are the median over the rounds and the least and most.
"""
import statistics
import subprocess
import sys


def measured(command):
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])


def shown(values):
    return f"{statistics.median(values):8.0f} ns ({min(values):.0f} to {max(values):.0f})"


def main():
    dt, program, java, class_path = sys.argv[1:5]
    rounds = int(sys.argv[5]) if len(sys.argv) > 5 else 7
    for ranks in (1, 2):
        start = [] if ranks == 1 else [dt, "run", "-n", str(ranks)]
        ways = {"C": [*start, program]}
        for way in ("buffer", "address", "array"):
            ways["Java " + way] = [*start, java, "-cp", class_path, "dttest.Overhead", way]
        times = {way: [] for way in ways}
        for _ in range(rounds):
            for way, command in ways.items():
                times[way].append(measured(command))
        base = statistics.median(times["C"])
        for way, values in times.items():
            more = "" if way == "C" else f", {statistics.median(values) - base:+.0f} ns over C"
            print(f"{ranks} rank(s), {way:12}: {shown(values)}{more}")


if __name__ == "__main__":
    main()
