#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""libtorch_curves.py DT LIBTORCH_DDP: the libtorch example learns the same with 1, 2 and 4 ranks.

The losses of all epochs agree to 1e-3 relative (sums of other groupings of one batch), and it learns.
"""
import re
import subprocess
import sys

TOLERANCE = 1e-3
LIMIT_S = 100


def epochs(dt, program, world):
    run = subprocess.run([dt, "run", "-n", str(world), program], capture_output=True, text=True,
                         timeout=LIMIT_S, check=False)
    found = re.findall(r"epoch +[0-9]+  loss ([0-9.]+)  right ([0-9.]+) %", run.stdout)
    if run.returncode != 0 or run.stderr or len(found) != 20:
        sys.exit(f"{world} ranks: ended with {run.returncode}\n{run.stdout}{run.stderr}")
    return [(float(loss), float(right)) for loss, right in found]


def main():
    alone = epochs(*sys.argv[1:3], 1)
    if alone[-1][1] < 98:
        sys.exit(f"1 rank: {alone[-1][1]} % right at the end")
    for world in (2, 4):
        worst = max(abs(a[0] - b[0]) / a[0] for a, b in zip(alone, epochs(*sys.argv[1:3], world)))
        print(f"{world} ranks: largest relative difference of the loss {worst:.2e}")
        if worst > TOLERANCE:
            sys.exit(f"{world} ranks: the loss differs by {worst:.2e}, more than {TOLERANCE}")


if __name__ == "__main__":
    main()
