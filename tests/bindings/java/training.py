#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""training.py DT TRAINER JAVA CLASS_PATH: Java learns as C++ does, alone and as one rank of a mixed job.

20 steps of 64 images with 2 ranks: losses agree to 1e-3, and at the end all ranks have the same bits.
"""
import csv
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
from images import write_part  # pylint: disable=wrong-import-position

DATA = "/usr/share/datasets/fashion-mnist"
ARGUMENTS = ["--steps", "20", "--batch", "64", "--epochs", "134", "--seed", "1", "--no-eval"]
WAYS = ("--accumulate 2 --wire 8bit --clip 0.5", "--powersgd 4 --wire bf16 --accumulate 4")  # the same in all languages
TOLERANCE = 1e-3
LIMIT_S = 120
IMAGES = 21 * 64  # more than 20 steps take


def losses(name, dt, ranks, folder):
    """`ranks` are two commands; a shell chooses by the rank that dt run tells it."""
    log = os.path.join(folder, name + ".csv")
    data = ["--data", os.path.join(folder, "data")]
    script = 'if [ "$DT_RANK" = 0 ]; then exec {}; else exec {}; fi'.format(
        *(" ".join([*each, *ARGUMENTS, *data, "--loss-log", log]) for each in ranks))
    run = subprocess.run([dt, "run", "-n", "2", "sh", "-c", script], capture_output=True, text=True, timeout=LIMIT_S,
                         check=False)
    if run.returncode != 0 or "parameters equal on all 2 ranks" not in run.stdout or run.stderr:
        sys.exit(f"{name} ended with {run.returncode}\n{run.stdout}{run.stderr}")
    with open(log, newline="", encoding="utf-8") as file:
        return [float(row["loss"]) for row in csv.DictReader(file)]


def main():
    dt, trainer, java, class_path = sys.argv[1:]
    if not os.path.exists(os.path.join(DATA, "train-images-idx3-ubyte.gz")):
        print(f"no Fashion-MNIST in {DATA}: apt-get install dataset-fashion-mnist")
        sys.exit(77)
    in_java = [java, "-cp", class_path, "FashionMnist"]
    with tempfile.TemporaryDirectory() as folder:
        write_part(DATA, os.path.join(folder, "data"), IMAGES)
        in_cpp = [trainer, "--curves", os.path.join(folder, "curves.png")]
        of_cpp = {}  # losses by way
        for name, first, way in (("java", in_java, ""), ("mixed", in_cpp, ""), *((way, in_cpp, way) for way in WAYS)):
            in_both = [[*each, *way.split()] for each in (in_cpp, first, in_java)]
            if way not in of_cpp:
                of_cpp[way] = losses("cpp", dt, [in_both[0], in_both[0]], folder)
            wanted = of_cpp[way]
            got = losses("other", dt, in_both[1:], folder)
            if len(got) != 20 or len(wanted) != 20:
                sys.exit(f"{name}: {len(got)} losses, C++ {len(wanted)}, instead of 20")
            worst = max(abs(a - b) / abs(a) for a, b in zip(wanted, got))
            print(f"{name}: largest relative difference of the loss {worst:.2e}")
            if not worst <= TOLERANCE:
                sys.exit(f"{name}: more than {TOLERANCE}")


if __name__ == "__main__":
    main()
