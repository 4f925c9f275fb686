#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""framework_test.py VENV [MPI_PREFIX...]: ranks of dt that the launchers of PyTorch's frameworks start, alone and next
to the framework's own process group. VENV has torch, accelerate, deepspeed, lightning and dt; those that it lacks are
named and left out. accelerate also starts its ranks with the mpirun of each prefix."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from free_ports import free_ports
from started import Launches, environment, good_places, run_cases

VENV = Path(sys.argv[1]).absolute()
PREFIXES = [Path(prefix).absolute() for prefix in sys.argv[2:]]
PYTHON = str(VENV / "bin/python3")
RANK = str(Path(__file__).parent / "framework_rank.py")
RANKS = 2
LIMIT_S = 120
# The first start compiles DeepSpeed's operator for the CPU.
BUILD_LIMIT_S = 600


def has(module):
    return subprocess.run([PYTHON, "-I", "-c", f"import {module}"], check=False, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL).returncode == 0


class Frameworks:
    def __init__(self, launches, folder):
        self.launches, self.folder = launches, folder

    def run(self, command, prefix=None, limit_s=LIMIT_S, **variables):
        env = environment(OMP_NUM_THREADS="1", TORCH_EXTENSIONS_DIR=str(VENV / "torch_extensions"), **variables)
        env["PATH"] = ":".join([str(each / "bin") for each in (prefix, VENV) if each] + [env["PATH"]])
        return self.launches.run(command, env, cwd=self.folder, limit_s=limit_s)


def check_torchrun(frameworks, kind):
    command = [VENV / "bin/torchrun", "--nproc_per_node", str(RANKS), "--master_port", str(free_ports(1)[0])]
    command += [RANK, kind]
    good_places(frameworks.run(command), RANKS, "torchrun")


def accelerate_command(*options):
    return [VENV / "bin/accelerate", "launch", *options, "--num_processes", str(RANKS), "--num_machines", "1",
            "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", str(free_ports(1)[0]), RANK]


def check_accelerate(frameworks, kind):
    """Its launcher of several processes on one machine is called so without GPUs as well."""
    command = [*accelerate_command("--multi_gpu"), kind]
    good_places(frameworks.run(command, ACCELERATE_USE_CPU="true"), RANKS, "torchrun")


def check_accelerate_mpi(frameworks, prefix):
    openmpi = (prefix / "bin/ompi_info").exists()
    hosts = Path(frameworks.folder, "hosts")
    hosts.write_text(f"localhost slots={RANKS}\n" if openmpi else f"localhost:{RANKS}\n")
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    # accelerate takes rank and size from MPI's variables, and sets those of env://, which dt then goes by.
    for kind, launcher in (("plain", "openmpi" if openmpi else "hydra"), ("accelerate", "env")):
        command = accelerate_command("--cpu", "--mpirun_hostfile", str(hosts))
        good_places(frameworks.run([*command, kind], prefix=prefix, **allowed), RANKS, launcher)


def check_deepspeed(frameworks, kind):
    command = [VENV / "bin/deepspeed", "--num_gpus", str(RANKS), "--no_local_rank", "--master_port",
               str(free_ports(1)[0]), RANK, kind]
    good_places(frameworks.run(command, limit_s=BUILD_LIMIT_S), RANKS, "env")


def check_lightning(frameworks, kind):
    """Lightning starts the program again for each further rank."""
    good_places(frameworks.run([PYTHON, RANK, kind, str(RANKS)]), RANKS, "lightning")


def main():
    if not has("torch") or not has("dt"):
        print(f"{VENV} has no torch or no dt")
        return 1
    with tempfile.TemporaryDirectory() as folder, Launches() as launches:
        frameworks = Frameworks(launches, folder)
        cases = [("torchrun", lambda: check_torchrun(frameworks, "plain"))]
        if has("accelerate"):
            cases += [("torchrun, accelerate", lambda: check_torchrun(frameworks, "accelerate"))]
            cases += [(f"accelerate launch, {kind}", lambda kind=kind: check_accelerate(frameworks, kind))
                      for kind in ("plain", "accelerate")]
            cases += [(f"accelerate launch with mpirun of {prefix.name}",
                       lambda prefix=prefix: check_accelerate_mpi(frameworks, prefix)) for prefix in PREFIXES]
        if has("deepspeed"):
            cases += [(f"deepspeed, {kind}", lambda kind=kind: check_deepspeed(frameworks, kind))
                      for kind in ("plain", "deepspeed")]
        if has("lightning"):
            cases += [(f"Lightning, {kind}", lambda kind=kind: check_lightning(frameworks, kind))
                      for kind in ("fabric", "trainer")]
        for module in ("accelerate", "deepspeed", "lightning"):
            if not has(module):
                print(f"{module}: not run: it is not in {VENV}")
        return run_cases(cases)


if __name__ == "__main__":
    os.environ.pop("PYTHONPATH", None)
    sys.exit(main())
