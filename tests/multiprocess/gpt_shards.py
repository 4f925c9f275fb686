#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gpt_shards.py DT GPT TEXT...: the example language model learns the same in shards of every stage.

With 2 and 4 ranks the losses of all stages and of three sizes of buckets have the same digits, and the parameters
have the same bits at the end. This also holds with several backward passes, clipping, a head of its own, gradients
that travel as bf16, PowerSGD, and files instead of memory. Without shards the losses are nearly these. A job that is
stopped goes on in another stage, with the same digits on as many ranks and nearly these on others. A rank's memory
falls from stage to stage by what the formula says.
"""
import csv
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

STEPS = 4
TOLERANCE = 1e-5
LIMIT_S = 60
MODEL = ["--device", "cpu", "--layers", "2", "--channels", "48", "--heads", "3", "--length", "48", "--batch", "8",
         "--lr", "0.003", "--steps", str(STEPS)]
BUCKETS = (4_000, 40_000, 400_000)  # the largest parameter has 110,592 bytes, all 284,928
ALL = [(stage, size) for stage in range(4) for size in BUCKETS]
PAIRS = {2: ALL[::2], 4: ALL[1::2]}  # by number of ranks, of which each has all stages and sizes
TOGETHER = ["--accumulate", "2", "--clip", "0.5", "--untied", "--wire", "bf16", "--bucket-bytes", "40000"]

# 4 blocks of 3.2 MB, in 4 ranks: most of what a rank has is of the model.
MEMORY_MODEL = ["--device", "cpu", "--layers", "4", "--channels", "256", "--heads", "4", "--length", "8",
                "--batch", "4", "--steps", "2", "--bucket-bytes", "500000", "--memory"]
MEMORY_RANKS = 4
TOLERATED_MEMORY = 2e6  # bytes: stacks, and what two runs differ by


def output(dt, gpt, texts, world, *options):
    command = [dt, "run", "-n", str(world), gpt, *options, *texts]
    run = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if run.returncode != 0 or run.stderr:
        sys.exit(f"{' '.join(command)} ended with {run.returncode}\n{run.stdout}{run.stderr}")
    return run.stdout


class Training:
    """A few steps of the small model: the losses as they were printed, and a hash of the parameters."""

    def __init__(self, *arguments):
        self.arguments = arguments  # of output()

    def run(self, world, *options):
        with tempfile.TemporaryDirectory() as folder:
            log = os.path.join(folder, "loss.csv")
            text = output(*self.arguments, world, *MODEL, *options, "--loss-log", log)
            with open(log, newline="", encoding="utf-8") as file:
                losses = [row["loss"] for row in csv.DictReader(file)]
        found = re.search(rf"parameters equal on all {world} ranks \(hash (\w+)\)", text)
        if len(losses) != STEPS or not found:
            sys.exit(f"{world} ranks, {options}: not {STEPS} losses and a hash\n{text}")
        return losses, found[1]

    def check(self, world, wanted, *options):
        got = self.run(world, *options)
        if got != wanted:
            sys.exit(f"{world} ranks, {' '.join(options)}: not as in stage 0\n{got}\n{wanted}")


def check_bits(training):
    for world, pairs in PAIRS.items():
        wanted = training.run(world, "--zero", "0")
        whole, _ = training.run(world)
        worst = max(abs(float(a) / float(b) - 1) for a, b in zip(whole, wanted[0]))
        print(f"{world} ranks: largest relative difference of the loss to that without shards {worst:.2e}")
        if worst > TOLERANCE:
            sys.exit(f"{world} ranks: the loss differs by {worst:.2e}, more than {TOLERANCE}")
        for stage, size in pairs:
            training.check(world, wanted, "--zero", str(stage), "--bucket-bytes", str(size))
    for options, stages in ((TOGETHER, "23"), (["--powersgd", "4", "--wire", "bf16"], "3")):
        wanted = training.run(2, "--zero", "0", *options)
        for stage in stages:
            training.check(2, wanted, "--zero", stage, *options)


def check_offload(training):
    wanted = training.run(2, "--zero", "0")
    with tempfile.TemporaryDirectory() as folder:
        for stage in ("1", "3"):
            training.check(2, wanted, "--zero", stage, "--offload", folder)
        if os.listdir(folder):
            sys.exit(f"files are left: {os.listdir(folder)}")


def check_resume(dt, gpt, texts):
    """The log of a job that is stopped after some step, and started again, is that of one that is not."""
    def command(world, folder, *options):
        return [dt, "run", "-n", str(world), gpt, *MODEL[:-1], "40", "--interval", "2",
                "--checkpoint", os.path.join(folder, "model"), "--loss-log", os.path.join(folder, "loss.csv"),
                *options, *texts]

    def log(folder):
        return pathlib.Path(folder, "loss.csv").read_text(encoding="utf-8").splitlines()

    def stopped(folder):
        """Whether the signal came before the job's end."""
        with subprocess.Popen(command(2, folder, "--zero", "3"), stdout=subprocess.PIPE, text=True) as run:
            for line in run.stdout:
                if "step 6/40" in line:
                    run.terminate()
            run.wait(LIMIT_S)
        return len(log(folder)) < 41

    with tempfile.TemporaryDirectory() as whole:
        subprocess.run(command(2, whole, "--zero", "0"), check=True, capture_output=True, timeout=LIMIT_S)
        wanted = log(whole)
        folders = (tempfile.mkdtemp(dir=whole) for _ in range(10))
        folder = next((each for each in folders if stopped(each)), None) or sys.exit("it could not be stopped")
        done = log(folder)
        [left] = [name for name in os.listdir(folder) if name.startswith("model")]
        if len(done) < 7 or left != f"model.{len(done) - 1}" or done != wanted[:len(done)]:
            sys.exit(f"stopped: {left}\n{done}\n{wanted}")
        saved = pathlib.Path(folder, left).read_bytes()
        if not re.search(rb'"block0[^"]*":{"dtype":"F32","shape":\[\d+,\d+\]', saved):
            sys.exit(f"a matrix has no shape: {saved[:2000]}")
        pathlib.Path(folder, "model.1").touch()  # as a rank that was killed before it could remove it
        pathlib.Path(folder, "model.99.partial").touch()  # or while it wrote
        for world, options in ((4, ("--zero", "1")), (2, ("--zero", "2"))):
            again = tempfile.mkdtemp(dir=whole)
            for name in (left, "loss.csv", "model.1", "model.99.partial"):
                shutil.copy(os.path.join(folder, name), again)
            text = subprocess.run(command(world, again, *options), check=True, capture_output=True, text=True,
                                  timeout=LIMIT_S).stdout
            if f"resumed at step {len(done) - 1}" not in text:
                sys.exit(f"it did not resume\n{text}")
            found = log(again)
            near = all(abs(float(a.split(",")[1]) / float(b.split(",")[1]) - 1) < TOLERANCE
                       for a, b in zip(found[1:], wanted[1:]))
            names = sorted(name for name in os.listdir(again) if name.startswith("model"))
            files = names == ["model.40", "model.99.partial"]
            if len(found) != 41 or not near or (world == 2 and found != wanted) or not files:
                sys.exit(f"{world} ranks, {options}: not as in one go\n{names}\n{found}\n{wanted}")


