#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""framework_training_test.py VENV [FRAMEWORK...]: PyTorch's DDP and FSDP2, accelerate, transformers, Lightning and
DeepSpeed train over dt: on 2 ranks their losses are those over gloo, and a killed rank is named in an exception.
What VENV lacks is named and left out."""

import os
import sys
import tempfile
from pathlib import Path

from framework_test import PYTHON, Frameworks, has  # reads VENV
from free_ports import free_ports
from started import Launches, error_of, expect, places, run_cases

VENV = Path(sys.argv[1]).absolute()
PROGRAM = str(Path(__file__).parent / "framework_training.py")
RANKS = 2
LIMIT_S = 300  # the first one compiles the backend
CLOSE = 1e-5
# Below that the framework's own launcher starts the ranks, else torchrun.
OWN = {"lightning": ["bin/python3", "-I"],
       "elastic": ["bin/dt", "run", "-n", "3", "--on-failure", "continue", "--no-prefix", PYTHON]}
NEEDS = {"trainer": "transformers"}


def run(frameworks, folder, framework, backend, *more):
    start = OWN.get(framework, ["bin/torchrun", "--nproc_per_node", str(RANKS), "--master_port", str(free_ports(1)[0])])
    command = [str(VENV / start[0]), *start[1:], PROGRAM, framework, backend, *more]
    return frameworks.run(command, limit_s=LIMIT_S, OUTPUT_DIR=folder, DS_ACCELERATOR="cpu", HF_HUB_OFFLINE="1",
                          TORCH_NCCL_ASYNC_ERROR_HANDLING="0")


def losses(frameworks, folder, framework, backend):
    code, out, err = run(frameworks, folder, framework, backend)
    expect(code == 0, f"exit code {code} over {backend}\n{out}{err}")
    found = places(out)
    expect([each["rank"] for each in found] == list(range(RANKS)), f"ranks are wrong\n{out}{err}")
    for each in found:
        expect(each["backend"] == backend, f"the backend is {each['backend']}, not {backend}")
    return [each["losses"] for each in found]


def check_losses(frameworks, folder, framework):
    ours, theirs = (losses(frameworks, folder, framework, backend) for backend in ("dt", "gloo"))
    expect(len(ours[0]) > 10, f"only {len(ours[0])} losses")
    worst = max(abs(a - b) for mine, other in zip(ours, theirs) for a, b in zip(mine, other))
    expect(worst <= CLOSE, f"the losses differ by {worst}:\n{ours}\n{theirs}")
    print(f"{framework}: {len(ours[0])} losses from {ours[0][0]:.6f} to {ours[0][-1]:.6f}, "
          f"largest difference to gloo {worst:.0e}")


def check_elastic(frameworks, folder):
    """Of three ranks one is left, which has all its steps."""
    code, out, err = run(frameworks, folder, "elastic", "dt", "5")
    expect(code == 0, f"exit code {code}\n{out}{err}")
    (left,) = places(out)
    found = left["losses"]
    expect(len(found) == 40 and found[-1] < 0.6 * found[0], f"the losses are {found}")
    for text in ("step 5: rank 1 (", "step 5: rank 0 of 2 goes on", "step 5: rank 0 of 1 goes on"):
        expect(text in out, f"{text} is missing\n{out}{err}")


def check_killed(frameworks, folder, framework):
    said = error_of(run(frameworks, folder, framework, "dt", "5"))
    expect("rank 1 (" in said and "is gone" in said, f"rank 1 is not named\n{said}")


def main():
    if not has("torch") or not has("dt"):
        print(f"{VENV} has no torch or no dt")
        return 1
    wanted = sys.argv[2:] or ["ddp", "fsdp2", "accelerate", "trainer", "lightning",
                              *(f"deepspeed{stage}" for stage in range(4)), "elastic"]
    with tempfile.TemporaryDirectory() as folder, Launches() as launches:
        frameworks = Frameworks(launches, folder)
        cases = []
        for framework in wanted:
            if framework == "elastic":
                cases.append((framework, lambda: check_elastic(frameworks, folder)))
                continue
            module = NEEDS.get(framework, framework.rstrip("0123"))
            if framework not in ("ddp", "fsdp2") and not has(module):
                print(f"{module}: not run: it is not in {VENV}")
                continue
            cases.append((framework, lambda framework=framework: check_losses(frameworks, folder, framework)))
            if framework in ("ddp", "lightning"):
                cases.append((f"{framework}, a rank is killed",
                              lambda framework=framework: check_killed(frameworks, folder, framework)))
        return run_cases(cases)


if __name__ == "__main__":
    os.environ.pop("PYTHONPATH", None)
    sys.exit(main())
