#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The C# example beside the C++ one: 20 steps of 64 images on 2 ranks, losses within 1e-3.

same: all ranks in C#. mixed: rank 0 in C++ and rank 1 in C#, who also compare their parameters, in several WAYS."""

import argparse
import csv
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
from images import write_part  # pylint: disable=wrong-import-position

DATA = "/usr/share/datasets/fashion-mnist"
LIMIT_S = 280
STEPS = 20
IMAGES = (STEPS + 1) * 64
WAYS = ("", "--accumulate 2 --wire 8bit --clip 0.5", "--powersgd 4 --wire bf16 --accumulate 4")


def losses(path):
    with open(path) as file:
        return [float(row["loss"]) for row in csv.DictReader(file)]


def main():
    parser = argparse.ArgumentParser()
    for name in ("mono", "dt", "cpp", "csharp"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("job", choices=["same", "mixed"])
    options = parser.parse_args()
    if not os.path.isdir(DATA):
        print(f"skipped: {DATA} is not here: apt install dataset-fashion-mnist")
        sys.exit(77)

    for way in WAYS if options.job == "mixed" else WAYS[:1]:
        compare(options, way)


def compare(options, way):
    cpp = [options.cpp, "--no-eval", "--quiet", "--curves", ""]
    csharp = [options.mono, options.csharp]
    common = ["--steps", str(STEPS), "--batch", "64", "--epochs", "134", "--seed", "7", *way.split()]
    with tempfile.TemporaryDirectory() as folder:
        common += ["--data", write_part(DATA, os.path.join(folder, "data"), IMAGES)]
        logs = {name: Path(folder) / name for name in ("cpp", "other")}
        run = [options.dt, "run", "-n", "2"]
        subprocess.run(run + cpp + common + ["--loss-log", str(logs["cpp"])], check=True, timeout=LIMIT_S)
        common += ["--loss-log", str(logs["other"])]
        if options.job == "same":
            command = run + csharp + common
        else:
            choose = 'n=$1; shift; if [ "$DT_RANK" = 0 ]; then exec "${@:1:n}"; else exec "${@:n+1}"; fi'
            first = cpp + common
            command = run + ["bash", "-c", choose, "choose", str(len(first))] + first + csharp + common
        subprocess.run(command, check=True, timeout=LIMIT_S)
        expected, found = losses(logs["cpp"]), losses(logs["other"])
    assert len(expected) == len(found) == STEPS, (len(expected), len(found))
    apart = max(abs(a - b) for a, b in zip(expected, found))
    print(f"largest difference of {STEPS} losses: {apart:.2e} {way}")
    assert apart < 1e-3


if __name__ == "__main__":
    main()