def check_memory(arguments):
    memory = []
    for stage in range(4):
        text = output(*arguments, MEMORY_RANKS, *MEMORY_MODEL, "--zero", str(stage))
        memory.append(float(re.search(r"([\d.]+) MiB of host memory a rank", text)[1]) * 2**20)
        parameters = int(re.search(r"(\d+) parameters", text)[1])
    print(f"{parameters} parameters on {MEMORY_RANKS} ranks: "
          + ", ".join(f"{bytes_ / 2**20:.1f}" for bytes_ in memory) + " MiB a rank by stage")
    kept = 1 - 1 / MEMORY_RANKS
    buckets = 3 * 4 * 256 * 1024  # of the largest parameter each
    units = 2 * 4 * 12 * 256**2   # a block in use and the next one
    saved = (0, 8 * kept * parameters, 12 * kept * parameters - buckets, 16 * kept * parameters - buckets - units)
    for stage in range(1, 4):
        if memory[0] - memory[stage] < saved[stage] - TOLERATED_MEMORY:
            sys.exit(f"stage {stage} saves {memory[0] - memory[stage]:.0f} bytes, not {saved[stage]:.0f}")


def main():
    dt, gpt, *texts = sys.argv[1:]
    check_bits(Training(dt, gpt, texts))
    check_offload(Training(dt, gpt, texts))
    check_resume(dt, gpt, texts)
    check_memory((dt, gpt, texts))


if __name__ == "__main__":
    main()
