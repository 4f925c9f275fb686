#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torchrun_test.py CHECK_PROGRAM TRAINER [TORCHRUN]: programs started by torchrun, static and c10d; by Debian's, or by
that of a virtual environment."""

import os
import re
import sys
import tempfile
from pathlib import Path

from free_ports import free_ports
from started import (TOKEN, Launches, downwards, environment, expect, good_downwards, good_places, need,
                     places, run_cases, skip)
from trained import can_train, check_training, training_command

PROGRAM, TRAINER = (str(Path(argument).resolve()) for argument in sys.argv[1:3])
TORCHRUN = os.path.abspath(sys.argv[3]) if len(sys.argv) > 3 else "/usr/bin/torchrun"
PYTHON = os.path.join(os.path.dirname(TORCHRUN), "python3")


def plain(result):
    """Without the [default0]: that torchrun writes before each line."""
    code, out, err = result
    return code, re.sub(r"^\[\w+\]:", "", out, flags=re.M), err


class Torchrun:
    def __init__(self, launches, folder):
        self.launches, self.folder, self.runs = launches, folder, 0

    def command(self, options, program):
        # torch 1.13 with Python 3.11 fails unless it redirects and tees; its option is --no_python.
        self.runs += 1
        return [TORCHRUN, "--monitor_interval", "0.1", "-r", "1", "-t", "1", "--log_dir", f"{self.folder}/log{self.runs}",
                *options, "--no_python", *program]

    def run(self, options, program, **variables):
        return plain(self.launches.run(self.command(options, program), environment(DT_TOKEN=TOKEN, **variables), limit_s=100))


def static(port, *more):
    return ["--master_addr", "127.0.0.1", "--master_port", str(port), *more]


def check_static(torchrun):
    """Here torchrun listens on MASTER_PORT itself, so it is not bound again."""
    port = free_ports(1)[0]
    found = good_places(torchrun.run(static(port, "--nproc_per_node", "3"), [PROGRAM]), 3, "torchrun")
    expect(all(place["local_size"] == 3 and place["master_port"] != port for place in found), str(found))


def check_local_ranks(torchrun):
    """A wrapper of the program numbers them in another order than the ranks."""
    options = static(free_ports(1)[0], "--nproc_per_node", "3")
    good_downwards(torchrun.run(options, downwards(PROGRAM, "LOCAL_RANK", 3)), 3, "torchrun")


def check_c10d(torchrun):
    options = ["--rdzv_backend", "c10d", "--rdzv_endpoint", f"127.0.0.1:{free_ports(1)[0]}", "--rdzv_id", "check",
               "--nproc_per_node", "2"]
    good_places(torchrun.run(options, [PROGRAM]), 2, "torchrun")


def check_two_agents(torchrun):
    """As on two nodes, each with its torchrun."""
    port = free_ports(1)[0]
    both = " & ".join(" ".join(torchrun.command(static(port, "--nnodes", "2", "--node_rank", str(node),
                                                       "--nproc_per_node", "2"), [PROGRAM])) for node in (1, 0))
    code, out, err = plain(torchrun.launches.run(["sh", "-c", f"{both} && wait $!"], limit_s=100))
    expect(code == 0 and [place["rank"] for place in places(out)] == [0, 1, 2, 3], f"{code}\n{out}{err}")


def check_blame(torchrun):
    """torchrun names the rank that was killed as the root cause, with what dt says of it, and not the first one
    that failed because of it."""
    _, _, err = torchrun.run(static(free_ports(1)[0], "--nproc_per_node", "3"), [PROGRAM, "1"])
    cause = err.partition("Root Cause (first observed failure):")[2].partition("====")[0]
    expect(re.search(r"rank +: 1 \(local_rank: 1\)", cause) and re.search(r"exitcode +: -9", cause), err)
    expect("PEER_LOST" in cause and "rank 1 (" in cause, err)
    others = err.partition("Failures:")[2].partition("Root Cause")[0]
    # A rank that was still ending is not among them: torchrun ended it.
    failures = others.count("exitcode")
    expect(failures <= 2 and others.count("PEER_LOST") == failures == others.count("rank 1 ("), err)


def check_trainer(torchrun):
    command = training_command(TRAINER)
    check_training(torchrun.run(static(free_ports(1)[0], "--nproc_per_node", "2"), command), 2)


def main():
    need([TORCHRUN], "python3-torch")
    with tempfile.TemporaryDirectory() as folder, Launches() as launches:
        if launches.run([PYTHON, "-c", "import torch"], limit_s=100)[0] != 0:
            skip(f"no torch for {PYTHON}: apt-get install python3-torch")
        torchrun = Torchrun(launches, folder)
        cases = [
            ("static", lambda: check_static(torchrun)),
            ("local ranks in another order", lambda: check_local_ranks(torchrun)),
            ("c10d", lambda: check_c10d(torchrun)),
            ("two agents", lambda: check_two_agents(torchrun)),
            ("who is blamed", lambda: check_blame(torchrun)),
        ]
        if can_train(TRAINER):
            cases.append(("the trainer", lambda: check_trainer(torchrun)))
        return run_cases(cases)


if __name__ == "__main__":
    sys.exit(main())
