#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gpt_curves.py DT GPT TEXT...: the example language model learns the same with 1, 2 and 4 ranks.

The loss curves of 30 steps (CURVE_STEPS, where a sanitizer makes them slow) agree to 1e-3 relative, the loss falls, and the program
itself finds the parameters of all ranks bitwise equal at the end (it exits with an error otherwise), but
where they exchange no gradients. Two ranks whose steps have several backward passes learn the same, and so do
those whose gradients are clipped at a norm that is never reached; what travels as f16, bf16 or by PowerSGD
learns nearly the same. Sizes of buckets are tuned without a change of the loss. Groups that come together now and then end with equal parameters, and have learnt.
Where the losses cannot be written the job says so, and leaves no checkpoint ahead of them.
"""
import csv
import os
import subprocess
import sys
import tempfile

STEPS = int(os.environ.get("CURVE_STEPS", "30"))
TOLERANCE = 1e-3
WIRE_TOLERANCE = 1e-2
LIMIT_S = 60
WORLDS = (1, 2, 4)
MODEL = ["--device", "cpu", "--layers", "2", "--channels", "48", "--heads", "3", "--length", "48", "--batch", "8",
         "--lr", "0.003"]


def losses(dt, gpt, texts, world, folder, *more):
    log = os.path.join(folder, f"loss{world}.csv")
    command = [dt, "run", "-n", str(world), gpt, *MODEL, *more, "--steps", str(STEPS), "--loss-log", log, *texts]
    run = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if run.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {run.returncode}\n{run.stdout}{run.stderr}")
    is_exchanging = world > 1 and "--apart" not in more
    if is_exchanging != (f"parameters equal on all {world} ranks" in run.stdout):
        sys.exit(f"{world} ranks: the output on equal parameters is wrong\n{run.stdout}")
    if run.stderr:
        sys.exit(f"{world} ranks: a clean run wrote to stderr\n{run.stderr}")
    if "--tune-steps" in more and STEPS >= 12 and "bytes are the fastest" not in run.stdout:
        sys.exit(f"{world} ranks: no size of buckets was found\n{run.stdout}")
    with open(log, newline="", encoding="utf-8") as file:
        curve = [float(row["loss"]) for row in csv.DictReader(file)]
    if len(curve) != STEPS:
        sys.exit(f"{world} ranks: {len(curve)} losses instead of {STEPS}")
    return curve


def check_full_disk(dt, gpt, texts, folder):
    """A loss log that cannot be written ends the job before a checkpoint is ahead of it."""
    checkpoint = os.path.join(folder, "checkpoint")
    run = subprocess.run([dt, "run", "-n", "2", gpt, *MODEL, "--outer", "4", "--checkpoint", checkpoint, "--steps", "8",
                          "--loss-log", "/dev/full", *texts],
                         capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if run.returncode == 0 or "cannot write /dev/full: No space left on device; make room there" not in run.stderr:
        sys.exit(f"a full disk: ended with {run.returncode}\n{run.stdout}{run.stderr}")
    if os.path.exists(checkpoint):
        sys.exit("a full disk: there is a checkpoint of steps that the loss log lacks")


def difference(one, other):
    return max(abs(a - b) / abs(a) for a, b in zip(one, other))


def check_steps(run, alone):
    """run(world, *options) gives losses; `alone` are those of one rank."""
    two = run(2)
    for world, passes in ((1, 4), (2, 2)):
        worst = difference(alone, run(world, "--accumulate", str(passes)))
        print(f"--accumulate {passes} on {world}: largest relative difference of the loss {worst:.2e}")
        if worst > TOLERANCE:
            sys.exit(f"--accumulate {passes}: the loss differs by {worst:.2e}, more than {TOLERANCE}")
    for wire in ("f16", "bf16"):
        worst = difference(two, run(2, "--wire", wire))
        print(f"--wire {wire}: largest relative difference of the loss {worst:.2e}")
        if not 0 < worst <= WIRE_TOLERANCE:
            sys.exit(f"--wire {wire}: the loss differs by {worst:.2e}, not by more than 0 and {WIRE_TOLERANCE} at most")
    compressed = run(2, "--powersgd", "4")
    print(f"--powersgd 4: loss {compressed[-1]:.4f} at step {STEPS}, {two[-1]:.4f} without")
    if compressed == two or (STEPS >= 10 and compressed[-1] > two[0] - 0.3):
        sys.exit("--powersgd 4: the loss is that of whole gradients, or does not fall")
    several = ("--accumulate", "2", "--powersgd", "4", "--clip", "1")
    together = run(2, *several, "--wire", "bf16")
    print(f"{' '.join(several)} --wire bf16: loss {together[-1]:.4f} at step {STEPS}")
    if together == run(2, *several) or (STEPS >= 10 and together[-1] > two[0] - 0.3):
        sys.exit(f"{' '.join(several)} --wire bf16: the loss is that of f32, or does not fall")
    for options in (("--outer", "3", "--group", "2"), ("--outer", "4", "--outer-delay", "2", "--outer-format", "4bit")):
        apart = run(4, *options)
        print(f"{' '.join(options)}: loss {apart[-1]:.4f} at step {STEPS}")
        if difference(two, apart) <= TOLERANCE or (STEPS >= 10 and apart[-1] > two[0] - 0.3):
            sys.exit(f"{' '.join(options)}: the loss is that of ranks that meet in each step, or does not fall")
    if run(2, "--tune-steps", "3") != two:
        sys.exit("--tune-steps 3: the loss is another one, although two gradients have one sum in all buckets")
    if run(2, "--clip", "1e9") != two:
        sys.exit("--clip 1e9: the loss is another one, although no norm is as large")
    # AdamW makes whole steps of any gradient that is far above its epsilon, 1e-8.
    clipped = run(2, "--clip", "1e-9")
    print(f"--clip 1e-9: loss {clipped[-1]:.4f} at step {STEPS}")
    if STEPS >= 10 and clipped[-1] < two[0] - 0.1:
        sys.exit("--clip 1e-9: the loss falls, as if gradients were not clipped")


def main():
    dt, gpt, *texts = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        alone = losses(dt, gpt, texts, 1, folder)
        print(f"1 rank: loss {alone[0]:.4f} at step 1, {alone[-1]:.4f} at step {STEPS}")
        # One of 256 bytes at random is log(256) = 5.545.
        if not 5.4 < alone[0] < 5.7 or (STEPS >= 10 and alone[-1] > alone[0] - 0.3):
            sys.exit("1 rank: the loss does not begin at log(256) and fall")
        for world in WORLDS[1:]:
            other = losses(dt, gpt, texts, world, folder)
            worst = difference(alone, other)
            print(f"{world} ranks: largest relative difference of the loss over {STEPS} steps {worst:.2e}")
            if worst > TOLERANCE:
                sys.exit(f"{world} ranks: the loss differs by {worst:.2e}, more than {TOLERANCE}")
        apart = losses(dt, gpt, texts, 2, folder, "--apart")
        if abs(apart[0] - alone[0]) > TOLERANCE * alone[0]:
            sys.exit("apart: the loss before the first exchange is another one")
        if difference(alone, apart) <= TOLERANCE:
            sys.exit("apart: the losses are those of ranks that exchange gradients")
        check_steps(lambda world, *options: losses(dt, gpt, texts, world, folder, *options), alone)
        check_full_disk(dt, gpt, texts, folder)


if __name__ == "__main__":
    main()
