#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""overhead.py --c OVERHEAD -- PROGRAM...: what a 1 KiB allreduce costs in C# over the same loop in C, one rank.

Both run rounds by turns; prints the medians in nanoseconds per call, the quartiles, and the difference."""

import argparse
import statistics
import subprocess

LOOPS = 20000
ROUNDS = 31


def described(values):
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.0f} ns ({low:.0f} to {high:.0f})"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--c", required=True)
    parser.add_argument("program", nargs="+")
    options = parser.parse_args()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    found = []
    with subprocess.Popen([options.c, str(LOOPS)], **pipes) as in_c, \
         subprocess.Popen(options.program + [str(LOOPS)], **pipes) as here:
        for _ in range(ROUNDS + 1):
            turn = []
            for program in (in_c, here):
                program.stdin.write("go\n")
                program.stdin.flush()
                turn.append(float(program.stdout.readline()))
            found.append(turn)
        for program in (in_c, here):
            program.stdin.close()
    c_ns, ns = zip(*found[1:])  # the first compiles
    print(f"C {described(c_ns)}, C# {described(ns)}, "
          f"added {statistics.median(ns) - statistics.median(c_ns):.0f} ns")


if __name__ == "__main__":
    main()
