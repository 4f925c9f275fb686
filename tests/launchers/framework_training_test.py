#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""framework_training_test.py VENV [FRAMEWORK...]: PyTorch's DDP and FSDP2, accelerate, transformers, Lightning and
DeepSpeed train over dt. On 2 ranks their losses are those over gloo. On 3 ranks each fault of framework_faults.py ends
in exceptions that name the rank; a table at the end shows when. What VENV lacks is named and left out."""

import os
import re
import sys
import tempfile
from pathlib import Path

from framework_test import PYTHON, Frameworks, has  # reads VENV
from free_ports import free_ports
from started import Launches, error_of, expect, places, run_cases

VENV = Path(sys.argv[1]).absolute()
PROGRAM = str(Path(__file__).parent / "framework_training.py")
RANKS, RANKS_WITH_FAULT = 2, 3
LIMIT_S = 600  # the first one compiles the backend, on a busy machine
CLOSE = 1e-5
SILENCE_S = 3
FAULTS = {"killed": "kill -9", "stopped": f"SIGSTOP, silence of {SILENCE_S} s", "order": "one more call",
          "size": "tensor of another size", "parameter": "parameter of another size"}
# That of a parameter begins before the framework wraps the model, for which it may load much.
FAULT_LIMIT_S = {"killed": 10, "stopped": SILENCE_S + 10, "order": 10, "size": 10, "parameter": 60}
# Below that the framework's own launcher starts the ranks, else torchrun.
OWN = {"lightning": ["bin/python3"],
       "elastic": ["bin/dt", "run", "-n", "3", "--on-failure", "continue", "--no-prefix", PYTHON]}
ALIKE = ["deepspeed0", "deepspeed1", "deepspeed3"]  # deepspeed2 stands for them where a rank has a fault
NEEDS = {"trainer": "transformers"}


def settings(folder, ranks, **variables):
    return dict(OUTPUT_DIR=folder, DS_ACCELERATOR="cpu", HF_HUB_OFFLINE="1", TORCH_NCCL_ASYNC_ERROR_HANDLING="0",
                RANKS=str(ranks), **variables)


def run(frameworks, folder, framework, backend, *more, ranks=RANKS, **variables):
    start = OWN.get(framework, ["bin/torchrun", "--nproc_per_node", str(ranks), "--master_port", str(free_ports(1)[0])])
    command = [str(VENV / start[0]), *start[1:], PROGRAM, framework, backend, *more]
    return frameworks.run(command, limit_s=LIMIT_S, **settings(folder, ranks, **variables))


def losses(frameworks, folder, framework, backend):
    code, out, err = run(frameworks, folder, framework, backend)
    expect(code == 0, f"exit code {code} over {backend}\n{out}{err}")
    found = places(out)
    expect([each["rank"] for each in found] == list(range(RANKS)), f"ranks are wrong\n{out}{err}")
    for each in found:
        expect(each["backend"] == backend, f"the backend is {each['backend']}, not {backend}")
    return [each["losses"] for each in found]


def worst_difference(ours, theirs):
    expect(len(ours[0]) > 10, f"only {len(ours[0])} losses")
    return max(abs(a - b) for mine, other in zip(ours, theirs) for a, b in zip(mine, other))


def check_losses(frameworks, folder, framework):
    ours, theirs = (losses(frameworks, folder, framework, backend) for backend in ("dt", "gloo"))
    worst = worst_difference(ours, theirs)
    expect(worst <= CLOSE, f"the losses differ by {worst}:\n{ours}\n{theirs}")
    print(f"{framework}: {len(ours[0])} losses from {ours[0][0]:.6f} to {ours[0][-1]:.6f}, "
          f"largest difference to gloo {worst:.0e}")


def check_elastic(frameworks, folder):
    """Of three ranks one is left, which has all its steps."""
    code, out, err = run(frameworks, folder, "elastic", "dt")
    expect(code == 0, f"exit code {code}\n{out}{err}")
    (left,) = places(out)
    found = left["losses"]
    expect(len(found) == 40 and found[-1] < 0.6 * found[0], f"the losses are {found}")
    for text in ("step 5: rank 1 (", "step 5: rank 0 of 2 goes on", "step 5: rank 0 of 1 goes on"):
        expect(text in out, f"{text} is missing\n{out}{err}")


def check_exceptions(found, said, fault, ranks):
    """Every other rank has an exception of dt that names rank 1, which may have one of the framework."""
    silent = fault in ("killed", "stopped")
    told = [each["rank"] for each in found]
    expect(told == [each for each in range(ranks) if not silent or each != 1], f"exceptions of ranks {told}\n{said}")
    for each in (each for each in found if each["rank"] != 1):
        expect("DistBackendError" in each["classes"], f"{each}\n{said}")
        expect(re.search(r"rank 1 \(\S+ pid \d+\)" if silent else r"rank 1\b", each["text"]), f"{each}\n{said}")
        expect(each["seconds"] < FAULT_LIMIT_S[fault], f"too late: {each}\n{said}")


def check_fault(frameworks, folder, framework, fault, seen):
    silence = {"DT_HEARTBEAT_TIMEOUT_MS": str(1000 * SILENCE_S)} if fault == "stopped" else {}
    result = run(frameworks, folder, framework, "dt", fault, ranks=RANKS_WITH_FAULT, FAULT_ID=f"{framework}-{fault}",
                 **silence)
    said = error_of(result)
    seen[framework, fault] = places(result[1])
    check_exceptions(seen[framework, fault], said, fault, RANKS_WITH_FAULT)


def print_table(seen):
    """Seconds until the last rank had its exception; then what the exceptions say."""
    frameworks = list(dict.fromkeys(framework for framework, _ in seen))
    print("| | " + " | ".join(FAULTS.values()) + " |\n|---" + "|---" * len(FAULTS) + "|")
    for framework in frameworks:
        cells = [max((each["seconds"] for each in seen.get((framework, fault), [])), default=None) for fault in FAULTS]
        print(f"| {framework} | " + " | ".join("-" if cell is None else f"{cell:.1f} s" for cell in cells) + " |")
    for (framework, fault), found in seen.items():
        for each in found:
            print(f"{framework}, {fault}, rank {each['rank']}: {each['classes'][0]}: {each['text'][:300]!r}")


def main():
    if not has("torch") or not has("dt"):
        print(f"{VENV} has no torch or no dt")
        return 1
    wanted = sys.argv[2:] or ["ddp", "fsdp2", "accelerate", "trainer", "lightning",
                              *(f"deepspeed{stage}" for stage in range(4)), "elastic"]
    with tempfile.TemporaryDirectory() as folder, Launches() as launches:
        frameworks = Frameworks(launches, folder)
        cases, seen = [], {}
        for framework in wanted:
            if framework == "elastic":
                cases.append((framework, lambda: check_elastic(frameworks, folder)))
                continue
            module = NEEDS.get(framework, framework.rstrip("0123"))
            if framework not in ("ddp", "fsdp2") and not has(module):
                print(f"{module}: not run: it is not in {VENV}")
                continue
            cases.append((framework, lambda framework=framework: check_losses(frameworks, folder, framework)))
            for fault in FAULTS if framework not in ALIKE else []:
                cases.append((f"{framework}, {FAULTS[fault]}", lambda framework=framework, fault=fault:
                              check_fault(frameworks, folder, framework, fault, seen)))
        failed = run_cases(cases)
        print_table(seen)
        return failed


if __name__ == "__main__":
    os.environ.pop("PYTHONPATH", None)
    sys.exit(main())
