#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""libtorch_curves.py DT LIBTORCH_DDP: the libtorch example learns the same with 1, 2 and 4 ranks, and in shards.

The losses of all epochs agree to 1e-3 relative (sums of other groupings of one batch, and dt's AdamW instead of
libtorch's), and it learns. All stages of ZeRO print the same digits.
"""
import re
import subprocess
import sys

TOLERANCE = 1e-3
LIMIT_S = 100


def run(dt, program, world, *options):
    return subprocess.run([dt, "run", "-n", str(world), program, *options], capture_output=True, text=True,
                          timeout=LIMIT_S, check=False)


def epochs(what, done):
    found = re.findall(r"epoch +[0-9]+  loss ([0-9.]+)  right ([0-9.]+) %", done.stdout)
    if done.returncode != 0 or done.stderr or len(found) != 20:
        sys.exit(f"{what}: ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return found


def compare(what, alone, found):
    worst = max(abs(float(a[0]) - float(b[0])) / float(a[0]) for a, b in zip(alone, found))
    print(f"{what}: largest relative difference of the loss {worst:.2e}")
    if worst > TOLERANCE:
        sys.exit(f"{what}: the loss differs by {worst:.2e}, more than {TOLERANCE}")


def main():
    programs = sys.argv[1:3]
    alone = epochs("1 rank", run(*programs, 1))
    if float(alone[-1][1]) < 98:
        sys.exit(f"1 rank: {alone[-1][1]} % right at the end")
    for world in (2, 4):
        compare(f"{world} ranks", alone, epochs(f"{world} ranks", run(*programs, world)))
    compare("1 rank, --zero 3", alone, epochs("1 rank, --zero 3", run(*programs, 1, "--zero", "3")))
    first = epochs("3 ranks, --zero 0", run(*programs, 3, "--zero", "0"))
    compare("3 ranks, --zero 0", alone, first)
    for stage in ("1", "2", "3"):
        found = epochs(f"3 ranks, --zero {stage}", run(*programs, 3, "--zero", stage))
        if found != first:
            sys.exit(f"3 ranks, --zero {stage}: another curve than --zero 0:\n{found}\n{first}")
    wrong = run(*programs, 1, "--zero", "4")
    if wrong.returncode == 0 or "usage: libtorch_ddp [--zero 0|1|2|3]" not in wrong.stdout + wrong.stderr:
        sys.exit(f"--zero 4: ended with {wrong.returncode}\n{wrong.stdout}{wrong.stderr}")


if __name__ == "__main__":
    main()
