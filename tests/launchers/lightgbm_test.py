#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lightgbm_test.py VENV: examples/lightgbm, built and run as its README says. VENV has lightgbm, numpy and dt."""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from started import Launches, environment, expect, run_cases

VENV = Path(sys.argv[1]).absolute()
HERE = Path(__file__).parent
EXAMPLE = HERE.parent.parent / "examples/lightgbm"
NAMED_WITHIN_S = 5
AUC_WITHIN = 0.002
KILLED = 1
LIMIT_S = 120


class Example:
    """A copy of the example, in which its README's commands make network.so."""

    def __init__(self, launches, folder):
        self.launches, self.folder = launches, Path(folder)
        for name in ("network.cc", "train.py"):
            shutil.copy(EXAMPLE / name, folder)
        self.env = environment(OMP_NUM_THREADS="1")
        self.env["PATH"] = f"{VENV / 'bin'}:{self.env['PATH']}"
        self.dt = str(VENV / "bin/dt")

    def build(self):
        block = re.search(r"```sh\n(.*?)```", (EXAMPLE / "README.md").read_text(), re.S)[1]
        lines = [line for line in block.splitlines() if line.startswith(("package=", "c++ "))]
        expect(len(lines) == 2, f"README.md of the example has no commands to build it\n{block}")
        subprocess.run(["sh", "-e", "-c", "\n".join(lines)], cwd=self.folder, env=self.env, check=True, timeout=LIMIT_S)

    def run(self, ranks, *command, continues=False):
        how = ["--on-failure", "continue"] if continues else []
        code, out, err = self.launches.run([self.dt, "run", "-n", str(ranks), *how, "python3", *map(str, command)],
                                           self.env, cwd=self.folder, limit_s=LIMIT_S)
        expect(code == 0, f"exit code {code}\n{out}{err}")
        return out

    def train(self, ranks, *options, **how):
        """The output, and what it says at the end: trees, ranks, area under the curve."""
        out = self.run(ranks, "train.py", *options, **how)
        last = re.search(r"(\d+) trees, the same on (\d+) ranks; AUC ([\d.]+)", out)
        expect(last is not None, f"no result\n{out}")
        return out, (int(last[1]), int(last[2]), float(last[3]))

    def same_as_sockets(self, ranks, *options):
        out = self.run(ranks, HERE / "lightgbm_rank.py", self.folder / "network.so", 1, "--trees", 30, *options)
        expect(f'"ranks": {ranks}, "rounds": 1' in out, out)


def check_killed(example, ranks, at_tree):
    _, (_, _, undisturbed) = example.train(ranks)
    out, (trees, left, auc) = example.train(ranks, "--kill-rank", KILLED, "--at-tree", at_tree, continues=True)
    expect((trees, left) == (100, ranks - 1), out)
    expect(abs(auc - undisturbed) < AUC_WITHIN, f"AUC {auc}, without a failure {undisturbed}")
    ended = re.search(rf"rank {KILLED} ends before tree {at_tree}, at ([\d.]+)", out)
    named = re.findall(rf"rank (\d), at ([\d.]+): rank {KILLED} \(.* pid \d+\) is gone", out)
    expect(ended is not None and sorted(rank for rank, _ in named) == ["0", "2"], out)
    for rank, at in named:
        expect(float(at) - float(ended[1]) < NAMED_WITHIN_S, f"rank {rank} named the killed one late\n{out}")


def check_last_rank(example):
    """The one that is left goes on without a network."""
    _, result = example.train(2, "--trees", 10, "--rows", 2000, "--kill-rank", 0, "--at-tree", 0, continues=True)
    expect(result[:2] == (10, 1), str(result))


def check_disagreement(example):
    """Ranks whose parameters differ are told before they train."""
    (example.folder / "differ.py").write_text(
        "import os, runpy, sys\n"
        "sys.argv = ['train.py', '--leaves', str(8 + int(os.environ['DT_RANK']))]\n"
        "runpy.run_path('train.py', run_name='__main__')\n", encoding="utf-8")
    code, out, err = example.launches.run([example.dt, "run", "-n", "2", "python3", "differ.py"], example.env,
                                          cwd=example.folder, limit_s=LIMIT_S)
    expect(code != 0 and "parameters" in out + err and "MismatchError" in out + err, f"exit code {code}\n{out}{err}")


def main():
    with tempfile.TemporaryDirectory() as folder, Launches() as launches:
        example = Example(launches, folder)
        example.build()
        quantized = '{"use_quantized_grad": true}'
        return run_cases([
            ("2 ranks, the model as over sockets", lambda: example.same_as_sockets(2)),
            ("3 ranks, the model as over sockets", lambda: example.same_as_sockets(3)),
            ("3 ranks, quantized, the model as over sockets",
             lambda: example.same_as_sockets(3, "--params", quantized)),
            ("a killed rank of three", lambda: check_killed(example, 3, 60)),
            ("a killed rank of two", lambda: check_last_rank(example)),
            ("parameters that differ", lambda: check_disagreement(example)),
        ])


if __name__ == "__main__":
    sys.exit(main())
