# SPDX-License-Identifier: Apache-2.0
"""The example in NumPy learns as the one in C++ does, also with both in one job."""

import csv
import importlib.util
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
from images import write_part  # pylint: disable=wrong-import-position

STEPS, BATCH, RANKS = 20, 64, 2
WAYS = ("--accumulate 2 --wire 8bit --clip 0.5", "--powersgd 4 --wire bf16 --accumulate 4")  # the same in all languages
TOLERANCE = 1e-3
LIMIT_S = 100
IMAGES = (STEPS + 1) * BATCH


def losses(folder, name, *commands, steps=STEPS):
    """Of a job whose ranks run these commands, by turns."""
    log = os.path.join(folder, name + ".csv")
    script = os.path.join(folder, name + ".sh")
    options = ["--steps", str(steps), "--batch", str(BATCH), "--no-eval", "--quiet", "--loss-log", log]
    with open(script, "w", encoding="utf-8") as file:
        for rank in range(RANKS):
            command = commands[rank % len(commands)] + options
            file.write(f'[ "$DT_RANK" != {rank} ] || exec ' + " ".join(f"'{word}'" for word in command) + "\n")
    run = subprocess.run([os.environ["DT_COMMAND"], "run", "-n", str(RANKS), "/bin/sh", script],
                         capture_output=True, text=True, timeout=LIMIT_S, check=False,
                         env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})
    if run.returncode != 0 or run.stderr:
        sys.exit(f"{name} ended with {run.returncode}\n{run.stdout}{run.stderr}")
    with open(log, newline="", encoding="utf-8") as file:
        return [float(row["loss"]) for row in csv.DictReader(file)]


def main():
    program, native, data = sys.argv[1:4]
    if importlib.util.find_spec("numpy") is None:
        print("skipped: NumPy is not here (Debian: python3-numpy)")
        sys.exit(77)
    if not native or not os.path.exists(os.path.join(data, "train-images-idx3-ubyte.gz")):
        print("skipped: needs examples/fashion_mnist and Debian's dataset-fashion-mnist")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        part = ["--data", write_part(data, os.path.join(folder, "data"), IMAGES), "--epochs", "134"]
        python = [sys.executable, program, *part]
        cpp = [native, *part, "--curves", ""]
        expected, alone = losses(folder, "cpp", cpp), None
        for name, commands in (("python", [python]), ("cpp_and_python", [cpp, python]),
                               ("python_and_cpp", [python, cpp])):
            found = losses(folder, name, *commands)
            alone = alone or found
            worst = max(abs(a - b) for a, b in zip(expected, found))
            print(f"{name}: largest difference of the loss over {len(found)} steps {worst:.1e}")
            if len(found) != STEPS or worst > TOLERANCE:
                sys.exit(f"{name}: {len(found)} losses, the largest difference is {worst}")
        for way in WAYS:
            options = way.split()
            expected, found = losses(folder, "cpp", cpp + options), losses(folder, "both", cpp + options, python + options)
            worst = max(abs(a - b) for a, b in zip(expected, found))
            print(f"{way}: largest difference of the loss over {len(found)} steps {worst:.1e}")
            if len(found) != STEPS or worst > TOLERANCE:
                sys.exit(f"{way}: {len(found)} losses, the largest difference is {worst}")
        checkpoint = os.path.join(folder, "checkpoint.npz")
        resumable = python + ["--save", checkpoint, "--resume", checkpoint, "--save-every", "3"]
        part = losses(folder, "part", resumable, steps=STEPS // 2 + 1)
        resumed = losses(folder, "resumed", resumable)
        if part != alone[:STEPS // 2 + 1] or resumed != alone:
            sys.exit(f"resumed after {len(part)} steps: other losses: {resumed} instead of {alone}")


if __name__ == "__main__":
    main()
