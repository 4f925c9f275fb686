#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""training_curves.py DT TRAINER [DATA]: the example trainer learns the same with 1, 2, 3 and 4 ranks.

The loss curves of the first 100 steps (CURVE_STEPS, where a sanitizer makes them slow) agree to 1e-3 relative, and the trainer itself finds the
parameters of all ranks bitwise equal at the end (it exits with an error otherwise). Ranks that begin with
different seeds or checkpoints are named.
"""
import csv
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from images import write_part  # pylint: disable=wrong-import-position

STEPS = int(os.environ.get("CURVE_STEPS", "100"))
TOLERANCE = 1e-3
LIMIT_S = 100
# What a rank reads, and how often: nearly as many steps in all as three epochs of the whole set, which the rate follows.
IMAGES, EPOCHS = 12_120, 15
WORLDS = (1, 2, 3, 4)


def losses(dt, trainer, data, world, folder, *more):
    log = os.path.join(folder, f"loss{world}.csv")
    command = [dt, "run", "-n", str(world), trainer, "--data", data, "--epochs", str(EPOCHS), "--steps",
               str(STEPS), "--no-eval", "--loss-log", log, "--curves", os.path.join(folder, f"curves{world}.png"), *more]
    run = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if run.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {run.returncode}\n{run.stdout}{run.stderr}")
    if world > 1 and f"parameters equal on all {world} ranks" not in run.stdout:
        sys.exit(f"{world} ranks: nothing says that the parameters are equal\n{run.stdout}")
    if run.stderr:
        sys.exit(f"{world} ranks: a clean run wrote to stderr\n{run.stderr}")
    with open(log, newline="", encoding="utf-8") as file:
        return [float(row["loss"]) for row in csv.DictReader(file)]


def check_disagreements(dt, trainer, data, folder):
    """Ranks that begin with different things are named before they train."""
    saved = os.path.join(folder, "rank")
    begin = ("exec", trainer, "--data", data, "--limit", "240", "--batch", "24", "--no-eval", "--quiet", "--curves ''")
    own_disk = f"--save {saved}$DT_RANK --resume {saved}$DT_RANK --steps"  # only rank 0's ever has a checkpoint
    for rest, expected in (
            ("--epochs 1 --seed $((DT_RANK == 1 ? 7 : 3))",
             r": the samplers differ between ranks: rank 0 \(.*\) has seed = 3, rank 1 \(.*\) has seed = 7; "),
            (own_disk + " 2", None),
            (own_disk + " 4", r': rank 0 \(.*\) has "step 2", .*, while rank 1 \(.*\) and 1 more have: "step 0", ')):
        run = subprocess.run([dt, "run", "-n", "3", "sh", "-c", " ".join((*begin, rest))],
                             capture_output=True, text=True, timeout=LIMIT_S, check=False)
        code, as_said = (1, re.search(expected, run.stderr)) if expected else (0, not run.stderr)
        if run.returncode != code or not as_said:
            sys.exit(f"with {rest} the job ended with {run.returncode}\n{run.stdout}{run.stderr}")


def main():
    dt, trainer = sys.argv[1:3]
    data = sys.argv[3] if len(sys.argv) > 3 else "/usr/share/datasets/fashion-mnist"
    if not os.path.exists(os.path.join(data, "train-images-idx3-ubyte.gz")):
        print(f"no Fashion-MNIST in {data}: apt-get install dataset-fashion-mnist")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        data = write_part(data, os.path.join(folder, "data"), IMAGES)
        alone = losses(dt, trainer, data, 1, folder)
        if len(alone) != STEPS:
            sys.exit(f"1 rank: {len(alone)} losses instead of {STEPS}")
        for world, *more in (*((each,) for each in WORLDS[1:]), (2, "--accumulate", "3")):
            other = losses(dt, trainer, data, world, folder, *more)
            if len(other) != STEPS:
                sys.exit(f"{world} ranks: {len(other)} losses instead of {STEPS}")
            worst = max(abs(a - b) / abs(a) for a, b in zip(alone, other))
            print(f"{world} ranks {' '.join(more)}: largest relative difference of the loss over {STEPS} steps {worst:.2e}")
            if worst > TOLERANCE:
                sys.exit(f"{world} ranks: the loss differs by {worst:.2e}, more than {TOLERANCE}")
        check_disagreements(dt, trainer, data, folder)


if __name__ == "__main__":
    main()
