#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mixed_job.py DT DATA -- CPP... -- PYTHON... -- JAVA... -- CSHARP...: one job of four languages.

Rank 0 is the C++ trainer, ranks 1 to 3 are the others. On the first 2,000 images its losses are
those of four ranks of C++ within 1e-3. A rank with another seed is named.
"""
import csv
import itertools
import os
import re
import shlex
import subprocess
import sys
import tempfile

LIMIT_S = 200
TOLERANCE = 1e-3
IMAGES = 2000
BATCH = 40


def run_job(dt, data, programs, log, seeds):
    """Of ranks r that run programs[r] with seeds[r]."""
    options = ["--data", data, "--limit", str(IMAGES), "--epochs", "1", "--batch", str(BATCH), "--seed"]
    cases = "".join(f"{rank}) exec {shlex.join([*program, *options, str(seeds[rank])])} ;; "
                    for rank, program in enumerate(programs))
    # Rank 0, a C++ trainer in each case, writes the log.
    cases = cases.replace(" ;; ", f" --no-eval --quiet --curves '' --loss-log {shlex.quote(log)} ;; ", 1)
    return subprocess.run([dt, "run", "-n", str(len(programs)), "sh", "-c", f'case "$DT_RANK" in {cases} esac'],
                          capture_output=True, text=True, timeout=LIMIT_S, check=False)


def losses(dt, data, programs, log):
    run = run_job(dt, data, programs, log, [3] * len(programs))
    if run.returncode != 0:
        sys.exit(f"the job ended with {run.returncode}\n{run.stdout}{run.stderr}")
    with open(log, newline="", encoding="utf-8") as file:
        return [float(row["loss"]) for row in csv.DictReader(file)]


def check_disagreement(dt, data, programs, log):
    """Ranks say which one has another seed."""
    last = len(programs) - 1
    run = run_job(dt, data, programs, log, [3] * last + [4])
    # At least by the first rank that ends; two seconds later dt run ends the others.
    said = re.findall(rf"^\[(\d)\] .*: rank 0 \(.*\) has seed = 3, rank {last} \(.*\) has seed = 4; ", run.stderr,
                      re.MULTILINE)
    print(f"another seed on rank {last}: named by ranks {sorted(set(said))}")
    if run.returncode != 1 or not said:
        sys.exit(f"with another seed on rank {last} the job ended with {run.returncode}\n{run.stdout}{run.stderr}")


def main():
    dt, data, *rest = sys.argv[1:]
    if not os.path.exists(os.path.join(data, "train-images-idx3-ubyte.gz")):
        print(f"skipped: no Fashion-MNIST in {data}: apt-get install dataset-fashion-mnist")
        sys.exit(77)
    programs = [list(words) for end, words in itertools.groupby(rest, lambda word: word == "--") if not end]
    # Three trainers' ranks of C++ would also write logs and pictures.
    plain = programs[0] + ["--no-eval", "--quiet", "--curves", ""]
    with tempfile.TemporaryDirectory() as folder:
        same = losses(dt, data, [programs[0]] + [plain] * (len(programs) - 1), os.path.join(folder, "same.csv"))
        mixed = losses(dt, data, programs, os.path.join(folder, "mixed.csv"))
        check_disagreement(dt, data, programs, os.path.join(folder, "none.csv"))
    if len(same) != IMAGES // BATCH or len(mixed) != len(same):
        sys.exit(f"{len(same)} and {len(mixed)} losses instead of {IMAGES // BATCH}")
    worst = max(abs(a - b) / abs(a) for a, b in zip(same, mixed))
    print(f"largest relative difference of the loss over {len(same)} steps: {worst:.2e}")
    if worst > TOLERANCE:
        sys.exit(f"the loss differs by {worst:.2e}, more than {TOLERANCE}")


if __name__ == "__main__":
    main()
