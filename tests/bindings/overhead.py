#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""overhead.py --dt DT --c OVERHEAD -- PROGRAM...: what a language adds to a call of C.

Runs the loop in C and in the language in turn, at world size 1 and 2, and prints the medians of all
rounds in nanoseconds, how far the rounds lie apart (quartiles), and the difference."""

import argparse
import statistics
import subprocess

TURNS = 5


def rounds(command):
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    return [float(line) for line in done.stdout.split()]


def described(values):
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:8.0f} ns ({low:.0f} to {high:.0f})"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dt", required=True)
    parser.add_argument("--c", required=True)
    parser.add_argument("program", nargs="+")
    options = parser.parse_args()
    for ranks in (1, 2):
        start = [options.dt, "run", "-n", str(ranks), "--no-prefix"] if ranks > 1 else []
        in_c, here = [], []
        for _ in range(TURNS):
            in_c += rounds(start + [options.c])
            here += rounds(start + options.program)
        added = statistics.median(here) - statistics.median(in_c)
        print(f"{ranks} rank(s): C {described(in_c)}, here {described(here)}, added {added:.0f} ns "
              f"({len(here)} rounds each)")


if __name__ == "__main__":
    main()
