#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""trainer_test.py DT TRAINER PAGE: the example trainer in C learns the same on any number of ranks, and a job that was cut
ends with the parameters of one that was not. The page that builds it up shows lines of its source."""
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

LIMIT_S = 60
TOLERANCE = 1e-3  # relative: sums over other numbers of ranks are rounded elsewhere
STEPS = 500
SOURCE = Path(__file__).resolve().parents[2] / "examples/trainer/trainer.c"


def expect(condition, text):
    if not condition:
        sys.exit(f"trainer_test.py: {text}")


def train(ranks, *options, code=0):
    dt, trainer = sys.argv[1:3]
    command = [dt, "run", "-n", str(ranks), trainer, *map(str, options)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    expect(run.returncode == code, f"{' '.join(command)} ended with {run.returncode}, not {code}\n{run.stdout}{run.stderr}")
    expect(code != 0 or not run.stderr, f"{' '.join(command)}: a clean run wrote to stderr\n{run.stderr}")
    return run.stdout if code == 0 else run.stderr


def losses(output):
    return [float(loss) for loss in re.findall(r"^(?:\[0\] )?step \d+  loss ([0-9.]+)", output, re.M)]


def end(output):
    """How it ended, the last step, the hash of the parameters."""
    found = re.search(r"^(?:\[0\] )?(ended|stopped) after step (\d+), parameters ([0-9a-f]{16}) on all \d+ ranks$", output, re.M)
    expect(found, f"no last line in\n{output}")
    return found[1], int(found[2]), found[3]


def check_ranks():
    curves = {ranks: losses(train(ranks, "--steps", STEPS)) for ranks in (1, 2, 3, 4)}
    expect(len(curves[1]) == 2 and curves[1][1] < 0.8 * curves[1][0], f"it does not learn: {curves[1]}")
    for ranks, curve in curves.items():
        expect(all(abs(a - b) <= TOLERANCE * b for a, b in zip(curve, curves[1])), f"{ranks} ranks: {curve}, 1: {curves[1]}")


def check_cut(folder):
    whole = end(train(2, "--steps", STEPS))
    file = os.path.join(folder, "cut")
    # Inside an epoch of 31 steps, at its end, and where nothing is left to do.
    for steps in (40, 62, 300, STEPS, STEPS):
        output = train(2, "--steps", steps, "--save", file)
    expect(f"[0] goes on after step {STEPS}" in output, output)
    expect(end(output) == whole, f"{end(output)}, undisturbed {whole}")
    train(3, "--steps", STEPS + 50, "--save", file)  # other ranks may go on, too
    expect(not os.path.exists(file + ".new"), "a temporary file is left")


def check_stop(folder):
    file = os.path.join(folder, "stopped")
    dt, trainer = sys.argv[1:3]
    with subprocess.Popen([dt, "run", "-n", "2", trainer, "--steps", "100000000", "--save", file], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as job:
        try:
            output = job.stdout.readline()
            job.send_signal(signal.SIGTERM)
            output += job.communicate(timeout=LIMIT_S)[0]
        finally:
            job.kill()
    how, step, parameters = end(output)
    expect(how == "stopped", output)
    expect(end(train(2, "--steps", step)) == ("ended", step, parameters), f"stopped after {step}: other parameters")
    expect(end(train(2, "--steps", step, "--save", file))[2] == parameters, "the checkpoint holds other parameters")


def check_refusals(folder):
    said = train(2, "--steps", 1, "--save", os.path.join(folder, "absent", "file"), code=1)
    expect(re.search(r"trainer: cannot write .*/absent/file: No such file or directory", said), said)
    foreign = os.path.join(folder, "foreign")
    Path(foreign).write_text("none", encoding="utf-8")
    said = train(1, "--save", foreign, code=1)
    expect("this is no checkpoint of this trainer" in said, said)
    said = train(5, code=1)
    expect("trainer: the number of ranks: it must divide 12" in said, said)


def check_page():
    source = re.sub(r"\s+", " ", SOURCE.read_text(encoding="utf-8"))
    blocks = re.findall(r"^```c\n(.*?)^```$", Path(sys.argv[3]).read_text(encoding="utf-8"), re.M | re.S)
    expect(blocks, "the page shows nothing of the trainer")
    for block in blocks:
        for part in re.split(r"^\.\.\.$", block, flags=re.M):
            expect(re.sub(r"\s+", " ", part).strip() in source, f"the page shows what trainer.c does not have:\n{part}")
    expect(len(SOURCE.read_text(encoding="utf-8").splitlines()) < 400, "the trainer has 400 lines or more")


def main():
    check_page()
    check_ranks()
    with tempfile.TemporaryDirectory() as folder:
        check_cut(folder)
        check_stop(folder)
        check_refusals(folder)


if __name__ == "__main__":
    main()
